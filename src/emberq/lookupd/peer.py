"""An nsqd as nsqlookupd knows it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from emberq.base.address import TcpAddress
from emberq.http.message import encode_json
from emberq.lookupd.protocol import NsqdIdentity


class Peer:
    """An nsqd: where its connection comes from, and what it said of itself. Immutable."""

    __slots__ = ("encoded", "identity", "node", "remote_address")

    def __init__(self, remote_address: str, identity: NsqdIdentity) -> None:
        self.remote_address = remote_address
        """`ip:port` of its connection: its id."""
        self.identity = identity
        self.node = f"{identity.broadcast_address}:{identity.http_port}"
        """The name by which operators tombstone it."""
        self.encoded = encode_json({"remote_address": remote_address, **asdict(identity)}).decode()
        """The JSON that look-ups show, in the order of the reference. It is asked for far more often than made."""

    def __repr__(self) -> str:
        return f"<Peer {self.remote_address} ({self.node})>"


def format_remote_address(peername: Any) -> str:
    """The peer's end of a TCP connection, as `ip:port`."""
    return str(TcpAddress(*peername[:2]))
