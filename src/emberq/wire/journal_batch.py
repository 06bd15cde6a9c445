"""A batch of the journal, as it lies in a segment and travels by /journal/read. Bytes to values and back, without I/O.

All numbers are little-endian and everything starts at a multiple of 8, so that a reader can use the columns in place.
The positions and the bodies are the two buffers of an Arrow binary array.

    0   magic "EqB1"         4   crc32 of all that follows, seeded     8   length of the batch: uint32
    12  version: uint16      14  flags: uint16                         16  offset of the first message: int64
    24  publish time: int64  32  count of messages: uint32             36  size of the bodies: uint32
    40  producer id: 16 bytes                                          56  the producer's sequence: int64
    64  where bodies begin and end: (count + 1) x int32, the first is 0      padded to 8 with zeros
    ..  flag TIMES: publish time of each message: count x int64, nanoseconds
    ..  flag DUE: when each message is due: count x int64, nanoseconds, 0 = at once
    ..  the bodies, back to back                                             padded to 8 with zeros
    ..  since version 2: everything before this offset was on the disk when the batch was written: int64

The length follows from the count, the flags and the size of the bodies. A batch is damaged if its length does not, if
its crc is wrong, if its positions do not ascend, or if this version does not know its kind.

The last number tells damage from a write that a power failure has torn. Batches that were being written when the power
failed are not on the disk, or only in part, while one behind them may be. But what was on the disk when a later batch
was written cannot have been torn. Batches of version 1 do not say it.

The crc starts from a seed that belongs to the journal (`seed_of`). A body may hold anything, also the bytes of another
journal. When a reader searches for the next batch behind a damaged one, those do not pass for a batch of this journal.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from itertools import count as count_up
from operator import sub
from typing import NamedTuple
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from emberq.wire.body import unprefixed
from emberq.wire.parameter import MAX_SEQUENCE, NO_PRODUCER, PRODUCER_ID_BYTES, ProducerSequence

MAGIC = b"EqB1"
VERSION = 2
"""The version that is written. Version 1, which says nothing of what was synced, is read too."""
ALIGNMENT = 8
HEADER_BYTES = 64
MAX_BATCH_BYTES = 1 << 30
"""Positions are int32, so the format itself ends at 2 GiB; half of it leaves no sum that could overflow."""

MAX_OFFSET = (1 << 63) - 1
"""Offsets are int64, the one behind the last message included."""

HAS_TIMES = 1
HAS_DUE = 2
HAS_PRODUCER = 4
_KNOWN_FLAGS = HAS_TIMES | HAS_DUE | HAS_PRODUCER

CHECKED_FROM = 8  # the crc is over everything from here on
_START = struct.Struct("<4sI")
_REST = struct.Struct("<IHHqqII16sq")
_HEADER = struct.Struct("<4sIIHHqqII16sq")
_PADDING = tuple(bytes(size) for size in range(ALIGNMENT))
_STRIDED_UP_TO_BYTES = 1024
"""Up to this size of a body it is faster to move all bytes once for each byte of a prefix than to make an object per
message."""
_REMEMBERED_UP_TO_COUNT = 4096
"""Publishers send batches of the same shape again and again, so positions up to this count are kept: at most 16 KiB for
one batch."""
_IS_LITTLE_ENDIAN = sys.byteorder == "little"
_INT32_BYTES = 4
_INT64_BYTES = 8
_SAYS_SYNCED = 2
"""The first version that says how far the journal was synced."""
_SYNCED = struct.Struct("<q")
_pack_synced = _SYNCED.pack


NOT_COMPLETE = "the batch is not complete"
"""The fault of a header whose batch is longer than the rest of the file: it was being written."""


class DamagedBatchError(ValueError):
    """The bytes at some place are not a whole, valid batch."""


class Bodies(NamedTuple):
    """The bodies of some messages, back to back.

    There are `message_count + 1` positions: body i is blob[positions[i] : positions[i + 1]].
    """

    blob: bytes | bytearray
    positions: bytes
    message_count: int

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> Bodies:
        """Bodies that lie apart."""
        blob = b"".join(messages)
        _refuse_too_many_bytes(len(blob))
        return cls(blob, _packed(accumulate(map(len, messages), initial=0), len(messages)), len(messages))

    @classmethod
    def of_items(cls, items: bytes, ends: Sequence[int], *, prefix_bytes: int) -> Bodies:
        """Items back to back, of which the first `prefix_bytes` of each are not part of the body.

        `ends[i]` is where item i ends; a `range` when all items have one size, which then costs little more than
        copying them.
        """
        if not ends or ends[-1] != len(items):
            raise ValueError("the last item does not end where the items end")
        if not isinstance(ends, range) or ends.start != ends.step:
            blob = b"".join(unprefixed(items, ends, prefix_bytes))
            _refuse_too_many_bytes(len(blob))
            return cls(blob, _positions_without(prefix_bytes, ends), len(ends))
        _refuse_too_many_bytes(len(items))
        size, count = ends.step, len(ends)
        body_bytes = size - prefix_bytes
        return cls(
            _without_prefixes(items, size=size, prefix_bytes=prefix_bytes), uniform_positions(body_bytes, count), count
        )


def _positions_without(prefix_bytes: int, ends: Sequence[int]) -> bytes:
    """Where bodies lie that are items with these ends, each without its prefix."""
    count = len(ends)
    if _IS_LITTLE_ENDIAN and isinstance(ends, array) and ends.itemsize == _INT32_BYTES:
        # All ends are one large number, and what is taken from each another one: a single subtraction does it. It
        # borrows nothing from one position to the next, for an item is not shorter than its prefix.
        taken = int.from_bytes(uniform_positions(prefix_bytes, count), "little")
        left = (int.from_bytes(ends, "little") << 8 * _INT32_BYTES) - taken
        return left.to_bytes(_INT32_BYTES * (count + 1), "little")
    return _packed([0, *map(sub, ends, count_up(prefix_bytes, prefix_bytes))], count)


def _packed(positions: Iterable[int], message_count: int) -> bytes:
    """As they stand in a batch. `array` would take twice as long: it parses each number."""
    return struct.pack(f"<{message_count + 1}i", *positions)


class EncodedBatch(NamedTuple):
    """A batch ready to be written: `parts` one after the other, `length` bytes in all."""

    parts: list[bytes | bytearray]
    length: int


class BatchHeader(NamedTuple):
    """The first 64 bytes, in their order."""

    magic: bytes
    crc: int
    length: int
    version: int
    flags: int
    base_offset: int
    timestamp_ns: int
    message_count: int
    body_bytes: int
    producer_id: bytes
    sequence: int

    @property
    def next_offset(self) -> int:
        """The offset behind the last message."""
        return self.base_offset + self.message_count

    def fault(self, *, room_bytes: int) -> str | None:
        """What is wrong with this header when `room_bytes` are left in the file; None if nothing is."""
        if self.magic != MAGIC:
            return "no batch begins here"
        if not 1 <= self.version <= VERSION or self.flags & ~_KNOWN_FLAGS:
            return f"a batch of unknown kind (version {self.version}, flags {self.flags:#x})"
        has_offsets = 0 <= self.base_offset <= MAX_OFFSET - self.message_count
        if self.message_count == 0 or not has_offsets or self.length > MAX_BATCH_BYTES:
            return "an impossible batch header"
        if self.length != batch_length(
            count=self.message_count, flags=self.flags, body_bytes=self.body_bytes, version=self.version
        ):
            return "the length does not fit the contents"
        if self.length > room_bytes:
            return NOT_COMPLETE
        return None

    @property
    def times_at(self) -> int:
        """Where the publish times begin in the batch, if it has the flag TIMES."""
        return HEADER_BYTES + padded(_INT32_BYTES * (self.message_count + 1))

    @property
    def bodies_at(self) -> int:
        """Where the bodies begin in the batch."""
        return self.length - padded(self.body_bytes) - (_INT64_BYTES if self.version >= _SAYS_SYNCED else 0)


class JournalBatch:
    """A batch as read from a journal. Its columns are views of the block that was read, which they keep in memory."""

    __slots__ = ("bodies", "data", "due_ns", "ends", "header", "positions", "times_ns")

    def __init__(self, data: memoryview, header: BatchHeader) -> None:
        count, flags = header.message_count, header.flags
        self.data = data
        """The whole batch as it lies on disk."""
        self.header = header
        positions_end = HEADER_BYTES + _INT32_BYTES * (count + 1)
        self.positions = data[HEADER_BYTES:positions_end].cast("i")
        """Where bodies begin and end in `bodies`: `count + 1` of them."""
        at = padded(positions_end)
        self.times_ns: memoryview | None = None
        """The publish time of each message, when they differ."""
        if flags & HAS_TIMES:
            self.times_ns, at = data[at : at + _INT64_BYTES * count].cast("q"), at + _INT64_BYTES * count
        self.due_ns: memoryview | None = None
        """When each message is due (0: at once), when any of them is deferred."""
        if flags & HAS_DUE:
            self.due_ns, at = data[at : at + _INT64_BYTES * count].cast("q"), at + _INT64_BYTES * count
        self.bodies = data[at : at + header.body_bytes]
        self.ends = _checked_ends(self.positions, count=count, body_bytes=header.body_bytes)
        """Where each body ends; a `range` when all have one size."""

    def __repr__(self) -> str:
        return f"<JournalBatch {self.base_offset}..{self.next_offset}, {self.length} bytes>"

    @property
    def length(self) -> int:
        """How many bytes it takes on disk."""
        return self.header.length

    @property
    def base_offset(self) -> int:
        """The offset of the first message."""
        return self.header.base_offset

    @property
    def count(self) -> int:
        """How many messages there are."""
        return self.header.message_count

    @property
    def next_offset(self) -> int:
        """The offset behind the last message."""
        return self.header.base_offset + self.header.message_count

    @property
    def timestamp_ns(self) -> int:
        """When the batch was published; the latest moment when its messages have times of their own."""
        return self.header.timestamp_ns

    @property
    def synced_offset(self) -> int | None:
        """Everything before it was on the disk when this batch was written; None: the batch does not say."""
        if self.header.version < _SAYS_SYNCED:
            return None
        synced_offset: int = _SYNCED.unpack_from(self.data, len(self.data) - _SYNCED.size)[0]
        return synced_offset

    @property
    def producer(self) -> ProducerSequence | None:
        """The producer and its number for the batch; None if the producer does not number its batches."""
        if not self.header.flags & HAS_PRODUCER:
            return None
        return ProducerSequence(self.header.producer_id, self.header.sequence)

    def body(self, index: int) -> bytes:
        """The body of message `index`, which has the offset `base_offset + index`."""
        return bytes(self.bodies[self.positions[index] : self.positions[index + 1]])

    def messages(self) -> list[bytes]:
        """All bodies."""
        blob, positions = self.bodies.tobytes(), self.positions.tolist()
        return [blob[start:end] for start, end in pairwise(positions)]


def seed_of(journal: UUID) -> int:
    """The value that the crcs of this journal start from."""
    return crc32(journal.bytes)


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of 8."""
    return (size_bytes + ALIGNMENT - 1) & -ALIGNMENT


