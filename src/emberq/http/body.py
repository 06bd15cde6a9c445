"""Bodies that are made or sent piece by piece: long texts, streams, and stretches of files.

Long texts. A description of everything a daemon holds may take a hundred milliseconds to make. `Assembly` makes it in
portions, and gives way to the other connections between two of them. A short text is made at once.

Streams. A body is asked for piece by piece, as fast as the client takes it, so it is never in memory all at once. With
a `length` the client is told how much is to come. Without, the answer ends when the connection does: that is how a body
without an end, such as a stream of events, is sent.

Files. A piece that the system has in memory is read in the event loop, which costs a copy and no more. One that is not
there would make all connections wait for the disk, so a thread reads it, and gives way to syncs; `RWF_NOWAIT` tells the
two apart. After each piece the other connections have their turn. Nothing is read ahead for a client that falls behind.

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
from pathlib import Path
from typing import TypeVar

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.file import OS_FILES, read_around

_T = TypeVar("_T")
_P = TypeVar("_P")


# Long texts.

AT_ONCE_STEPS = 50
"""A text of fewer pieces is made at once. More would add up when many clients ask in the same turn of the loop."""
PORTION_STEPS = 100
"""What is made of a longer one in a turn of the loop: about a millisecond, for a step takes some ten microseconds."""
PORTION_NS = 2 * NS_PER_MS
"""A portion ends sooner if its steps take longer, as those of channels with percentiles of latency do."""
_THREAD_BYTES = 1024 * 1024
"""Longer texts are put together in a thread. A copy of this size takes a fraction of a millisecond."""


class Assembly:
    """Makes texts of pieces in portions. Only one long text is made at a time: several would add up to a long turn.

    Owned by the handlers that use it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = asyncio.Lock()

    def make(self, pieces: Iterator[str], answer: Callable[[bytes], _T]) -> _T | Awaitable[_T]:
        """What `answer` makes of the text in UTF-8: at once if it is short."""
        portion: list[str] = []
        if self._take(pieces, portion, max_steps=AT_ONCE_STEPS):
            return answer(encoded("".join(portion)))
        return self._make_later(portion, pieces, answer)

    async def _make_later(self, portion: list[str], pieces: Iterator[str], answer: Callable[[bytes], _T]) -> _T:
        portions = [encoded("".join(portion))]
        async with self._line:
            is_complete = False
            while not is_complete:
                await asyncio.sleep(0)
                portion = []
                is_complete = self._take(pieces, portion, max_steps=PORTION_STEPS)
                portions.append(encoded("".join(portion)))
        if sum(map(len, portions)) > _THREAD_BYTES:
            return answer(await asyncio.to_thread(b"".join, portions))
        return answer(b"".join(portions))

    async def run(self, steps: Generator[object, None, _T]) -> _T:
        """What the generator returns. After each portion of its steps the other connections have their turn."""
        returned: list[_T] = []

        def all_steps() -> Generator[object, None, None]:
            returned.append((yield from steps))

        pending = all_steps()
        async with self._line:
            while not self._take(pending, [], max_steps=PORTION_STEPS):
                await asyncio.sleep(0)
        return returned[0]

    def _take(self, pieces: Iterator[_P], portion: list[_P], *, max_steps: int) -> bool:
        """Add the next portion of the pieces. Returns whether they are at their end."""
        end_ns = self._clock.monotonic_ns() + PORTION_NS
        for piece in pieces:
            portion.append(piece)
            if len(portion) >= max_steps or self._clock.monotonic_ns() >= end_ns:
                return False
        return True


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

    def __init__(self, path: Path, *, position: int, length: int, reads_around: bool = False) -> None:
        """OSError if it cannot be opened. Once open, it can be read even if the file is removed.

        If it `reads_around` bad sectors, zeros are sent in their place: for content that has checksums of its own.
        """
        self.length = length
        self._reads_around = reads_around
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
        is_there = OS_FILES.is_in_memory(self._fd, 1, self._position)
        piece: bytes | bytearray | None = self._read_from_memory(wanted) if is_there else None
        if piece is None:
            piece = await asyncio.to_thread(self._read, wanted)
        if not piece:
            raise OSError(f"{self._path} ends at {self._position}, {self._end} was announced")
        self._position += len(piece)
        return piece

    def _read(self, wanted: int) -> bytes:
        if self._reads_around:
            return read_around(self._fd, wanted, position=self._position, fs=OS_FILES.patient).content
        return OS_FILES.patient.read(self._fd, wanted, self._position)

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
