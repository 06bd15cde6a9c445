"""What an nsqd says of itself when it registers.

The body of IDENTIFY is a JSON object, read as `json_object` says. An nsqd that does not say where it can be reached,
and in which version, is of no use to anybody and refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from emberq.base.address import TcpAddress
from emberq.http.message import encode_json
from emberq.wire import error
from emberq.wire.error import FatalError
from emberq.wire.json_object import UndecodableError, parse_object


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
        known = parse_object(body, _FIELD_TYPES)
    except UndecodableError:
        raise FatalError(error.BAD_BODY, b"IDENTIFY failed to decode JSON body") from None
    known.pop("remote_address", None)
    identity = Identity(**known)
    if not identity.is_complete:
        raise FatalError(error.BAD_BODY, b"IDENTIFY missing fields")
    return identity


def format_remote_address(peername: Any) -> str:
    """The peer's end of a TCP connection, as `ip:port`."""
    return str(TcpAddress(*peername[:2]))
