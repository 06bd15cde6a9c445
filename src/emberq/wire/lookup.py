r"""nsqlookupd's V1 protocol without I/O, both ends, and what its HTTP API answers.

An nsqd connects and sends the magic `  V1`, then commands. A command is a line; IDENTIFY has a body behind it. Every
command has one answer, in order, which has no frame type, unlike nsqd's. Integers are big-endian.

    PING LF                               OK; the time is noted if the nsqd is identified
    IDENTIFY LF | int32 size | JSON |     JSON that says who the nsqlookupd is; once, before anything but PING
    REGISTER topic [channel] LF           OK
    UNREGISTER topic [channel] LF         OK

    | int32 size | data |                 an answer

White space around a line does not count. Parameters are separated by single spaces, so two in a row enclose an empty
one, and an empty channel means no channel; what follows the channel is ignored.

Any mistake ends the connection: the last answer is the error's code and text (`FatalError`). So to an nsqd every answer
but those above is an error (`AnswerError`), after which nsqlookupd closes the connection.

Bounds: nsqlookupd's end holds one line of MAX_LINE_BYTES or one body of MAX_BODY_BYTES besides the packet just
received; nsqd's end holds one answer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.text import quoted
from emberq.wire import error
from emberq.wire.error import BadMagic, FatalError
from emberq.wire.parameter import UndecodableError, is_ephemeral, is_valid_name, parse_name, parse_object

MAGIC = b"  V1"
MAX_LINE_BYTES = 4096
"""The longest sensible line, UNREGISTER with two names, has 141 bytes."""
MAX_BODY_BYTES = 64 * 1024
"""A real IDENTIFY has some hundred bytes."""
MAX_QUOTED_BYTES = 200
"""As much of a wrong answer as an error text quotes: nsqlookupd's longest error fits."""

_SIZE = struct.Struct(">i")
_OK = b"OK"


