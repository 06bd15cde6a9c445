"""Deciding what a batch reads: from positions and what journals hold to the ranges that tasks read. No I/O.

- A stream never forgets a position: an nsqd that is away, or a topic that was deleted, keeps its own.
- A journal that is new to a stream enters with the position of its first message and no rows; they are read from the
  next batch on. So a batch always is the difference of two positions, and gives the same rows whenever it is planned.
- A journal is known by its uuid. Where the uuid has changed, a topic was deleted and made again: what was not read of
  the old one is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from emberq.spark.journal_offset import Place, Position, Positions
from emberq.spark.journal_survey import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Consecutive messages of a journal: from `start` to before `end`."""

    place: Place
    journal: str
    start: int
    end: int

    @property
    def row_count(self) -> int:
        """How many offsets it spans."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Step:
    """How far a stream can go now, and what it would cost."""

    end: Positions
    losses: list[str]
    """What cannot be read any more of what lies between; each a sentence."""


def next_step(start: Positions, journals: Mapping[Place, Journal], *, max_rows: int | None) -> Step:
    """Where the next batch that begins at `start` ends."""
    found_at = {journal.uuid: place for place, journal in journals.items()}
    offsets = {position.journal: position.offset for position in start.values()}
    # Without those that have moved: they stand where they are now.
    end = {place: position for place, position in start.items() if found_at.get(position.journal, place) == place}
    losses: list[str] = []
    waiting: dict[Place, int] = {}
    for place, journal in journals.items():
        offset = offsets.get(journal.uuid)
        if offset is None:
            if place in end:
                losses.append(f"{place} was deleted and made again since this query read it")
            end[place] = Position(journal.uuid, journal.first_offset)
            continue
        if offset < journal.first_offset:
            losses.append(
                f"{place}: the messages from offset {offset} to {journal.first_offset - 1} were removed by retention "
                "before they were read"
            )
        elif offset > journal.end_offset:
            losses.append(f"{place} ends at offset {journal.end_offset}, but this query had read up to {offset}")
        end[place] = Position(journal.uuid, min(offset, journal.end_offset))
        if offset < journal.end_offset:
            waiting[place] = journal.end_offset - offset
    for place, rows in shared_out(waiting, max_rows).items():
        end[place] = replace(end[place], offset=end[place].offset + rows)
    return Step(end, losses)


def shared_out(waiting: Mapping[Place, int], max_rows: int | None) -> dict[Place, int]:
    """How many rows each place may give when all together give `max_rows` at most: in proportion to what waits."""
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return dict(waiting)
    shares = {place: rows * max_rows // total for place, rows in waiting.items()}
    left = max_rows - sum(shares.values())
    for place in sorted(shares, key=lambda each: shares[each] - waiting[each])[:left]:
        shares[place] += 1  # of what rounding left over, one to each of those that wait for most
    return shares


def ranges_between(start: Positions, end: Positions) -> list[Range]:
    """What lies between two positions. A journal that `start` does not know has just entered, and gives nothing."""
    offsets = {position.journal: position.offset for position in start.values()}
    return [
        Range(place=place, journal=position.journal, start=offsets[position.journal], end=position.offset)
        for place, position in sorted(end.items())
        if offsets.get(position.journal, position.offset) < position.offset
    ]


def split(ranges: list[Range], *, rows_per_partition: int, min_partitions: int) -> list[Range]:
    """The same messages in ranges of at most so many rows, and in at least so many ranges if there are enough rows."""
    total = sum(each.row_count for each in ranges)
    rows_at_most = max(min(rows_per_partition, total // min_partitions), 1)
    return [piece for each in ranges for piece in _pieces(each, rows_at_most)]


def _pieces(whole: Range, rows_at_most: int) -> list[Range]:
    count = -(-whole.row_count // rows_at_most)
    cuts = [whole.start + whole.row_count * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(cuts)]
