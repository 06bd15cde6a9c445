"""What an nsqd says of itself is read as the reference reads it, and shown as the reference shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emberq.wire.error import FatalError
from emberq.wire.lookup import NsqdIdentity, parse_identity
from tests.lookupd.rig import COMPLETE, new_peer

UNDECODABLE = b"E_BAD_BODY IDENTIFY failed to decode JSON body"
INCOMPLETE = b"E_BAD_BODY IDENTIFY missing fields"


def body(**fields: Any) -> bytes:
    return json.dumps(COMPLETE | fields).encode()


def refusal_of(raw: bytes) -> bytes:
    with pytest.raises(FatalError) as caught:
        parse_identity(raw)
    return caught.value.data


def test_all_fields_are_read() -> None:
    assert parse_identity(body(topology_zone="z", topology_region="r", unknown=[1])) == NsqdIdentity(
        hostname="host",
        broadcast_address="nsqd.example",
        tcp_port=4150,
        http_port=4151,
        version="1.3.0",
        topology_zone="z",
        topology_region="r",
    )


def test_keys_match_whatever_their_case() -> None:
    raw = b'{"Broadcast_Address":"a","TCP_PORT":1,"http_port":2,"version":"v"}'
    assert parse_identity(raw) == NsqdIdentity(broadcast_address="a", tcp_port=1, http_port=2, version="v")


def test_the_last_of_equal_keys_counts() -> None:
    assert parse_identity(body()[:-1] + b',"version":"2"}').version == "2"


def test_null_counts_as_absent() -> None:
    assert parse_identity(body(hostname=None)).hostname == ""
    assert refusal_of(body(version=None)) == INCOMPLETE
    assert refusal_of(b"null") == INCOMPLETE


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        body() + b"x",
        body(tcp_port="1"),
        body(tcp_port=1.0),
        body(tcp_port=True),
        body(tcp_port=1 << 63),
        body(hostname=1),
        body(remote_address=1),
        b'{"tcp_port":NaN}',
        b"[" * 50_000,
    ],
)
def test_what_is_no_identity_is_undecodable(raw: bytes) -> None:
    assert refusal_of(raw) == UNDECODABLE


@pytest.mark.parametrize("lacking", [{"broadcast_address": ""}, {"tcp_port": 0}, {"http_port": 0}, {"version": ""}])
def test_an_identity_without_what_matters_is_incomplete(lacking: dict[str, Any]) -> None:
    assert refusal_of(body(**lacking)) == INCOMPLETE


def test_the_remote_address_is_not_believed() -> None:
    peer = new_peer("10.0.0.1:5")
    assert parse_identity(body(remote_address="1.2.3.4:5")) == peer.identity
    assert json.loads(peer.encoded)["remote_address"] == "10.0.0.1:5"


def test_broken_characters_are_replaced() -> None:
    assert parse_identity(body(hostname="\ud800")).hostname == "\ufffd"
    assert parse_identity(body(hostname="x").replace(b'"x"', b'"\xff"')).hostname == "\ufffd"


def test_a_peer_is_tombstoned_by_its_broadcast_address_and_http_port() -> None:
    assert new_peer().node == "nsqd.example:4151"
