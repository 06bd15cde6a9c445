"""Finding an offset or a moment in a segment without reading all of it.

An entry stands for every so many bytes of the segment. It names a batch and says how late the batches before it were
published at the latest:

    offset    the first offset of the batch
    position  where the batch begins in the file
    time      the latest publish time of all batches before it in this segment, BEFORE_ALL_TIME for the first

The clock may go back, so publish times need not ascend, but the latest so far always does. And the first batch at which
"the latest so far" reaches a moment is the first batch that was published at or after it. So both columns can be
searched by halving.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

BEFORE_ALL_TIME = -(1 << 63)


class Place(NamedTuple):
    """Where a batch begins."""

    offset: int
    position: int


class SparseIndex:
    """The entries of one segment. Grows while the segment is written, then stays as it is."""

    __slots__ = ("_interval_bytes", "latest_ns", "offsets", "positions", "times")

    def __init__(self, *, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.latest_ns = BEFORE_ALL_TIME
        """The latest publish time in the segment."""

    def add(self, *, offset: int, position: int, timestamp_ns: int) -> None:
        """A batch was appended to the segment, or found in it."""
        if not self.positions or position - self.positions[-1] >= self._interval_bytes:
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(self.latest_ns)
        if timestamp_ns > self.latest_ns:
            self.latest_ns = timestamp_ns

    def before_offset(self, offset: int) -> Place | None:
        """The last entry whose batch begins at or before `offset`; None: search from the start of the segment."""
        return self._place(bisect_right(self.offsets, offset) - 1)

    def before_position(self, position: int) -> Place | None:
        """The last entry at or before `position`."""
        return self._place(bisect_right(self.positions, position) - 1)

    def before_time(self, time_ns: int) -> Place | None:
        """The last entry before which nothing was published at or after `time_ns`."""
        return self._place(bisect_left(self.times, time_ns) - 1)

    def _place(self, entry: int) -> Place | None:
        return Place(self.offsets[entry], self.positions[entry]) if entry >= 0 else None
