"""The bytes of the protocol, as far as Python speaks it: handshakes, and what client libraries publish."""

from __future__ import annotations

import struct
from random import Random

from bench.failure import LoadFailure, ServerRefused

MAGIC = b"  V2"

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEADER = struct.Struct(">ii")
SIZE = struct.Struct(">i")

BODY_BYTES = 200
MESSAGES_PER_MPUB = 200


def response(text: bytes) -> bytes:
    """The frame in which nsqd sends a response."""
    return HEADER.pack(len(text) + 4, RESPONSE) + text


OK_FRAME = response(b"OK")


def bodies(count: int) -> list[bytes]:
    """Bodies of random bytes, the same ones in every run: no server may profit from what is in them."""
    source = Random(count)
    return [source.randbytes(BODY_BYTES) for _ in range(count)]


def mixed_bodies(count: int) -> list[bytes]:
    """The same of 20 to 2000 bytes."""
    source = Random(count)
    return [source.randbytes(source.randint(20, 2000)) for _ in range(count)]


def identify(settings: bytes) -> bytes:
    return b"IDENTIFY\n" + SIZE.pack(len(settings)) + settings


def unexpected(kind: int, text: bytes) -> LoadFailure:
    """The failure for a frame that does not belong where it came."""
    shown = text[:200].decode(errors="backslashreplace")
    if kind == ERROR:
        return ServerRefused(f"nsqd answered {shown}")
    if kind == MESSAGE:
        return LoadFailure(f"nsqd sent a message of {len(text)} bytes where none was due")
    return LoadFailure(f"nsqd sent an unexpected frame of type {kind}: {shown}")
