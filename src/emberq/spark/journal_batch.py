"""Batches of a journal, as nsqd sends them, decoded into Arrow arrays that lie on the bytes received.

The format is drawn in docs/storage-format.md. What counts here: positions (int32) and bodies of a batch are the two
buffers of an Arrow binary array, so a batch costs a handful of calls, however many messages it holds.

A batch is used only if its crc, seeded with the journal's uuid, is right. That is what makes it safe to give positions
to Arrow unseen: they are those that nsqd wrote.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

import pyarrow as pa

MAGIC = b"EqB1"
VERSION = 1
HAS_TIMES = 1
HAS_DUE = 2
HAS_PRODUCER = 4

_KNOWN_FLAGS = HAS_TIMES | HAS_DUE | HAS_PRODUCER
_HEADER = struct.Struct("<4sIIHHqqII24x")
_CHECKED_FROM = 8
_POSITION_BYTES = 4
_TIME_BYTES = 8


class Batch(NamedTuple):
    """Messages with consecutive offsets from `base_offset` on."""

    base_offset: int
    row_count: int
    timestamp_ns: int
    """When they were published, unless `times_ns` tells it of each."""
    times_ns: pa.Array | None
    bodies: pa.BinaryArray

    @property
    def next_offset(self) -> int:
        """The offset behind the last message."""
        return self.base_offset + self.row_count

    def between(self, *, start: int, end: int) -> Batch:
        """The messages from offset `start` to before `end`, without copying."""
        skipped = max(start - self.base_offset, 0)
        count = min(end, self.next_offset) - self.base_offset - skipped
        if count == self.row_count:
            return self
        return Batch(
            self.base_offset + skipped,
            count,
            self.timestamp_ns,
            None if self.times_ns is None else self.times_ns.slice(skipped, count),
            self.bodies.slice(skipped, count),
        )


class Decoded(NamedTuple):
    """The batches of some bytes, up to the first that cannot be used."""

    batches: list[Batch]
    fault: str | None
    """What is wrong with the next one; None if the bytes ended with a whole batch."""


def seed_of(journal: str) -> int:
    """What the crcs of the journal with this uuid start from."""
    return crc32(UUID(journal).bytes)


def decode(data: bytes | bytearray, *, seed: int) -> Decoded:
    """All batches in `data`, which must not change as long as they are in use."""
    view, buffer = memoryview(data), pa.py_buffer(data)
    batches: list[Batch] = []
    at = 0
    while at < len(view):
        if len(view) - at < _HEADER.size:
            return Decoded(batches, "the answer ends within a header")
        magic, crc, length, version, flags, base_offset, timestamp_ns, count, body_bytes = _HEADER.unpack_from(view, at)
        if magic != MAGIC or version != VERSION or flags & ~_KNOWN_FLAGS:
            return Decoded(batches, f"no batch of a known kind ({magic!r}, version {version}, flags {flags})")
        if length != _length(count=count, flags=flags, body_bytes=body_bytes):
            return Decoded(batches, "the length of a batch does not fit its contents")
        if length > len(view) - at:
            return Decoded(batches, "the answer ends within a batch")
        if crc32(view[at + _CHECKED_FROM : at + length], seed) != crc:
            return Decoded(batches, "the crc of a batch does not fit its contents")
        positions_at = at + _HEADER.size
        bodies = pa.Array.from_buffers(
            pa.binary(),
            count,
            [
                None,
                buffer.slice(positions_at, _POSITION_BYTES * (count + 1)),
                buffer.slice(at + length - _padded(body_bytes), body_bytes),
            ],
            0,
        )
        times_ns = None
        if flags & HAS_TIMES:
            times_at = positions_at + _padded(_POSITION_BYTES * (count + 1))
            times_ns = pa.Array.from_buffers(pa.int64(), count, [None, buffer.slice(times_at, _TIME_BYTES * count)], 0)
        batches.append(Batch(base_offset, count, timestamp_ns, times_ns, bodies))
        at += length
    return Decoded(batches, None)


def _length(*, count: int, flags: int, body_bytes: int) -> int:
    columns = (flags & HAS_TIMES != 0) + (flags & HAS_DUE != 0)
    return _HEADER.size + _padded(_POSITION_BYTES * (count + 1)) + columns * _TIME_BYTES * count + _padded(body_bytes)


def _padded(size_bytes: int) -> int:
    return (size_bytes + 7) & -8
