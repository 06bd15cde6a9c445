"""Which lines of code allocate memory.

Python can note for every block of memory the line that asked for it, but that makes everything slower. So it is turned
on for a few seconds when somebody asks, and the answer tells what was allocated in that time and is still in use. That
finds what grows. A daemon under full load allocates a lot in a second; the recording ends early before it becomes large
itself, because looking through it holds up everybody.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator

from emberq.base.resident import read_resident

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""What the notes may take: some hundred thousand blocks, which take some tenths of a second to look through."""
CHECK_INTERVAL_S = 0.05
TOP_COUNT = 50
"""Lines shown."""


async def record_allocations(duration_s: float) -> str:
    """Record for so long, or until there is enough; a report."""
    was_on = tracemalloc.is_tracing()  # by PYTHONTRACEMALLOC: then it is not for us to turn it off
    tracemalloc.start()
    try:
        recorded_s = await _wait_for_enough(duration_s)
        snapshot = tracemalloc.take_snapshot()
    finally:
        if not was_on:
            tracemalloc.stop()
    return await asyncio.to_thread(lambda: "".join(_describe(snapshot, recorded_s)))


async def _wait_for_enough(duration_s: float) -> float:
    """Wait; returns for how long."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    ends_s = began_s + duration_s
    while loop.time() < ends_s and tracemalloc.get_tracemalloc_memory() < MAX_RECORD_BYTES:
        await asyncio.sleep(min(ends_s - loop.time(), CHECK_INTERVAL_S))
    return loop.time() - began_s


def _describe(snapshot: tracemalloc.Snapshot, recorded_s: float) -> Iterator[str]:
    own_code = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    lines = snapshot.filter_traces([own_code]).statistics("lineno")
    resident = read_resident()
    yield f"resident memory {resident.all_bytes} bytes, at its peak {resident.peak_bytes}\n"
    yield f"allocated within {recorded_s:.1f} s and still in use:\n\n"
    yield f"{'bytes':>12} {'blocks':>10}  line\n"
    for line in lines[:TOP_COUNT]:
        frame = line.traceback[0]
        yield f"{line.size:>12} {line.count:>10}  {frame.filename}:{frame.lineno}\n"
    others = lines[TOP_COUNT:]
    other_bytes, other_blocks = sum(line.size for line in others), sum(line.count for line in others)
    yield f"{other_bytes:>12} {other_blocks:>10}  {len(others)} other lines\n"
