"""What nsqd knows of its memory, under the names that /stats and statsd have for it.

The names speak of Go's heap. Each is given the nearest thing that Python can say:

    heap_objects          blocks of memory that Python objects and their buffers occupy
    heap_in_use_bytes     resident memory that is the process's own (not files mapped or shared libraries)
    heap_released_bytes   how far resident memory is below its peak, that is, given back to the system
    heap_idle_bytes       the same: what the allocator holds and does not use, Python does not tell
    gc_pause_usec_*       the longest, and the 99th and 95th percentile, of the last 256 runs of the cyclic collector
    next_gc_bytes         0: no run is due at a certain size
    gc_total_runs         runs of the cyclic collector
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from emberq.base.resident import read_resident

KEPT_PAUSES = 256
"""As many as the reference keeps."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The fields are the keys of `memory` in /stats, in their order; statsd calls the last one `gc_runs`."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


class Memory:
    """Watches the collector from `start` to `stop`, and answers at any time. Owned by the daemon."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=KEPT_PAUSES)
        self._run_began_ns = 0

    def start(self) -> None:
        gc.callbacks.append(self._on_collector)

    def stop(self) -> None:
        if self._on_collector in gc.callbacks:
            gc.callbacks.remove(self._on_collector)

    def _on_collector(self, phase: str, _info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._run_began_ns = now_ns
        else:
            self._pauses_ns.append(now_ns - self._run_began_ns)

    def stats(self) -> MemoryStats:
        """The state of the process now."""
        resident = read_resident()
        released_bytes = max(0, resident.peak_bytes - resident.all_bytes)
        pauses_ns = sorted(self._pauses_ns)
        return MemoryStats(
            heap_objects=sys.getallocatedblocks(),
            heap_idle_bytes=released_bytes,
            heap_in_use_bytes=resident.own_bytes,
            heap_released_bytes=released_bytes,
            gc_pause_usec_100=pause_usec(pauses_ns, percentile=100),
            gc_pause_usec_99=pause_usec(pauses_ns, percentile=99),
            gc_pause_usec_95=pause_usec(pauses_ns, percentile=95),
            gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
        )


def pause_usec(sorted_pauses_ns: Sequence[int], *, percentile: int) -> int:
    """That percentile of the pauses, by the reference's rule for which of them it is."""
    count = len(sorted_pauses_ns)
    if not count:
        return 0
    index = int(percentile / 100 * count + 0.5)
    return sorted_pauses_ns[min(index, count - 1)] // 1000
