"""Message frames as Arrow arrays: thousands of messages without a Python object for any of them.

A message stays in its frame from the socket (`FrameDecoder.feed_whole`) to the task that makes rows of it:

    0       4       8               16         18               34
    +-------+-------+---------------+----------+----------------+------ - -
    | size  | type  | publish time  | attempts | id             | body
    +-------+-------+---------------+----------+----------------+------ - -
                    |---------------|          |----------------|
                                     its key

Frames back to back are an Arrow array of binaries over their bytes; only the length of each frame is needed besides.
A column of the messages is a slice of that array. Numbers are big-endian on the wire: their bytes, reversed, are the
buffer of an array of integers.

**Key.** nsqd gives a message its id and its publish time once, and sends both with every delivery. Neither is enough
alone: the ids of a journaled topic begin anew when it is deleted and created again, and all messages of one MPUB have
the same publish time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from emberq.spark.journal_offset import Place
from emberq.spark.schema import COLUMNS, HEADERS, TIMESTAMP, arrow_schema_of, byte_strings, constant, opened
from emberq.wire.frame import ATTEMPTS_OFFSET, BODY_OFFSET, FRAME_HEADER, ID_OFFSET

_TIME_AT = FRAME_HEADER.size
_ATTEMPTS_AT = FRAME_HEADER.size + ATTEMPTS_OFFSET
_ID_AT = FRAME_HEADER.size + ID_OFFSET
_BODY_AT = FRAME_HEADER.size + BODY_OFFSET
_ANY_END = 2**31 - 1
"""Arrow needs the end of a slice; the size field of a frame allows no more than this."""
_NS_PER_US = constant(1000, pa.int64())
_FIN, _LINE_END, _NOTHING = byte_strings([b"FIN ", b"\n", b""])


def times_ns(frames: pa.BinaryArray) -> pa.Int64Array:
    """When the messages were published."""
    return _integers(frames, _TIME_AT, pa.int64())


def attempts(frames: pa.BinaryArray) -> pa.UInt16Array:
    """How often the messages were delivered, this time included. Wraps around after 65535."""
    return _integers(frames, _ATTEMPTS_AT, pa.uint16())


def keys(frames: pa.BinaryArray) -> pa.BinaryArray:
    """The key of each message, unique within its topic on its nsqd."""
    return pc.binary_join_element_wise(_slice(frames, _TIME_AT, 8), _slice(frames, _ID_AT, 16), _NOTHING)


def finish_commands(frames: pa.BinaryArray) -> bytes:
    """A FIN for each message."""
    lines = pc.binary_join_element_wise(_FIN, _slice(frames, _ID_AT, 16), _LINE_END, _NOTHING)
    return bytes(_data_of(lines))


def rows(frames: pa.BinaryArray, origin: Place, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """The messages as rows of format("nsq"), with these columns."""
    count = len(frames)
    made = [
        pa.repeat(constant(origin.topic, pa.string()), count),
        pa.repeat(constant(origin.nsqd, pa.string()), count),
        pa.nulls(count, pa.int64()),
        _slice(frames, _ID_AT, 16).view(pa.string()),
        pc.divide(times_ns(frames), _NS_PER_US).view(TIMESTAMP),
        attempts(frames).cast(pa.int32()),
        pc.binary_slice(frames, _BODY_AT, _ANY_END),
    ]
    if HEADERS in columns:
        headers, bodies = opened(made.pop())
        made += [bodies, headers]
    whole = arrow_schema_of({*COLUMNS, *columns})
    return pa.RecordBatch.from_arrays(made, schema=whole).select(list(columns))


def _slice(frames: pa.BinaryArray, start: int, size: int) -> pa.BinaryArray:
    return pc.binary_slice(frames, start, start + size)


def _integers(frames: pa.BinaryArray, start: int, kind: pa.DataType) -> pa.Array:
    size = kind.bit_width // 8
    little_endian = pc.binary_reverse(_slice(frames, start, size))
    return pa.Array.from_buffers(kind, len(frames), [None, _data_of(little_endian)])


def _data_of(column: pa.BinaryArray) -> pa.Buffer:
    """The bytes of an array that was just computed, which begins where its buffer begins."""
    _, _, data = column.buffers()
    return data if data is not None else pa.py_buffer(b"")


class Messages(NamedTuple):
    """Messages of one topic and nsqd, in their frames."""

    origin: Place
    frames: pa.BinaryArray


class Arrived(NamedTuple):
    """Messages that one connection has received: at least one."""

    origin: Place
    frames: pa.BinaryArray
    in_doubt_until_ns: int
    """Messages published later than this cannot be in the spool yet."""
    send: Callable[[bytes], None]
    """Sends on the connection that the messages came by. Does nothing if it is closed."""

    def finish(self) -> None:
        """Send a FIN for each message."""
        self.send(finish_commands(self.frames))