def batch_length(*, count: int, flags: int, body_bytes: int, version: int = VERSION) -> int:
    """The length of a batch with these contents."""
    columns = (flags & HAS_TIMES != 0) + (flags & HAS_DUE != 0)
    positions_bytes = padded(_INT32_BYTES * (count + 1))
    end_bytes = _INT64_BYTES if version >= _SAYS_SYNCED else 0
    return HEADER_BYTES + positions_bytes + columns * count * _INT64_BYTES + padded(body_bytes) + end_bytes


def uniform_positions(body_bytes: int, count: int) -> bytes:
    """The positions of `count` bodies of one size."""
    if count > _REMEMBERED_UP_TO_COUNT:
        return _uniform_positions.__wrapped__(body_bytes, count)
    return _uniform_positions(body_bytes, count)


@lru_cache(maxsize=64)
def _uniform_positions(body_bytes: int, count: int) -> bytes:
    if body_bytes == 0:
        return bytes(_INT32_BYTES * (count + 1))
    return _packed(range(0, body_bytes * count + 1, body_bytes), count)


def encode(
    bodies: Bodies,
    *,
    base_offset: int,
    timestamp_ns: int,
    seed: int,
    times_ns: Sequence[int] | None = None,
    due_ns: Sequence[int] | None = None,
    producer: ProducerSequence | None = None,
    synced_offset: int = 0,
) -> EncodedBatch:
    """The batch of these messages. ValueError for what the format cannot hold.

    `synced_offset`: everything before it is on the disk now.
    """
    blob, positions, count = bodies
    if not count:
        raise ValueError("a batch holds at least one message")
    flags = 0
    columns = [positions, _PADDING[-len(positions) % ALIGNMENT]]
    if times_ns is not None:
        flags |= HAS_TIMES
        columns.append(_column(times_ns, count=count))
        timestamp_ns = max(times_ns)
    if due_ns is not None:
        flags |= HAS_DUE
        columns.append(_column(due_ns, count=count))
    if producer is None:
        producer_id, sequence = NO_PRODUCER
    else:
        producer_id, sequence = producer
        flags |= HAS_PRODUCER
        _refuse_bad_producer(producer)
    length = batch_length(count=count, flags=flags, body_bytes=len(blob))
    if length > MAX_BATCH_BYTES:
        raise ValueError(f"a batch of {length} bytes is larger than {MAX_BATCH_BYTES}")
    checked = b"".join(
        (
            _REST.pack(length, VERSION, flags, base_offset, timestamp_ns, count, len(blob), producer_id, sequence),
            *columns,
        )
    )
    end = _PADDING[-len(blob) % ALIGNMENT] + _pack_synced(synced_offset)
    crc = crc32(end, crc32(blob, crc32(checked, seed)))
    return EncodedBatch([_START.pack(MAGIC, crc), checked, blob, end], length)


