"""How late the event loop is.

A daemon does everything in one thread, so whatever takes long there (a huge batch, a slow file system, a handler that
blocks) holds up every client. It shows in an alarm that rings late: one is set four times a second, and what it comes
too late is the lag. A stall of a quarter of a second or more is always seen, a shorter one in proportion to its
length, and between two looks nothing is done.

The loop counts in milliseconds and is woken up to two of them late; only more than that means anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers

INTERVAL_NS = 250 * NS_PER_MS
RECENT_NS = 30 * NS_PER_SECOND
"""`recent_max_ns` covers the last one to two of these: whoever asks once a minute or more often misses little."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Lags, in nanoseconds."""

    last_ns: int = 0
    """At the latest look."""
    recent_max_ns: int = 0
    """The largest of the last minute or so."""
    max_ns: int = 0
    """The largest since the daemon started."""


class LoopLag:
    """Measures from `start` to `stop`. Owned by the daemon."""

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
        """The lags as of the latest look."""
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
