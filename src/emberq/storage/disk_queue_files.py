r"""The files of a disk queue: names, records, meta file and due times, and where the queue goes on after a crash.

    <name>.diskqueue.000000.dat        data, numbered from 0 with six digits or more
    <name>.diskqueue.000000.dat.bad    a data file that was found damaged and set aside
    <name>.diskqueue.meta.dat          where reading and writing go on
    <name>.diskqueue.due.dat           due times of deferred messages

`<name>` is the topic, or `topic:channel`.

A data file is records back to back:

    | length: int32 BE, without itself | payload: length bytes |

It is read in blocks. Most queues hold runs of records of one size, which are recognised without work per record: if the
length fields at 0, s, 2s, ... all say s - 4, then those are the record boundaries, and four strided slices compare a
block's worth of length fields at the speed of memcmp.

The meta file is exactly three lines of decimal numbers:

    <depth>\n
    <number of the read file>,<position in it>\n
    <number of the write file>,<position in it>\n

After a clean stop it tells where the queue goes on. After a crash it may be older than the data files, because records
were written, and perhaps new files begun, after the last sync. The recorded places are then still record boundaries, so

- writing starts a new file behind all others, and leaves what may be a torn record alone;
- the records beyond the recorded write place are counted, added to the depth, and read like the rest.

A meta file that makes no sense is no reason to lose data: everything there waits again, from the oldest file on. But
without a meta file the queue is empty, even if there are data files: deleting the meta file empties a queue.

The file of due times exists because a record has no field for when it is due: a deferred message that goes through a
disk queue at shutdown would be delivered at once afterwards. The Go nsqd ignores this file (for it such a message is
simply due):

    emberq-due 1 <kind>\n
    <id, 32 hex digits> <nanoseconds, decimal> <crc32 of what stands before it on the line, 8 hex digits>\n
    ...

The kind says what the numbers are: `due` is a moment (wall clock, since the Unix epoch), for messages of a channel;
`delay` is a duration that has not begun to run, for messages that still wait in a topic. Each line has its own
checksum, so damage costs the due times on the damaged lines only. Those messages are delivered too early, which is
better than not starting.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zlib_ng.zlib_ng import crc32

from emberq.base.file import OS_FILES, Files, read_fully, replace_file
from emberq.storage.backend import LENGTH_BYTES, DiskLimits, Records
from emberq.storage.error import DamagedPositionError, DamagedSegmentError, StorageError, os_error_text
from emberq.wire.body import sized_ends

log = logging.getLogger("emberq.storage")


# Names.

_PROBE_SPAN = 64
"""Up to this many file names are asked for one by one; beyond it the folder is listed once instead."""


class QueueFiles:
    """The names of one queue's files, and the file system they are on."""

    def __init__(self, data_path: Path, name: str, *, fs: Files = OS_FILES) -> None:
        self.fs = fs
        self.folder = data_path
        self.meta = data_path / f"{name}.diskqueue.meta.dat"
        self.due = data_path / f"{name}.diskqueue.due.dat"
        self._name = name

    @staticmethod
    def names_in(data_path: Path, *, fs: Files = OS_FILES) -> list[str]:
        """The names of all queues in a folder that have a meta file; none if there is no folder."""
        suffix = ".diskqueue.meta.dat"
        names = fs.names(data_path) if fs.is_folder(data_path) else []
        return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]

    def data(self, number: int) -> Path:
        """The data file with this number."""
        return self.folder / f"{self._name}.diskqueue.{number:06d}.dat"

    def bad(self, number: int) -> Path:
        """The name of that data file when it has been set aside."""
        return self.folder / f"{self._name}.diskqueue.{number:06d}.dat.bad"

    def existing(self, *, first: int, last: int) -> list[int]:
        """The numbers from `first` to `last`, both included, whose data files exist; in order."""
        if last - first < _PROBE_SPAN:
            return [number for number in range(first, last + 1) if self.fs.exists(self.data(number))]
        return [number for number in self.all_existing() if first <= number <= last]

    def all_existing(self) -> list[int]:
        """The numbers of all data files that exist, in order."""
        layout = re.compile(re.escape(self._name) + r"\.diskqueue\.(\d{6,18})\.dat")
        matches = [layout.fullmatch(name) for name in self.fs.names(self.folder)]
        return sorted(int(match[1]) for match in matches if match is not None)


class QueueLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts the name of one queue before each line."""

    def __init__(self, logger: logging.Logger, *, name: str) -> None:
        super().__init__(logger)
        self._prefix = f"DISKQUEUE({name}) ".replace("%", "%%")
        self._name = name

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return self._prefix + msg, kwargs

    def tell(self, event: str) -> None:
        """What happens to the queue in the ordinary course of things."""
        self.logger.info("DISKQUEUE(%s): %s", self._name, event)


# Records.

BLOCK_BYTES = 256 * 1024
"""How much is read ahead: large enough that the system call is cheap per message, small enough per channel."""

_unpack_length = struct.Struct(">i").unpack_from


def open_for_writing(path: Path, *, position: int, fs: Files = OS_FILES) -> int:
    """A descriptor of the data file at `path`, created if missing, with nothing beyond `position` in it."""
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        if fs.size(fd) > position:
            fs.truncate(fd, position)
    except OSError:
        fs.close(fd)
        raise
    return fd


class SegmentReader:
    """Reads whole records from one data file. Owned by the queue that opened it; close it."""

    def __init__(self, path: Path, *, limits: DiskLimits, fs: Files = OS_FILES) -> None:
        self._fs = fs
        self._fd = fs.open(path, os.O_RDONLY)
        self._limits = limits
        self._block = b""  # a part of the file
        self._block_start = 0  # where in the file it begins

    def close(self) -> None:
        """Let go of the file."""
        self._fs.close(self._fd)

    def size(self) -> int:
        """How long the file is now."""
        return self._fs.size(self._fd)

    def records_at(self, position: int, *, end: int, max_count: int, max_bytes: int) -> Records:
        """The records from `position` on, all of them ending at or before `end`.

        At least one, however large; beyond it as many as the read-ahead block holds and the limits allow. Raises
        DamagedSegmentError when there is not one whole, valid record.
        """
        ends = self._boundaries(position, max_count=max_count, max_bytes=max_bytes)
        if not ends:
            self._fill(position, end=end)
            ends = self._boundaries(position, max_count=max_count, max_bytes=max_bytes)
        if not ends:
            raise DamagedSegmentError("unexpected EOF" if self._block else "EOF")
        start = position - self._block_start
        assert 0 <= start < start + ends[-1] <= len(self._block)
        return Records(self._block[start : start + ends[-1]], ends)

    def _fill(self, position: int, *, end: int) -> None:
        """Let the block start at `position` and hold at least the first record, if that ends by `end`."""
        self._block_start = position
        self._block = self._pread(min(BLOCK_BYTES, end - position), position)
        if len(self._block) >= LENGTH_BYTES:
            record_bytes = LENGTH_BYTES + self._length_at(0)
            if BLOCK_BYTES < record_bytes <= end - position:
                self._block = self._pread(record_bytes, position)

    def _pread(self, size: int, position: int) -> bytes:
        return read_fully(self._fd, size, position=position, fs=self._fs)

    def _length_at(self, offset: int) -> int:
        length: int = _unpack_length(self._block, offset)[0]
        if not self._limits.min_record_bytes <= length <= self._limits.max_record_bytes:
            raise DamagedSegmentError(f"invalid message read size ({length})")
        return length

    def _boundaries(self, position: int, *, max_count: int, max_bytes: int) -> Sequence[int]:
        """Where the records from `position` on end, counted from there; empty if the block holds no whole one."""
        start = position - self._block_start
        available = len(self._block) - start
        if start < 0 or available < LENGTH_BYTES:
            return ()
        stride = LENGTH_BYTES + self._length_at(start)
        if stride > available:
            return ()
        count = max(1, min(max_count, min(max_bytes, available) // stride))
        if count == 1 or self._is_uniform(start, stride=stride, count=count):
            return range(stride, count * stride + 1, stride)
        return self._walk(start, max_count=max_count, max_bytes=min(max_bytes, available))

    def _is_uniform(self, start: int, *, stride: int, count: int) -> bool:
        """Whether `count` records of `stride` bytes each lie at `start`."""
        block = self._block
        stop = start + count * stride
        # The lowest byte of a length differs most often, so it is compared first.
        return all(
            block[byte:stop:stride] == block[byte : byte + 1] * count
            for byte in range(start + LENGTH_BYTES - 1, start - 1, -1)
        )

    def _walk(self, start: int, *, max_count: int, max_bytes: int) -> list[int]:
        """The ends of records of different sizes, up to the limits or to the first one that is not whole or valid.

        The caller knows that the first record is valid and within the block.
        """
        limits = self._limits
        return sized_ends(
            self._block,
            start,
            shortest=limits.min_record_bytes,
            longest=limits.max_record_bytes,
            max_count=max_count,
            max_bytes=max_bytes,
        )


def count_records(path: Path, *, start: int, end: int | None, limits: DiskLimits, fs: Files = OS_FILES) -> int:
    """How many whole records a reader would find from `start` to `end` (None: the end of the file)."""
    try:
        reader = SegmentReader(path, limits=limits, fs=fs)
    except OSError:
        return 0
    count = 0
    try:
        stop = reader.size() if end is None else end
        while start < stop:
            records = reader.records_at(start, end=stop, max_count=BLOCK_BYTES, max_bytes=BLOCK_BYTES)
            count += len(records.ends)
            start += len(records.blob)
    except (DamagedSegmentError, OSError):
        pass  # a reader stops here too, and then says so
    finally:
        reader.close()
    return count


# The meta file.

_LAYOUT = re.compile(rb"(-?\d{1,19})\n(\d{1,19}),(\d{1,19})\n(\d{1,19}),(\d{1,19})\n")

_MAX_NUMBER = (1 << 62) - 1
"""Larger numbers come from a damaged file; the operating system would refuse them as file positions."""


class QueuePosition(NamedTuple):
    """Where reading and writing go on. The depth is the number of records between the two places."""

    depth: int = 0
    read_file: int = 0
    read_pos: int = 0
    write_file: int = 0
    write_pos: int = 0


def load_position(path: Path, *, fs: Files = OS_FILES) -> QueuePosition | None:
    """Read the meta file at `path`; None if there is none, DamagedPositionError if it makes no sense."""
    try:
        content = fs.read_file(path)
    except FileNotFoundError:
        return None
    match = _LAYOUT.fullmatch(content)
    if match is None:
        raise DamagedPositionError(f"{path} does not have the three lines of a meta file")
    position = QueuePosition(*map(int, match.groups()))
    if max(position) > _MAX_NUMBER:
        raise DamagedPositionError(f"{path} holds a number that is too large")
    return position


def save_position(path: Path, position: QueuePosition, *, durable: bool = True, fs: Files = OS_FILES) -> None:
    """Replace the meta file at `path`, fsynced if it is to be durable; OSError if that fails."""
    replace_file(path, encode(position), durable=durable, fs=fs)


def encode(position: QueuePosition) -> bytes:
    """The bytes of the meta file."""
    depth, read_file, read_pos, write_file, write_pos = position
    return b"%d\n%d,%d\n%d,%d\n" % (depth, read_file, read_pos, write_file, write_pos)


# Due times.

Kind = Literal["due", "delay"]

_LINE = re.compile(rb"(([0-9a-f]{32}) (\d{1,19})) ([0-9a-f]{8})")


def save_due_times(path: Path, due_ns_by_id: Mapping[bytes, int], *, kind: Kind = "due", fs: Files = OS_FILES) -> None:
    """Replace the file, fsynced; an empty mapping removes it. StorageError if that fails."""
    try:
        if due_ns_by_id:
            lines = [_header(kind), *(_line(message_id, ns) for message_id, ns in due_ns_by_id.items())]
            replace_file(path, b"".join(lines), fs=fs)
        else:
            fs.unlink(path, missing_ok=True)
        fs.sync_folder(path.parent)
    except OSError as error:
        raise StorageError(os_error_text("write", path, error)) from error


def load_due_times(path: Path, *, kind: Kind = "due", fs: Files = OS_FILES) -> dict[bytes, int]:
    """The due times in the file, as far as they can be read; none if there is no file."""
    try:
        header, *lines = fs.read_file(path).splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("cannot read the due times in %s - %s", path, error)
        return {}
    if header != _header(kind):
        log.warning("ignoring the due times in %s, which is not a file of kind %r", path, kind)
        return {}
    due_ns_by_id: dict[bytes, int] = {}
    for line in lines:
        match = _LINE.fullmatch(line.rstrip(b"\n"))
        if match is not None and int(match[4], 16) == crc32(match[1]):
            due_ns_by_id[bytes.fromhex(match[2].decode())] = int(match[3])
    damaged = len(lines) - len(due_ns_by_id)
    if damaged:
        log.warning("%d of %d due times in %s are damaged and ignored", damaged, len(lines), path)
    return due_ns_by_id


def _header(kind: Kind) -> bytes:
    return b"emberq-due 1 %s\n" % kind.encode()


def _line(message_id: bytes, ns: int) -> bytes:
    content = b"%s %d" % (message_id.hex().encode(), ns)
    return b"%s %08x\n" % (content, crc32(content))


# Where a queue goes on.


def recover(files: QueueFiles, *, limits: DiskLimits, log: QueueLog) -> QueuePosition | None:
    """Where the queue goes on; None if it is new. OSError if its files cannot be read."""
    try:
        position = load_position(files.meta, fs=files.fs)
    except DamagedPositionError as error:
        return _from_data_files(files, reason=str(error), limits=limits, log=log)
    if position is None:
        return None
    return _with_unrecorded_data(files, position, limits=limits, log=log)


def clear_the_way(files: QueueFiles, *, first: int, log: QueueLog) -> None:
    """Set aside data files that no meta file counts, from number `first` on, before the writer comes to them.

    So the file after the one that is written to never exists; if it does after a crash, it is newer than the meta file.
    """
    number = first
    while files.fs.exists(files.data(number)):
        log.warning("saving data file without metadata as %s", files.bad(number))
        files.fs.rename(files.data(number), files.bad(number))
        number += 1


def count_waiting(files: QueueFiles, position: QueuePosition, *, limits: DiskLimits) -> int:
    """How many whole records can be read from the read place to the write place."""
    total = 0
    for number in files.existing(first=position.read_file, last=position.write_file):
        total += count_records(
            files.data(number),
            start=position.read_pos if number == position.read_file else 0,
            end=position.write_pos if number == position.write_file else None,
            limits=limits,
            fs=files.fs,
        )
    return total


def _from_data_files(files: QueueFiles, *, reason: str, limits: DiskLimits, log: QueueLog) -> QueuePosition:
    """The position at which all records in all data files wait."""
    log.error("failed to retrieveMetaData - %s, reading all data files again", reason)
    numbers = files.all_existing()
    if not numbers:
        return QueuePosition()
    position = QueuePosition(read_file=numbers[0], write_file=numbers[-1] + 1)
    return position._replace(depth=count_waiting(files, position, limits=limits))


def _with_unrecorded_data(
    files: QueueFiles, position: QueuePosition, *, limits: DiskLimits, log: QueueLog
) -> QueuePosition:
    """The position, with its write place moved behind what was written since it was recorded."""
    path = files.data(position.write_file)
    try:
        size = files.fs.file_size(path)
    except FileNotFoundError:
        size = 0
    newest = position.write_file
    while files.fs.exists(files.data(newest + 1)):
        newest += 1
    if size > position.write_pos:
        log.warning("%s metadata writePos %d < file size of %d, skipping to new file", path, position.write_pos, size)
    elif newest > position.write_file:
        log.warning("%s is newer than the metadata, skipping to new file", files.data(newest))
    else:
        return position
    unrecorded = QueuePosition(
        read_file=position.write_file, read_pos=position.write_pos, write_file=newest + 1, write_pos=0
    )
    return position._replace(
        depth=position.depth + count_waiting(files, unrecorded, limits=limits),
        write_file=newest + 1,
        write_pos=0,
    )
