"""The body of an MPUB, made from an Arrow column without touching a row in Python.

offset  size  field
0       4     number of messages
4       …     each message: int32 size, body          (both big-endian)
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from hashlib import sha256
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

SIZE_BYTES = 4
DIGEST_BYTES = 16
"""What a producer id has. Half of a SHA-256, for which processors have instructions."""

_COUNT = struct.Struct(">i")


class MpubBody(NamedTuple):
    """Ready to be sent, `parts` one after the other."""

    parts: tuple[bytes, memoryview]
    length: int


def mpub_body(bodies: pa.BinaryArray) -> MpubBody:
    """The body that publishes these messages, in their order."""
    messages = pc.binary_join_element_wise(_sizes(bodies), bodies, b"")
    data = memoryview(_data(messages))
    return MpubBody((_COUNT.pack(len(bodies)), data), _COUNT.size + len(data))


def mpub_bytes(bodies: pa.BinaryArray) -> int:
    """How long the messages are in an MPUB, without their number."""
    return len(_data(bodies)) + SIZE_BYTES * len(bodies)


def fitting_count(bodies: pa.BinaryArray, *, room_bytes: int) -> int:
    """How many of the first messages take no more than `room_bytes` in an MPUB."""
    positions = _positions(bodies)

    def end_of(count: int) -> int:
        return positions[count] - positions[0] + SIZE_BYTES * count

    return bisect_right(range(1, len(bodies) + 1), room_bytes, key=end_of)


def digest(bodies: pa.BinaryArray, *, salt: bytes) -> bytes:
    """16 bytes that stand for these messages, in whatever order they are, and for `salt`."""
    ordered = bodies.take(pc.sort_indices(bodies))
    hashed = sha256(salt)
    hashed.update(memoryview(pc.binary_length(ordered).buffers()[1])[: SIZE_BYTES * len(ordered)])
    hashed.update(memoryview(_data(ordered)))
    return hashed.digest()[:DIGEST_BYTES]


def _sizes(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """The size of each message as the four bytes that go before it."""
    sizes = array("i")
    sizes.frombytes(memoryview(pc.binary_length(bodies).buffers()[1])[: SIZE_BYTES * len(bodies)])
    if sys.byteorder == "little":
        sizes.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(SIZE_BYTES), len(bodies), [None, pa.py_buffer(sizes.tobytes())])
    return fixed.cast(pa.binary())


def _positions(bodies: pa.BinaryArray) -> memoryview:
    return memoryview(bodies.buffers()[1]).cast("i")[bodies.offset : bodies.offset + len(bodies) + 1]


def _data(bodies: pa.BinaryArray) -> pa.Buffer:
    """The bytes of the messages, back to back."""
    if not len(bodies):
        return pa.py_buffer(b"")
    positions = _positions(bodies)
    return bodies.buffers()[2].slice(positions[0], positions[-1] - positions[0])
