"""One data file of a disk queue: records back to back.

    record:  | length: int32 BE, without itself | payload: length bytes |

A data file is read in blocks. Most queues hold runs of records of one size, and for those no record is looked at
by itself: if the length fields at 0, s, 2s, ... all say s - 4, then those are the record boundaries, and four
strided slices compare a block's worth of length fields at the speed of memcmp.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from emberq.storage.atomic import FILE_MODE
from emberq.storage.backend import Records
from emberq.storage.errors import DamagedSegmentError
from emberq.storage.limits import LENGTH_BYTES, DiskLimits

BLOCK_BYTES = 256 * 1024
"""How much is read ahead: large enough that the system call is cheap per message, small enough per channel."""

_unpack_length = struct.Struct(">i").unpack_from


def open_for_writing(path: Path, *, position: int) -> int:
    """A descriptor of the data file at `path`, created if missing, with nothing beyond `position` in it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    try:
        if os.lseek(fd, 0, os.SEEK_END) > position:
            os.ftruncate(fd, position)
    except OSError:
        os.close(fd)
        raise
    return fd


class SegmentReader:
    """Reads whole records from one data file. Owned by the queue that opened it; close it."""

    def __init__(self, path: Path, *, limits: DiskLimits) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._limits = limits
        self._block = b""  # a part of the file
        self._block_start = 0  # where in the file it begins

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def size(self) -> int:
        """How long the file is now."""
        return os.fstat(self._fd).st_size

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
        """`size` bytes from `position` on, fewer only at the end of the file."""
        block = os.pread(self._fd, size, position)
        while len(block) < size:
            more = os.pread(self._fd, size - len(block), position + len(block))
            if not more:
                break
            block += more
        return block

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
        block = self._block
        shortest, longest = self._limits.min_record_bytes, self._limits.max_record_bytes
        last_length_at = min(len(block) - start, max_bytes) - LENGTH_BYTES
        end = LENGTH_BYTES + _unpack_length(block, start)[0]
        ends = [end]
        while end <= last_length_at and len(ends) < max_count:
            length = _unpack_length(block, start + end)[0]
            if not shortest <= length <= longest:
                break
            end += LENGTH_BYTES + length
            if end > max_bytes:
                break
            ends.append(end)
        return ends


def count_records(path: Path, *, start: int, end: int | None, limits: DiskLimits) -> int:
    """How many whole records a reader would find from `start` to `end` (None: the end of the file)."""
    try:
        reader = SegmentReader(path, limits=limits)
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
