"""Frames, which is all a server ever sends.

offset  size  field
0       4     size, big-endian: 4 + length of data
4       4     type: 0 response, 1 error, 2 message
8       n     data
"""

from __future__ import annotations

import struct
from typing import NamedTuple

RESPONSE = 0
ERROR = 1
MESSAGE = 2

FRAME_HEADER = struct.Struct(">ii")


class Frame(NamedTuple):
    """One frame as the client's end sees it."""

    type: int
    data: bytes


class FrameError(Exception):
    """The peer does not speak in frames."""


def response(data: bytes) -> bytes:
    """A response frame."""
    return FRAME_HEADER.pack(4 + len(data), RESPONSE) + data


def error(data: bytes) -> bytes:
    """An error frame."""
    return FRAME_HEADER.pack(4 + len(data), ERROR) + data


OK = response(b"OK")
CLOSE_WAIT = response(b"CLOSE_WAIT")
HEARTBEAT = response(b"_heartbeat_")


class FrameDecoder:
    """Cuts a server's bytes into frames. Buffers at most one frame of `max_frame_bytes`."""

    def __init__(self, *, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while len(buffer) - position >= FRAME_HEADER.size:
            size, frame_type = FRAME_HEADER.unpack_from(buffer, position)
            if not 4 <= size <= self._max_frame_bytes:
                if frames:
                    break  # these first; the next call raises
                raise FrameError(f"a frame of {size} bytes; expected 4 to {self._max_frame_bytes}")
            end = position + 4 + size
            if end > len(buffer):
                break
            frames.append(Frame(frame_type, bytes(buffer[position + FRAME_HEADER.size : end])))
            position = end
        del buffer[:position]
        return frames
