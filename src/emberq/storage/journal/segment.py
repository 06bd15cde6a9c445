"""One file of a journal: a header, then batches back to back; its sparse index; the files that are open; and settings.

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

import errno
import os
import re
import resource
import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import OS_FILES, Files, is_medium_error, read_around, write_fully
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

    def behind_offset(self, offset: int) -> BatchPlace | None:
        """The first entry whose batch begins behind `offset`; None: there is none up to the end of the segment."""
        entry = bisect_right(self.offsets, offset)
        return self._place(entry) if entry < len(self.offsets) else None

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
END_OF_BASE_OFFSETS = 1 << 62
"""No segment begins there or behind. Offsets are int64, and those of its messages must be, too."""


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
    offsets = sorted(int(match[1]) for match in matches if match is not None)
    return offsets[: bisect_left(offsets, END_OF_BASE_OFFSETS)]


def read_header(path: Path, *, fs: Files = OS_FILES) -> SegmentHeader | None:
    """The header of the file at `path`; None if it is damaged, missing or cannot be read."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return SegmentHeader.from_bytes(read_around(fd, SEGMENT_HEADER_BYTES, position=0, fs=fs).content)
    finally:
        fs.close(fd)


# Open files.

DESCRIPTOR_SHARE = 4
"""Journals keep at most a quarter of the files open that the process may have open, and half of them while syncs run.
The rest is for connections, disk queues and files that are open for a moment."""
MIN_OPEN = 8
MAX_OPEN = 4096
"""More would save nothing: to open a file takes less time than to write a batch to it."""


class DescriptorCache:
    """The open files of all journals: a bounded number, however many topics there are. Used in one thread; only
    `give_back` may be called in any.

    The one that was used least recently is closed to make room, and opened again when it is needed. A file that was
    written to is synced before it is closed: the operating system may forget that it could not write a page of a file
    that is not open. Files that are synced already go first.
    """

    def __init__(self, *, max_open: int) -> None:
        self.max_open = max_open
        self._open: dict[Segment, None] = {}  # the one that was used least recently is first
        self._lent_count = 0
        self._lock = threading.Lock()  # guards the count of descriptors that are lent to other threads

    @classmethod
    def for_process(cls) -> DescriptorCache:
        """One whose size follows from RLIMIT_NOFILE."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = MAX_OPEN if limit == resource.RLIM_INFINITY else limit // DESCRIPTOR_SHARE
        return cls(max_open=min(max(share, MIN_OPEN), MAX_OPEN))

    @property
    def open_count(self) -> int:
        """How many descriptors there are, with those that are lent."""
        return len(self._open) + self._lent_count

    def make_room(self) -> None:
        """Close files until one more may be opened."""
        while self.open_count >= self.max_open and self._open:
            synced = next((segment for segment in self._open if not segment.is_unsynced), None)
            if synced is not None:
                synced.close()
            elif self.open_count < 2 * self.max_open:
                return  # rather a few more for a moment than a sync that others wait for
            else:
                next(iter(self._open)).sync_and_close()

    def used(self, segment: Segment) -> None:
        """The segment's file is open, and was used just now."""
        self._open.pop(segment, None)
        self._open[segment] = None

    def closed(self, segment: Segment) -> None:
        """The segment's file is not open any more."""
        self._open.pop(segment, None)

    def lend(self, segment: Segment, *, is_needed: bool = False) -> int:
        """A second descriptor of the file, for another thread. OSError if there are too many, unless it is needed."""
        if self.open_count >= 2 * self.max_open and not is_needed:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fd = segment.fs.duplicate(segment.descriptor())
        with self._lock:
            self._lent_count += 1
        return fd

    def give_back(self, fd: int, *, fs: Files) -> None:
        """Close a descriptor that was lent; in any thread."""
        fs.close(fd)
        with self._lock:
            self._lent_count -= 1


