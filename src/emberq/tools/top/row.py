"""What is shown of each channel; sorting and filtering.

A topic has a row of its own only when it has something to say that its channels do not: it has none, it holds messages
that no channel has taken, or it is paused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from emberq.cluster.stats import ChannelStats, TopicStats
from emberq.tools.top.rate import Name, Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A channel over the whole cluster, or a topic that has a row of its own."""

    topic: str
    channel: str
    """Empty for a topic."""
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    client_count: int
    node_count: int
    paused: bool
    came_per_s: float | None
    """None until there are two looks to compare."""
    left_per_s: float | None


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
                return row.depth
            case SortKey.IN_FLIGHT:
                return row.in_flight_count
            case SortKey.DEFERRED:
                return row.deferred_count
            case SortKey.CAME:
                return row.came_per_s or 0
            case SortKey.LEFT:
                return row.left_per_s or 0
            case SortKey.CLIENTS:
                return row.client_count


def rows_of(topics: Iterable[TopicStats], rates: Mapping[Name, Rates]) -> Iterator[Row]:
    """A row for each channel, and for the topics that need one."""
    for topic in topics:
        if topic.depth or topic.paused or not topic.channels:
            yield _topic_row(topic, rates.get((topic.topic_name, "")))
        for channel in topic.channels:
            yield _channel_row(channel, rates.get((topic.topic_name, channel.channel_name)))


def _topic_row(topic: TopicStats, rates: Rates | None) -> Row:
    return Row(
        topic=topic.topic_name,
        channel="",
        depth=topic.depth,
        backend_depth=topic.backend_depth,
        in_flight_count=0,
        deferred_count=0,
        requeue_count=0,
        timeout_count=0,
        message_count=topic.message_count,
        client_count=0,
        node_count=len(topic.nodes or ()),
        paused=topic.paused,
        came_per_s=None if rates is None else rates.came,
        left_per_s=None if rates is None else rates.left,
    )


def _channel_row(channel: ChannelStats, rates: Rates | None) -> Row:
    return Row(
        topic=channel.topic_name,
        channel=channel.channel_name,
        depth=channel.depth,
        backend_depth=channel.backend_depth,
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.deferred_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        message_count=channel.message_count,
        client_count=channel.client_count,
        node_count=1 if channel.nodes is None else len(channel.nodes),
        paused=channel.paused,
        came_per_s=None if rates is None else rates.came,
        left_per_s=None if rates is None else rates.left,
    )


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
