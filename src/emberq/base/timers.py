"""One heap of due times for everything that waits.

Heartbeats, deadlines, message timeouts, deferred messages and disk syncs all wait here, so the daemon needs a single
timer of the event loop, and idle connections cost nothing between their due times. The heap is plain data: its owner
asks `next_due_ns`, sleeps, and calls `run_due`.

A deadline that moves with every message must not touch the heap for every message. So an `Alarm` is lazy: moving it
later only changes a number; when its old heap entry comes up too early, it goes back in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

NEVER: Final = 1 << 62
"""A due time that does not come: about 146 years of nanoseconds."""
_NO_ENTRY: Final = -1
_MIN_STALE: Final = 64
"""Fewer stale entries are not worth a clean-up."""


class Alarm:
    """A callback with a due time that may be moved at little cost.

    Owner: the object whose callback it is. `due_ns` is when it should ring. The heap holds at most one valid entry for
    it, the one numbered `_entry`, which never comes up later than `due_ns`.
    """

    __slots__ = ("_entry", "_entry_ns", "_ring", "_timers", "due_ns")

    def __init__(self, timers: Timers, ring: Callable[[], None]) -> None:
        self._timers = timers
        self._ring = ring
        self._entry = _NO_ENTRY
        self._entry_ns = NEVER
        self.due_ns = NEVER

    def set(self, due_ns: int) -> None:
        """Ring at `due_ns`, and not when it was due before."""
        self.due_ns = due_ns
        if due_ns < self._entry_ns:
            had_entry = self._entry != _NO_ENTRY
            self._entry_ns = due_ns
            self._entry = self._timers.push(due_ns, self, replaces=had_entry)

    def set_earlier(self, due_ns: int) -> None:
        """Ring at `due_ns` unless it is due before that anyway."""
        if due_ns < self.due_ns:
            self.set(due_ns)

    def cancel(self) -> None:
        """Do not ring until set again."""
        self.due_ns = NEVER

    def discard(self) -> None:
        """Never ring again, and let go of the callback, so that its owner is freed at once."""
        self.due_ns = NEVER
        self._ring = _do_nothing
        if self._entry != _NO_ENTRY:
            self._entry = _NO_ENTRY
            self._entry_ns = NEVER
            self._timers.entry_is_stale()

    def owns(self, entry: int) -> bool:
        """Whether this heap entry is the valid one."""
        return entry == self._entry

    def came_up(self, now_ns: int) -> None:
        """The valid heap entry was reached: ring, or wait for the time the alarm was moved to."""
        self._entry = _NO_ENTRY
        self._entry_ns = NEVER
        if self.due_ns <= now_ns:
            self.due_ns = NEVER
            self._ring()
        elif self.due_ns != NEVER:
            self.set(self.due_ns)


def _do_nothing() -> None:
    """What a discarded alarm would ring."""


class Timers:
    """The heap of alarms. Owned by the daemon's loop; used from its thread alone."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = count()
        self._stale_count = 0
        """Entries in the heap that their alarms have replaced by earlier ones, or discarded."""
        self.on_earlier: Callable[[int], None] | None = None
        """Told when the next due time moved nearer, so that the owner can shorten its sleep."""

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """A new alarm that calls `ring`."""
        return Alarm(self, ring)

    def push(self, due_ns: int, alarm: Alarm, *, replaces: bool) -> int:
        """Add a heap entry and return its number; for `Alarm` alone."""
        if replaces:
            self.entry_is_stale()
        number = next(self._numbers)
        heapq.heappush(self._heap, (due_ns, number, alarm))
        if self._heap[0][1] == number and self.on_earlier is not None:
            self.on_earlier(due_ns)
        return number

    def entry_is_stale(self) -> None:
        """An alarm does not need its entry any more; for `Alarm` alone. Keeps the heap within twice what is needed."""
        self._stale_count += 1
        if self._stale_count > _MIN_STALE and self._stale_count * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].owns(entry[1])]
            heapq.heapify(self._heap)
            self._stale_count = 0

    @property
    def next_due_ns(self) -> int:
        """When `run_due` should be called next; NEVER when nothing waits."""
        return self._heap[0][0] if self._heap else NEVER

    def run_due(self, now_ns: int) -> None:
        """Ring every alarm that is due. Alarms set meanwhile for a time already past wait for the next call.

        What an alarm raises is raised here when all have rung: one that fails does not silence the others.
        """
        heap = self._heap
        due: list[tuple[int, Alarm]] = []
        while heap and heap[0][0] <= now_ns:
            _, number, alarm = heapq.heappop(heap)
            due.append((number, alarm))
        failures: list[Exception] = []
        for number, alarm in due:
            if not alarm.owns(number):
                self._stale_count -= 1
                continue
            try:
                alarm.came_up(now_ns)
            except Exception as failure:  # noqa: BLE001 - raised below
                failures.append(failure)
        if failures:
            raise ExceptionGroup("alarms failed", failures)
