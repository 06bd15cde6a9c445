"""The bytes of nsqlookupd's V1 protocol, as its clients see it.

A connection begins with the four bytes `  V1`. A command is a line; IDENTIFY has a body too:

    IDENTIFY\\n | size: int32 | JSON |        REGISTER <topic> [<channel>]\\n
    PING\\n                                   UNREGISTER <topic> [<channel>]\\n

Each command has one answer, in order. It has no frame type, unlike nsqd's:

    | size: int32 | bytes |

IDENTIFY is answered by JSON that says who the nsqlookupd is, all others by `OK`. Any other answer is an error, after
which nsqlookupd closes the connection. Numbers are big-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from emberq.base.address import MAX_PORT, TcpAddress
from emberq.base.printable import quoted
from emberq.lookupd.protocol import NsqdIdentity
from emberq.wire.name import is_ephemeral, is_valid_name

MAGIC = b"  V1"
PING = b"PING\n"
OK = b"OK"
MAX_QUOTED_BYTES = 200
"""As much of a wrong answer as an error text quotes: nsqlookupd's longest error fits."""

_SIZE = struct.Struct(">i")

TopicAndChannels = tuple[str, tuple[str, ...]]
"""A topic and the channels it has."""


class AnswerError(Exception):
    """What came is not what a sound nsqlookupd answers; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdInfo:
    """Who an nsqlookupd says that it is."""

    broadcast_address: str = ""
    http_port: int = 0
    version: str = ""

    @property
    def http_address(self) -> str | None:
        """Where to ask it over HTTP; None if it did not say."""
        if not self.broadcast_address or not 0 < self.http_port <= MAX_PORT:
            return None
        return str(TcpAddress(self.broadcast_address, self.http_port))


# What to send.


def identify(identity: NsqdIdentity) -> bytes:
    """The command that must come first."""
    document = {
        "broadcast_address": identity.broadcast_address,
        "hostname": identity.hostname,
        "http_port": identity.http_port,
        "tcp_port": identity.tcp_port,
        "topology_region": identity.topology_region,
        "topology_zone": identity.topology_zone,
        "version": identity.version,
    }
    body = json.dumps(document, separators=(",", ":")).encode()
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


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


# What comes back.


class AnswerReader:
    """Cuts what was received into answers. Owned by one connection."""

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
    if answer != OK:
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
    )


def parse_channels(document: Any) -> list[str]:
    """The channels to create by nsqlookupd's answer to `/channels`; AnswerError if it is no such answer.

    Ephemeral channels are left out: they live only as long as their consumers, which are elsewhere. So are names that
    no channel can have.
    """
    if not isinstance(document, dict) or "channels" not in document:
        raise AnswerError("the answer does not list channels")
    names = document["channels"] or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise AnswerError("the answer does not list channels")
    return [name for name in names if is_valid_name(name) and not is_ephemeral(name)]


def _member(document: dict[str, Any], name: str, default: Any) -> Any:
    value = document.get(name, default)
    if type(value) is not type(default):
        raise AnswerError(f"it answered IDENTIFY by a wrong {name}")
    return value


def _shown(answer: bytes) -> str:
    return quoted(answer[:MAX_QUOTED_BYTES].decode("utf-8", "backslashreplace"))
