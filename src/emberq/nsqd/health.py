"""Is this nsqd well? What /ping says, and whether messages may be published.

Four things can be wrong: too little free space, which refuses publishers before the disk is full; a start without room
to write, which makes the node read-only; a journal that takes no messages; and a last write to a disk queue that
failed, as in the reference. All but a failed journal end by themselves.

Free space. A full disk hurts more than a refusal: half-written batches, metadata that cannot be saved, a clean stop
that cannot write what is in memory. So nsqd refuses messages while `--min-free-bytes` are still there for all of that,
says so in /ping, and takes messages again when there is room. It goes on delivering, which is what makes room. Every
publish is refused, also one that would have stayed in memory: whether a message will need the disk is decided later, by
consumers and by the next stop.

    free space    mark + a quarter     ok again: a queue that hovers at the mark must not flap
                  mark                 refuse
                  0                    where we never want to be

The interval between two checks follows from the distance to the mark: until the next check even a fast disk, written to
at full speed, cannot be filled down to the mark. Far away that is once a second, near the mark a hundred times, so that
at most 10 ms of writing can get below it.

Read-only. If nsqd.dat cannot be written at the start because the disk is full, or takes no writes, nsqd starts all the
same: consumers drain what is there, publishers are refused. The probe below tells when there is room again. Then
nsqd.dat is written, journals that were opened read-only are opened to be written to, and publishing is allowed.

Journals. A journal that has failed stays failed until nsqd is started again, and so does one that cannot be opened. The
others are well, so publishers of other topics are not refused; but /ping says so while it lasts, and names the topic.

Failed writes. A failed write may be the last for a long time: load balancers and publishers turn away from an nsqd that
is not healthy, and then nothing overflows to its disk. So when no queue has written for a while since the failure, a
probe writes, syncs and removes a small file. If that works, the failure is over. While queues go on failing the probe
does nothing: one queue's file may be broken on a disk that works.

    write_failed ──quiet──> try, in the worker's thread ──works──> on_success
          ^                            │
          └──────── quiet <──fails─────┘             write_succeeded ends it at any point
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.broker import Broker

_log = logging.getLogger(__name__)


class Health:
    """Checks from `start` to `stop`. Owned by the daemon."""

    def __init__(
        self,
        broker: Broker,
        data_path: Path,
        *,
        min_free_bytes: int,
        clock: Clock,
        timers: Timers,
        run: Callable[[Callable[[], None]], None],
        recover: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`run` runs a function soon, in another thread. `recover` does what had to wait for room on the disk.

        It returns why it could not be done, or None.
        """
        self._recover = recover
        self._awaits_room = False
        self._read_only: str | None = None
        """Why the node as a whole takes no messages until there is room."""
        self._draining: str | None = None
        """Why it takes none although it is well."""
        self._broker = broker
        self._disk_space = DiskSpace(
            data_path, min_free_bytes=min_free_bytes, clock=clock, timers=timers, on_change=self._on_disk_space
        )
        self._probe = WriteProbe(data_path, clock=clock, timers=timers, run=run, on_success=self._on_probe_success)
        broker.on_health = self._on_write

    def start(self) -> None:
        self._disk_space.start()

    def stop(self) -> None:
        self._disk_space.stop()
        self._probe.stop()

    def await_room(self, read_only: str | None) -> None:
        """Something has to wait until there is room on the disk; if `read_only` says why, publishing too."""
        self._awaits_room = True
        self._set_read_only(read_only)
        self._probe.write_failed()

    @property
    def problem(self) -> str | None:
        """What is wrong, for /ping; None if nothing is."""
        return self._disk_space.problem or self._read_only or self._journal_problem() or self._broker.health

    @property
    def refuses_publishing(self) -> bool:
        return self._broker.gate.reason is not None

    def _journal_problem(self) -> str | None:
        """The journals that take no messages: the first of them, and how many more there are."""
        problems = self._broker.journal_problems
        if not problems:
            return None
        topic = min(problems)
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return f"the journal of {topic}: {problems[topic]}{others}"

    def _on_disk_space(self, problem: str | None) -> None:
        self._set_gate(problem)

    def _set_read_only(self, reason: str | None) -> None:
        self._read_only = None if reason is None else f"read-only for want of room: {reason}"
        self._set_gate(self._disk_space.problem)

    def close_to_publishers(self, reason: str | None) -> None:
        """Refuse messages for this reason, although nothing is wrong; None: take them again."""
        self._draining = reason
        self._set_gate(self._disk_space.problem)

    def _set_gate(self, disk_problem: str | None) -> None:
        gate, problem = self._broker.gate, disk_problem or self._read_only
        gate.reason = problem or self._draining
        gate.is_draining = problem is None and self._draining is not None

    def _on_write(self, problem: str | None) -> None:
        if problem is not None:
            self._probe.write_failed()
            return
        self._probe.write_succeeded()
        if self._awaits_room:
            self._try_to_recover()

    def _on_probe_success(self) -> None:
        self._broker.health = None
        if self._awaits_room:
            self._try_to_recover()

    def _try_to_recover(self) -> None:
        failure = self._recover()
        if failure is None and not self._broker.awaits_room:
            _log.info("DISK: there is room again, all topics take messages")
            self._awaits_room = False
            self._set_read_only(None)
        else:
            self.await_room(failure)


