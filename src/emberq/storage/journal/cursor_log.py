"""The log beside a cursor's file, apart from `cursor` because it is a file format of its own, and who writes both.

A cursor changes with every message that is finished. To write all of it down takes an fsync, and for a channel with
very many acknowledged ranges megabytes. So its file is written seldom, and what changes is appended to a log beside it:

    <channel>.cursor                   the cursor at some moment; its header has a generation
    <channel>.<generation>.acks        what has changed since then

A record is written without a sync, many times a second: it outlives the process. Every second the log is synced. When
it has become longer than the cursor's file, a new file of the next generation is written, in another thread. Until that
is on the disk the records go to the logs of both generations. So whichever file a crash leaves has a complete log.

    0   magic "EMBERQAL"       8   crc32 of all that follows in the header      12  version: uint32
    16  uuid of the journal    32  generation: uint32                           36  zeros
    40  the first record

    0   crc32 of all that follows in the record, seeded with that of the header
    4   count of ranges        8   count of attempts    12  count of due times: uint32 each
    16  low-water mark: int64
    24  ranges above it, attempts and due times, laid out as in the cursor's file; 0: there is none any more

The log ends at the first record that is not whole. To lose its end is harmless: messages come again. A cursor that is
moved loses its log, because a log only adds: records of before and after the move must not be joined.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from emberq.base.file import OS_FILES, Files, read_fully, remove_temporary_files, write_fully
from emberq.storage.error import StorageError, os_error_text
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.cursor import (
    CURSOR_HEADER_BYTES,
    Columns,
    Cursor,
    CursorChanges,
    columns,
    columns_bytes,
    generation_of,
    load_cursor,
    save_cursor,
    to_bytes,
)

CURSOR_SUFFIX = ".cursor"
LOG_SUFFIX = ".acks"
SHORTEST_LONG_LOG_BYTES = 1024 * 1024
"""A log that is longer than this and than the cursor's file is long enough for a new file."""

MAGIC = b"EMBERQAL"
VERSION = 1
_PREFIX = struct.Struct("<8sI")
_HEADER = struct.Struct("<I16sII")
HEADER_BYTES = _PREFIX.size + _HEADER.size
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<IIIq")
_RECORD_BYTES = _CRC.size + _RECORD.size
_GENERATION_DIGITS = 8

Told = Callable[[StorageError | None], None]
"""Called with None when a cursor is on the disk, or with the reason why it is not."""


# The format.


def header_bytes(journal: UUID, generation: int) -> bytes:
    """The first bytes of a log."""
    rest = _HEADER.pack(VERSION, journal.bytes, generation, 0)
    return _PREFIX.pack(MAGIC, crc32(rest)) + rest


def record_bytes(changes: CursorChanges, *, low_water: int, seed: int) -> bytes:
    """A record of these changes; what is below the low-water mark needs no range."""
    pairs = iter(changes.ranges)
    ranges = [(start, stop) for start, stop in zip(pairs, pairs, strict=True) if stop > low_water]
    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    counts = (len(ranges), len(changes.attempts), len(changes.due_ns))
    content = b"".join((_RECORD.pack(*counts, low_water), *columns(starts, stops, changes.attempts, changes.due_ns)))
    return _CRC.pack(crc32(content, seed)) + content


def seed_of(header: bytes) -> int:
    """What the crcs of a log's records are seeded with."""
    return crc32(header)


def replay(content: bytes, cursor: Cursor) -> None:
    """Bring a cursor up to the end of the log of its generation, and note how long that is; 0: it is no such log."""
    header = header_bytes(cursor.journal, cursor.generation)
    if content[:HEADER_BYTES] != header:
        return
    seed, at = seed_of(header), HEADER_BYTES
    low_water = cursor.low_water
    ranges: list[tuple[int, int]] = []
    attempts: dict[int, int] = {}
    due_ns: dict[int, int] = {}
    while len(content) - at >= _RECORD_BYTES:
        range_count, attempt_count, due_count, mark = _RECORD.unpack_from(content, at + _CRC.size)
        end = at + _RECORD_BYTES + columns_bytes(range_count, attempt_count, due_count)
        if end > len(content) or _CRC.unpack_from(content, at)[0] != crc32(content[at + _CRC.size : end], seed):
            break
        found = Columns(content, at=at + _RECORD_BYTES)
        low_water = max(low_water, mark)
        ranges += zip(found.take("q", range_count), found.take("q", range_count), strict=True)
        for notes, typecode, count in ((attempts, "H", attempt_count), (due_ns, "q", due_count)):
            for offset, value in zip(found.take("q", count), found.take(typecode, count), strict=True):
                notes.pop(offset, None)  # the order of notes is that in which they were made
                notes[offset] = value
        at = end
    cursor.catch_up(low_water=low_water, ranges=ranges, attempts=attempts, due_ns=due_ns)
    cursor.logged_bytes = at


# The files.


