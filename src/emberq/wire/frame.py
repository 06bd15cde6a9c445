"""What nsqd sends: frames, and in them messages. Bytes to values and back, without I/O.

A frame:

    offset  size  field
    0       4     size, big-endian: 4 + length of data
    4       4     type: 0 response, 1 error, 2 message
    8       n     data

A message, in the data of a frame and in the record of a disk queue:

    offset  size  field
    0       8     publish time, nanoseconds since the Unix epoch, big-endian
    8       2     attempts, big-endian, wraps from 65535 to 0
    10      16    id, lower-case hexadecimal digits
    26      n     body
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias, TypeVar

# Messages.

ID_BYTES: Final = 16
MESSAGE_HEADER = struct.Struct(">qH16s")
ATTEMPTS_OFFSET: Final = 8
ID_OFFSET: Final = 10
BODY_OFFSET: Final = 26
MAX_ATTEMPTS: Final = 0xFFFF

MessageFields: TypeAlias = tuple[int, int, bytes, bytes]
"""Publish time, attempts, id and body: a `WireMessage` as a plain tuple, which takes a third of the time to make.
Clients get their messages in this form."""


class WireMessage(NamedTuple):
    """One message, taken apart."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def decode_message(data: bytes) -> WireMessage:
    """The message in the data of a message frame; ValueError when it is too short to be one."""
    if len(data) < BODY_OFFSET:
        raise ValueError(f"a message of {len(data)} bytes; the header alone has {BODY_OFFSET}")
    timestamp_ns, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
    return WireMessage(timestamp_ns, attempts, message_id, data[BODY_OFFSET:])


def encode_message(message: WireMessage) -> bytes:
    """The data of a message frame."""
    return MESSAGE_HEADER.pack(message.timestamp_ns, message.attempts, message.id) + message.body


# Frames.

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

FRAME_HEADER = struct.Struct(">ii")
_MESSAGE_FRAME = struct.Struct(FRAME_HEADER.format + MESSAGE_HEADER.format.removeprefix(">"))
_LEAST_MESSAGE = 4 + MESSAGE_HEADER.size
"""The size of the frame of a message whose body is empty."""


MAX_ANSWER_BYTES = 256 * 1024
"""The longest frame that is no message. The answers to IDENTIFY and AUTH and what an error quotes take a few KiB."""


MAX_PIECES = 4096
"""Of an incomplete frame. Each costs fifty bytes more than it holds, and a hostile server sends them very small."""


class Frame(NamedTuple):
    """A frame, taken apart."""

    type: int
    data: bytes


class FrameError(Exception):
    """What the peer sent is no frame."""


def response(data: bytes) -> bytes:
    """A response frame."""
    return FRAME_HEADER.pack(4 + len(data), RESPONSE) + data


def error(data: bytes) -> bytes:
    """An error frame."""
    return FRAME_HEADER.pack(4 + len(data), ERROR) + data


OK = response(b"OK")
CLOSE_WAIT = response(b"CLOSE_WAIT")
HEARTBEAT = response(b"_heartbeat_")


# The client's end.


class Received(NamedTuple):
    """The frames that one packet completed. The order between messages and others is not kept: nothing needs it."""

    messages: list[MessageFields]
    others: list[Frame]


_T = TypeVar("_T")


class WholeMessages(NamedTuple):
    """The same, with messages left in their frames: back to back in pieces, and the length of each frame."""

    pieces: list[bytes]
    lengths: list[int]
    others: list[Frame]


