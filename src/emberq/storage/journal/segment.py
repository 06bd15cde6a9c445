"""One file of a journal: a header, then batches back to back; its sparse index; and the settings of a journal.

    <base offset, 20 digits>.log    the batches from that offset on
    <base offset, 20 digits>.idx    what is worth knowing about them (see `summary`)
    <base offset, 20 digits>.bad    a file with that name which was not a segment of this journal, set aside

    0   magic "EMBERQJL"       8   crc32 of all that follows in the header, not seeded      12  version: uint32
    16  uuid of the journal    32  base offset: int64   40  when the file was made: int64, nanoseconds
    48  everything before this offset was on the disk when the file was made: int64
    56  where the offsets before this segment end: int64
    64  the first batch

Offsets are consecutive, from segment to segment too, unless the journal moved on: after an unclean stop that may have
cost messages which a reader knows, the next segment begins behind every offset that can have been given. So it begins a
new epoch: the offsets between where the segment before it ends and its own first one belong to no message. Version 1
had zeros in the place of the last two numbers.

The last segment of a journal is the active one, to which batches are appended; all others are sealed and never change.
A batch is written by one system call at a known position. When that fails half-way the file is cut back, and as long as
it cannot be cut back nothing more is written to it: there is never a torn batch with a good one behind it.

The sparse index finds an offset or a moment in a segment without reading all of it. There is an entry for every so many
bytes of the segment. It names a batch and the latest time at which a batch before it was published:

    offset    the first offset of the batch
    position  where the batch begins in the file
    time      the latest publish time of all batches before it in this segment, BEFORE_ALL_TIME for the first

The clock may go back, so publish times need not ascend, but the latest so far always does. And the first batch at which
"the latest so far" reaches a moment is the first batch that was published at or after it. So both columns can be
searched by bisection.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import OS_FILES, Files, write_fully
from emberq.storage.error import JournalOpenError, JournalWriteError, os_error_text
from emberq.wire.journal_batch import ALIGNMENT, EncodedBatch

# The index.

BEFORE_ALL_TIME = -(1 << 63)


class BatchPlace(NamedTuple):
    """Where a batch begins."""

    offset: int
    position: int


class SparseIndex:
    """The entries of one segment. Grows while the segment is written, then stays as it is."""

    __slots__ = ("_interval_bytes", "latest_ns", "offsets", "positions", "times")

    def __init__(self, *, interval_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.latest_ns = BEFORE_ALL_TIME
        """The latest publish time in the segment."""

    def add(self, *, offset: int, position: int, timestamp_ns: int) -> None:
        """A batch was appended to the segment, or found in it."""
        if not self.positions or position - self.positions[-1] >= self._interval_bytes:
            assert not self.offsets or offset > self.offsets[-1]
            self.offsets.append(offset)
            self.positions.append(position)
            self.times.append(self.latest_ns)
        if timestamp_ns > self.latest_ns:
            self.latest_ns = timestamp_ns

    def copy(self) -> SparseIndex:
        """The same entries, to be read in another thread while these become more."""
        same = SparseIndex(interval_bytes=self._interval_bytes)
        same.offsets, same.positions, same.times = self.offsets[:], self.positions[:], self.times[:]
        same.latest_ns = self.latest_ns
        return same

    def before_offset(self, offset: int) -> BatchPlace | None:
        """The last entry whose batch begins at or before `offset`; None: search from the start of the segment."""
        return self._place(bisect_right(self.offsets, offset) - 1)

    def before_position(self, position: int) -> BatchPlace | None:
        """The last entry at or before `position`."""
        return self._place(bisect_right(self.positions, position) - 1)

    def before_time(self, time_ns: int) -> BatchPlace | None:
        """The last entry before which nothing was published at or after `time_ns`."""
        return self._place(bisect_left(self.times, time_ns) - 1)

    def _place(self, entry: int) -> BatchPlace | None:
        return BatchPlace(self.offsets[entry], self.positions[entry]) if entry >= 0 else None


# The file.

MAGIC = b"EMBERQJL"
VERSION = 2
"""The version that is written; version 1 is read too."""
SEGMENT_HEADER_BYTES = 64
MAX_UNSYNCED_SEGMENTS = 4
"""A writer that seals segments faster than the disk syncs them waits for the disk when this many are not synced yet."""

_PREFIX = struct.Struct("<8sI")
_REST = struct.Struct("<I16sqqqq")
_NAME = re.compile(r"(\d{20})\.log")


class SegmentHeader(NamedTuple):
    """Which journal a segment belongs to, and where it begins."""

    journal: UUID
    base_offset: int
    created_ns: int
    synced_offset: int | None
    """Everything before it was on the disk when the segment was made; None: not known (version 1)."""
    after_offset: int | None
    """Where the offsets before it end; less than the base offset if it begins an epoch. None: not known."""

    def to_bytes(self) -> bytes:
        """The first 64 bytes of the file."""
        assert self.synced_offset is not None
        assert self.after_offset is not None
        assert self.synced_offset <= self.after_offset <= self.base_offset
        rest = _REST.pack(
            VERSION, self.journal.bytes, self.base_offset, self.created_ns, self.synced_offset, self.after_offset
        )
        return _PREFIX.pack(MAGIC, crc32(rest)) + rest

    @classmethod
    def from_bytes(cls, content: bytes) -> SegmentHeader | None:
        """What the header says; None if it is damaged. JournalOpenError for a version of the future."""
        if len(content) < SEGMENT_HEADER_BYTES:
            return None
        magic, crc = _PREFIX.unpack_from(content)
        if magic != MAGIC or crc != crc32(content[_PREFIX.size : SEGMENT_HEADER_BYTES]):
            return None
        version, journal, base_offset, created_ns, synced, after = _REST.unpack_from(content, _PREFIX.size)
        if not 1 <= version <= VERSION:
            raise JournalOpenError(f"a segment of version {version}, this version reads up to {VERSION}")
        is_old = version == 1
        return cls(UUID(bytes=journal), base_offset, created_ns, None if is_old else synced, None if is_old else after)


def log_path(directory: Path, base_offset: int) -> Path:
    """The file of the segment with this base offset."""
    return directory / f"{base_offset:020d}.log"


def base_offsets(directory: Path, *, fs: Files = OS_FILES) -> list[int]:
    """The base offsets of all segments in a folder, in order."""
    matches = [_NAME.fullmatch(name) for name in fs.names(directory)]
    return sorted(int(match[1]) for match in matches if match is not None)


def read_header(path: Path, *, fs: Files = OS_FILES) -> SegmentHeader | None:
    """The header of the file at `path`; None if it is damaged or missing."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return SegmentHeader.from_bytes(fs.read(fd, SEGMENT_HEADER_BYTES, 0))
    finally:
        fs.close(fd)


