"""Bodies sent piece by piece: streams and files (interpreted: others subclass it).

A body that is not at hand as a whole when its answer begins.

It is asked for piece by piece, as fast as the client takes it, so it never has to be in memory all at once. With a
`length` the client is told how much is to come. Without, the answer ends when the connection does: that is how a body
without an end, such as a stream of events, is sent.

A stretch of a file as the body of an answer, sent piece by piece, as fast as the client takes it.

A piece that the system has in memory is read right here, which costs a copy and no more. One that is not there would
keep everybody waiting for the disk, so a thread waits for it; `RWF_NOWAIT` tells the two apart. After each piece the
other connections have their turn, and a client that falls behind is not read for.

The head of the answer has promised a length. When the file cannot keep that promise, the connection is cut, for there
is no other way to tell.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path


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


PIECE_BYTES = 256 * 1024
"""Large enough that its fixed costs vanish beside the copy, small enough to read within a tenth of a millisecond."""

_NO_WAIT = getattr(os, "RWF_NOWAIT", None)
"""None on systems that have no such thing: there, a thread reads everything."""

_log = logging.getLogger(__name__)


class FileBody(StreamBody):
    """Opened by the handler, closed by whoever sends it; to be sent once."""

    def __init__(self, path: Path, *, position: int, length: int) -> None:
        """OSError if it cannot be opened. From here on it can be read even if the file is removed."""
        self.length = length
        self._path = path
        self._position = position
        self._end = position + length
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<FileBody {self._path.name} {self._position}..{self._end}>"

    async def next_piece(self) -> bytes | bytearray:
        """What follows; empty at the end. OSError if it cannot be read, or is not there any more."""
        wanted = min(PIECE_BYTES, self._end - self._position)
        if not wanted:
            return b""
        piece: bytes | bytearray | None = self._read_from_memory(wanted)
        if piece is None:
            piece = await asyncio.to_thread(os.pread, self._fd, wanted, self._position)
        if not piece:
            raise OSError(f"{self._path} ends at {self._position}, {self._end} was announced")
        self._position += len(piece)
        return piece

    def _read_from_memory(self, wanted: int) -> bytearray | None:
        """As much as the system has in memory; None if that is nothing, or not to be known."""
        if _NO_WAIT is None:
            return None
        piece = bytearray(wanted)
        try:
            size = os.preadv(self._fd, (piece,), self._position, _NO_WAIT)
        except OSError:
            return None  # it would have to wait, or the file system cannot tell; in a thread it may take its time
        del piece[size:]
        return piece

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


class FileSender:
    """Sends one body. Owned by its connection, which passes on what the transport tells it."""

    def __init__(self, body: StreamBody, transport: asyncio.Transport) -> None:
        self._body = body
        self._transport = transport
        self._is_stopped = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    def pause(self) -> None:
        """The client has fallen behind."""
        self._has_room.clear()

    def resume(self) -> None:
        """It has caught up."""
        self._has_room.set()

    def stop(self) -> None:
        """It is gone."""
        self._is_stopped = True
        self._has_room.set()

    async def run(self) -> None:
        """Return when everything has been handed to the transport, or nothing more can be."""
        try:
            while not self._is_stopped:
                piece = await self._body.next_piece()
                if not piece or self._is_stopped:
                    return
                self._transport.write(piece)
                await asyncio.sleep(0)
                await self._has_room.wait()
        except OSError as failure:
            _log.error("an answer was cut off - %s", failure)
            self._transport.abort()
        except asyncio.CancelledError:
            self._transport.abort()
            raise
        finally:
            self._body.close()