class FrameDecoder:
    """Cuts a server's bytes into frames. Holds at most one incomplete frame of `max_frame_bytes`.

    Nearly all frames are messages, so these are found and taken apart in one step (`feed`), or found and left whole
    (`feed_whole`):

        0       4       8               16         18     34
        +-------+-------+---------------+----------+------+------ - -
        | size  | type  | publish time  | attempts | id   | body
        +-------+-------+---------------+----------+------+------ - -

    What is no frame raises FrameError; the good frames before it are given first.
    """

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pieces: list[bytes] = []
        """The beginning of a frame, as it arrived; joined once, when the last piece of the frame is there."""
        self._pieces_bytes = 0
        self._awaited_bytes = FRAME_HEADER.size
        """How many bytes the pieces must have together before a frame can be complete."""

    def feed(self, data: bytes) -> Received:
        """The frames that `data` completes."""
        received = Received([], [])
        self._keep(data)
        if self._pieces_bytes >= self._awaited_bytes:
            self._cut(self._take_messages, received.messages, received.others)
        return received

    def feed_whole(self, data: bytes) -> WholeMessages:
        """The frames that `data` completes, with messages left in theirs."""
        received = WholeMessages([], [], [])
        self._keep(data)
        if self._pieces_bytes >= self._awaited_bytes:
            self._cut(self._take_whole, received, received.others)
        return received

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if len(self._pieces) > MAX_PIECES:
            self._pieces = [b"".join(self._pieces)]

    def _cut(self, take_messages: Callable[[bytes, int, _T], int], messages: _T, others: list[Frame]) -> None:
        """Move all complete frames from the pieces to `messages` and `others`, and keep what is left."""
        buffer = b"".join(self._pieces)
        self._awaited_bytes = FRAME_HEADER.size
        position = 0
        try:
            while len(buffer) - position >= self._awaited_bytes:
                position = take_messages(buffer, position, messages)
                position = self._take_others(buffer, position, others)
        except FrameError:
            if position == 0:
                raise
            # The good frames first. What is no frame is kept, and the next call raises.
        finally:
            rest = buffer[position:]
            self._pieces = [rest] if rest else []
            self._pieces_bytes = len(rest)

    def _take_messages(self, buffer: bytes, position: int, messages: list[MessageFields]) -> int:
        """The messages from `position` on, up to the first frame that is something else or not complete."""
        unpack, take = _MESSAGE_FRAME.unpack_from, messages.append
        max_bytes, buffer_bytes = self._max_frame_bytes, len(buffer)
        last_start = buffer_bytes - _MESSAGE_FRAME.size
        while position <= last_start:
            size, frame_type, timestamp_ns, attempts, message_id = unpack(buffer, position)
            end = position + 4 + size
            if frame_type != MESSAGE or end > buffer_bytes or not _LEAST_MESSAGE <= size <= max_bytes:
                break
            body = buffer[position + _MESSAGE_FRAME.size : end]
            take((timestamp_ns, attempts, message_id, body))
            position = end
        return position

    def _take_whole(self, buffer: bytes, position: int, messages: WholeMessages) -> int:
        """The same, without taking messages apart."""
        unpack, take = FRAME_HEADER.unpack_from, messages.lengths.append
        max_bytes, buffer_bytes = self._max_frame_bytes, len(buffer)
        start, last_start = position, buffer_bytes - FRAME_HEADER.size
        while position <= last_start:
            size, frame_type = unpack(buffer, position)
            end = position + 4 + size
            if frame_type != MESSAGE or end > buffer_bytes or not _LEAST_MESSAGE <= size <= max_bytes:
                break
            take(4 + size)
            position = end
        if position > start:
            messages.pieces.append(buffer[start:position])
        return position

    def _take_others(self, buffer: bytes, position: int, others: list[Frame]) -> int:
        """The frames from `position` on, up to the first that is a message, or not complete, or no frame at all.

        Raises if that is what lies at `position`.
        """
        start = position
        while len(buffer) - position >= self._awaited_bytes:
            size, frame_type = FRAME_HEADER.unpack_from(buffer, position)
            least, most = _LEAST_MESSAGE, self._max_frame_bytes
            if frame_type != MESSAGE:
                least, most = 4, min(most, MAX_ANSWER_BYTES)
            if not least <= size <= most:
                if position > start:
                    break
                limits = f"{least} to {most}"
                raise FrameError(f"a frame of {size} bytes and type {frame_type}; expected {limits} bytes")
            end = position + 4 + size
            if end > len(buffer):
                self._awaited_bytes = end - position
            elif frame_type == MESSAGE:
                break
            else:
                others.append(Frame(frame_type, buffer[position + FRAME_HEADER.size : end]))
                position = end
        return position
