"""The layout of a message, on the wire and on disk.

offset  size  field
0       8     publish time, nanoseconds since the Unix epoch, big-endian
8       2     attempts, big-endian, wraps from 65535 to 0
10      16    id, lower-case hexadecimal digits
26      n     body
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

ID_BYTES = 16
MESSAGE_HEADER = struct.Struct(">qH16s")
ATTEMPTS_OFFSET = 8
ID_OFFSET = 10
BODY_OFFSET = 26
MAX_ATTEMPTS = 0xFFFF


MessageFields: TypeAlias = tuple[int, int, bytes, bytes]
"""Publish time, attempts, id and body: all that a `Message` is, at a third of the price. Clients get messages by the
million in this form."""


class Message(NamedTuple):
    """One message, taken apart."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def decode_message(data: bytes) -> Message:
    """The message in the data of a message frame; ValueError when it is too short to be one."""
    if len(data) < BODY_OFFSET:
        raise ValueError(f"a message of {len(data)} bytes; the header alone has {BODY_OFFSET}")
    timestamp_ns, attempts, message_id = MESSAGE_HEADER.unpack_from(data)
    return Message(timestamp_ns, attempts, message_id, data[BODY_OFFSET:])


def encode_message(message: Message) -> bytes:
    """The data of a message frame."""
    return MESSAGE_HEADER.pack(message.timestamp_ns, message.attempts, message.id) + message.body
