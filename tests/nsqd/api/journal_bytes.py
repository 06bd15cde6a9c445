"""Reads what /journal/read sends with no help from the code under test, by docs/storage-format.md alone."""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER = struct.Struct("<4sIIHHqqII16sq")


class Batch(NamedTuple):
    """The messages of one batch."""

    base_offset: int
    bodies: list[bytes]

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.bodies)


def read_batches(content: bytes) -> list[Batch]:
    """All batches; `content` must hold nothing else."""
    batches, at = [], 0
    while at < len(content):
        magic, _, length, _, flags, base_offset, _, count, body_bytes, _, _ = HEADER.unpack_from(content, at)
        assert magic == b"EqB1"
        positions = struct.unpack_from(f"<{count + 1}i", content, at + HEADER.size)
        columns = bin(flags & 3).count("1") * 8 * count
        bodies_at = at + HEADER.size + padded(4 * (count + 1)) + columns
        blob = content[bodies_at : bodies_at + body_bytes]
        batches.append(Batch(base_offset, [blob[positions[i] : positions[i + 1]] for i in range(count)]))
        at += length
    assert at == len(content), "the last batch is cut off"
    return batches


def read_bodies(content: bytes) -> list[bytes]:
    """The bodies of all batches."""
    return [body for batch in read_batches(content) for body in batch.bodies]


def padded(size: int) -> int:
    return -(-size // 8) * 8