# Free space.

FASTEST_DISK_BYTES_PER_SECOND = 1_000_000_000
"""nsqd never writes faster than this."""
MIN_INTERVAL_NS = 10 * NS_PER_MS
MAX_INTERVAL_NS = NS_PER_SECOND


class FileSystemFacts(Protocol):
    """What is used of the result of `os.statvfs`."""

    @property
    def f_frsize(self) -> int: ...

    @property
    def f_bavail(self) -> int: ...

    @property
    def f_blocks(self) -> int: ...


StatVfs = Callable[[Path], FileSystemFacts]


class DiskSpace:
    """Checks from `start` to `stop`. Owned by the daemon."""

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
        """Why publishing is refused now; None if it is allowed."""
        self._path = path
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._on_change = on_change
        """Called with `problem` when it begins and when it ends."""
        self._statvfs = statvfs
        self._alarm = timers.alarm(self._look)

    def start(self) -> None:
        """Check now and from here on; without a mark, never."""
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
        # The number of free bytes is left out: it changes while the problem stays the same.
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


# What the data folder holds, for /metrics.


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """The data folder and the file system it lies on."""

    free_bytes: int
    total_bytes: int
    data_bytes: int
    """The size of all files in the data folder."""


def measure(path: Path, *, statvfs: StatVfs = os.statvfs) -> DiskUsage:
    """Add up every file of the data folder; too slow for the loop's thread. OSError if the folder cannot be read."""
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
                continue  # deleted meanwhile, after the queue had read it
    return total_bytes


# Failed writes.

QUIET_NS = 5 * NS_PER_SECOND
"""So long after the last failed write or try, the disk is tried."""
LOOK_NS = NS_PER_SECOND
"""How often to check whether a try has ended: a sick disk may take minutes."""
PROBE_NAME = "nsqd.write-probe.tmp"
PROBE_BYTES = 64 * 1024
"""Several blocks, so that a try fails on a full disk."""
_FILE_MODE = 0o600


class _Try:
    """One try. The worker writes to it; the loop's thread reads it once it has `ended`."""

    __slots__ = ("ended", "failure")

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.ended = False

    def run(self, path: Path) -> None:
        try:
            try_to_write(path)
        except OSError as error:
            self.failure = error
        self.ended = True


class WriteProbe:
    """Tries the disk while the last write to it has failed. Owned by the daemon."""

    def __init__(
        self,
        data_path: Path,
        *,
        clock: Clock,
        timers: Timers,
        run: Callable[[Callable[[], None]], None],
        on_success: Callable[[], None],
    ) -> None:
        self._path = data_path / PROBE_NAME
        self._clock = clock
        self._run = run
        """Runs a function soon, in another thread."""
        self._on_success = on_success
        self._alarm = timers.alarm(self._on_time)
        self._try: _Try | None = None
        """The try under way. A write that fails meanwhile cancels its outcome."""

    def write_failed(self) -> None:
        """A queue could not write, or something waits for room."""
        self._try = None
        self._ring_in(QUIET_NS)

    def write_succeeded(self) -> None:
        """A queue could write: no probe is needed."""
        self._try = None
        self._alarm.cancel()

    stop = write_succeeded

    def _ring_in(self, delay_ns: int) -> None:
        self._alarm.set(self._clock.monotonic_ns() + delay_ns)

    def _on_time(self) -> None:
        if self._try is None:
            self._try = attempt = _Try()
            self._run(lambda: attempt.run(self._path))
            self._ring_in(LOOK_NS)
        elif not self._try.ended:
            self._ring_in(LOOK_NS)
        else:
            self._conclude(self._try.failure)

    def _conclude(self, failure: OSError | None) -> None:
        self._try = None
        if failure is None:
            _log.info("DISK: writing to %s works again", self._path.parent)
            self._on_success()
        else:
            _log.warning("DISK: writing to %s still fails - %s", self._path.parent, failure)
            self._ring_in(QUIET_NS)


def try_to_write(path: Path) -> None:
    """Write a file, sync it and remove it; OSError if that fails."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
        try:
            content = bytes(PROBE_BYTES)
            while content:
                content = content[os.write(fd, content) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
