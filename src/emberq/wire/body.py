"""A body that comes in several packets: what has arrived of it is kept as it came, and joined once (see `base.pieces`).

A large message is not joined. Once a good part of it has arrived, the rest is received where it will stay: in the
buffer of a BytesIO, which gives it away as `bytes` without a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from emberq.base.memory import blank
from emberq.base.pieces import SMALL_PIECE_BYTES, Pieces
from emberq.wire import error
from emberq.wire.command import Command, CommandWithBody
from emberq.wire.error import FatalError

if TYPE_CHECKING:
    from mypy_extensions import i64  # native integers, when compiled

DIRECT_BYTES = 64 * 1024
"""If so much of a message is missing, it is worth being received directly."""
MAX_AHEAD = 16
"""Then at least one in so many bytes of it must be there: memory is not given away for a promise. The rest is reserved
only: the system gives it page by page, as the message arrives."""


class ArrivingBody(ABC):
    """A command whose body has not arrived in whole. Owned by the decoder, which gives it packet after packet:

    end = body.end_in(packet, start)    where the body ends in this packet, or -1 if it goes on behind it
    body.keep(packet, start, end)       take these bytes in
    body.command(body.joined())         the command, once its end is there
    """

    def __init__(self) -> None:
        self.arrived_bytes = 0
        self._pieces = Pieces()

    @abstractmethod
    def end_in(self, packet: bytes, start: int) -> int:
        """FatalError if the bytes show that something is wrong with it."""

    @abstractmethod
    def command(self, body: bytes) -> Command:
        """The command, with this body."""

    @abstractmethod
    def eof_error(self) -> FatalError:
        """What it means that the stream ends here."""

    def keep(self, packet: bytes, start: int, end: int) -> None:
        size = end - start
        self.arrived_bytes += size
        if size == len(packet):
            self._pieces.add(packet)
        elif size >= SMALL_PIECE_BYTES and 2 * size >= len(packet):
            self._pieces.add(memoryview(packet)[start:end])
        else:
            self._pieces.add(packet[start:end])  # a view would hold the whole packet, most of which is done with

    def joined(self) -> bytes:
        return self._pieces.joined()


class SizedBody(ArrivingBody):
    """The body of a PUB or DPUB (`is_message`; its size belongs to the bytes), of an IDENTIFY or AUTH (it does not)."""

    def __init__(self, command: CommandWithBody, verb: bytes, size: int, *, is_message: bool) -> None:
        super().__init__()
        self._command = command
        self._verb = verb
        self._is_message = is_message
        self._size = 4 + size if is_message else size
        self._place: BytesIO | None = None
        """Where it is received directly."""
        self.has_arrived = False
        """Whether all of it was received, and the last of it directly."""

    def room(self) -> memoryview | None:
        """Where the rest may be received directly; None if it is to be given to `keep`, packet by packet."""
        place = self._place
        if place is None:
            missing = self._size - self.arrived_bytes
            if missing < DIRECT_BYTES or self.arrived_bytes * MAX_AHEAD < self._size:
                return None
            place = self._place = BytesIO(blank(self._size))  # it has the only reference, so it needs no copy
            self._pieces.move_to(place)
        return place.getbuffer()[self.arrived_bytes :]

    def received(self, count: int) -> None:
        """So many bytes were received into `room`."""
        self.arrived_bytes += count
        self.has_arrived = self.arrived_bytes == self._size

    def keep(self, packet: bytes, start: int, end: int) -> None:
        place = self._place
        if place is None:
            super().keep(packet, start, end)
        else:
            place.seek(self.arrived_bytes)
            place.write(packet[start:end])
            self.arrived_bytes += end - start

    def joined(self) -> bytes:
        place = self._place
        return super().joined() if place is None else place.getvalue()

    def end_in(self, packet: bytes, start: int) -> int:
        end = start + self._size - self.arrived_bytes
        return end if end <= len(packet) else -1

    def command(self, body: bytes) -> Command:
        self._command.fill(body)
        return self._command

    def eof_error(self) -> FatalError:
        return cut_off(self._verb, is_message=self._is_message)


def read_size(buffer: bytes, start: i64) -> i64:
    """The int32 at `start`, where a negative one reads as too large for any limit."""
    size: i64 = buffer[start]
    size = size << 8 | buffer[start + 1]
    size = size << 8 | buffer[start + 2]
    return size << 8 | buffer[start + 3]


def sized_ends(data: bytes, start: int, *, shortest: int, longest: int, max_count: int, max_bytes: int) -> list[int]:
    """Where items end that each begin with an int32, their size: from `start` on, and counted from there.

    Those within `max_bytes` alone, up to the first one that is not whole, or of a size out of bounds.
    """
    first: i64 = start
    limit: i64 = first + min(len(data) - start, max_bytes)
    least: i64 = shortest
    most: i64 = longest
    left: i64 = max_count
    position: i64 = start
    ends: list[int] = []
    while left > 0 and position + 4 <= limit:
        size: i64 = data[position]
        size = size << 8 | data[position + 1]
        size = size << 8 | data[position + 2]
        size = size << 8 | data[position + 3]
        position += 4 + size
        if size < least or size > most or position > limit:
            break
        ends.append(position - first)
        left -= 1
    return ends


def unprefixed(items: bytes, ends: Sequence[int], prefix_bytes: int) -> list[bytes]:
    """Items back to back, each without its first bytes; `ends[i]` is where item i ends."""
    start = prefix_bytes
    bodies: list[bytes] = []
    for end in ends:
        bodies.append(items[start:end])
        start = end + prefix_bytes
    return bodies


def signed(size: int) -> int:
    """What `read_size` has read, with its sign: for texts that tell a client what it sent."""
    return size - (1 << 32) if size >= 1 << 31 else size


def check_size(verb: bytes, size: int, *, limit: int, is_message: bool) -> None:
    """Refuse the size of a body that is empty or too large."""
    if 0 < size <= limit:
        return
    code, what = (error.BAD_MESSAGE, b"message") if is_message else (error.BAD_BODY, b"body")
    size = signed(size)
    if size > 0:
        raise FatalError(code, b"%b %b too big %d > %d" % (verb, what, size, limit))
    raise FatalError(code, b"%b invalid %b size %d" % (verb, b"message body" if is_message else b"body", size))


def cut_off(verb: bytes, *, is_message: bool, what: bytes = b"") -> FatalError:
    """What it means that the stream ends within a body, or within its size (`what` b" size")."""
    if is_message:
        return FatalError(error.BAD_MESSAGE, b"%b failed to read message body%b" % (verb, what))
    return FatalError(error.BAD_BODY, b"%b failed to read body%b" % (verb, what))
