"""Bodies that are made or sent piece by piece: long texts, streams, and stretches of files.

Long texts. A description of everything a daemon holds may take a hundred milliseconds to make. `Assembly` makes it in
portions, and gives way to the other connections between two of them. A short text is made at once.

Streams. A body is asked for piece by piece, as fast as the client takes it, so it is never in memory all at once. With
a `length` the client is told how much is to come. Without, the answer ends when the connection does: that is how a body
without an end, such as a stream of events, is sent.

Files. A piece that the system has in memory is read in the event loop, which costs a copy and no more. One that is not
there would make all connections wait for the disk, so a thread reads it; `RWF_NOWAIT` tells the two apart. After each
piece the other connections have their turn. Nothing is read ahead for a client that falls behind.

The head of the answer has promised a length. When the file cannot keep that promise the connection is cut, for there is
no other way to tell the client.

This module is not compiled, because modules outside this package subclass `StreamBody`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


# Long texts.

AT_ONCE_STEPS = 50
"""A text of fewer pieces is made at once. More would add up when many clients ask in the same turn of the loop."""
PORTION_STEPS = 100
"""What is made of a longer one in a turn of the loop. A step takes some ten microseconds, so this takes about two
milliseconds."""
_THREAD_BYTES = 1024 * 1024
"""Longer texts are put together in a thread. A copy of this size takes a fraction of a millisecond."""


class Assembly:
    """Makes texts of pieces in portions. Only one long text is made at a time: several would add up to a long turn.

    Owned by the handlers that use it.
    """

    def __init__(self) -> None:
        self._line = asyncio.Lock()

    def make(self, pieces: Iterator[str], answer: Callable[[bytes], _T]) -> _T | Awaitable[_T]:
        """What `answer` makes of the text in UTF-8: at once if it is short."""
        portion = list(islice(pieces, AT_ONCE_STEPS))
        if len(portion) < AT_ONCE_STEPS:
            return answer(encoded("".join(portion)))
        return self._make_later(portion, pieces, answer)

    async def _make_later(self, portion: list[str], pieces: Iterator[str], answer: Callable[[bytes], _T]) -> _T:
        portions: list[bytes] = []
        async with self._line:
            while portion:
                portions.append(encoded("".join(portion)))
                await asyncio.sleep(0)
                portion = list(islice(pieces, PORTION_STEPS))
        if sum(map(len, portions)) > _THREAD_BYTES:
            return answer(await asyncio.to_thread(b"".join, portions))
        return answer(b"".join(portions))

    async def run(self, steps: Generator[object, None, _T]) -> _T:
        """What the generator returns. After each portion of its steps the other connections have their turn."""
        async with self._line:
            while True:
                try:
                    for _ in range(PORTION_STEPS):
                        next(steps)
                except StopIteration as end:
                    value: _T = end.value
                    return value
                await asyncio.sleep(0)


def encoded(text: str) -> bytes:
    """In UTF-8. Half a surrogate pair, which a client may send as a JSON escape, becomes a question mark."""
    return text.encode("utf-8", "replace")


# Streams.


class StreamBody(ABC):
    """A body in pieces. Made by a handler, closed by the connection that sends it; sent once."""

    length: int | None
    """In bytes; None if it is not known."""

    @abstractmethod
    async def next_piece(self) -> bytes | bytearray:
        """The next piece; empty at the end. OSError cuts the answer off."""

    @abstractmethod
    def close(self) -> None:
        """No more pieces will be asked for."""


PIECE_BYTES = 256 * 1024
"""Large enough to make fixed costs small beside the copy, small enough to read within a tenth of a millisecond."""

_NO_WAIT = getattr(os, "RWF_NOWAIT", None)
"""None on systems without it: there, a thread reads everything."""

_log = logging.getLogger(__name__)


class FileBody(StreamBody):
    """A stretch of a file. Opened by a handler, closed by the connection that sends it; sent once."""

    def __init__(self, path: Path, *, position: int, length: int) -> None:
        """OSError if it cannot be opened. Once open, it can be read even if the file is removed."""
        self.length = length
        self._path = path
        self._position = position
        self._end = position + length
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<FileBody {self._path.name} {self._position}..{self._end}>"

    async def next_piece(self) -> bytes | bytearray:
        """The next piece; empty at the end. OSError if it cannot be read, or the file has become shorter."""
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
        """As much as the system has in memory; None if that is nothing or unknown."""
        if _NO_WAIT is None:
            return None
        piece = bytearray(wanted)
        try:
            size = os.preadv(self._fd, (piece,), self._position, _NO_WAIT)
        except OSError:
            return None  # reading would block, or the file system cannot tell: a thread reads it
        del piece[size:]
        return piece

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class FileSender:
    """Sends one body. Owned by its connection, which passes on the events of the transport."""

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
        """The client has caught up."""
        self._has_room.set()

    def stop(self) -> None:
        """The client is gone."""
        self._is_stopped = True
        self._has_room.set()

    async def run(self) -> None:
        """Return when the whole body has been handed to the transport, or sending has failed."""
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
