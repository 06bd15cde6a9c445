"""Walking through the batches of a segment, trusting no byte of it.

A scan reads in blocks and yields batches that have been checked. Where it finds none it searches for the next one and
yields a `Damage` in its place: first where the damaged batch would end if its header is right, then at every multiple
of 8 at which the magic number stands. A batch found this way must be whole, fit its crc (which the journal seeds)
and continue the offsets, so that bytes inside a message do not pass for a batch.

Where the disk cannot read, 4 KiB at a time are taken for zeros: that is damage like any other. A disk that has failed
as a whole is not, because it may come back: a scan ends with an OSError where neither a block nor the two ends of the
file can be read, and beyond MAX_UNREADABLE_PIECES.

A message may be full of headers that are none, and each may claim to be megabytes long. To check them one by one would
take hours. So the search goes over the file once, notes the crc up to each place where a candidate begins or ends, and
gets the crc of any stretch between two places from these: that takes the same time, however long the stretch is. And
it is done in portions of a few milliseconds, if the caller does not want to wait for the end.

A scan can also pass over batches by their headers alone: so a reader gets from an index entry to an offset.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from emberq.base.file import OS_FILES, UNREADABLE_PIECE_BYTES, Files, read_around, read_fully
from emberq.storage.journal.segment import BatchPlace
from emberq.wire.journal_batch import (
    ALIGNMENT,
    CHECKED_FROM,
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
WINDOW_BYTES = 4 * 1024 * 1024
"""Candidates that begin within so many bytes are checked together, which bounds how many there are."""
PORTION_BYTES = 1024 * 1024
"""A portion of a search: so much is read and checked, ..."""
PORTION_COUNT = 50
"""... or so many candidates are looked at; both take some milliseconds."""
SEARCH_BLOCK_BYTES = 256 * 1024
"""How much is read at a time in a search, also if single batches are read otherwise."""
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


class UnfinishedSearch(Exception):
    """A search behind damage has done its portions, and goes on at the next call."""


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
        self._checked_end = 0  # up to here its batches have been checked
        self._unreadable: set[int] = set()  # where pieces begin that the disk could not read
        self.max_portions: int | None = None
        """If it is set, `next` does so much of a search and then raises UnfinishedSearch; else it ends each search."""
        self._search: Generator[None, None, BatchPlace | None] | None = None  # the one that is not finished
        self._reason = ""  # why it was begun

    def use(self, fd: int) -> None:
        """Go on with another descriptor of the same file."""
        self._fd = fd

    def preload(self, block: bytes, *, checked_bytes: int) -> None:
        """Begin with this block, which was read at `position`. The batches in its first bytes have been checked."""
        self._block_data = block
        self._block = memoryview(block)
        self._block_start = self.position
        self._checked_end = self.position + checked_bytes

    def __iter__(self) -> Iterator[JournalBatch | Damage]:
        while (found := self.next()) is not None:
            yield found

    def next(self) -> JournalBatch | Damage | None:
        """The batch at `position`, or what stands in its place; None at the end."""
        if self.position >= self._end_position:
            return None
        if self._search is not None:
            return self._pass_damage(self._reason)
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
        is_checked = position + header.length <= self._checked_end
        return decode(self._loaded(position, header.length), header, seed=None if is_checked else self._seed)

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
        if self._search is None:
            self._search, self._reason = self._searching(start), reason
        found = self._portions_of(self._search)
        self._search = None
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

    def _portions_of(self, search: Generator[None, None, BatchPlace | None]) -> BatchPlace | None:
        """What the search finds; UnfinishedSearch if it is to go on at another time."""
        left = self.max_portions
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: BatchPlace | None = end.value
                return found
            if left is not None:
                left -= 1
                if left <= 0:
                    raise UnfinishedSearch

    def _searching(self, start: int) -> Generator[None, None, BatchPlace | None]:
        """The next place behind `start` where a good batch begins; in portions."""
        self._block_bytes = max(self._block_bytes, SEARCH_BLOCK_BYTES)
        end = self._end_by_header(start)
        found = None if end is None else self._good_at(end)
        position = padded(start + 1)
        while found is None and position < self._end_position:
            window_end = min(position + WINDOW_BYTES, self._end_position)
            candidates: list[tuple[int, BatchHeader]] = []
            looked_at = 0
            while (position := self._next_magic(position, window_end)) < window_end:
                with suppress(DamagedBatchError):
                    candidates.append((position, self._header_at(position)))
                position += ALIGNMENT
                looked_at += 1
                if looked_at % PORTION_COUNT == 0:
                    yield
            found = yield from self._first_good(candidates)
            position = window_end
            yield
        return found

    def _first_good(self, candidates: list[tuple[int, BatchHeader]]) -> Generator[None, None, BatchPlace | None]:
        """The first of these places where a good batch begins."""
        total_bytes = sum(header.length for _, header in candidates)
        crc_before: dict[int, int] | None = None
        if total_bytes > WINDOW_BYTES:
            cuts = {position + CHECKED_FROM for position, _ in candidates}
            cuts.update(position + header.length for position, header in candidates)
            crc_before = yield from self._crc_before(sorted(cuts))
        for number, (position, header) in enumerate(candidates, 1):
            if crc_before is None or self._fits(position, header, crc_before):
                found = self._good_at(position)
                if found is not None:
                    return found
            if number % PORTION_COUNT == 0:
                yield
        return None

    def _good_at(self, position: int) -> BatchPlace | None:
        try:
            return BatchPlace(self._batch_at(position).base_offset, position)
        except DamagedBatchError:
            return None

    def _crc_before(self, cuts: list[int]) -> Generator[None, None, dict[int, int]]:
        """The crc of everything from the first of these positions up to each of them, as far as the file goes."""
        found: dict[int, int] = {}
        at, crc, done = cuts[0], 0, 0
        for cut in cuts:
            while at < cut:
                block = read_around(self._fd, min(PORTION_BYTES, cut - at), position=at, fs=self._fs).content
                if not block:
                    return found
                crc = crc32(block, crc)
                at += len(block)
                done += len(block)
                if done >= PORTION_BYTES:
                    done = 0
                    yield
            found[cut] = crc
        return found

    def _fits(self, position: int, header: BatchHeader, crc_before: dict[int, int]) -> bool:
        """Whether the crc of a candidate is right, by the crcs up to its beginning and its end."""
        start, end = position + CHECKED_FROM, position + header.length
        if end not in crc_before:
            return False
        return crc_before[end] ^ _followed_by(crc_before[start] ^ self._seed, end - start) == header.crc

    def _end_by_header(self, start: int) -> int | None:
        """Where the batch at `start` ends if its header is right; None if the header makes no sense."""
        try:
            return start + self._header_at(start).length
        except DamagedBatchError:
            return None

    def _next_magic(self, position: int, end: int) -> int:
        """The first multiple of 8 at or behind `position` where a batch may begin, or the end."""
        while position < end:
            try:
                self._loaded(position, len(MAGIC))
            except DamagedBatchError:
                break
            at = position - self._block_start
            while (at := self._block_data.find(MAGIC, at)) >= 0:
                if (self._block_start + at) % ALIGNMENT == 0:
                    return min(self._block_start + at, end)
                at += 1
            # On with the first multiple of 8 at which the magic number would not have been within the block.
            position = padded(self._block_start + len(self._block_data) - len(MAGIC) + 1)
        return end


# The arithmetic of crcs. A crc is a polynomial over the field of two elements, the highest power in the lowest bit.

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_TABLE_BITS = 7
_TABLE_SIZE = 1 << _TABLE_BITS
_BATCH_BITS = 27
"""A batch is at most 2^30 bytes long, in multiples of 8."""


def _followed_by(crc: int, size_bytes: int) -> int:
    """What a crc becomes when so many zeros follow, a multiple of 8.

    The crc of A followed by B is this of A and the length of B, xor the crc of B.
    """
    words = size_bytes // ALIGNMENT
    for table in _powers():
        if words % _TABLE_SIZE:
            crc = _product(table[words % _TABLE_SIZE], crc)
        words //= _TABLE_SIZE
    return crc


@lru_cache(maxsize=1)
def _powers() -> list[list[int]]:
    """For each group of bits of a length in words of 8 bytes: what stands for so many zeros."""
    step = 1 << 30  # one bit
    for _ in range(6):  # a word has 2^6 bits
        step = _product(step, step)
    tables: list[list[int]] = []
    for _ in range(0, _BATCH_BITS, _TABLE_BITS):
        table = [_ONE]
        while len(table) <= _TABLE_SIZE:
            table.append(_product(table[-1], step))
        step = table.pop()
        tables.append(table)
    return tables


def _product(one: int, other: int) -> int:
    """The product of two polynomials, modulo that of the crc."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
