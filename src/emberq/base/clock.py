"""Time as a parameter.

Two kinds of time are never mixed: `wall_ns` goes into messages and files (nanoseconds since the Unix epoch; it may
jump), `monotonic_ns` measures deadlines (it never goes back). Code that needs time takes a `Clock`; tests pass a
`ManualClock` and move it.
"""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    """The two kinds of time."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never decreases."""
        ...


class SystemClock:
    """The clock of the machine."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, *, wall_ns: int = 1_700_000_000 * NS_PER_SECOND, monotonic_ns: int = NS_PER_SECOND) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, *, ms: float = 0, seconds: float = 0) -> None:
        """Move both kinds of time forward."""
        step_ns = round(ms * NS_PER_MS + seconds * NS_PER_SECOND)
        if step_ns < 0:
            raise ValueError("time moves forward; use set_wall for a clock that jumps")
        self._wall_ns += step_ns
        self._monotonic_ns += step_ns

    def set_wall(self, wall_ns: int) -> None:
        """Let the wall clock jump, as an administrator or a bad time server would."""
        self._wall_ns = wall_ns
