"""The spool of a channel: messages on disk, between nsqd, which forgets what is finished, and Spark, which may want a
batch again.

    SPOOL/lock                            held by the one receiver that may write
    SPOOL/spool.json                      {"spool": uuid}: which spool it is
    SPOOL/000000000012-2500.arrow         segment 12, of 2500 messages, as an Arrow file

A segment is written to a temporary file, fsynced, renamed, and its folder fsynced; only then are its messages finished.
It never changes. An offset of Spark is the number of the next segment, so the same offsets give the same rows for ever.

**Pruning.** Segments that Spark has committed are removed, but not before they are `window_s` older than the newest:
until then they tell which messages that nsqd brings again are here already. It does bring some again, when a receiver
ended after it had written a segment and before all was finished. The time is that between segments and not that on the
wall, for a receiver may have been down for days. The newest segment always stays, so no number is used twice.

**Duplicates** are looked for only among messages that were delivered before (attempts above 1): their ids are compared
with those of all segments kept. That and pruning exclude each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from emberq.spark.error import OptionError
from emberq.spark.schema import ARROW_SCHEMA

DEFAULT_WINDOW_S = 3600.0
"""Four times the longest message timeout that an nsqd grants by default (15 minutes)."""
LOCK_TIMEOUT_S = 10.0
"""A receiver that Spark has told to end may need a moment to be gone."""
LOCK_PAUSE_S = 0.1

_SUFFIX = ".arrow"
_IDENTITY = "spool.json"


@dataclass(frozen=True, slots=True)
class Segment:
    """Messages that were stored together."""

    number: int
    row_count: int
    path: Path
    size_bytes: int
    stored_at_s: float


class Spool:
    """Owned by one receiver, from `open` to `close`. Segments may be looked at from any thread."""

    def __init__(
        self, folder: Path, *, window_s: float = DEFAULT_WINDOW_S, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._window_s = window_s
        self._wall_s = wall_s
        self._lock_file: int | None = None
        self._files = threading.Lock()
        """Held by whoever needs segments to stay, or removes some."""
        self.uuid = ""
        self.segments: tuple[Segment, ...] = ()
        """All that are kept, in order. Replaced as a whole, so it can be read without a lock."""

    def open(self) -> None:
        """Make or find it. OptionError if another receiver has it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _locked(self._folder / "lock")
        self.uuid = _identity(self._folder)
        for unfinished in self._folder.glob("*.new"):
            unfinished.unlink()
        self.segments = tuple(segments_in(self._folder))

    def close(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def next_number(self) -> int:
        """The number of the segment that will be stored next."""
        return self.segments[-1].number + 1 if self.segments else 0

    def append(self, rows: pa.RecordBatch) -> None:
        """Store rows as a segment. They are on the disk when this returns."""
        number = self.next_number
        path = self._folder / f"{number:012d}-{rows.num_rows}{_SUFFIX}"
        being_written = path.with_suffix(".new")
        with being_written.open("wb") as file:
            with pa.ipc.new_file(file, ARROW_SCHEMA) as writer:
                writer.write_batch(rows)
            file.flush()
            os.fsync(file.fileno())
        now_s = self._wall_s()
        os.utime(being_written, (now_s, now_s))
        being_written.replace(path)
        _sync_folder(self._folder)
        size_bytes = path.stat().st_size
        self.segments = (*self.segments, Segment(number, rows.num_rows, path, size_bytes, now_s))

    def known_ids(self, ids: Collection[str], *, topic: str, nsqd: str) -> set[str]:
        """Those of `ids` that were stored already as messages of this topic and nsqd."""
        wanted = pa.array(ids, pa.string())
        found: set[str] = set()
        with self._files:
            for segment in self.segments:
                rows = read_segment(segment.path)
                is_same = pc.and_(
                    pc.is_in(rows.column("id"), wanted),
                    pc.and_(pc.equal(rows.column("topic"), topic), pc.equal(rows.column("nsqd"), nsqd)),
                )
                found.update(rows.column("id").filter(is_same).to_pylist())
        return found

    def prune(self, *, before: int) -> None:
        """Segments with numbers below `before` are not needed by Spark any more."""
        with self._files:
            segments = self.segments
            if not segments:
                return
            oldest_s = segments[-1].stored_at_s - self._window_s
            gone = [each for each in segments[:-1] if each.number < before and each.stored_at_s < oldest_s]
            # From the start only: what is kept is without gaps.
            count = next((index for index, each in enumerate(segments) if each not in gone), len(gone))
            for segment in segments[:count]:
                segment.path.unlink()
            self.segments = self.segments[count:]

    def bytes_from(self, number: int) -> int:
        """How much is stored in the segments from this number on."""
        return sum(segment.size_bytes for segment in self.segments if segment.number >= number)


def segments_in(folder: Path) -> list[Segment]:
    """The segments of a spool, in order."""
    found = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        number, _, row_count = path.stem.partition("-")
        status = path.stat()
        found.append(Segment(int(number), int(row_count), path, status.st_size, status.st_mtime))
    return found


def read_segment(path: Path) -> pa.Table:
    """The rows of a segment, on the bytes of the file."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    deadline_s = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(descriptor)
                raise OptionError(
                    f'option "spool": another query receives into {path.parent}; give each query a folder of its own'
                ) from None
            time.sleep(LOCK_PAUSE_S)
        else:
            return descriptor


def _identity(folder: Path) -> str:
    """The uuid of the spool; a new one if there is none yet."""
    path = folder / _IDENTITY
    if path.exists():
        return str(json.loads(path.read_text())["spool"])
    uuid = str(uuid4())
    being_written = path.with_suffix(".new")
    with being_written.open("w") as file:
        json.dump({"spool": uuid}, file)
        file.flush()
        os.fsync(file.fileno())
    being_written.replace(path)
    _sync_folder(folder)
    return uuid


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