# What both ends say.


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class NsqdIdentity:
    """What an nsqd says of itself in an IDENTIFY; each default is what an absent field means.

    nsqlookupd refuses one that does not say where it can be reached and which version it is.
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
    "remote_address": str  # must be a string if it is there; its value is not used
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdInfo:
    """Who an nsqlookupd says that it is."""

    broadcast_address: str = ""
    http_port: int = 0
    version: str = ""
    tcp_port: int = 0

    @property
    def http_address(self) -> str | None:
        """Where to ask it over HTTP; None if it did not say."""
        if not self.broadcast_address or not 0 < self.http_port <= MAX_PORT:
            return None
        return str(TcpAddress(self.broadcast_address, self.http_port))


# nsqlookupd's end.


@dataclass(frozen=True, slots=True)
class Ping:
    """The client is alive."""


@dataclass(frozen=True, slots=True)
class LookupIdentify:
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


Command = Ping | LookupIdentify | Register | Unregister

_PING = Ping()


def response(data: bytes) -> bytes:
    """An answer as it is sent."""
    return _sized(data)


OK = response(_OK)


class LookupDecoder:
    """Cuts what one client sends into commands, and lets none through out of turn. Owned by its session."""

    __slots__ = ("_buffer", "_identified", "_in_body", "_position", "greeted")

    def __init__(self) -> None:
        self._buffer = b""
        """What has arrived; everything before `_position` has been read."""
        self._position = 0
        self.greeted = False
        """Whether the client has sent the magic."""
        self._identified = False
        self._in_body = False
        """The line of an IDENTIFY was read, and its body not yet."""

    def receive(self, data: bytes) -> Iterator[Command]:
        """The commands that `data` completes, one by one; FatalError after the last valid one.

        The iterator is to be exhausted before more is received.
        """
        self._buffer += data
        while (command := self._next_command()) is not None:
            yield command
        self._buffer = self._buffer[self._position :]  # once a packet, not once a command
        self._position = 0

    def eof(self) -> None:
        """The client sends no more: FatalError if a body is missing. Half a line is dropped."""
        if self._in_body:
            missing = b"body size" if len(self._buffer) < _SIZE.size else b"body"
            raise FatalError(error.BAD_BODY, b"IDENTIFY failed to read " + missing)

    def _next_command(self) -> Command | None:
        if not self.greeted and not self._read_magic():
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
            raise BadMagic(magic)
        self._position = len(MAGIC)
        self.greeted = True
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

    def _read_identify(self) -> LookupIdentify | None:
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
        return LookupIdentify(identity)


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


# nsqd's end: what to send.

PING = b"PING\n"

TopicAndChannels = tuple[str, tuple[str, ...]]
"""A topic and the channels it has."""


class AnswerError(Exception):
    """What came is not what a sound nsqlookupd answers; the text says why."""


def identify(identity: NsqdIdentity) -> bytes:
    """The command that must come first."""
    body = json.dumps(asdict(identity), separators=(",", ":"), sort_keys=True).encode()
    return b"IDENTIFY\n" + _sized(body)


def registration(*, topic: str, channel: str | None, exists: bool) -> bytes:
    """The command for a topic (`channel` None) or a channel that is there now, or no longer."""
    verb = "REGISTER" if exists else "UNREGISTER"
    line = f"{verb} {topic}\n" if channel is None else f"{verb} {topic} {channel}\n"
    return line.encode("ascii")


def registrations(topics: Iterable[TopicAndChannels]) -> Iterator[bytes]:
    """The commands for everything that exists. Registering a channel registers its topic."""
    for topic, channels in topics:
        for channel in channels or (None,):
            yield registration(topic=topic, channel=channel, exists=True)


def parse_channels(document: Any) -> list[str]:
    """The channels to create, by nsqlookupd's answer to `/channels`; AnswerError if it is no such answer.

    Ephemeral channels are left out: they live only as long as their consumers, which are elsewhere. So are names that
    no channel can have.
    """
    if not isinstance(document, dict) or "channels" not in document:
        raise AnswerError("the answer does not list channels")
    names = document["channels"] or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise AnswerError("the answer does not list channels")
    return [name for name in names if is_valid_name(name) and not is_ephemeral(name)]


# nsqd's end: what comes back.


class LookupAnswerReader:
    """Cuts what nsqlookupd sends into answers. Owned by one connection."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._received = bytearray()
        """The start of an answer that is not complete; never more than the largest answer and one read."""

    def feed(self, data: bytes) -> list[bytes]:
        """The answers that are complete now; AnswerError for a size that cannot be, before its bytes are waited for."""
        received = self._received
        received += data
        answers = []
        position = 0
        while len(received) >= position + _SIZE.size:
            start = position + _SIZE.size
            (size,) = _SIZE.unpack_from(received, position)
            if not 0 <= size <= self._max_bytes:
                raise AnswerError(f"an answer of {size} bytes")
            if len(received) < start + size:
                break
            position = start + size
            answers.append(bytes(received[start:position]))
        del received[:position]
        return answers


def check_ok(answer: bytes) -> None:
    """AnswerError unless the answer is `OK`."""
    if answer != _OK:
        raise AnswerError(f"it answered {_shown(answer)}")


def parse_info(answer: bytes) -> LookupdInfo:
    """What the answer to IDENTIFY says; AnswerError if it is an error text, or no such JSON."""
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError) as wrong:
        raise AnswerError(f"it answered IDENTIFY by {_shown(answer)}") from wrong
    if not isinstance(document, dict):
        raise AnswerError(f"it answered IDENTIFY by {_shown(answer)}")
    return LookupdInfo(
        broadcast_address=_member(document, "broadcast_address", ""),
        http_port=_member(document, "http_port", 0),
        version=_member(document, "version", ""),
        tcp_port=_member(document, "tcp_port", 0),
    )


def _member(document: dict[str, Any], name: str, default: Any) -> Any:
    value = document.get(name, default)
    if type(value) is not type(default):
        raise AnswerError(f"it answered IDENTIFY by a wrong {name}")
    return value


def _shown(answer: bytes) -> str:
    return quoted(answer[:MAX_QUOTED_BYTES].decode("utf-8", "backslashreplace"))
