"""Cyclic garbage, swept when it is cheap.

A broker with a million queued messages holds millions of objects, none of them in a cycle. Python's collector would
look through them again and again, in pauses that grow with the backlog. So daemons turn it off, take care not to make
cycles that outlive their use, and sweep the youngest objects now and then as a safety net, unless there are so many of
them that they can only be messages.
"""

from __future__ import annotations

import gc

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers

SWEEP_INTERVAL_NS = 60 * NS_PER_SECOND
MAX_SWEPT_OBJECTS = 50_000
"""More would hold up the loop for more than a few milliseconds."""


class Sweeper:
    """Sweeps once a minute. Owned by a daemon."""

    def __init__(self, *, timers: Timers, clock: Clock) -> None:
        self._clock = clock
        self._alarm = timers.alarm(self._sweep)

    def start(self) -> None:
        self._alarm.set(self._clock.monotonic_ns() + SWEEP_INTERVAL_NS)

    def stop(self) -> None:
        self._alarm.cancel()

    def _sweep(self) -> None:
        if gc.get_count()[0] <= MAX_SWEPT_OBJECTS:
            gc.collect(0)
        self.start()
