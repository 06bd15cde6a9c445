"""Messages that arrived together stay together: `Batch`, `Span`, and the three layouts of messages in a buffer.

A `Batch` is the messages of one publish (or of one read from disk) in one buffer. All channels share it. How often a
message was tried differs from channel to channel, so it is kept in the `Span` beside the batch. A batch is taken apart
only where its messages go different ways, and is never copied per channel:

- the frames that consumers get on the first attempt are built once per batch, when the first of its messages is
  delivered, and from then on the batch keeps that layout instead of the one in which it arrived;
- the FIN lines that answer them are built once too, so that a consumer that finishes in order is checked by comparing
  bytes (see `in_flight`).

Batches are small enough (MAX_BATCH_BYTES, MAX_BATCH_COUNT) that one message held back does not hold much with it.

The layouts differ only in what stands before the body:

    published   int32 size                                                       as it came in a PUB or MPUB
    stored      int32 size, publish time, attempts, id                           as it lies in a disk queue
    framed      int32 size, int32 frame type, publish time, attempts, id         as it goes to a consumer

Items lie back to back in one buffer, and `ends` says where each of them ends. When all items have one size, `ends` is a
`range`, and a whole batch gets another layout by a few operations in C: cut by slices, joined, and what differs from
item to item written by columns (a slice whose step is the item's size).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar

from emberq.broker.stats import LatencyWindow
from emberq.storage.backend import LENGTH_BYTES, Records
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX
from emberq.wire.frame import (
    ATTEMPTS_OFFSET,
    BODY_OFFSET,
    FRAME_HEADER,
    ID_BYTES,
    ID_OFFSET,
    MAX_ATTEMPTS,
    MESSAGE,
    WireMessage,
    decode_message,
)

# Layouts: items back to back in one buffer.

PUBLISHED_HEADER = struct.Struct(">i")
PUBLISHED_HEADER_BYTES = PUBLISHED_HEADER.size
STORED_HEADER = struct.Struct(">iqH16s")
FRAMED_HEADER = struct.Struct(">iiqH16s")


def uniform_range(*, size: int, count: int) -> range:
    """The `ends` of `count` items of `size` bytes."""
    return range(size, size * count + 1, size)


def start_of(ends: Sequence[int], index: int) -> int:
    """Where item `index` starts."""
    return ends[index - 1] if index else 0


def convert(
    data: bytes, ends: Sequence[int], *, start: int, stop: int, cut: int, header: Callable[[int], bytes]
) -> tuple[bytearray, Sequence[int]]:
    """Items `start` to `stop`, each with its first `cut` bytes replaced by `header(length of what is left)`."""
    if isinstance(ends, range):
        size = ends.step
        lead = header(size - cut)
        first = start * size + cut
        rests = [data[position : position + size - cut] for position in range(first, stop * size, size)]
        joined = bytearray(lead)
        joined += lead.join(rests)
        return joined, uniform_range(size=len(lead) + size - cut, count=stop - start)
    joined = bytearray()
    new_ends = array("I")
    position = start_of(ends, start)
    for end in ends[start:stop]:
        joined += header(end - position - cut)
        joined += data[position + cut : end]
        new_ends.append(len(joined))
        position = end
    return joined, new_ends


def write_column(data: bytearray, ends: Sequence[int], *, offset: int, column: bytes) -> None:
    """Write one byte of `column` into each item, at `offset` from the item's start."""
    if isinstance(ends, range):
        data[offset :: ends.step] = column
        return
    position = 0
    for byte, end in zip(column, ends, strict=True):
        data[position + offset] = byte
        position = end


def read_column(data: bytes, ends: Sequence[int], *, offset: int) -> bytes:
    """One byte of each item, the one at `offset` from the item's start."""
    if isinstance(ends, range):
        return data[offset :: ends.step]
    return bytes([data[start_of(ends, index) + offset] for index in range(len(ends))])


# Batches.

MAX_BATCH_BYTES = 256 * 1024
MAX_BATCH_COUNT = 4096  # the ids of a batch differ in their last three hexadecimal digits alone

_FRAME_ATTEMPTS = FRAME_HEADER.size + ATTEMPTS_OFFSET
_FRAME_ID = FRAME_HEADER.size + ID_OFFSET
_FRAME_BODY = FRAME_HEADER.size + BODY_OFFSET
_STORED_ATTEMPTS = 4 + ATTEMPTS_OFFSET
_STORED_ID = 4 + ID_OFFSET

