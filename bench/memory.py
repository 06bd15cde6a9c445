"""Memory that is there before the works begin.

A virtual machine gets its memory from its host, page by page, when it is first touched: that may take several times as
long as to touch a page that the host has handed out before. And where the machine reports what is free, the host takes
it back within seconds. A queue that grows is then measured by how fast the host is, and which of two servers pays for
what is chance.

So a benchmark touches first what its works may need, and keeps one page of each half megabyte of it. What it frees lies
between these pages, in parts too small to be reported: those are of a megabyte and more. The system prefers to hand out
such small parts.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

READY_BYTES = 4 << 30
"""More than any work needs, at both servers, the generator and the page cache."""
_AVAILABLE_SHARE = 0.5
"""Of a small machine's memory no more than that."""
_PART_BYTES = 512 << 10
_STEP_BYTES = 64 << 20

_MEMORY_INFO = Path("/proc/meminfo")


def wanted_bytes() -> int:
    """How much to have ready on this machine; none where its system does not tell what it has."""
    if sys.platform != "linux":
        return 0
    for line in _MEMORY_INFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(READY_BYTES, int(int(line.split()[1]) * 1024 * _AVAILABLE_SHARE))
    return 0


@contextmanager
def ready(size_bytes: int, observer: Callable[[float], None]) -> Iterator[None]:
    """Have so much memory ready until the end. `observer` is told which share of it is there."""
    if sys.platform != "linux" or size_bytes < mmap.PAGESIZE:
        yield
        return
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with memory:
        for start in range(0, size_bytes, _STEP_BYTES):
            end = min(start + _STEP_BYTES, size_bytes)
            for page in range(start, end, mmap.PAGESIZE):
                memory[page] = 1
            observer(end / size_bytes)
        for start in range(0, size_bytes - _PART_BYTES + 1, _PART_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, start + mmap.PAGESIZE, _PART_BYTES - mmap.PAGESIZE)
        yield
