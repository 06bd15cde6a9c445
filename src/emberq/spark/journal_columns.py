"""Journal batches, as nsqd sends them, as Arrow columns on the bytes received: no row is touched in Python.

`emberq.wire.journal_batch` draws the layout and checks headers. Positions and bodies of a batch are the two buffers of
an Arrow binary array, so a batch costs a handful of calls, however many messages it holds. A batch is used only if its
crc, seeded with the journal's uuid, is right: then it is what nsqd sent. A hostile nsqd can make the crc right, too. So
positions are checked before Arrow follows them: they could lead out of the batch, into the memory of this process.

The columns of a row:

- Bodies are joined where batches do not lie together, which is one copy of the bytes.
- An id is its offset in 16 hexadecimal digits. The last four digits of all ids repeat every 65,536 offsets. So the ids
  of such a page are one block of bytes, in which only the first twelve digits, the same in every row, are filled in:
  twelve strided assignments for 65,536 rows. The column is a slice of that page.
- Publish times are nanoseconds; Spark counts in microseconds.
- Headers, if they are asked for, are taken from the bodies (`schema.opened`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from emberq.spark.schema import BODY, COLUMNS, HEADERS, TIMESTAMP, arrow_schema_of, constant, integers, opened
from emberq.wire.journal_batch import HAS_TIMES, HEADER_BYTES, DamagedBatchError, check_crc, header_at

_POSITION_BYTES = 4
_TIME_BYTES = 8
_BINARY, _INT64 = pa.binary(), pa.int64()
_RUNS = pa.run_end_encoded(pa.int32(), _INT64)
_from_buffers = pa.Array.from_buffers
"""These are looked up once, and Arrow is told that no value is null: small batches cost little besides."""


class ArrowBatch(NamedTuple):
    """Messages with consecutive offsets from `base_offset` on."""

    base_offset: int
    row_count: int
    timestamp_ns: int
    """When all were published, unless `times_ns` has the time of each."""
    times_ns: pa.Array | None
    bodies: pa.BinaryArray

    @property
    def next_offset(self) -> int:
        """The offset behind the last message."""
        return self.base_offset + self.row_count

    def between(self, *, start: int, end: int) -> ArrowBatch:
        """The messages from offset `start` to before `end`, without copying."""
        skipped = max(start - self.base_offset, 0)
        count = min(end, self.next_offset) - self.base_offset - skipped
        if count == self.row_count:
            return self
        return ArrowBatch(
            self.base_offset + skipped,
            count,
            self.timestamp_ns,
            None if self.times_ns is None else self.times_ns.slice(skipped, count),
            self.bodies.slice(skipped, count),
        )


class Decoded(NamedTuple):
    """The batches in some bytes, up to the first that cannot be used."""

    batches: list[ArrowBatch]
    fault: str | None
    """What is wrong with the next batch; None if the bytes ended with a whole one."""


def decode(data: bytes | bytearray, *, seed: int) -> Decoded:
    """All batches in `data`, which must not change while they are in use."""
    view, buffer = memoryview(data), pa.py_buffer(data)
    batches: list[ArrowBatch] = []
    at = 0
    while room_bytes := len(view) - at:
        if room_bytes < HEADER_BYTES:
            return Decoded(batches, "the header of a batch is not complete")
        header = header_at(view[at:])
        fault = header.fault(room_bytes=room_bytes)
        if fault is not None:
            return Decoded(batches, fault)
        length, count = header.length, header.message_count
        try:
            check_crc(view[at : at + length], header, seed=seed)
        except DamagedBatchError as damage:
            return Decoded(batches, str(damage))
        positions = buffer.slice(at + HEADER_BYTES, _POSITION_BYTES * (count + 1))
        bodies = [None, positions, buffer.slice(at + header.bodies_at, header.body_bytes)]
        times_ns = None
        if header.flags & HAS_TIMES:
            times = buffer.slice(at + header.times_at, _TIME_BYTES * count)
            times_ns = _from_buffers(_INT64, count, [None, times], 0)
        try:
            array = _from_buffers(_BINARY, count, bodies, 0)
            array.validate(full=True)
        except pa.ArrowInvalid:
            return Decoded(batches, "the positions of the bodies lead out of the batch")
        batches.append(ArrowBatch(header.base_offset, count, header.timestamp_ns, times_ns, array))
        at += length
    return Decoded(batches, None)


# Rows.

ROWS_PER_RECORD_BATCH = 10_000
"""Where Spark is fastest: fewer rows cost more calls for each, more do not fit its caches."""

_PAGE_ROWS = 1 << 16
_ID_DIGITS = 16
_LOW_DIGITS = 4
_NS_PER_US = constant(1000, pa.int64())


def record_batches(
    batches: Sequence[ArrowBatch], *, nsqd: str, topic: str, columns: Sequence[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`, at least one, with these columns, in portions of `ROWS_PER_RECORD_BATCH`."""
    runs = _runs(batches)
    count = sum(batch.row_count for batch in batches)
    made: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(constant(topic, pa.string()), count),
        "nsqd": lambda: pa.repeat(constant(nsqd, pa.string()), count),
        "offset": lambda: _joined([pa.arange(start, end) for start, end in runs]),
        "id": lambda: _joined([page for start, end in runs for page in _ids(start, end)]),
        "timestamp": lambda: _timestamps(batches),
        "attempts": lambda: pa.nulls(count, pa.int32()),
        BODY: lambda: _joined([batch.bodies for batch in batches]),
    }
    if HEADERS in columns:
        headers, bodies = opened(made[BODY]())
        made |= {BODY: lambda: bodies, HEADERS: lambda: headers}
    rows = pa.RecordBatch.from_arrays([made[name]() for name in columns], schema=arrow_schema_of(columns))
    for start in range(0, count, ROWS_PER_RECORD_BATCH):
        yield rows.slice(start, ROWS_PER_RECORD_BATCH)


