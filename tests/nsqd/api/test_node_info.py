"""GET /ping and /info."""

from __future__ import annotations

import json
import socket

import pytest

import emberq
from emberq.nsqd.api.node import InfoApi
from tests.broker.rig import Rig
from tests.nsqd.api.rig import START_TIME_S, RigNode, refusal_of, request


class SickNode(RigNode):
    def health(self) -> str:
        return "NOK - write /data/t.dat: no space left on device"


def test_ping_says_ok(rig: Rig) -> None:
    answer = InfoApi(RigNode(rig)).ping(request())
    assert (answer.status, answer.body, answer.headers) == (200, b"OK", ())


def test_ping_says_what_is_wrong(rig: Rig) -> None:
    answer = InfoApi(SickNode(rig)).ping(request())
    assert (answer.status, answer.body) == (500, b"NOK - write /data/t.dat: no space left on device")
    assert answer.headers == ()


def test_info_tells_who_we_are_in_the_order_of_the_reference(rig: Rig) -> None:
    node = RigNode(rig, broadcast_address="here.example", topology_zone="z", topology_region="r")
    answer = json.loads(InfoApi(node).info(request()).body)
    assert list(answer.items()) == [
        ("version", emberq.NSQ_VERSION),
        ("broadcast_address", "here.example"),
        ("hostname", socket.gethostname()),
        ("http_port", 4151),
        ("tcp_port", 4150),
        ("start_time", START_TIME_S),
        ("max_heartbeat_interval", 60_000_000_000),
        ("max_output_buffer_size", 65536),
        ("max_output_buffer_timeout", 30_000_000_000),
        ("max_deflate_level", 6),
        ("topology_zone", "z"),
        ("topology_region", "r"),
        ("emberq_version", emberq.__version__),
    ]


def test_info_without_a_hostname_is_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise OSError("no such name")

    monkeypatch.setattr(socket, "gethostname", no_name)
    api = InfoApi(RigNode(rig, node_id=1, broadcast_address="here.example"))
    assert refusal_of(api.info, request()) == (500, "no such name")