def header_at(data: memoryview) -> BatchHeader:
    """The header that `data` begins with; its `fault` tells whether it makes sense."""
    return BatchHeader._make(_HEADER.unpack_from(data))


def decode(data: memoryview, header: BatchHeader, *, seed: int | None) -> JournalBatch:
    """The batch in `data`, whose `header` has no fault and whose length is that of `data`. DamagedBatchError if not.

    Without a seed its crc is not checked, because that has been done.
    """
    if seed is not None:
        check_crc(data, header, seed=seed)
    return JournalBatch(data, header)


def check_crc(data: memoryview, header: BatchHeader, *, seed: int) -> None:
    """DamagedBatchError unless the crc of the batch in `data` is right: then it is what nsqd has written."""
    if crc32(data[CHECKED_FROM:], seed) != header.crc:
        raise DamagedBatchError("the crc does not fit the contents")


def _without_prefixes(items: bytes, *, size: int, prefix_bytes: int) -> bytes | bytearray:
    """Items of one size, each without its first bytes."""
    body_bytes = size - prefix_bytes
    if body_bytes > _STRIDED_UP_TO_BYTES:
        return b"".join([items[at : at + body_bytes] for at in range(prefix_bytes, len(items), size)])
    bodies = bytearray(items)
    for taken in range(prefix_bytes):
        del bodies[:: size - taken]  # the first byte that is left of each prefix
    return bodies