def _runs(batches: Sequence[ArrowBatch]) -> list[tuple[int, int]]:
    """The offsets of the batches as ranges: one, unless messages are missing between them."""
    runs: list[tuple[int, int]] = []
    for batch in batches:
        if runs and runs[-1][1] == batch.base_offset:
            runs[-1] = (runs[-1][0], batch.next_offset)
        else:
            runs.append((batch.base_offset, batch.next_offset))
    return runs


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _ids(start: int, end: int) -> Iterator[pa.StringArray]:
    while start < end:
        page, row = divmod(start, _PAGE_ROWS)
        count = min(end - start, _PAGE_ROWS - row)
        yield _page_of_ids(page).slice(row, count)
        start += count


@lru_cache(maxsize=2)  # a range of offsets runs through pages in order
def _page_of_ids(page: int) -> pa.StringArray:
    digits = bytearray(_low_digits())
    for column, digit in enumerate(f"{page:0{_ID_DIGITS - _LOW_DIGITS}x}".encode()):
        digits[column::_ID_DIGITS] = bytes((digit,)) * _PAGE_ROWS
    return pa.StringArray.from_buffers(_PAGE_ROWS, _id_positions(), pa.py_buffer(bytes(digits)))


@lru_cache(maxsize=1)
def _low_digits() -> bytes:
    """The ids of page 0."""
    return "".join([f"{row:0{_ID_DIGITS}x}" for row in range(_PAGE_ROWS)]).encode()


@lru_cache(maxsize=1)
def _id_positions() -> pa.Buffer:
    return pa.arange(0, _ID_DIGITS * _PAGE_ROWS + 1, _ID_DIGITS).cast(pa.int32()).buffers()[1]


def _timestamps(batches: Sequence[ArrowBatch]) -> pa.TimestampArray:
    if any(batch.times_ns is not None for batch in batches):
        times_ns = _joined(
            [
                batch.times_ns
                if batch.times_ns is not None
                else pa.repeat(constant(batch.timestamp_ns, _INT64), batch.row_count)
                for batch in batches
            ]
        )
    else:  # each time repeated for the rows of its batch, by decoding run ends
        ends = pc.cumulative_sum(integers([batch.row_count for batch in batches], pa.int32()))
        values = integers([batch.timestamp_ns for batch in batches], _INT64)
        times_ns = pc.run_end_decode(
            pa.RunEndEncodedArray.from_buffers(_RUNS, ends[-1].as_py(), [None], children=[ends, values])
        )
    return pc.divide(times_ns, _NS_PER_US).view(TIMESTAMP)
