"""What a daemon's event loop carries: alarms, its lag, and garbage sweeps.

`LoopTimers` rings the daemon's alarms: one timer of the loop, set for the earliest of them.

`LoopLag` measures how late the loop is. A daemon does everything in one thread, so anything that takes long there (a
huge batch, a slow file system, a handler that blocks) holds up every client, and alarms ring late. One is set four
times a second; the time by which it is late is the lag. A stall of a quarter of a second or more is always seen, a
shorter one in proportion to its length. The loop counts in milliseconds and wakes up to two of them late; only more
than that means anything.

`Sweeper` collects cyclic garbage when it is cheap. A broker with a million queued messages holds millions of objects,
none of them in a cycle. Python's collector would look through them again and again, in pauses that grow with the
backlog. So daemons turn it off, avoid cycles that outlive their use, and sweep the youngest objects once a minute as a
safety net, unless there are so many of them that they can only be messages.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers


class LoopTimers:
    """Rings alarms from the event loop. Owned by the daemon; `start` and `stop` are called in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers, clock: Clock) -> None:
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ns = NEVER
        """The time for which `_handle` is set."""

    def start(self) -> None:
        self._timers.on_earlier = self._arm
        self._arm(self._timers.next_due_ns)

    def stop(self) -> None:
        self._timers.on_earlier = None
        self._disarm()

    def _arm(self, due_ns: int) -> None:
        if due_ns >= self._armed_ns:
            return
        self._disarm()
        self._armed_ns = due_ns
        remaining_ns = due_ns - self._clock.monotonic_ns()
        # Up to the next millisecond, which is as fine as the loop counts: a loop that wakes early would spin.
        delay_ms = -(-remaining_ns // NS_PER_MS) if remaining_ns > 0 else 0
        self._handle = self._loop.call_later(delay_ms / 1000, self._ring)

    def _disarm(self) -> None:
        self._armed_ns = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        try:
            self._timers.run_due(self._clock.monotonic_ns())
        finally:
            self._armed_ns = NEVER
            self._arm(self._timers.next_due_ns)


# Lag.

INTERVAL_NS = 250 * NS_PER_MS
RECENT_NS = 30 * NS_PER_SECOND
"""`recent_max_ns` covers the last one to two of these, so a scrape once a minute or more often misses little."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How late the loop was."""

    last_ns: int = 0
    """At the latest measurement."""
    recent_max_ns: int = 0
    """The largest of the last minute or so."""
    max_ns: int = 0
    """The largest since the daemon started."""


class LoopLag:
    """Measures the lag from `start` to `stop`. Owned by the daemon."""

    def __init__(self, *, timers: Timers, clock: Clock) -> None:
        self._clock = clock
        self._alarm = timers.alarm(self._look)
        self._due_ns = 0
        self._last_ns = 0
        self._max_ns = 0
        self._half_max_ns = 0
        """The largest since `_half_began_ns`."""
        self._previous_half_max_ns = 0
        self._half_began_ns = 0

    def start(self) -> None:
        self._half_began_ns = self._clock.monotonic_ns()
        self._wait()

    def stop(self) -> None:
        self._alarm.cancel()

    def read(self) -> Lag:
        """The lags as of the latest measurement."""
        recent_max_ns = max(self._half_max_ns, self._previous_half_max_ns)
        return Lag(last_ns=self._last_ns, recent_max_ns=recent_max_ns, max_ns=self._max_ns)

    def _wait(self) -> None:
        self._due_ns = self._clock.monotonic_ns() + INTERVAL_NS
        self._alarm.set(self._due_ns)

    def _look(self) -> None:
        now_ns = self._clock.monotonic_ns()
        lag_ns = now_ns - self._due_ns
        if now_ns - self._half_began_ns >= RECENT_NS:
            self._previous_half_max_ns = self._half_max_ns
            self._half_max_ns = 0
            self._half_began_ns = now_ns
        self._last_ns = lag_ns
        self._half_max_ns = max(self._half_max_ns, lag_ns)
        self._max_ns = max(self._max_ns, lag_ns)
        self._wait()


# Garbage.

SWEEP_INTERVAL_NS = 60 * NS_PER_SECOND
MAX_SWEPT_OBJECTS = 50_000
"""More would hold up the loop for more than a few milliseconds."""


class Sweeper:
    """Collects the youngest objects once a minute. Owned by the daemon."""

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
