"""One heap of due times for everything that waits.

Heartbeats, deadlines, message timeouts, deferred messages and disk syncs all wait here, so the daemon needs a
single timer of the event loop and idle connections cost nothing between their due times. The heap is plain
data: whoever owns it asks `next_due_ns`, sleeps, and calls `run_due`.

A deadline that moves with every message must not touch the heap for every message. So an `Alarm` is lazy: moving
it later only changes a number; the stale heap entry comes up, sees that it came too early and goes back in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

NEVER = 1 << 62
"""A due time that does not come: about 146 years of nanoseconds."""


class Alarm:
    """A callback with a due time that may be moved as often as one likes.

    Owner: the object whose callback it is. `due_ns` is when it should ring; `_queued_ns` is the earliest entry the
    heap holds for it (NEVER: none). Invariant: `_queued_ns <= due_ns` or the heap holds no entry for it.
    """

    __slots__ = ("_queued_ns", "_ring", "_timers", "due_ns")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._queued_ns = NEVER
        self.due_ns = NEVER

    def set(self, due_ns: int) -> None:
        """Ring at `due_ns` instead of whenever it was due before."""
        self.due_ns = due_ns
        if due_ns < self._queued_ns:
            self._queued_ns = due_ns
            self._timers.push(due_ns, self)

    def set_earlier(self, due_ns: int) -> None:
        """Ring at `due_ns` unless it is due before that anyway."""
        if due_ns < self.due_ns:
            self.set(due_ns)

    def cancel(self) -> None:
        """Do not ring until set again."""
        self.due_ns = NEVER

    def came_up(self, queued_ns: int, now_ns: int) -> None:
        """The heap reached the entry made for `queued_ns`: ring, or wait for the time it was moved to."""
        if queued_ns != self._queued_ns:
            return  # an earlier entry took this one's place
        self._queued_ns = NEVER
        if self.due_ns <= now_ns:
            self.due_ns = NEVER
            self._ring()
        elif self.due_ns != NEVER:
            self.set(self.due_ns)


class Timers:
    """The heap. Owned by the daemon's loop; not thread-safe, and it need not be."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._sequence = count()
        self.on_earlier: Callable[[int], None] | None = None
        """Told when the next due time moved nearer, so that the owner can shorten its sleep."""

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """A new alarm that calls `ring`."""
        return Alarm(self, ring)

    def push(self, due_ns: int, alarm: Alarm) -> None:
        """Add a heap entry; for `Alarm` alone."""
        heap = self._heap
        heapq.heappush(heap, (due_ns, next(self._sequence), alarm))
        if heap[0][2] is alarm and self.on_earlier is not None:
            self.on_earlier(due_ns)

    @property
    def next_due_ns(self) -> int:
        """When `run_due` should be called next; NEVER when nothing waits."""
        return self._heap[0][0] if self._heap else NEVER

    def run_due(self, now_ns: int) -> None:
        """Ring every alarm that is due. Alarms set meanwhile for a time already past wait for the next call."""
        heap = self._heap
        due: list[tuple[int, int, Alarm]] = []
        while heap and heap[0][0] <= now_ns:
            due.append(heapq.heappop(heap))
        for due_ns, _, alarm in due:
            alarm.came_up(due_ns, now_ns)
