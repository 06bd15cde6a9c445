"""A set of offsets, kept as ranges: what is acknowledged nearly in order is a few numbers, however much it is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence


class OffsetSet:
    """Ranges in order, with a gap between any two: starts[0] < stops[0] < starts[1] < stops[1] < ..."""

    __slots__ = ("count", "starts", "stops")

    def __init__(self, starts: Sequence[int] = (), stops: Sequence[int] = ()) -> None:
        self.starts = list(starts)
        self.stops = list(stops)
        self.count = sum(stops) - sum(starts)
        """How many offsets are in the set."""

    def __contains__(self, offset: int) -> bool:
        following = bisect_right(self.starts, offset)
        return following > 0 and offset < self.stops[following - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, stop)."""
        return zip(self.starts, self.stops, strict=True)

    def add(self, start: int, stop: int) -> int:
        """Put the offsets from `start` up to `stop` in; return how many of them are new."""
        if start >= stop:
            return 0
        first = bisect_left(self.stops, start)  # the first range that reaches the new one, or touches it
        last = bisect_right(self.starts, stop)  # the first range that begins behind it
        before = self.count
        if first < last:
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
            self.count -= sum(self.stops[first:last]) - sum(self.starts[first:last])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]
        self.count += stop - start
        return self.count - before

    def remove_before(self, offset: int) -> None:
        """Take out everything before `offset`."""
        gone = bisect_right(self.stops, offset)
        self.count -= sum(self.stops[:gone]) - sum(self.starts[:gone])
        del self.starts[:gone], self.stops[:gone]
        if self.starts and self.starts[0] < offset:
            self.count -= offset - self.starts[0]
            self.starts[0] = offset

    def remove_from(self, offset: int) -> None:
        """Take out `offset` and everything behind it."""
        kept = bisect_left(self.starts, offset)
        self.count -= sum(self.stops[kept:]) - sum(self.starts[kept:])
        del self.starts[kept:], self.stops[kept:]
        if self.stops and self.stops[-1] > offset:
            self.count -= self.stops[-1] - offset
            self.stops[-1] = offset

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of offsets from `start` up to `stop` that are not in the set."""
        entry = bisect_right(self.stops, start)
        while start < stop:
            if entry == len(self.starts) or self.starts[entry] >= stop:
                yield start, stop
                return
            if start < self.starts[entry]:
                yield start, self.starts[entry]
            start = self.stops[entry]
            entry += 1