class Segment:
    """One segment. Owned by its journal, which says when to open and when to close it."""

    __slots__ = (
        "_descriptors",
        "_fd",
        "_needs_cut",
        "_open_flags",
        "after_offset",
        "base_offset",
        "fs",
        "index",
        "is_spoiled",
        "is_unsynced",
        "latest_ns",
        "path",
        "size_bytes",
        "summary_path",
        "sync_journal",
    )

    def __init__(
        self,
        path: Path,
        *,
        base_offset: int,
        size_bytes: int,
        read_only: bool = False,
        descriptors: DescriptorCache | None = None,
        fs: Files = OS_FILES,
    ) -> None:
        """`descriptors` closes the file when others need to be open; without it the file stays open until `close`."""
        self.path = path
        self.fs = fs
        """The file system that the file is on."""
        self.summary_path = path.with_suffix(".idx")
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        """How much of the file holds the header and whole batches."""
        self.after_offset: int | None = None
        """Where the offsets before it end, as its header says; None: not read yet."""
        self.index: SparseIndex | None = None
        """None: not loaded."""
        self.latest_ns: int | None = None
        """The latest publish time in it; None: not known yet, or still changing."""
        self.is_spoiled = False
        """Whether the disk cannot write behind its last batch, where nothing lies."""
        self.is_unsynced = False
        """Whether the descriptor that is open is the only one through which all that was written can be synced."""
        self.sync_journal: Callable[[], None] | None = None
        """Syncs everything of the journal, and takes note if that fails; for the active segment."""
        self._descriptors = descriptors
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
        """The file, opened when needed. Others may read from it; only `append` writes.

        It may be closed when the file of another segment is opened, of whatever journal. So another thread opens the
        file for itself, or is lent a descriptor.
        """
        if self._fd is None:
            if self._descriptors is not None:
                self._descriptors.make_room()
            self._fd = self.fs.open(self.path, self._open_flags)
        if self._descriptors is not None:
            self._descriptors.used(self)
        return self._fd

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            self.fs.close(self._fd)
            self._fd = None
        if self._descriptors is not None:
            self._descriptors.closed(self)

    def sync_and_close(self) -> None:
        """Let go of the file when it is synced, or when it is known that it cannot be."""
        if self.is_unsynced and self.sync_journal is not None:
            self.sync_journal()
        self.is_unsynced = False
        self.close()

    def create(self, header: SegmentHeader) -> None:
        """Make the file, which must not be there. OSError: it is not."""
        if self._descriptors is not None:
            self._descriptors.make_room()
        self._fd = self.fs.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _, error = write_fully(self._fd, header.to_bytes(), position=0, fs=self.fs)
        if error is not None:
            self.close()
            self.fs.unlink(self.path, missing_ok=True)
            raise error
        self.is_unsynced = True
        self.descriptor()

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
            self.is_unsynced = True
            written = self.fs.write_parts(fd, batch.parts, position)
            if written != batch.length:
                self._write_rest(fd, batch, written=written)
        except OSError as error:
            self.cut_back()
            self.is_spoiled = is_medium_error(error) and not self.is_empty and self._ends_here()
            raise JournalWriteError(os_error_text("write", self.path, error)) from error
        self.size_bytes = position + batch.length
        return position

    def _ends_here(self) -> bool:
        """Whether nothing lies behind `size_bytes`: only then may another segment follow."""
        try:
            return self.fs.size(self.descriptor()) <= self.size_bytes
        except OSError:
            return False

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


def create_segment(
    directory: Path,
    header: SegmentHeader,
    *,
    interval_bytes: int,
    descriptors: DescriptorCache | None = None,
    fs: Files = OS_FILES,
) -> Segment:
    """A new, empty segment; the caller syncs it and the folder. JournalWriteError: there is no such file."""
    segment = Segment(
        log_path(directory, header.base_offset),
        base_offset=header.base_offset,
        size_bytes=SEGMENT_HEADER_BYTES,
        descriptors=descriptors,
        fs=fs,
    )
    segment.index = SparseIndex(interval_bytes=interval_bytes)
    segment.after_offset = header.after_offset
    try:
        segment.create(header)
    except OSError as error:
        raise JournalWriteError(os_error_text("create", segment.path, error)) from error
    return segment


# Settings.


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """The settings of one journal."""

    segment_bytes: int = 128 * 1024 * 1024
    """A segment is sealed before a batch that would make it longer; a larger batch gets a segment of its own."""
    retention_bytes: int | None = None
    """The oldest segments go when all of them together are larger than this; None: not for their size."""
    max_bytes: int | None = None
    """The same, also for those that a channel has still to read; None: channels may keep all."""
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
    descriptors: DescriptorCache = field(default_factory=DescriptorCache.for_process, compare=False)
    """The open files of this journal and of all others with these settings."""

    @property
    def shows_unsynced(self) -> bool:
        """Whether a reader may know messages that a power failure takes."""
        return self.is_seen_unsynced or not self.fsync
