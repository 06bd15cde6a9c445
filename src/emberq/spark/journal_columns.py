"""The rows of some batches of a journal as Arrow columns, made without touching a row in Python.

- Bodies are joined where batches do not lie together, which is one copy of the bytes.
- An id is its offset in 16 hexadecimal digits. The last four digits of all ids repeat every 65,536 offsets, so the ids
  of such a page are one block of bytes in which only the first twelve digits, the same in every row, are to be filled
  in: twelve strided assignments for 65,536 rows. The column is a slice of that page.
- Publish times are nanoseconds; Spark counts in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from emberq.spark.journal_batch import Batch
from emberq.spark.schema import ARROW_SCHEMA, TIMESTAMP

ROWS_PER_RECORD_BATCH = 10_000
"""Where Spark is fastest: fewer cost more calls for each, more do not fit its caches."""

_PAGE_ROWS = 1 << 16
_ID_DIGITS = 16
_LOW_DIGITS = 4
_NS_PER_US = 1000


def record_batches(batches: Sequence[Batch], *, nsqd: str, topic: str) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`, of which there must be at least one, in portions that Spark likes."""
    rows = _rows(batches, nsqd=nsqd, topic=topic)
    for start in range(0, rows.num_rows, ROWS_PER_RECORD_BATCH):
        yield rows.slice(start, ROWS_PER_RECORD_BATCH)


def _rows(batches: Sequence[Batch], *, nsqd: str, topic: str) -> pa.RecordBatch:
    runs = _runs(batches)
    count = sum(batch.row_count for batch in batches)
    columns = [
        pa.repeat(topic, count),
        pa.repeat(nsqd, count),
        _joined([pa.arange(start, end) for start, end in runs]),
        _joined([page for start, end in runs for page in _ids(start, end)]),
        _timestamps(batches),
        pa.nulls(count, pa.int32()),
        _joined([batch.bodies for batch in batches]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _runs(batches: Sequence[Batch]) -> list[tuple[int, int]]:
    """The offsets of the batches as ranges; there is one unless messages are missing between them."""
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


def _timestamps(batches: Sequence[Batch]) -> pa.TimestampArray:
    if any(batch.times_ns is not None for batch in batches):
        times_ns = _joined([_times_ns(batch) for batch in batches])
    else:
        times_ns = _expanded([batch.timestamp_ns for batch in batches], [batch.row_count for batch in batches])
    return pc.divide(times_ns, _NS_PER_US).view(TIMESTAMP)


def _times_ns(batch: Batch) -> pa.Int64Array:
    return batch.times_ns if batch.times_ns is not None else pa.repeat(pa.scalar(batch.timestamp_ns), batch.row_count)


def _expanded(values: list[int], counts: list[int]) -> pa.Int64Array:
    """Each value as often as its count says, which Arrow does by decoding run ends."""
    ends = pc.cumulative_sum(pa.array(counts, pa.int32()))
    return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, pa.int64())))
