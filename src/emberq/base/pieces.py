"""Bodies that come in several packets, for the servers of TCP and of HTTP: kept as they came, and joined once.

    pieces.add(packet)
    pieces.add(last[:20])
    body = pieces.joined()

A client that stalls in the middle of a body makes the server hold what has arrived, or a small multiple of that.
"""

from __future__ import annotations

from typing import BinaryIO

from emberq.base.compiled import mypyc_attr

SMALL_PIECE_BYTES = 4096
"""Each piece is an object: a body sent two bytes at a time must not take twenty times its size. So smaller pieces are
gathered in a buffer."""
GATHERED_BYTES = 64 * 1024
"""Such a buffer grows to this size, then the next begins: one that grew on would be copied each time it moves."""


@mypyc_attr(acyclic=True)
class Pieces:
    """Owned by what reads the body."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray | memoryview] = []

    def add(self, piece: bytes | memoryview) -> None:
        """Take in what comes next, as it is unless it is small: nobody may change it."""
        pieces = self._pieces
        if not pieces or len(piece) >= SMALL_PIECE_BYTES:
            pieces.append(piece)
            return
        last = pieces[-1]
        if isinstance(last, bytearray) and len(last) < GATHERED_BYTES:
            last += piece
        else:
            pieces.append(bytearray(piece))

    def joined(self) -> bytes:
        """All of it. If it came as one, it is not copied."""
        return b"".join(self._pieces)

    def take(self) -> bytes:
        """All of it, kept no longer."""
        whole = self.joined()
        self._pieces.clear()
        return whole

    def move_to(self, file: BinaryIO) -> None:
        """Write all of it, and keep it no longer."""
        file.writelines(self._pieces)
        self._pieces.clear()

    def clear(self) -> None:
        self._pieces.clear()
