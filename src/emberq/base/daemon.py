"""What a daemon's event loop carries: alarms, its lag, and garbage sweeps.

`LoopTimers` rings the daemon's alarms: one timer of the loop, set for the earliest of them. When the loop was held, or
the whole process was stopped, it lets the loop read first: what clients sent meanwhile has arrived in time.

`LoopLag` measures how late the loop is. A daemon does everything in one thread, so anything that takes long there (a
huge batch, a slow file system, a handler that blocks) holds up every client, and alarms ring late. One is set four
times a second; the time by which it is late is the lag. A stall of a quarter of a second or more is always seen, a
shorter one in proportion to its length. The loop counts in milliseconds and wakes up to two of them late; only more
than that means anything.

`Sweeper` and `tame_collector` free cyclic garbage without long pauses. A broker with a million queued messages may
hold millions of objects, none of them in a cycle. Python's collector would look through all of them again and again, in
pauses that grow with the backlog. So daemons avoid cycles that outlive their use, and have these nets below them:

- Young objects are looked at twice, a few thousand at a time, by Python's own collector. What dies young in a cycle
  goes there, however much else there is.
- What dies old needs a look at everything. While that takes no more than some milliseconds it is done every minute.
  Beyond, it may take a ten-thousandth of the time (a pause of 0.1 s every 17 minutes), or else it is done when memory
  has doubled since the last time: so cycles never hold more than everything else does.

Every minute, what the C library has kept of freed memory goes back to the system, a little at a time (see `memory`): it
may be the room of a queue of gigabytes. With the old garbage goes what is left of it in small parts, at once. After two
hundred connections with deflate that is 60 MB, because each of their buffers lay between others.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

from emberq.base import memory
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers

LATE_NS = 100 * NS_PER_MS
"""An alarm that rings later than this shows that the loop was held."""
READING_S = 0.001
"""How long the loop then reads before alarms ring: once from every connection."""


class LoopTimers:
    """Rings alarms from the event loop. Owned by the daemon; `start` and `stop` are called in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timers: Timers, clock: Clock) -> None:
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._handle: asyncio.Handle | None = None
        self._armed_ns = NEVER
        """The time for which `_handle` is set."""
        self._is_reading_first = False
        self._in_timer = False

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
        if delay_ms:
            self._handle = self._loop.call_later(delay_ms / 1000, self._ring_by_timer)
        elif self._in_timer:
            # The loop does not look at its sockets between its timers and what is to be called soon.
            self._handle = self._loop.call_soon(self._ring_soon)
        else:
            self._ring_soon()

    def _disarm(self) -> None:
        self._armed_ns = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring_by_timer(self) -> None:
        self._in_timer = True
        try:
            self._ring()
        finally:
            self._in_timer = False

    def _ring_soon(self) -> None:
        self._handle = self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._armed_ns > LATE_NS and not self._is_reading_first:
            # Deadlines are judged by what was read, and the loop runs its timers before it reads.
            self._is_reading_first = True
            self._handle = self._loop.call_later(READING_S, self._ring_by_timer)
            return
        self._is_reading_first = False
        self._handle = None
        try:
            self._timers.run_due(now_ns)
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

YOUNG_OBJECTS = 5_000
"""New objects after which the collector looks at them: half a millisecond of work."""
YOUNG_SWEEPS = 5
"""Sweeps of new objects after which their survivors are looked at once more: a few milliseconds of work."""
NEVER_BY_ITSELF = 1 << 30

SWEEP_INTERVAL_NS = 60 * NS_PER_SECOND
TURN_INTERVAL_NS = 5 * NS_PER_MS
"""Between two turns of giving memory back."""
MAX_PAUSE_NS = 10 * NS_PER_MS
"""A full sweep that takes no longer may come every time."""
MAX_SHARE = 10_000
"""A longer one may take one part in so many of the time."""
MAX_GROWTH = 2
"""It comes at once when there is so many times as much in memory as after the last one."""


def tame_collector() -> None:
    """Let Python's collector look at young objects only, in small portions; see `Sweeper` for the others."""
    gc.collect()
    gc.freeze()  # modules and classes stay for good: the collector need not look through them again
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_SWEEPS, NEVER_BY_ITSELF)


class Sweeper:
    """Does full sweeps, when they are cheap or needed. Owned by the daemon.

    How long a sweep will take is told by the last one, in proportion to the blocks of memory in use.
    """

    def __init__(
        self, *, timers: Timers, clock: Clock, blocks_in_use: Callable[[], int] = sys.getallocatedblocks
    ) -> None:
        self._clock = clock
        self._blocks_in_use = blocks_in_use
        self._alarm = timers.alarm(self._look)
        self._giving_back = memory.GivingBack()
        self._next_turn = timers.alarm(self._give_back)
        self._is_sweeping = False
        """Whether what is left in small parts is to go back, too."""
        self._swept_ns = 0
        """When the last full sweep ended."""
        self._pause_ns = 0
        """How long it took."""
        self._blocks = 1
        """The blocks of memory in use after it."""

    def start(self) -> None:
        self._giving_back.start()
        self._swept_ns = self._clock.monotonic_ns()
        self._blocks = self._blocks_in_use()
        self._wait()

    def stop(self) -> None:
        self._alarm.cancel()
        self._next_turn.cancel()
        self._giving_back.stop()

    def _wait(self) -> None:
        self._alarm.set(self._clock.monotonic_ns() + SWEEP_INTERVAL_NS)

    def _look(self) -> None:
        self._is_sweeping = self._is_affordable(self._blocks_in_use())
        if self._is_sweeping:
            self._collect()
        self._give_back()
        self._wait()

    def _is_affordable(self, blocks: int) -> bool:
        pause_ns = self._pause_ns * blocks // self._blocks
        passed_ns = self._clock.monotonic_ns() - self._swept_ns
        return pause_ns <= MAX_PAUSE_NS or pause_ns * MAX_SHARE <= passed_ns or blocks >= self._blocks * MAX_GROWTH

    def _collect(self) -> None:
        began_ns = self._clock.monotonic_ns()
        gc.collect()
        self._swept_ns = self._clock.monotonic_ns()
        self._pause_ns = self._swept_ns - began_ns
        self._blocks = max(1, self._blocks_in_use())

    def _give_back(self) -> None:
        """Give some memory back, and more in a later turn of the loop."""
        began_ns = self._clock.monotonic_ns()
        if self._giving_back.step():
            self._next_turn.set(began_ns + TURN_INTERVAL_NS)
        elif self._is_sweeping:
            memory.give_back()
            self._pause_ns += self._clock.monotonic_ns() - began_ns
