"""Items back to back in one buffer, and how to give them all another header at once.

A message takes four shapes on its way through nsqd; they differ only in what stands before the body:

    published   int32 size                                                       as it came in a PUB or MPUB
    stored      int32 size, publish time, attempts, id                           as it lies in a disk queue
    framed      int32 size, int32 frame type, publish time, attempts, id         as it goes to a consumer

`ends` says where each item ends in its buffer. When all items have one size it is a `range`, and then whole batches are
converted by a few operations of C speed: cut by slices, glued by `join`, and what differs from item to item written by
columns (a slice whose step is the item's size).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence

PUBLISHED_HEADER = struct.Struct(">i")
PUBLISHED_HEADER_BYTES = PUBLISHED_HEADER.size
STORED_HEADER = struct.Struct(">iqH16s")
FRAMED_HEADER = struct.Struct(">iiqH16s")


def uniform_range(*, size: int, count: int) -> range:
    """The `ends` of `count` items of `size` bytes."""
    return range(size, size * count + 1, size)


def start_of(ends: Sequence[int], index: int) -> int:
    """Where item `index` starts."""
    return ends[index - 1] if index else 0


def convert(
    data: bytes, ends: Sequence[int], *, start: int, stop: int, cut: int, header: Callable[[int], bytes]
) -> tuple[bytearray, Sequence[int]]:
    """Items `start` to `stop`, each with its first `cut` bytes replaced by `header(length of what is left)`."""
    if isinstance(ends, range):
        size = ends.step
        lead = header(size - cut)
        first = start * size + cut
        rests = [data[position : position + size - cut] for position in range(first, stop * size, size)]
        joined = bytearray(lead)
        joined += lead.join(rests)
        return joined, uniform_range(size=len(lead) + size - cut, count=stop - start)
    joined = bytearray()
    new_ends = array("I")
    position = start_of(ends, start)
    for end in ends[start:stop]:
        joined += header(end - position - cut)
        joined += data[position + cut : end]
        new_ends.append(len(joined))
        position = end
    return joined, new_ends


def write_column(data: bytearray, ends: Sequence[int], *, offset: int, column: bytes) -> None:
    """Write one byte of `column` into each item, at `offset` from the item's start."""
    if isinstance(ends, range):
        data[offset :: ends.step] = column
        return
    position = 0
    for byte, end in zip(column, ends, strict=True):
        data[position + offset] = byte
        position = end


def read_column(data: bytes, ends: Sequence[int], *, offset: int) -> bytes:
    """One byte of each item, the one at `offset` from the item's start."""
    if isinstance(ends, range):
        return data[offset :: ends.step]
    return bytes([data[start_of(ends, index) + offset] for index in range(len(ends))])
