"""What nsqd's options make of the link."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import emberq
from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.broker.broker import TopologyChange
from emberq.nsqd.lookup import LookupService
from emberq.nsqd.options import NsqdOptions
from tests.nsqd.scripted_lookupd import ScriptedLookupd, framed

pytestmark = pytest.mark.loop("uvloop")


def discovery(*, tcp_port: int = 4150, http_port: int = 4151, **options: Any) -> LookupService:
    return LookupService(
        NsqdOptions(**options),
        tcp_port=tcp_port,
        http_port=http_port,
        snapshot=lambda: [("t", ("c",))],
        find_topic=lambda _name: None,
        clock=ManualClock(),
        timers=Timers(),
    )


@pytest.mark.parametrize(
    ("options", "bound_ports", "told_ports"),
    [
        ({}, (1, 2), (1, 2)),
        ({"broadcast_tcp_port": 3, "broadcast_http_port": 4}, (1, 2), (3, 4)),
        ({}, (-1, -1), (0, 0)),
    ],
)
async def test_nsqlookupd_is_told_who_nsqd_is(
    options: dict[str, Any], bound_ports: tuple[int, int], told_ports: tuple[int, int]
) -> None:
    async with ScriptedLookupd() as lookupd:
        found = discovery(
            tcp_port=bound_ports[0],
            http_port=bound_ports[1],
            lookupd_tcp_address=(lookupd.address,),
            broadcast_address="nsqd.example",
            topology_region="r",
            topology_zone="z",
            **options,
        )
        found.start()
        await lookupd.expect("connected", "IDENTIFY", "REGISTER t c")
        await found.stop()
        assert lookupd.identities == [
            {
                "broadcast_address": "nsqd.example",
                "hostname": socket.gethostname(),
                "tcp_port": told_ports[0],
                "http_port": told_ports[1],
                "topology_region": "r",
                "topology_zone": "z",
                "version": emberq.NSQ_VERSION,
            }
        ]


async def test_answers_are_bounded_by_the_largest_body() -> None:
    async with ScriptedLookupd(lambda _command: framed(b"x" * 101)) as lookupd:
        found = discovery(lookupd_tcp_address=(lookupd.address,), max_body_size=100)
        found.start()
        await lookupd.expect("connected", "IDENTIFY", "disconnected")
        await found.stop()


async def test_changes_are_passed_on_to_the_addresses_of_the_moment() -> None:
    async with ScriptedLookupd() as lookupd:
        found = discovery()
        found.start()
        assert not found.addresses
        found.set_addresses((lookupd.address,))
        assert list(found.addresses) == [lookupd.address]
        await lookupd.expect("connected", "IDENTIFY", "REGISTER t c")
        found.changed(TopologyChange("u", None, exists=True))
        await lookupd.expect("REGISTER u")
        await found.stop()
