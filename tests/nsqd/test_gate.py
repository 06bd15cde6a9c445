"""Which connections are served: counted over all listeners, and by address."""

from __future__ import annotations

import asyncio
import os
import resource
from typing import cast

import pytest

from emberq.base.clock import ManualClock
from emberq.nsqd.gate import ConnectionGate
from emberq.nsqd.options import NsqdOptions


class Socket:
    """As much of a transport as is needed: one whose socket has a certain descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def get_extra_info(self, name: str) -> Socket:
        assert name == "socket"
        return self

    def fileno(self) -> int:
        return self._descriptor


def gate(*, total: int = 0, per_address: int = 0) -> ConnectionGate:
    options = NsqdOptions(max_connections=total, max_connections_per_address=per_address)
    return ConnectionGate(options, clock=ManualClock())


def enters(entrance: ConnectionGate, remote_address: str, *, descriptor: int = 10) -> bool:
    return entrance.enter(remote_address, cast(asyncio.BaseTransport, Socket(descriptor))) is None


def limit_open_files(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (count, count))


def test_without_limits_all_are_served() -> None:
    entrance = gate()
    assert all(enters(entrance, f"10.0.0.1:{port}") for port in range(10_000))


def test_a_refused_connection_does_not_count() -> None:
    entrance = gate(total=1)
    assert enters(entrance, "10.0.0.1:1")
    assert not enters(entrance, "10.0.0.1:2")
    entrance.leave("10.0.0.1:1")
    assert enters(entrance, "10.0.0.1:3")


def test_addresses_are_counted_by_themselves() -> None:
    entrance = gate(per_address=1)
    assert enters(entrance, "10.0.0.1:1")
    assert enters(entrance, "10.0.0.2:1")
    assert not enters(entrance, "10.0.0.1:2")
    entrance.leave("10.0.0.1:1")
    assert enters(entrance, "10.0.0.1:2")


def test_a_network_of_ipv6_counts_as_one_address_and_ipv4_as_itself() -> None:
    entrance = gate(per_address=1)
    assert enters(entrance, "[2001:db8::1]:1")
    assert not enters(entrance, "[2001:db8::2:3:4]:1")
    assert enters(entrance, "[2001:db8:0:1::1]:1")
    assert enters(entrance, "[::ffff:10.0.0.1]:1")
    assert not enters(entrance, "10.0.0.1:1")


def test_unix_sockets_have_no_address() -> None:
    entrance = gate(per_address=1)
    assert enters(entrance, "@")
    assert enters(entrance, "@")
    entrance.leave("@")
    entrance.leave("@")


def test_the_last_quarter_of_the_descriptors_is_not_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 1000)
    entrance = gate()
    assert enters(entrance, "10.0.0.1:1", descriptor=749)
    assert not enters(entrance, "10.0.0.1:1", descriptor=750)


def test_no_more_descriptors_are_kept_than_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 1_000_000)
    assert enters(gate(), "10.0.0.1:1", descriptor=995_000)
    limit_open_files(monkeypatch, resource.RLIM_INFINITY)
    assert enters(gate(), "10.0.0.1:1", descriptor=10_000_000)


def test_there_is_room_up_to_either_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    entrance = gate(total=1)
    assert entrance.has_room()
    assert enters(entrance, "10.0.0.1:1")
    assert not entrance.has_room()
    entrance.leave("10.0.0.1:1")
    limit_open_files(monkeypatch, 4)
    assert not entrance.has_room()


def test_there_is_no_room_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    assert not gate().has_room()
