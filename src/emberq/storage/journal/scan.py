"""Walking through the batches of a segment, trusting no byte of it.

A scan reads in blocks and yields batches that have been checked. Where it finds none it searches for the next one and
yields a `Damage` in its place: first where the damaged batch would end if its header is right, then at every multiple
of 8 at which the magic number stands. A batch found this way must be whole, fit its crc (which the journal seeds)
and continue the offsets, so that bytes inside a message do not pass for a batch.

Where the disk cannot read, 4 KiB at a time are taken for zeros: that is damage like any other. A disk that has failed
as a whole is not, because it may come back: a scan ends with an OSError where neither a block nor the two ends of the
file can be read, and beyond MAX_UNREADABLE_PIECES.

A scan can also pass over batches by their headers alone: so a reader gets from an index entry to an offset.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from emberq.base.file import OS_FILES, UNREADABLE_PIECE_BYTES, Files, read_around, read_fully
from emberq.storage.journal.segment import BatchPlace
from emberq.wire.journal_batch import (
    ALIGNMENT,
    HEADER_BYTES,
    MAGIC,
    NOT_COMPLETE,
    BatchHeader,
    DamagedBatchError,
    JournalBatch,
    decode,
    header_at,
    padded,
)

BLOCK_BYTES = 1024 * 1024
"""How much is read at a time when a whole segment is walked."""
END_OF_OFFSETS = (1 << 63) - 1
MAX_UNREADABLE_PIECES = 256
"""A mebibyte. More than that is no bad sector, and messages are not given up because a cable is loose."""
_ENDS_WITHIN = "the file ends within the batch"


class Damage(NamedTuple):
    """A part of a segment that holds no batch that could be read."""

    position: int
    end: int
    """Where the next batch begins, or the scan ends."""
    first_offset: int
    next_offset: int
    """The offsets from the first up to this one are lost; equal to the first if it is not known how many are."""
    reason: str
    file: str = ""
    """The name of the file, where it is known."""

    @property
    def is_incomplete(self) -> bool:
        """Whether the file ends within a batch: it was being written, and cannot have been synced."""
        return self.reason in {NOT_COMPLETE, _ENDS_WITHIN}

    def __str__(self) -> str:
        lost = f"offsets {self.first_offset} to {self.next_offset - 1} are lost"
        place = f"{self.file}, position {self.position}" if self.file else f"position {self.position}"
        return f"{lost}: {place}: {self.reason}"


class Scan:
    """A walk through one file from `start` to `end_position`. The descriptor still belongs to the segment."""

    def __init__(
        self,
        fd: int,
        *,
        seed: int,
        start: BatchPlace,
        end_position: int,
        end_offset: int = END_OF_OFFSETS,
        block_bytes: int = BLOCK_BYTES,
        fs: Files = OS_FILES,
    ) -> None:
        self.position = start.position
        """Where the next batch should begin."""
        self.offset = start.offset
        """The offset it should begin with."""
        self._fd = fd
        self._fs = fs
        self._seed = seed
        self._end_position = end_position
        self._end_offset = end_offset
        self._block_bytes = max(block_bytes, HEADER_BYTES)
        self._block_data = b""  # a part of the file
        self._block = memoryview(self._block_data)
        self._block_start = 0  # where in the file it begins
        self._unreadable: set[int] = set()  # where pieces begin that the disk could not read

    def __iter__(self) -> Iterator[JournalBatch | Damage]:
        while (found := self.next()) is not None:
            yield found

    def next(self) -> JournalBatch | Damage | None:
        """The batch at `position`, or what stands in its place; None at the end."""
        if self.position >= self._end_position:
            return None
        try:
            batch = self._batch_at(self.position)
        except DamagedBatchError as error:
            return self._pass_damage(str(error))
        if batch.base_offset > self.offset:
            return self._pass_hole(batch.base_offset)
        assert batch.base_offset == self.offset
        self.position += batch.length
        self.offset = batch.next_offset
        assert self.position <= self._end_position
        return batch

    def next_is_loaded(self) -> bool:
        """Whether the next batch is in the block that has been read already, as far as its header can tell."""
        at = self.position - self._block_start
        if not 0 <= at <= len(self._block) - HEADER_BYTES:
            return False
        header = header_at(self._block[at:])
        return at + header.length <= len(self._block)

    def next_header(self) -> BatchHeader | None:
        """The header at `position` if it makes sense and continues the offsets without a gap; unchecked by crc."""
        if self.position >= self._end_position:
            return None
        try:
            header = self._header_at(self.position)
        except DamagedBatchError:
            return None
        return header if header.base_offset == self.offset else None

    def pass_header(self, header: BatchHeader) -> None:
        """Go behind the batch that `next_header` found, without checking it."""
        self.position += header.length
        self.offset = header.next_offset

    def pass_before(self, offset: int) -> None:
        """Go to the batch that holds `offset`, by headers; stops short of it where a header makes no sense."""
        while (header := self.next_header()) is not None and header.next_offset <= offset:
            self.pass_header(header)

    # -- batches -----------------------------------------------------------------------------------------------

    def _header_at(self, position: int) -> BatchHeader:
        header = header_at(self._loaded(position, HEADER_BYTES))
        fault = header.fault(room_bytes=self._end_position - position)
        if fault is not None:
            raise DamagedBatchError(fault)
        if not self.offset <= header.base_offset <= self._end_offset - header.message_count:
            raise DamagedBatchError(f"offset {header.base_offset} does not follow {self.offset}")
        return header

    def _batch_at(self, position: int) -> JournalBatch:
        header = self._header_at(position)
        return decode(self._loaded(position, header.length), header, seed=self._seed)

    def _loaded(self, position: int, size_bytes: int) -> memoryview:
        """These bytes of the file. DamagedBatchError if it ends before."""
        at = position - self._block_start
        if at < 0 or at + size_bytes > len(self._block):
            self._load(position, size_bytes)
            at = 0
        if size_bytes > len(self._block) - at:
            raise DamagedBatchError(_ENDS_WITHIN)
        return self._block[at : at + size_bytes]

    def _load(self, position: int, size_bytes: int) -> None:
        wanted = min(max(size_bytes, self._block_bytes), self._end_position - position)
        block, unreadable = read_around(self._fd, wanted, position=position, fs=self._fs)
        self._unreadable.update(unreadable)
        if len(self._unreadable) > MAX_UNREADABLE_PIECES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if unreadable and len(unreadable) * UNREADABLE_PIECE_BYTES >= len(block):
            self._check_ends()
        self._block_data = block
        self._block = memoryview(block)
        self._block_start = position

    def _check_ends(self) -> None:
        """OSError if neither end of the file can be read."""
        try:
            read_fully(self._fd, 1, position=0, fs=self._fs)
        except OSError:
            read_fully(self._fd, 1, position=self._end_position - 1, fs=self._fs)

    # -- damage ------------------------------------------------------------------------------------------------

    def _pass_hole(self, next_offset: int) -> Damage:
        """The batch at `position` is good, but does not continue the offsets."""
        hole = Damage(self.position, self.position, self.offset, next_offset, "no batch holds these offsets")
        self.offset = next_offset
        return hole

    def _pass_damage(self, reason: str) -> Damage:
        start, first_offset = self.position, self.offset
        found = self._search(start)
        if found is None:
            self.position = self._end_position
            if self._end_offset != END_OF_OFFSETS:
                self.offset = self._end_offset
        else:
            self.position, self.offset = found.position, found.offset
        hit = [at for at in self._unreadable if start - UNREADABLE_PIECE_BYTES < at < self.position]
        if hit:
            reason = f"the disk cannot read it at position {max(start, min(hit))}"
        return Damage(start, self.position, first_offset, self.offset, reason)

    def _search(self, start: int) -> BatchPlace | None:
        """The next place behind `start` where a good batch begins."""
        for position in self._candidates(start):
            try:
                return BatchPlace(self._batch_at(position).base_offset, position)
            except DamagedBatchError:
                continue
        return None

    def _candidates(self, start: int) -> Iterator[int]:
        end = self._end_by_header(start)
        if end is not None:
            yield end
        position = padded(start + 1)
        while position < self._end_position:
            position = self._next_magic(position)
            yield position
            position += ALIGNMENT

    def _end_by_header(self, start: int) -> int | None:
        """Where the batch at `start` ends if its header is right; None if the header makes no sense."""
        try:
            return start + self._header_at(start).length
        except DamagedBatchError:
            return None

    def _next_magic(self, position: int) -> int:
        """The first multiple of 8 at or behind `position` where a batch may begin, or the end."""
        while position < self._end_position:
            try:
                self._loaded(position, len(MAGIC))
            except DamagedBatchError:
                break
            at = position - self._block_start
            while (at := self._block_data.find(MAGIC, at)) >= 0:
                if (self._block_start + at) % ALIGNMENT == 0:
                    return self._block_start + at
                at += 1
            # On with the first multiple of 8 at which the magic number would not have been within the block.
            position = padded(self._block_start + len(self._block_data) - len(MAGIC) + 1)
        return self._end_position