def log_path(path: Path, generation: int) -> Path:
    """The log of the cursor's file at `path` that has this generation."""
    return path.with_name(f"{path.name.removesuffix(CURSOR_SUFFIX)}.{generation:0{_GENERATION_DIGITS}x}{LOG_SUFFIX}")


def load_logged_cursor(path: Path, *, journal: UUID, fs: Files = OS_FILES) -> Cursor | None:
    """As `load_cursor`, with what the log says has changed since."""
    cursor = load_cursor(path, journal=journal, fs=fs)
    if cursor is not None and cursor.generation:
        with suppress(OSError):  # a log that cannot be read costs no message
            replay(fs.read_file(log_path(path, cursor.generation)), cursor)
    return cursor


def remove_leftovers(folder: Path, *, fs: Files = OS_FILES) -> None:
    """Remove what a crash has left of saves: temporary files, and logs of other generations than the cursors have."""
    remove_temporary_files(folder, lambda name: name.endswith(CURSOR_SUFFIX), fs=fs)
    names = fs.names(folder)
    known = set(names)
    for name in names:
        if name.endswith(LOG_SUFFIX):
            channel, _, generation = name.removesuffix(LOG_SUFFIX).rpartition(".")
            cursor_name = f"{channel}{CURSOR_SUFFIX}"
            if cursor_name not in known or generation != _generation_text(folder / cursor_name, fs=fs):
                fs.unlink(folder / name, missing_ok=True)


def _generation_text(path: Path, *, fs: Files) -> str:
    fd = fs.open(path, os.O_RDONLY)
    try:
        generation = generation_of(read_fully(fd, CURSOR_HEADER_BYTES, position=0, fs=fs))
    finally:
        fs.close(fd)
    return f"{generation:0{_GENERATION_DIGITS}x}"


class CursorLog:
    """One log. Owned by its `CursorFile`; only the owner's thread appends, any thread may sync it."""

    def __init__(self, path: Path, header: bytes, *, size_bytes: int, fs: Files) -> None:
        self.size_bytes = size_bytes
        """How much of it holds records; 0: there is no file, or none that is a log."""
        self.is_name_synced = size_bytes > 0
        self.path = path
        self.seed = seed_of(header)
        self._header = header
        self._fs = fs
        self._is_cut = False  # whether nothing lies behind the last record

    def append(self, record: bytes) -> None:
        """Write a record, without a sync. OSError: it may be there in part, and no other may follow."""
        content = record if self.size_bytes else self._header + record
        fd = self._fs.open(self.path, os.O_WRONLY | (0 if self.size_bytes else os.O_CREAT))
        try:
            if not self._is_cut:
                self._fs.truncate(fd, self.size_bytes)
                self._is_cut = True
            _, error = write_fully(fd, content, position=self.size_bytes, fs=self._fs)
            if error is not None:
                raise error
        finally:
            self._fs.close(fd)
        self.size_bytes += len(content)

    def sync(self) -> None:
        """Bring it to the disk. OSError if that fails."""
        if not self.size_bytes:
            return
        try:
            fd = self._fs.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return  # a new file has just made it needless
        try:
            self._fs.sync_data(fd)
        finally:
            self._fs.close(fd)
        if not self.is_name_synced:
            self._fs.sync_folder(self.path.parent)
            self.is_name_synced = True

    def remove(self) -> None:
        """Remove the file; if that fails, it is removed when the folder is opened again."""
        with suppress(OSError):
            self._fs.unlink(self.path, missing_ok=True)


class _Snapshot(NamedTuple):
    """A state of a cursor that is to become its file."""

    cursor: Cursor
    generation: int
    number: int
    log: CursorLog
    before: list[CursorLog]
    """The logs that are not needed any more when it is on the disk."""