_ID_PREFIX_BYTES = ID_BYTES - 3
_SEQUENCE_DIGITS = tuple(bytes(ord(f"{n:03x}"[digit]) for n in range(MAX_BATCH_COUNT)) for digit in range(3))
"""The last three digits of an id, digit by digit, for each sequence number."""


class Batch(ABC):
    """Messages in one buffer. To its users it never changes; inside, what arrived is replaced by frames once."""

    __slots__ = ("_data", "_ends", "_fin_lines", "_framed", "_records", "count")

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        self.count = len(ends)
        self._data = data
        self._ends = ends
        self._framed = False
        self._fin_lines: bytes | None = None
        self._records: tuple[int, int, int, Records] | None = None

    def frames(self, start: int, stop: int, attempts: int) -> bytes:
        """The message frames of messages `start` to `stop`, each showing `attempts`."""
        if not self._framed:
            self._data, self._ends = self._to_frames()
            self._framed = True
        data, ends = self._data, self._ends
        frames = data[start_of(ends, start) : ends[stop - 1]]
        if attempts == 1:
            return frames
        patched = bytearray(frames)
        _write_attempts(patched, _sub_ends(ends, start, stop), offset=_FRAME_ATTEMPTS, attempts=attempts)
        return bytes(patched)

    def records(self, start: int, stop: int, attempts: int) -> Records:
        """Messages `start` to `stop` as a disk queue stores them."""
        if self._records is not None and self._records[:3] == (start, stop, attempts):
            return self._records[3]
        if self._framed:
            data, ends = convert(
                self._data, self._ends, start=start, stop=stop, cut=FRAME_HEADER.size, header=PUBLISHED_HEADER.pack
            )
            _write_attempts(data, ends, offset=_STORED_ATTEMPTS, attempts=attempts)
            records = Records(bytes(data), ends)
        else:
            records = self._to_records(start, stop, attempts)
        self._records = (start, stop, attempts, records)
        return records

    def forget_records(self) -> None:
        """Free what `records` built; it was kept because channels ask for the same records one after the other."""
        self._records = None

    def fin_lines(self) -> bytes:
        """`FIN <id>` of every message, one line after the other."""
        if self._fin_lines is None:
            self._fin_lines = self._to_fin_lines()
        return self._fin_lines

    def ids(self, start: int, stop: int) -> list[bytes]:
        """The ids of messages `start` to `stop`."""
        lines = self.fin_lines()
        first = start * FIN_LINE_BYTES + len(FIN_PREFIX)
        return [lines[i : i + ID_BYTES] for i in range(first, stop * FIN_LINE_BYTES, FIN_LINE_BYTES)]

    def index_of(self, message_id: bytes) -> int:
        """Which message has this id; ValueError when none has."""
        return self.fin_lines().index(FIN_PREFIX + message_id) // FIN_LINE_BYTES

    def body_bytes(self, start: int, stop: int) -> int:
        """The size of the bodies of messages `start` to `stop`."""
        header_bytes = FRAMED_HEADER.size if self._framed else self._header_bytes
        return start_of(self._ends, stop) - start_of(self._ends, start) - header_bytes * (stop - start)

    def fitting(self, start: int, *, max_count: int, max_bytes: int) -> int:
        """How many messages from `start` on stay within both limits; at least one."""
        return _fitting_stop(self._ends, start, max_count=max_count, max_bytes=max_bytes) - start

    def alone(self, index: int) -> Batch:
        """A batch of this one message, which does not hold the others in memory."""
        records = self.records(index, index + 1, 0)
        self.forget_records()
        return StoredBatch(records.blob, records.ends)

    def message(self, index: int, attempts: int) -> WireMessage:
        """Message `index`, taken apart."""
        record = self.records(index, index + 1, attempts).blob
        self.forget_records()
        return decode_message(record[LENGTH_BYTES:])

    def report_finished(self, start: int, stop: int, latency: LatencyWindow) -> None:
        """Tell `latency` when messages `start` to `stop`, which are done with now, were published."""
        for index in range(start, stop):
            latency.finished(self.message(index, 0).timestamp_ns)

    _header_bytes: ClassVar[int]
    """The size of what stands before each body, while the batch has the layout in which it arrived."""

    @abstractmethod
    def _to_frames(self) -> tuple[bytes, Sequence[int]]: ...

    @abstractmethod
    def _to_records(self, start: int, stop: int, attempts: int) -> Records: ...

    @abstractmethod
    def _to_fin_lines(self) -> bytes: ...


