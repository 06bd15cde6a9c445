"""Peers for tests that need no connection."""

from __future__ import annotations

from typing import Any

from emberq.lookupd.registry import RegisteredNsqd
from emberq.wire.lookup import NsqdIdentity

COMPLETE: dict[str, Any] = {
    "hostname": "host",
    "broadcast_address": "nsqd.example",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}
"""The fields that make an identity complete, and a hostname."""


def new_peer(remote_address: str = "10.0.0.1:50000", **identity: Any) -> RegisteredNsqd:
    """A peer like any other, but for these fields."""
    return RegisteredNsqd(remote_address, NsqdIdentity(**(COMPLETE | identity)))
