"""The commands that a client sends: as values for the server, as bytes for the client.

Many messages are one value: consecutive FINs are one `Fin`, consecutive PUBs to one topic are one `Publish`, and so is
an MPUB.

Not in NSQ: a client that has agreed with nsqd on a producer id (see `negotiation`) may number what it publishes, in a
further parameter of the line. `PUB topic 7` is then a `NumberedPublish`.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from emberq.base.compiled import mypyc_attr
from emberq.wire.frame import ID_BYTES

MAGIC_V2: Final = b"  V2"
FIN_PREFIX: Final = b"FIN "
FIN_LINE_BYTES: Final = 21  # FIN_PREFIX, an id and the line end

_SIZE = struct.Struct(">i")


# Values: the server's end.


@mypyc_attr(acyclic=True)
class Value:
    """A command as it was read. Equal to one of the same kind with equal fields; `__match_args__` names the fields.

    Written out because a dataclass's constructor is interpreted even where this module is compiled, and there is a
    command in every packet.
    """

    def _fields(self) -> list[Any]:
        names: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
        return [getattr(self, name) for name in names]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and type(other) is type(self) and other._fields() == self._fields()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._fields()))})"


class BodyValue(Value, ABC):
    """A command with a body behind its line. It is made of the line, and filled when the body is there."""

    @abstractmethod
    def fill(self, body: bytes) -> None:
        """The body is there."""


class Identify(BodyValue):
    """IDENTIFY: `body` is the JSON document, not parsed yet."""

    __match_args__: ClassVar = ("body",)

    def __init__(self, body: bytes = b"") -> None:
        self.body = body

    def fill(self, body: bytes) -> None:
        self.body = body


class Auth(BodyValue):
    """AUTH."""

    __match_args__: ClassVar = ("secret",)

    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret

    def fill(self, body: bytes) -> None:
        self.secret = body

    def __repr__(self) -> str:
        return "Auth(secret=...)"


@mypyc_attr(acyclic=True)
class Sub(Value):
    """SUB."""

    __match_args__: ClassVar = ("topic", "channel")

    def __init__(self, topic: str, channel: str) -> None:
        self.topic = topic
        self.channel = channel


@mypyc_attr(free_list_len=1)
class Publish(BodyValue):
    """One MPUB (`verb` b"MPUB", one reply) or consecutive PUBs to one topic (`verb` b"PUB", a reply for each).

    `blob` holds the messages back to back, each an int32 size and its body; `ends` holds where each of them ends in
    `blob`: as a `range` when there are several of one size, else as a tuple of one or an array.
    """

    __match_args__: ClassVar = ("verb", "topic", "blob", "ends", "reply_count")

    def __init__(self, verb: bytes, topic: str, blob: bytes, ends: Sequence[int], reply_count: int) -> None:
        self.verb = verb
        self.topic = topic
        self.blob = blob
        self.ends = ends
        self.reply_count = reply_count

    def fill(self, body: bytes) -> None:
        self.blob = body
        self.ends = (len(body),)


class NumberedPublish(BodyValue):
    """A PUB or MPUB with the number that its producer gave it, from a client that has negotiated this.

    Otherwise like a `Publish` with one reply. It is never joined with others, so that it can be recognised when it is
    sent again.
    """

    __match_args__: ClassVar = ("verb", "topic", "blob", "ends", "sequence")

    def __init__(self, verb: bytes, topic: str, blob: bytes, ends: Sequence[int], sequence: int) -> None:
        self.verb = verb
        self.topic = topic
        self.blob = blob
        self.ends = ends
        self.sequence = sequence

    def fill(self, body: bytes) -> None:
        self.blob = body
        self.ends = (len(body),)


@mypyc_attr(free_list_len=1)
class DeferredPublish(BodyValue):
    """DPUB: `blob` is the int32 size and the body."""

    __match_args__: ClassVar = ("topic", "defer_ms", "blob")

    def __init__(self, topic: str, defer_ms: int, blob: bytes = b"") -> None:
        self.topic = topic
        self.defer_ms = defer_ms
        self.blob = blob

    def fill(self, body: bytes) -> None:
        self.blob = body


@mypyc_attr(acyclic=True, free_list_len=1)
class Rdy(Value):
    """RDY."""

    __match_args__: ClassVar = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


@mypyc_attr(acyclic=True, free_list_len=1)
class Fin(Value):
    """Consecutive FINs: `lines` holds them as they arrived, 21 bytes each (`FIN <id>\\n`)."""

    __match_args__: ClassVar = ("lines",)

    def __init__(self, lines: bytes) -> None:
        self.lines = lines

    @property
    def ids(self) -> list[bytes]:
        lines = self.lines
        return [lines[start : start + ID_BYTES] for start in range(len(FIN_PREFIX), len(lines), FIN_LINE_BYTES)]


@mypyc_attr(acyclic=True, free_list_len=1)
class Req(Value):
    """REQ; `timeout_ms` is as the client asked, which may be out of range."""

    __match_args__: ClassVar = ("id", "timeout_ms")

    def __init__(self, id: bytes, timeout_ms: int) -> None:  # noqa: A002 - the field's name
        self.id = id
        self.timeout_ms = timeout_ms


@mypyc_attr(acyclic=True)
class Touch(Value):
    """TOUCH."""

    __match_args__: ClassVar = ("id",)

    def __init__(self, id: bytes) -> None:  # noqa: A002 - the field's name
        self.id = id


@mypyc_attr(acyclic=True)
class Nop(Value):
    """NOP."""

    __match_args__: ClassVar = ()


@mypyc_attr(acyclic=True)
class Cls(Value):
    """CLS."""

    __match_args__: ClassVar = ()


CommandWithBody = Identify | Auth | Publish | NumberedPublish | DeferredPublish
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
