"""What is shown of each channel; sorting and filtering.

A topic has a row of its own only when it has something to say that its channels do not: it has none, it holds messages
that no channel has taken, or it is paused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from emberq.cluster.survey import Survey, Total


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A channel over the whole cluster, or a topic that has a row of its own."""

    topic: str
    channel: str
    """Empty for a topic."""
    total: Total

    @property
    def came_per_s(self) -> float | None:
        """None until there are two looks to compare."""
        return None if self.total.rates is None else self.total.rates.came

    @property
    def left_per_s(self) -> float | None:
        """Likewise."""
        return None if self.total.rates is None else self.total.rates.left


class SortKey(enum.Enum):
    """What rows can be sorted by: the word for flags, and the key to press."""

    NAME = ("name", "n")
    DEPTH = ("depth", "d")
    IN_FLIGHT = ("in-flight", "f")
    DEFERRED = ("deferred", "e")
    CAME = ("in", "i")
    LEFT = ("out", "o")
    CLIENTS = ("clients", "c")

    def __init__(self, word: str, key: str) -> None:
        self.word = word
        self.key = key

    def figure(self, row: Row) -> float:
        """What `row` is sorted by; the name is what settles a draw."""
        match self:
            case SortKey.NAME:
                return 0
            case SortKey.DEPTH:
                return row.total.depth
            case SortKey.IN_FLIGHT:
                return row.total.in_flight_count
            case SortKey.DEFERRED:
                return row.total.deferred_count
            case SortKey.CAME:
                return row.came_per_s or 0
            case SortKey.LEFT:
                return row.left_per_s or 0
            case SortKey.CLIENTS:
                return row.total.client_count


def rows_of(seen: Survey) -> Iterator[Row]:
    """A row for each channel, and for the topics that need one."""
    for topic, total, channels in seen.topic_totals():
        if total.depth or total.paused or not channels:
            yield Row(topic=topic, channel="", total=total)
        for channel, total_of_channel in channels:
            yield Row(topic=topic, channel=channel, total=total_of_channel)


def arranged(rows: Iterable[Row], *, sort: SortKey, is_reversed: bool, pattern: str) -> list[Row]:
    """The rows that match, the largest figure first (names: from A to Z), or the other way round."""
    matching = sorted((row for row in rows if _matches(row, pattern)), key=lambda row: (row.topic, row.channel))
    if sort is SortKey.NAME:
        return matching[::-1] if is_reversed else matching
    return sorted(matching, key=sort.figure, reverse=not is_reversed)


def _matches(row: Row, pattern: str) -> bool:
    """Whether the name of topic or channel has the text in it; with `*`, `?` or `[` it is a pattern for all of it."""
    if not pattern:
        return True
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    return fnmatchcase(row.topic.lower(), wanted) or fnmatchcase(row.channel.lower(), wanted)