class CursorFile:
    """The file of one channel's cursor and its log. Owned by the channel.

    A save may still run, or wait, in another thread when the next one or the removal is asked for. One that comes
    behind a later save that was written does nothing; behind the removal none is written.
    """

    def __init__(self, path: Path, *, workers: Workers, fs: Files = OS_FILES) -> None:
        self._path = path
        self._fs = fs
        self._workers = workers
        self._asked = 0  # how many saves were asked for
        self._lock = threading.Lock()  # held while the file is written or removed; guards the two below
        self._last_written = 0  # which of them is in the file
        self._is_removed = False
        self._logs: list[CursorLog] = []  # each gets every record: the log of the file, and of the one being written
        self._abandoned: list[CursorLog] = []  # those that get no more records, to be removed after the next save
        self._is_due = True  # whether a new file is wanted, whatever the length of the log
        self._size_bytes = 0  # of the file

    def load(self, *, journal: UUID) -> Cursor | None:
        """As `load_logged_cursor`."""
        return load_logged_cursor(self._path, journal=journal, fs=self._fs)

    def resume(self, cursor: Cursor) -> None:
        """Log the changes of a cursor that was loaded from here, or saved, if its file can have a log.

        A log that has records is followed by a new file soon: an earlier process may have failed to sync them.
        """
        if cursor.generation:
            self._logs = [self._log(cursor, cursor.generation, size_bytes=cursor.logged_bytes)]
            self._is_due = cursor.logged_bytes > 0
            cursor.note_changes(wanted=True)

    @property
    def is_new_file_due(self) -> bool:
        """Whether the next save should be a new file, not a sync of the log."""
        if self._is_due or not self._logs:
            return True
        return self._logs[-1].size_bytes > max(SHORTEST_LONG_LOG_BYTES, self._size_bytes)

    # The log.

    def append(self, cursor: Cursor) -> None:
        """Write down what has changed, so that it outlives the process. StorageError if that fails.

        What cannot be logged (the cursor was moved, an append has failed) is not kept: the next save is a new file.
        """
        changes = cursor.take_changes() if self._logs else None
        if changes is None:
            self._stop_logging(cursor)
            return
        try:
            for log in self._logs:
                log.append(record_bytes(changes, low_water=cursor.low_water, seed=log.seed))
        except OSError as error:
            self._stop_logging(cursor)
            raise StorageError(os_error_text("write", self._logs_path, error)) from error

    def sync_soon(self, told: Told) -> None:
        """Bring what was appended to the disk, in another thread; `told` is called in this one."""
        logs = list(self._logs)

        def work() -> None:
            failure: StorageError | None = None
            try:
                for log in logs:
                    log.sync()
            except OSError as error:
                failure = StorageError(os_error_text("sync", self._logs_path, error))
            finally:
                self._workers.hand_back(lambda: self._synced(failure, told))

        self._workers.start(work)

    @property
    def _logs_path(self) -> Path:
        return self._path.with_suffix(LOG_SUFFIX)

    def _synced(self, failure: StorageError | None, told: Told) -> None:
        if failure is not None:
            self._is_due = True  # a second sync would prove nothing
        told(failure)

    def _stop_logging(self, cursor: Cursor) -> None:
        self._abandoned += self._logs
        self._logs = []
        cursor.note_changes(wanted=False)

    def _log(self, cursor: Cursor, generation: int, *, size_bytes: int = 0) -> CursorLog:
        header = header_bytes(cursor.journal, generation)
        return CursorLog(log_path(self._path, generation), header, size_bytes=size_bytes, fs=self._fs)

    # The file.

    def save(self, cursor: Cursor) -> None:
        """Write the cursor now. StorageError if that fails."""
        snapshot = self._begin(cursor, cursor)
        try:
            self._write(snapshot)
        except StorageError:
            self._failed(snapshot)
            raise
        self._written(snapshot)
        cursor.generation, cursor.logged_bytes = snapshot.generation, 0

    def save_soon(self, cursor: Cursor, told: Told) -> None:
        """Write the cursor as it is now, in another thread; `told` is called in this one."""
        snapshot = self._begin(cursor, cursor.copy())

        def work() -> None:
            failure: StorageError | None = None
            try:
                self._write(snapshot)
            except StorageError as error:
                failure = error
            finally:
                self._workers.hand_back(lambda: self._saved(snapshot, failure, told))

        self._workers.start(work)

    def _begin(self, cursor: Cursor, state: Cursor) -> _Snapshot:
        """A save of the state that the cursor has now. From here on its changes go to the new log too."""
        self._asked += 1
        generation = secrets.randbits(32) or 1
        log = self._log(cursor, generation)
        before = [*self._abandoned, *self._logs]
        self._logs = [*self._logs, log]
        self._is_due = False
        cursor.note_changes(wanted=True)
        return _Snapshot(state, generation, self._asked, log, before)

    def _saved(self, snapshot: _Snapshot, failure: StorageError | None, told: Told) -> None:
        if failure is None:
            self._written(snapshot)
        else:
            self._failed(snapshot)
        told(failure)

    def _written(self, snapshot: _Snapshot) -> None:
        """It is on the disk, or a later one that was asked for is."""
        if snapshot.log in self._logs:
            self._logs = [log for log in self._logs if log not in snapshot.before]
            self._abandoned = [log for log in self._abandoned if log not in snapshot.before]
            for log in snapshot.before:
                log.remove()

    def _failed(self, snapshot: _Snapshot) -> None:
        self._logs = [log for log in self._logs if log is not snapshot.log]
        self._is_due = True
        snapshot.log.remove()

    def remove(self) -> None:
        """Remove the files of a deleted channel. StorageError if that fails; then they are as they were."""
        with self._lock:
            try:
                self._fs.unlink(self._path, missing_ok=True)
            except OSError as error:
                raise StorageError(os_error_text("remove", self._path, error)) from error
            self._is_removed = True
        logs, self._logs, self._abandoned = [*self._abandoned, *self._logs], [], []
        for log in logs:
            log.remove()

    def _write(self, snapshot: _Snapshot) -> None:
        with self._lock:
            if self._is_removed:
                raise StorageError(f"write {self._path}: the channel was deleted")
            if snapshot.number > self._last_written:
                content = to_bytes(snapshot.cursor, generation=snapshot.generation)
                save_cursor(self._path, content, fs=self._fs)
                self._size_bytes = len(content)
                self._last_written = snapshot.number
