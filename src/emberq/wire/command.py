"""The commands that a client sends: as values for the server, as bytes for the client.

Many messages are one value: consecutive FINs are one `Fin`, consecutive PUBs to one topic are one `Publish`, and so is
an MPUB.

Not in NSQ: a client that has agreed with nsqd on a producer id (see `negotiation`) may number what it publishes, in a
further parameter of the line. `PUB topic 7` is then a `NumberedPublish`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from emberq.wire.frame import ID_BYTES

MAGIC_V2 = b"  V2"
FIN_PREFIX: Final = b"FIN "
FIN_LINE_BYTES: Final = 21  # the prefix, an id and the end of the line

_SIZE = struct.Struct(">i")


# Values: the server's end.


@dataclass(slots=True)
class Identify:
    """IDENTIFY: `body` is the JSON document, not parsed yet."""

    body: bytes


@dataclass(slots=True)
class Auth:
    secret: bytes

    def __repr__(self) -> str:
        return "Auth(secret=...)"


@dataclass(slots=True)
class Sub:
    topic: str
    channel: str


@dataclass(slots=True)
class Publish:
    """One MPUB (`verb` b"MPUB", one reply) or consecutive PUBs to one topic (`verb` b"PUB", a reply for each).

    `blob` holds the messages back to back, each an int32 size and its body; `ends` holds where each of them ends in
    `blob`, as a `range` when there are several of one size.
    """

    verb: bytes
    topic: str
    blob: bytes
    ends: Sequence[int]
    reply_count: int


@dataclass(slots=True)
class NumberedPublish:
    """A PUB or MPUB with the number that its producer gave it, from a client that has negotiated this.

    Otherwise like a `Publish` with one reply. It is never joined with others, so that it can be recognised when it is
    sent again.
    """

    verb: bytes
    topic: str
    blob: bytes
    ends: Sequence[int]
    sequence: int


@dataclass(slots=True)
class DeferredPublish:
    """DPUB: `blob` is the int32 size and the body."""

    topic: str
    defer_ms: int
    blob: bytes


@dataclass(slots=True)
class Rdy:
    count: int


@dataclass(slots=True)
class Fin:
    """Consecutive FINs: `lines` holds them as they arrived, 21 bytes each (`FIN <id>\\n`)."""

    lines: bytes

    @property
    def ids(self) -> list[bytes]:
        lines = self.lines
        return [lines[start : start + ID_BYTES] for start in range(len(FIN_PREFIX), len(lines), FIN_LINE_BYTES)]


@dataclass(slots=True)
class Req:
    """REQ; `timeout_ms` is as the client asked, which may be out of range."""

    id: bytes
    timeout_ms: int


@dataclass(slots=True)
class Touch:
    id: bytes


@dataclass(slots=True)
class Nop:
    """NOP."""


@dataclass(slots=True)
class Cls:
    """CLS."""


Command = Identify | Auth | Sub | Publish | NumberedPublish | DeferredPublish | Rdy | Fin | Req | Touch | Nop | Cls


# Bytes: the client's end.


def _with_body(line: bytes, body: bytes) -> bytes:
    return b"%b\n%b%b" % (line, _SIZE.pack(len(body)), body)


def identify(fields: Mapping[str, Any]) -> bytes:
    return _with_body(b"IDENTIFY", json.dumps(fields, separators=(",", ":")).encode())


def auth(secret: bytes) -> bytes:
    return _with_body(b"AUTH", secret)


def sub(*, topic: str, channel: str) -> bytes:
    return b"SUB %b %b\n" % (topic.encode(), channel.encode())


def pub(topic: str, body: bytes, *, sequence: int | None = None) -> bytes:
    return _with_body(_publish_line(b"PUB", topic, sequence), body)


def dpub(topic: str, body: bytes, *, defer_ms: int) -> bytes:
    return _with_body(b"DPUB %b %d" % (topic.encode(), defer_ms), body)


def mpub(topic: str, bodies: Sequence[bytes], *, sequence: int | None = None) -> bytes:
    pack = _SIZE.pack
    parts: list[bytes] = [pack(len(bodies))]
    for body in bodies:
        parts += (pack(len(body)), body)
    return _with_body(_publish_line(b"MPUB", topic, sequence), b"".join(parts))


def _publish_line(verb: bytes, topic: str, sequence: int | None) -> bytes:
    """`sequence` is for connections that have negotiated it; an nsqd that has not ignores it."""
    line = b"%b %b" % (verb, topic.encode())
    return line if sequence is None else b"%b %d" % (line, sequence)


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(ids: Sequence[bytes]) -> bytes:
    return b"FIN %b\n" % b"\nFIN ".join(ids) if ids else b""


def req(message_id: bytes, *, timeout_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, timeout_ms)


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id


NOP = b"NOP\n"
CLS = b"CLS\n"