class PublishedBatch(Batch):
    """Messages as they came from a publisher. Their ids are consecutive and end in a sequence number."""

    __slots__ = ("_first_id", "_timestamp_ns")
    _header_bytes = PUBLISHED_HEADER.size

    def __init__(self, data: bytes, ends: Sequence[int], first_id: int, timestamp_ns: int) -> None:
        # Without a call of the base class: this runs for every single PUB.
        self.count = len(ends)
        self._data = data
        self._ends = ends
        self._framed = False
        self._fin_lines = None
        self._records = None
        self._first_id = first_id
        self._timestamp_ns = timestamp_ns

    def report_finished(self, start: int, stop: int, latency: LatencyWindow) -> None:
        latency.finished(self._timestamp_ns, stop - start)

    def _id(self, index: int) -> bytes:
        return b"%016x" % (self._first_id + index)

    def _to_frames(self) -> tuple[bytes, Sequence[int]]:
        first_id, timestamp_ns = self._id(0), self._timestamp_ns

        def header(body_bytes: int) -> bytes:
            return FRAMED_HEADER.pack(4 + BODY_OFFSET + body_bytes, MESSAGE, timestamp_ns, 1, first_id)

        cut_bytes = self._header_bytes
        data, ends = convert(self._data, self._ends, start=0, stop=self.count, cut=cut_bytes, header=header)
        self._number(data, ends, start=0, offset=_FRAME_ID)
        return bytes(data), ends

    def _to_records(self, start: int, stop: int, attempts: int) -> Records:
        first_id, timestamp_ns = self._id(start), self._timestamp_ns

        def header(body_bytes: int) -> bytes:
            return STORED_HEADER.pack(BODY_OFFSET + body_bytes, timestamp_ns, attempts & MAX_ATTEMPTS, first_id)

        cut_bytes = self._header_bytes
        data, ends = convert(self._data, self._ends, start=start, stop=stop, cut=cut_bytes, header=header)
        self._number(data, ends, start=start, offset=_STORED_ID)
        return Records(bytes(data), ends)

    def _to_fin_lines(self) -> bytes:
        lines = bytearray(b"FIN %b\n" % self._id(0)) * self.count
        ends = range(FIN_LINE_BYTES, len(lines) + 1, FIN_LINE_BYTES)
        self._number(lines, ends, start=0, offset=len(FIN_PREFIX))
        return bytes(lines)

    def _number(self, data: bytearray, ends: Sequence[int], *, start: int, offset: int) -> None:
        """Write the sequence numbers into items whose ids stand at `offset`."""
        if len(ends) == 1:
            return  # the id of the first is in the header already
        first = (self._first_id & 0xFFF) + start
        for digit, digits in enumerate(_SEQUENCE_DIGITS):
            column = digits[first : first + len(ends)]
            write_column(data, ends, offset=offset + _ID_PREFIX_BYTES + digit, column=column)


class StoredBatch(Batch):
    """Messages as they came from a disk queue, each with a header of its own."""

    __slots__ = ()
    _header_bytes = STORED_HEADER.size

    def _to_frames(self) -> tuple[bytes, Sequence[int]]:
        data, ends = convert(self._data, self._ends, start=0, stop=self.count, cut=4, header=_frame_header)
        _write_attempts(data, ends, offset=_FRAME_ATTEMPTS, attempts=1)
        return bytes(data), ends

    def _to_records(self, start: int, stop: int, attempts: int) -> Records:
        data = bytearray(self._data[start_of(self._ends, start) : self._ends[stop - 1]])
        ends = _sub_ends(self._ends, start, stop)
        _write_attempts(data, ends, offset=_STORED_ATTEMPTS, attempts=attempts)
        return Records(bytes(data), ends)

    def _to_fin_lines(self) -> bytes:
        lines = bytearray(b"FIN 0000000000000000\n" * self.count)
        id_offset = _FRAME_ID if self._framed else _STORED_ID
        for digit in range(ID_BYTES):
            column = read_column(self._data, self._ends, offset=id_offset + digit)
            lines[len(FIN_PREFIX) + digit :: FIN_LINE_BYTES] = column
        return bytes(lines)

    def stored_attempts(self) -> Sequence[int]:
        """How often each message had been tried when it was stored; only meaningful before it is framed."""
        high = read_column(self._data, self._ends, offset=_STORED_ATTEMPTS)
        low = read_column(self._data, self._ends, offset=_STORED_ATTEMPTS + 1)
        return [most << 8 | least for most, least in zip(high, low, strict=True)] if any(high) else low


