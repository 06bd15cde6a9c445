"""A body that is not at hand as a whole when its answer begins.

It is asked for piece by piece, as fast as the client takes it, so it never has to be in memory all at once. With a
`length` the client is told how much is to come. Without, the answer ends when the connection does: that is how a body
without an end, such as a stream of events, is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class StreamBody(ABC):
    """Made by the handler, closed by whoever sends it; to be sent once."""

    length: int | None
    """In bytes; None if it is not known."""

    @abstractmethod
    async def next_piece(self) -> bytes | bytearray:
        """What follows; empty at the end. OSError if it cannot be had: the answer is cut off."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more will be asked for."""
