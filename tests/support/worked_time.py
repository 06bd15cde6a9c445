"""How long a process has worked: its processor time. Other busy processes lengthen real time, and not this."""

from __future__ import annotations

import time

_CPU_CLOCK = 2


def worked_s(pid: int) -> float:
    """The processor time of a process so far, of all its threads. Linux numbers each process's clock by its pid."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
