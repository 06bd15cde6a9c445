"""What an nsqd says of itself when it registers.

The body of IDENTIFY is a JSON object. Keys match whatever their case, unknown ones are ignored, null counts as absent,
and a value of the wrong type makes the whole body undecodable. An nsqd that does not say where it can be reached, and
in which version, is of no use to anybody and refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from emberq.base.address import TcpAddress
from emberq.http.message import encode_json
from emberq.wire import error
from emberq.wire.error import FatalError

_INT64_LIMIT = 1 << 63
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields of an IDENTIFY; each default is what an absent field means."""

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


class Peer:
    """An nsqd: where its connection comes from, and what it said of itself. Immutable."""

    __slots__ = ("encoded", "identity", "node", "remote_address")

    def __init__(self, remote_address: str, identity: Identity) -> None:
        self.remote_address = remote_address
        """`ip:port` of its connection: its id."""
        self.identity = identity
        self.node = f"{identity.broadcast_address}:{identity.http_port}"
        """The name by which operators tombstone it."""
        self.encoded = encode_json({"remote_address": remote_address, **asdict(identity)}).decode()
        """The JSON that look-ups show, in the order of the reference. It is asked for far more often than made."""

    def __repr__(self) -> str:
        return f"<Peer {self.remote_address} ({self.node})>"


_FIELD_TYPES: dict[str, type] = {field.name: type(field.default) for field in fields(Identity)} | {
    "remote_address": str  # must be a string if it is there, and is not believed
}


def parse_identity(body: bytes) -> Identity:
    """The identity in the body of an IDENTIFY, or the `FatalError` that the body deserves."""
    try:
        document = json.loads(body.decode("utf-8", "replace"), object_pairs_hook=_Members, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise _undecodable() from None
    if document is not None and not isinstance(document, _Members):
        raise _undecodable()
    known = {key.lower(): _checked(key.lower(), value) for key, value in document or () if _is_known(key, value)}
    known.pop("remote_address", None)
    identity = Identity(**known)
    if not identity.is_complete:
        raise FatalError(error.BAD_BODY, b"IDENTIFY missing fields")
    return identity


def format_remote_address(peername: Any) -> str:
    """The peer's end of a TCP connection, as `ip:port`."""
    return str(TcpAddress(*peername[:2]))


class _Members(list[tuple[str, Any]]):
    """A JSON object as it was written: a key may occur twice, and both values are judged."""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_known(key: str, value: Any) -> bool:
    return key.lower() in _FIELD_TYPES and value is not None


def _checked(name: str, value: Any) -> Any:
    if type(value) is not _FIELD_TYPES[name]:
        raise _undecodable()
    if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise _undecodable()
    return _LONE_SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value


def _undecodable() -> FatalError:
    return FatalError(error.BAD_BODY, b"IDENTIFY failed to decode JSON body")
