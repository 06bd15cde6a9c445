"""Free space of the data folder: noticing that the disk fills up before it is full.

A full disk hurts more than a refusal: half-written batches, metadata that cannot be saved, a clean stop that cannot
write what is in memory. So nsqd stops taking messages while `--min-free-bytes` are still there for all of that, says
so in /ping, and takes messages again by itself when there is room. What it has it goes on delivering, which is what
makes room. Every publish is refused, also one that would have stayed in memory: whether a message will need the disk is
decided later, by consumers and by the next stop.

    free space    mark + a quarter     ok again: a queue that hovers at the mark must not flap
                  mark                 refuse
                  0                    where we never want to be

How often to look follows from the distance: in the time until the next look even a fast disk, written to at full
speed, cannot be filled from where it stands now to the mark. Far away that is once a second, and near the mark a
hundred times, so that no more than 10 ms of writing can get below it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers

FASTEST_DISK_BYTES_PER_SECOND = 1_000_000_000
"""Nothing of ours writes faster than this."""
MIN_INTERVAL_NS = 10 * NS_PER_MS
MAX_INTERVAL_NS = NS_PER_SECOND

_log = logging.getLogger(__name__)


class FileSystemFacts(Protocol):
    """What we need of the answer of `os.statvfs`."""

    @property
    def f_frsize(self) -> int: ...

    @property
    def f_bavail(self) -> int: ...

    @property
    def f_blocks(self) -> int: ...


StatVfs = Callable[[Path], FileSystemFacts]


class DiskSpace:
    """Watches from `start` to `stop`. Owned by the daemon."""

    def __init__(
        self,
        path: Path,
        *,
        min_free_bytes: int,
        clock: Clock,
        timers: Timers,
        on_change: Callable[[str | None], None],
        statvfs: StatVfs = os.statvfs,
    ) -> None:
        self.problem: str | None = None
        """Why nothing may be published now; None when it may."""
        self._path = path
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._on_change = on_change
        """Told `problem` whenever it comes or goes."""
        self._statvfs = statvfs
        self._alarm = timers.alarm(self._look)

    def start(self) -> None:
        """Look now, and from here on; without a mark there is nothing to look at."""
        if self._min_free_bytes > 0:
            self._look()

    def stop(self) -> None:
        self._alarm.cancel()

    def _look(self) -> None:
        try:
            free_bytes = _free_bytes(self._statvfs(self._path))
        except OSError as error:
            self._set(f"cannot tell the free space of {self._path}: {error.strerror or error}")
            interval_ns = MAX_INTERVAL_NS
        else:
            self._set(self._problem_with(free_bytes))
            interval_ns = self._interval_ns(free_bytes)
        self._alarm.set(self._clock.monotonic_ns() + interval_ns)

    def _problem_with(self, free_bytes: int) -> str | None:
        mark_bytes = self._min_free_bytes
        enough_bytes = mark_bytes if self.problem is None else mark_bytes + mark_bytes // 4
        if free_bytes >= enough_bytes:
            return None
        # Without the number of free bytes, which changes while the problem stays the same.
        return f"less than {mark_bytes} bytes free in {self._path} (--min-free-bytes)"

    def _interval_ns(self, free_bytes: int) -> int:
        distance_bytes = abs(free_bytes - self._min_free_bytes)
        interval_ns = distance_bytes * NS_PER_SECOND // FASTEST_DISK_BYTES_PER_SECOND
        return min(max(interval_ns, MIN_INTERVAL_NS), MAX_INTERVAL_NS)

    def _set(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem is None:
            _log.info("DISK: %s has room again, publishing is allowed", self._path)
        else:
            _log.error("DISK: publishing is refused: %s", problem)
        self._on_change(problem)


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The data folder and the file system it lies on."""

    free_bytes: int
    total_bytes: int
    data_bytes: int
    """What the files in the data folder hold."""


def measure(path: Path, *, statvfs: StatVfs = os.statvfs) -> DiskUsage:
    """Look at every file of the data folder: not for the loop's thread. OSError if the folder cannot be read."""
    facts = statvfs(path)
    return DiskUsage(
        free_bytes=_free_bytes(facts),
        total_bytes=facts.f_blocks * facts.f_frsize,
        data_bytes=_bytes_of_files(path),
    )


def _free_bytes(facts: FileSystemFacts) -> int:
    """Free for a process without privileges, which is less than what is free for root."""
    return facts.f_bavail * facts.f_frsize


def _bytes_of_files(path: Path) -> int:
    total_bytes = 0
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    total_bytes += entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # read to its end and deleted meanwhile
    return total_bytes
