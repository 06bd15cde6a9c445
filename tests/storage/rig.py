"""What the tests of the disk queue share: records built by hand, and a queue whose time and syncs are ours."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from emberq.base.clock import ManualClock
from emberq.base.file import OS_FILES, Files
from emberq.base.timers import Timers
from emberq.storage.backend import DiskLimits, Records
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_sync import Syncer

MANY = 1 << 30


def on_disk(*payloads: bytes) -> bytes:
    """The records as NSQ lays them out, written without our own code."""
    return b"".join(struct.pack(">i", len(payload)) + payload for payload in payloads)


def batch(*payloads: bytes) -> Records:
    """A batch as a publisher would hand it over: with a `range` when all sizes are the same."""
    blob = on_disk(*payloads)
    sizes = {len(payload) + 4 for payload in payloads}
    if len(sizes) == 1:
        (size,) = sizes
        return Records(blob, range(size, len(blob) + 1, size))
    return Records(blob, list(accumulate(len(payload) + 4 for payload in payloads)))


def payloads_of(records: Records | None) -> list[bytes]:
    """The payloads in `records`, each checked against its length field."""
    if records is None:
        return []
    starts = [0, *records.ends][: len(records.ends)]
    for start, end in zip(starts, records.ends, strict=True):
        assert struct.unpack_from(">i", records.blob, start) == (end - start - 4,)
    assert len(records.blob) == (records.ends[-1] if records.ends else 0)
    return [records.blob[start + 4 : end] for start, end in zip(starts, records.ends, strict=True)]


def take(queue: DiskQueue, *, count: int = 1) -> list[bytes]:
    """Take up to `count` records, in as many calls as that needs."""
    taken: list[bytes] = []
    while len(taken) < count:
        more = payloads_of(queue.take(max_count=count - len(taken), max_bytes=MANY))
        if not more:
            break
        taken += more
    return taken


def drain(queue: DiskQueue) -> list[bytes]:
    """Take everything."""
    return take(queue, count=MANY)


def numbered(count: int, *, size: int = 10, first: int = 0) -> list[bytes]:
    """Payloads of one size that differ from each other."""
    return [b"%0*d" % (size, number) for number in range(first, first + count)]


class Rig:
    """A data folder with queues in it; syncs run at once, and time stands still until `advance`."""

    def __init__(self, folder: Path, *, fs: Files = OS_FILES) -> None:
        self.folder = folder
        self._fs = fs
        self.clock = ManualClock()
        self.timers = Timers()
        self.syncer = Syncer(clock=self.clock, timers=self.timers, inline=True)
        self._queues: list[DiskQueue] = []

    def queue(
        self,
        name: str = "q",
        *,
        max_bytes_per_file: int = 1 << 20,
        min_record_bytes: int = 1,
        max_record_bytes: int = 1 << 20,
        sync_every: int = 2500,
        sync_timeout_ms: int = 2000,
    ) -> DiskQueue:
        """An opened queue."""
        limits = DiskLimits(
            max_bytes_per_file=max_bytes_per_file,
            min_record_bytes=min_record_bytes,
            max_record_bytes=max_record_bytes,
            sync_every=sync_every,
            sync_timeout_ns=sync_timeout_ms * 1_000_000,
        )
        queue = DiskQueue(name, data_path=self.folder, limits=limits, syncer=self.syncer, fs=self._fs)
        queue.open()
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        """Close what the test left open."""
        for queue in self._queues:
            queue.close()
        self.syncer.close()

    def advance(self, *, ms: int) -> None:
        """Let time pass and ring what is due."""
        self.clock.advance(ms=ms)
        self.timers.run_due(self.clock.monotonic_ns())

    def data(self, number: int, *, name: str = "q") -> Path:
        """A data file, named without our own code."""
        return self.folder / f"{name}.diskqueue.{number:06d}.dat"

    def bad(self, number: int) -> Path:
        """A data file that was set aside."""
        return self.folder / f"q.diskqueue.{number:06d}.dat.bad"

    @property
    def meta(self) -> Path:
        """The meta file."""
        return self.folder / "q.diskqueue.meta.dat"

    def open_files(self) -> int:
        """How many descriptors this process holds on files of the folder."""
        held = 0
        for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the descriptor of the listing is among them
            with suppress(FileNotFoundError):
                held += Path(f"/proc/self/fd/{fd}").readlink().parent == self.folder
        return held

    def names(self) -> set[str]:
        """All files in the folder."""
        return {path.name for path in self.folder.iterdir()}


def write_folder(folder: Path, *, meta: str | None, files: Sequence[bytes], first: int = 0, name: str = "q") -> None:
    """Lay out a data folder by hand."""
    if meta is not None:
        (folder / f"{name}.diskqueue.meta.dat").write_text(meta)
    for number, content in enumerate(files, first):
        (folder / f"{name}.diskqueue.{number:06d}.dat").write_bytes(content)
