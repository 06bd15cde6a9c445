"""The bytes of the protocol, handled in whole runs.

Everything sent is encoded once, before the clock starts. Everything received is looked at in columns: all
messages of a benchmark have bodies of one size, so their frames have one size, and byte `n` of every frame in
a buffer is one strided slice, copied by C code. That is what lets one Python process keep up with a server.

A message frame, and the FIN that answers it:

    offset  0       4       8               16    18                34
            +-------+-------+---------------+-----+-----------------+------ - -
            | size  | type  | timestamp ns  | att | id, 16 hex      | body
            +-------+-------+---------------+-----+-----------------+------ - -
             int32   int32   int64           u16   |               |
                                                   v               v
                                            'FIN ' id, 16 hex       '\\n'        21 bytes
"""

from __future__ import annotations

import struct
from random import Random

from bench.failure import LoadFailure, ServerRefused

MAGIC = b"  V2"

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEADER = struct.Struct(">ii")
SIZE = struct.Struct(">i")
TIMESTAMP_NS = struct.Struct(">q")

BODY_BYTES = 200
MESSAGES_PER_MPUB = 200

ATTEMPTS_OFFSET = HEADER.size + 8
ID_OFFSET = ATTEMPTS_OFFSET + 2
ID_BYTES = 16
BODY_OFFSET = ID_OFFSET + ID_BYTES
MESSAGE_FRAME_BYTES = BODY_OFFSET + BODY_BYTES
MESSAGE_HEADER = HEADER.pack(MESSAGE_FRAME_BYTES - SIZE.size, MESSAGE)

FIN_ID_OFFSET = len(b"FIN ")
FIN_BYTES = FIN_ID_OFFSET + ID_BYTES + len(b"\n")
_EMPTY_FIN = b"FIN " + bytes(ID_BYTES) + b"\n"

_LARGEST_FRAME_BYTES = 1 << 20  # nsqd's default limit of a message; anything above means we lost our place


def response(text: bytes) -> bytes:
    """The frame in which nsqd sends a response."""
    return HEADER.pack(len(text) + 4, RESPONSE) + text


OK_FRAME = response(b"OK")
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"


def bodies(count: int) -> list[bytes]:
    """Bodies of random bytes, the same ones in every run: no server may profit from what is in them."""
    source = Random(count)
    return [source.randbytes(BODY_BYTES) for _ in range(count)]


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %s\n" % topic.encode() + SIZE.pack(len(body)) + body


def mpub(topic: str, messages: list[bytes]) -> bytes:
    content = records(messages)
    return b"MPUB %s\n" % topic.encode() + SIZE.pack(len(content)) + content


def records(messages: list[bytes]) -> bytes:
    """What an MPUB holds, and a binary POST /mpub too: int32 count, then int32 size and bytes of each message."""
    return SIZE.pack(len(messages)) + b"".join(SIZE.pack(len(body)) + body for body in messages)


def identify(settings: bytes) -> bytes:
    return b"IDENTIFY\n" + SIZE.pack(len(settings)) + settings


def next_frame(buffer: bytes | bytearray, *, start: int, end: int) -> tuple[int, bytes, int] | None:
    """The frame at `start` as (type, data, where the next begins); None while it is not complete."""
    if end - start < HEADER.size:
        return None
    size, kind = HEADER.unpack_from(buffer, start)
    if not 4 <= size <= _LARGEST_FRAME_BYTES:
        raise LoadFailure(f"nsqd sent a frame of {size} bytes")
    after = start + SIZE.size + size
    if after > end:
        return None
    return kind, bytes(buffer[start + HEADER.size : after]), after


def message_run(buffer: bytearray, *, start: int, end: int) -> int:
    """How many complete frames from `start` on are messages of our size, one after the other."""
    count = (end - start) // MESSAGE_FRAME_BYTES
    if count == 0 or _headers_match(buffer, start=start, count=count):
        return count
    # Something else (a heartbeat, an error) stands between them: the run ends there.
    for index in range(count):
        position = start + index * MESSAGE_FRAME_BYTES
        if buffer[position : position + HEADER.size] != MESSAGE_HEADER:
            return index
    return count


def _headers_match(buffer: bytearray, *, start: int, count: int) -> bool:
    stop = start + count * MESSAGE_FRAME_BYTES
    return all(
        buffer[start + column : stop : MESSAGE_FRAME_BYTES].count(expected) == count
        for column, expected in enumerate(MESSAGE_HEADER)
    )


def redelivered(buffer: bytearray, *, start: int, count: int) -> int:
    """How many of `count` messages do not come for the first time, that is, have attempts other than 1."""
    stop = start + count * MESSAGE_FRAME_BYTES
    high = buffer[start + ATTEMPTS_OFFSET : stop : MESSAGE_FRAME_BYTES]
    low = buffer[start + ATTEMPTS_OFFSET + 1 : stop : MESSAGE_FRAME_BYTES]
    if high.count(0) == count and low.count(1) == count:
        return 0
    return sum(attempts != (0, 1) for attempts in zip(high, low, strict=True))


def fin_commands(buffer: bytearray, *, start: int, count: int) -> bytearray:
    """The FINs for `count` message frames from `start` on, in their order."""
    stop = start + count * MESSAGE_FRAME_BYTES
    fins = bytearray(_EMPTY_FIN * count)
    for column in range(ID_BYTES):
        fins[FIN_ID_OFFSET + column :: FIN_BYTES] = buffer[start + ID_OFFSET + column : stop : MESSAGE_FRAME_BYTES]
    return fins


class OkCounter:
    """Counts the OKs in what a publisher receives; heartbeats need no answer from one who keeps publishing."""

    def __init__(self) -> None:
        self._rest = b""  # an incomplete frame at the end of what was fed last

    def feed(self, data: bytes) -> int:
        count = len(data) // len(OK_FRAME)
        if not self._rest and data == OK_FRAME * count:
            return count
        return self._walk(self._rest + data)

    def _walk(self, data: bytes) -> int:
        oks = position = 0
        while found := next_frame(data, start=position, end=len(data)):
            kind, text, position = found
            if kind == RESPONSE and text == b"OK":
                oks += 1
            elif not (kind == RESPONSE and text == HEARTBEAT):
                raise unexpected(kind, text)
        self._rest = data[position:]
        return oks


def unexpected(kind: int, text: bytes) -> LoadFailure:
    """The failure for a frame that does not belong where it came."""
    shown = text[:200].decode(errors="backslashreplace")
    if kind == ERROR:
        return ServerRefused(f"nsqd answered {shown}")
    if kind == MESSAGE:
        return LoadFailure(f"nsqd sent a message of {len(text)} bytes where none of that size was due")
    return LoadFailure(f"nsqd sent an unexpected frame of type {kind}: {shown}")