def _column(values: Sequence[int], *, count: int) -> bytes:
    if len(values) != count:
        raise ValueError(f"{len(values)} values for {count} messages")
    return array("q", values).tobytes()


def _checked_ends(positions: memoryview, *, count: int, body_bytes: int) -> Sequence[int]:
    """Where bodies end. DamagedBatchError unless positions lead from 0 to the end without going back."""
    values: list[int] = positions.tolist()
    size = values[1]
    if size > 0 and size * count == body_bytes:
        ends = range(size, body_bytes + 1, size)
        if values == [0, *ends]:
            return ends
    if values[0] != 0 or values[-1] != body_bytes or values != sorted(values):
        raise DamagedBatchError("the positions of the bodies do not ascend from start to end")
    return values[1:]


def _refuse_too_many_bytes(size_bytes: int) -> None:
    if size_bytes > MAX_BATCH_BYTES:
        raise ValueError(f"bodies of {size_bytes} bytes are larger than a batch can be")


def _refuse_bad_producer(producer: ProducerSequence) -> None:
    if len(producer.producer_id) != PRODUCER_ID_BYTES:
        raise ValueError(f"a producer id has {PRODUCER_ID_BYTES} bytes, not {len(producer.producer_id)}")
    if not 0 <= producer.sequence <= MAX_SEQUENCE:
        raise ValueError(f"a sequence is a number from 0 to {MAX_SEQUENCE}, not {producer.sequence}")
