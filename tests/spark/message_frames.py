"""Messages in the frames that nsqd sends them in."""

from __future__ import annotations

import pyarrow as pa

from emberq.spark.channel_frames import Messages
from emberq.spark.journal_offset import Place
from emberq.spark.schema import byte_strings
from emberq.wire.frame import FRAME_HEADER, MESSAGE, WireMessage, encode_message

HERE = Place("n:4150", "t")


def frame(number: int, *, attempts: int = 1, time_ns: int | None = None, body: bytes | None = None) -> bytes:
    """The frame of message `number`, which was published at that nanosecond unless said otherwise."""
    stamp = number if time_ns is None else time_ns
    message = WireMessage(stamp, attempts, b"%016x" % number, b"m%d" % number if body is None else body)
    data = encode_message(message)
    return FRAME_HEADER.pack(4 + len(data), MESSAGE) + data


def array(*frames: bytes) -> pa.BinaryArray:
    return byte_strings(frames)


def messages(*numbers: int, origin: Place = HERE) -> Messages:
    return Messages(origin, array(*(frame(number) for number in numbers)))