# Spans.


class Span:
    """Some consecutive messages of a batch, all tried `attempts` times so far. Queues hold spans."""

    __slots__ = ("attempts", "batch", "start", "stop")

    def __init__(self, batch: Batch, start: int, stop: int, attempts: int = 0) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.attempts = attempts

    def __repr__(self) -> str:
        return f"<Span of {self.count} at {self.start}, tried {self.attempts} times>"

    @property
    def count(self) -> int:
        return self.stop - self.start

    def split(self, count: int) -> Span:
        """Take the first `count` messages off this span."""
        head = Span(self.batch, self.start, self.start + count, self.attempts)
        self.start += count
        return head

    def records(self) -> Records:
        return self.batch.records(self.start, self.stop, self.attempts)

    def ids(self) -> list[bytes]:
        return self.batch.ids(self.start, self.stop)

    def messages(self, max_count: int) -> list[WireMessage]:
        """The first messages of the span, taken apart."""
        stop = min(self.stop, self.start + max_count)
        return [self.batch.message(index, self.attempts) for index in range(self.start, stop)]

    def compact(self) -> Span:
        """The same messages, without the rest of the batch in memory: for spans that may stay a while."""
        if self.count == 1 and self.batch.count > 1:
            return Span(self.batch.alone(self.start), 0, 1, self.attempts)
        return self


def spans_of_records(records: Records) -> list[Span]:
    """Records from a disk queue as spans; a span per run of messages with equal attempts."""
    batch = StoredBatch(records.blob, records.ends)
    attempts = batch.stored_attempts()
    if isinstance(attempts, bytes) and attempts == attempts[:1] * batch.count:
        return [Span(batch, 0, batch.count, attempts[0])]
    spans: list[Span] = []
    start = 0
    for tried, group in groupby(attempts):
        stop = start + sum(1 for _ in group)
        spans.append(Span(batch, start, stop, tried))
        start = stop
    return spans


def cut(blob: bytes, ends: Sequence[int], *, first_id: int = 0) -> Iterator[tuple[bytes, Sequence[int]]]:
    """The messages of one publish in pieces that fit into a batch; one message that is too big is a piece by itself.

    If the ids are known, counting from `first_id`, those of a piece differ in their last three digits alone.
    """
    start = 0
    while start < len(ends):
        max_count = MAX_BATCH_COUNT - (first_id + start) % MAX_BATCH_COUNT
        stop = _fitting_stop(ends, start, max_count=max_count, max_bytes=MAX_BATCH_BYTES)
        yield blob[start_of(ends, start) : ends[stop - 1]], _sub_ends(ends, start, stop)
        start = stop


def _fitting_stop(ends: Sequence[int], start: int, *, max_count: int, max_bytes: int) -> int:
    """The stop of the items from `start` on that stay within both limits; at least one item."""
    stop = min(start + max_count, len(ends))
    limit = start_of(ends, start) + max_bytes
    if ends[stop - 1] > limit:
        stop = max(start + 1, bisect_right(ends, limit, start, stop))
    return stop


def _sub_ends(ends: Sequence[int], start: int, stop: int) -> Sequence[int]:
    if isinstance(ends, range):
        return ends[: stop - start]
    offset = start_of(ends, start)
    return [end - offset for end in ends[start:stop]]


def _write_attempts(data: bytearray, ends: Sequence[int], *, offset: int, attempts: int) -> None:
    high, low = divmod(attempts & MAX_ATTEMPTS, 256)
    write_column(data, ends, offset=offset, column=bytes([high]) * len(ends))
    write_column(data, ends, offset=offset + 1, column=bytes([low]) * len(ends))


def _frame_header(message_bytes: int) -> bytes:
    return FRAME_HEADER.pack(4 + message_bytes, MESSAGE)
