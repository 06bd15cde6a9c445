"""The V1 protocol between nsqd and nsqlookupd, without I/O: bytes in, commands out.

A client first sends the magic `  V1`, then commands, each a line; IDENTIFY has a body behind it:

    PING LF                               OK, and the time is noted if the client is identified
    IDENTIFY LF | int32 size | JSON |     once, before anything but PING
    REGISTER topic [channel] LF
    UNREGISTER topic [channel] LF

White space around a line does not count. Parameters are separated by single spaces, so two in a row enclose an empty
one, and an empty channel means no channel; what follows the channel is ignored. Integers are big-endian. Every command
is answered, in order, by

    | int32 size | data |

Whatever is wrong ends the connection: the last answer is the error's code and text (`FatalError`).

Bounds: one line of MAX_LINE_BYTES or one body of MAX_BODY_BYTES is held besides the packet just received.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields

from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.json_object import UndecodableError, parse_object
from emberq.wire.name import parse_name

MAGIC = b"  V1"
MAX_LINE_BYTES = 4096
"""The longest sensible line, UNREGISTER with two names, has 141 bytes."""
MAX_BODY_BYTES = 64 * 1024
"""A real IDENTIFY has some hundred bytes."""

_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class NsqdIdentity:
    """What an nsqd says of itself in an IDENTIFY; each default is what an absent field means.

    One that does not say where it can be reached, and in which version, is of no use and refused.
    """

    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def is_complete(self) -> bool:
        return bool(self.broadcast_address and self.tcp_port and self.http_port and self.version)


_FIELD_TYPES: dict[str, type] = {field.name: type(field.default) for field in fields(NsqdIdentity)} | {
    "remote_address": str  # must be a string if it is there, and is not believed
}


def parse_identity(body: bytes) -> NsqdIdentity:
    """The identity in the body of an IDENTIFY, or the `FatalError` that the body deserves."""
    try:
        known = parse_object(body, _FIELD_TYPES)
    except UndecodableError:
        raise FatalError(error.BAD_BODY, b"IDENTIFY failed to decode JSON body") from None
    known.pop("remote_address", None)
    identity = NsqdIdentity(**known)
    if not identity.is_complete:
        raise FatalError(error.BAD_BODY, b"IDENTIFY missing fields")
    return identity


@dataclass(frozen=True, slots=True)
class Ping:
    """The client is alive."""


@dataclass(frozen=True, slots=True)
class Identify:
    """The client is this nsqd."""

    identity: NsqdIdentity


@dataclass(frozen=True, slots=True)
class Register:
    """The client has a topic, or a channel of it."""

    topic: str
    channel: str | None


@dataclass(frozen=True, slots=True)
class Unregister:
    """The client no longer has a topic, or a channel of it."""

    topic: str
    channel: str | None


Command = Ping | Identify | Register | Unregister

_PING = Ping()


def response(data: bytes) -> bytes:
    """An answer as it is sent."""
    return _SIZE.pack(len(data)) + data


OK = response(b"OK")


class CommandDecoder:
    """Cuts what one client sends into commands, and lets none through out of turn. Owned by its session."""

    __slots__ = ("_buffer", "_greeted", "_identified", "_in_body", "_position")

    def __init__(self) -> None:
        self._buffer = b""
        """Received; what stands before `_position` has been read."""
        self._position = 0
        self._greeted = False
        self._identified = False
        self._in_body = False
        """The line of an IDENTIFY was read, and its body not yet."""

    def receive(self, data: bytes) -> Iterator[Command]:
        """The commands that `data` completes, one by one; FatalError behind the last that is right.

        To be used up before more is received.
        """
        self._buffer += data
        while (command := self._next_command()) is not None:
            yield command
        self._buffer = self._buffer[self._position :]  # once a packet, not once a command
        self._position = 0

    def eof(self) -> None:
        """The client sends no more: FatalError if a body is missing. Half a line is nobody's business."""
        if self._in_body:
            missing = b"body size" if len(self._buffer) < _SIZE.size else b"body"
            raise FatalError(error.BAD_BODY, b"IDENTIFY failed to read " + missing)

    def _next_command(self) -> Command | None:
        if not self._greeted and not self._read_magic():
            return None
        if not self._in_body:
            line = self._read_line()
            if line is None:
                return None
            verb, *params = line.strip().split(b" ")
            if verb != b"IDENTIFY":
                return self._simple_command(verb, params)
            if self._identified:
                raise FatalError(error.INVALID, b"cannot IDENTIFY again")
            self._in_body = True
        return self._read_identify()

    def _read_magic(self) -> bool:
        magic = self._buffer[: len(MAGIC)]
        if len(magic) < len(MAGIC):
            return False
        if magic != MAGIC:
            raise FatalError(error.BAD_PROTOCOL)
        self._position = len(MAGIC)
        self._greeted = True
        return True

    def _read_line(self) -> bytes | None:
        start = self._position
        end = self._buffer.find(b"\n", start, start + MAX_LINE_BYTES)
        if end >= 0:
            self._position = end + 1
            return self._buffer[start:end]
        if len(self._buffer) - start >= MAX_LINE_BYTES:
            raise FatalError(error.INVALID, b"command longer than %d bytes" % MAX_LINE_BYTES)
        return None

    def _simple_command(self, verb: bytes, params: list[bytes]) -> Command:
        if verb == b"PING":
            return _PING
        if verb not in (b"REGISTER", b"UNREGISTER"):
            raise FatalError(error.INVALID, b"invalid command " + verb)
        if not self._identified:
            raise FatalError(error.INVALID, b"client must IDENTIFY")
        topic, channel = _parse_names(verb, params)
        return Register(topic, channel) if verb == b"REGISTER" else Unregister(topic, channel)

    def _read_identify(self) -> Identify | None:
        body_start = self._position + _SIZE.size
        if len(self._buffer) < body_start:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._position)
        if size < 0:
            raise FatalError(error.BAD_BODY, b"IDENTIFY invalid body size %d" % size)
        if size > MAX_BODY_BYTES:
            raise FatalError(error.BAD_BODY, b"IDENTIFY body too big %d > %d" % (size, MAX_BODY_BYTES))
        body_end = body_start + size
        if len(self._buffer) < body_end:
            return None
        identity = parse_identity(self._buffer[body_start:body_end])
        self._position = body_end
        self._in_body = False
        self._identified = True
        return Identify(identity)


def _parse_names(verb: bytes, params: list[bytes]) -> tuple[str, str | None]:
    """The topic, and the channel if there is one."""
    if not params:
        raise FatalError(error.INVALID, b"%b insufficient number of params" % verb)
    topic = parse_name(params[0])
    if topic is None:
        raise FatalError(error.BAD_TOPIC, b"%b topic name '%b' is not valid" % (verb, params[0]))
    if len(params) < 2 or not params[1]:
        return topic, None
    channel = parse_name(params[1])
    if channel is None:
        raise FatalError(error.BAD_CHANNEL, b"%b channel name '%b' is not valid" % (verb, params[1]))
    return topic, channel
