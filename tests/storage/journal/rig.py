"""What the tests of the journal share: a folder, a clock that stands still, and journals with small segments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.storage.error import SyncError
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.journal import Journal, Stored
from emberq.storage.journal.reader import Gap
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies, JournalBatch
from emberq.wire.parameter import ProducerSequence

START_NS = 1_700_000_000 * NS_PER_SECOND
MANY = 1 << 30


def producer(name: bytes, sequence: int) -> ProducerSequence:
    """A numbered batch of a producer whose id is made of its name."""
    return ProducerSequence(name.ljust(16, b"."), sequence)


def bodies_of(batches: Sequence[JournalBatch]) -> list[bytes]:
    """All messages of some batches."""
    return [body for batch in batches for body in batch.messages()]


def flip(path: Path, position: int, *, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def open_files(folder: Path) -> int:
    """How many descriptors this process holds on files of the folder."""
    held = 0
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the descriptor of the listing is among them
        with suppress(FileNotFoundError):
            held += Path(f"/proc/self/fd/{fd}").readlink().parent == folder
    return held


class JournalRig:
    """A folder for one journal, which can be opened, crashed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(wall_ns=START_NS)
        self._opened: list[Journal] = []

    def open(
        self,
        *,
        segment_bytes: int = 4096,
        index_interval_bytes: int = 256,
        retention_bytes: int | None = None,
        retention_ns: int | None = None,
        max_producers: int = 100,
        fsync: bool = True,
        workers: Workers | None = None,
    ) -> Journal:
        """The journal, opened; to open it again without closing it is to have crashed."""
        config = JournalConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            retention_bytes=retention_bytes,
            retention_ns=retention_ns,
            max_producers=max_producers,
            fsync=fsync,
        )
        journal = Journal.open(self.folder, config, clock=self.clock, workers=workers)
        self._opened.append(journal)
        return journal

    def close(self) -> None:
        """Close what the test left open."""
        for journal in self._opened:
            with suppress(SyncError):
                journal.close()

    def append(self, journal: Journal, *bodies: bytes, by: ProducerSequence | None = None) -> Stored:
        """Publish the bodies as one batch, now."""
        return journal.append(Bodies.of(bodies), timestamp_ns=self.clock.wall_ns(), producer=by)

    def fill(
        self, journal: Journal, *, batches: int, count: int = 3, size: int = 20, synced: bool = True
    ) -> list[bytes]:
        """Publish batches of numbered bodies, a second apart, each synced before the next; return the bodies."""
        published: list[bytes] = []
        for _ in range(batches):
            first = journal.next_offset
            bodies = [b"%0*d" % (size, first + index) for index in range(count)]
            self.append(journal, *bodies)
            if synced:
                journal.sync()
            published += bodies
            self.clock.advance(seconds=1)
        return published

    def segment(self, base_offset: int = 0) -> Path:
        """A segment's file, named without our own code."""
        return self.folder / f"{base_offset:020d}.log"

    def index(self, base_offset: int = 0) -> Path:
        """A segment's index file."""
        return self.folder / f"{base_offset:020d}.idx"

    def segments(self) -> list[Path]:
        """All segment files."""
        return sorted(self.folder.glob("*.log"))

    def names(self) -> set[str]:
        """All files in the folder."""
        return {path.name for path in self.folder.iterdir()}


def read_all(journal: Journal, *, offset: int = 0, max_bytes: int = MANY) -> tuple[list[bytes], list[Gap]]:
    """Everything from the batch that holds `offset` on, and what could not be read."""
    bodies: list[bytes] = []
    gaps: list[Gap] = []
    while offset < journal.next_offset:
        chunk = journal.read(offset, max_bytes=max_bytes)
        assert chunk.next_offset > offset
        bodies += bodies_of(chunk.batches)
        gaps += chunk.gaps
        offset = chunk.next_offset
    return bodies, gaps


class OtherThread:
    """Work waits until the test lets it run."""

    def __init__(self) -> None:
        self.waiting: list[Work] = []
        self.workers = Workers(start_reading=self.waiting.append)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()