class Segment:
    """One segment. Owned by its journal, which says when to open and when to close it."""

    __slots__ = (
        "_fd",
        "_needs_cut",
        "_open_flags",
        "base_offset",
        "fs",
        "index",
        "latest_ns",
        "path",
        "size_bytes",
        "summary_path",
    )

    def __init__(
        self,
        path: Path,
        *,
        base_offset: int,
        size_bytes: int,
        read_only: bool = False,
        fs: Files = OS_FILES,
    ) -> None:
        self.path = path
        self.fs = fs
        """The file system that the file is on."""
        self.summary_path = path.with_suffix(".idx")
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        """How much of the file holds the header and whole batches."""
        self.index: SparseIndex | None = None
        """None: not loaded."""
        self.latest_ns: int | None = None
        """The latest publish time in it; None: not known yet, or still changing."""
        self._open_flags = os.O_RDONLY if read_only else os.O_RDWR
        self._fd: int | None = None
        self._needs_cut = False  # whether a failed write may have left something behind `size_bytes`

    def __repr__(self) -> str:
        return f"<Segment {self.path.name}, {self.size_bytes} bytes>"

    @property
    def start(self) -> BatchPlace:
        """Where its first batch begins."""
        return BatchPlace(self.base_offset, SEGMENT_HEADER_BYTES)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no batch."""
        return self.size_bytes <= SEGMENT_HEADER_BYTES

    def descriptor(self) -> int:
        """The file, opened when needed. Others may read from it; only `append` writes."""
        if self._fd is None:
            self._fd = self.fs.open(self.path, self._open_flags)
        return self._fd

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            self.fs.close(self._fd)
            self._fd = None

    def append(self, batch: EncodedBatch) -> int:
        """Write the batch at the end; return where it begins. JournalWriteError: nothing of it is there."""
        position = self.size_bytes
        assert position >= SEGMENT_HEADER_BYTES
        assert position % ALIGNMENT == batch.length % ALIGNMENT == 0
        assert sum(map(len, batch.parts)) == batch.length
        try:
            fd = self.descriptor()
            if self._needs_cut:
                self.fs.truncate(fd, position)
                self._needs_cut = False
            written = self.fs.write_parts(fd, batch.parts, position)
            if written != batch.length:
                self._write_rest(fd, batch, written=written)
        except OSError as error:
            self.cut_back()
            raise JournalWriteError(os_error_text("write", self.path, error)) from error
        self.size_bytes = position + batch.length
        return position

    def cut_back(self) -> None:
        """Remove what a failed write left; if that fails too, the next append tries it again first."""
        self._needs_cut = True
        try:
            self.fs.truncate(self.descriptor(), self.size_bytes)
        except OSError:
            return
        self._needs_cut = False

    def _write_rest(self, fd: int, batch: EncodedBatch, *, written: int) -> None:
        """Write what the system did not take; usually the disk is full, and this attempt raises the error."""
        rest = memoryview(b"".join(batch.parts))[written:]
        _, error = write_fully(fd, rest, position=self.size_bytes + written, fs=self.fs)
        if error is not None:
            raise error


def create_segment(directory: Path, header: SegmentHeader, *, interval_bytes: int, fs: Files = OS_FILES) -> Segment:
    """A new, empty segment; the caller syncs the folder. JournalWriteError: there is no such file."""
    path = log_path(directory, header.base_offset)
    segment = Segment(path, base_offset=header.base_offset, size_bytes=SEGMENT_HEADER_BYTES, fs=fs)
    segment.index = SparseIndex(interval_bytes=interval_bytes)
    try:
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            _, error = write_fully(fd, header.to_bytes(), position=0, fs=fs)
            if error is not None:
                raise error
        except OSError:
            fs.unlink(path, missing_ok=True)
            raise
        finally:
            fs.close(fd)
    except OSError as error:
        raise JournalWriteError(os_error_text("create", path, error)) from error
    return segment


# Settings.


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """The settings of one journal."""

    segment_bytes: int = 128 * 1024 * 1024
    """A segment is sealed before a batch that would make it longer; a larger batch gets a segment of its own."""
    retention_bytes: int | None = None
    """The oldest segments go when all of them together are larger than this; None: not for their size."""
    retention_ns: int | None = 24 * 3600 * NS_PER_SECOND
    """A segment goes when its newest message is older than this; None: not for its age."""
    fsync: bool = True
    """False leaves it to the operating system when data reaches the disk: appended then counts as synced. Only sealed
    segments are synced, in the background."""
    is_seen_unsynced: bool = False
    """Whether messages may be seen before they are synced; without `fsync` they always may."""
    index_interval_bytes: int = 64 * 1024
    """One index entry for so many bytes. What lies between two entries is walked, batch header by batch header."""
    max_producers: int = 10_000
    """How many producers are remembered. Beyond it, those that were silent longest may store a repeated batch twice."""

    @property
    def shows_unsynced(self) -> bool:
        """Whether a reader may know messages that a power failure takes."""
        return self.is_seen_unsynced or not self.fsync
