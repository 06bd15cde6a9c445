"""nsqd and nsqlookupd together (rows 227-229), and nsqd with an nsqlookupd that hangs."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.lookupd_harness import LookupdHarness
from tests.support.waiting import wait_until

pytestmark = pytest.mark.lookupd(broadcast_address="127.0.0.1")


@pytest.fixture
def transport() -> str:
    """An nsqd on a Unix socket has no port that nsqlookupd could tell consumers."""
    return "tcp"


def tcp_address(lookupd: LookupdHarness) -> str:
    host, port = lookupd.daemon.tcp_address
    return f"{host}:{port}"


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, lookupd: LookupdHarness) -> NsqdHarness:
    """An nsqd that is registered with the nsqlookupd."""
    nsqd = start_nsqd(lookupd_tcp_address=(tcp_address(lookupd),), broadcast_address="127.0.0.1")
    wait_until(lambda: len(lookupd.nodes()) == 1)
    return nsqd


def debug(lookupd: LookupdHarness) -> dict[str, Any]:
    """The answer of /debug."""
    entries: dict[str, Any] = lookupd.get("/debug").json()
    return entries


@pytest.mark.conformance(227)
def test_topics_and_channels_are_registered_as_they_are_created(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    http = HttpClient(nsqd.http_address)
    assert http.post("/topic/create?topic=t").status == 200
    assert http.post("/channel/create?topic=t&channel=c").status == 200
    wait_until(lambda: "channel:t:c" in debug(lookupd))
    entries = debug(lookupd)
    for key in ("topic:t:", "channel:t:c"):
        (entry,) = entries[key]
        assert entry["hostname"] == socket.gethostname()
        assert entry["broadcast_address"] == "127.0.0.1"
        assert entry["tcp_port"] == nsqd.nsqd.tcp_port
        assert entry["http_port"] == nsqd.nsqd.http_port
        assert entry["tombstoned"] is False
    found = lookupd.lookup("t")
    assert found["channels"] == ["c"]
    assert [producer["tcp_port"] for producer in found["producers"]] == [nsqd.nsqd.tcp_port]


@pytest.mark.conformance(228)
def test_a_deleted_topic_is_unregistered_with_its_channels(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    nsqd.create_channel("t", "c")
    wait_until(lambda: "channel:t:c" in debug(lookupd))
    assert HttpClient(nsqd.http_address).post("/topic/delete?topic=t").status == 200
    wait_until(lambda: lookupd.producer_count("t") == 0)
    assert not {"topic:t:", "channel:t:c"} & debug(lookupd).keys()


@pytest.mark.conformance(229)
def test_a_new_topic_starts_with_the_channels_that_nsqlookupd_knows(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    lookupd.post("/channel/create?topic=t&channel=pc")
    lookupd.post("/channel/create?topic=t&channel=pe%23ephemeral")
    nsqd.connect().pub("t", b"first")
    wait_until(lambda: nsqd.topic("t").depth == 0)
    (channel,) = nsqd.topic("t").channels
    assert (channel.name, channel.depth) == ("pc", 1)
    wait_until(lambda: lookupd.producer_count("t") == 1)


def test_topics_of_an_earlier_run_are_registered_on_starting(nsqd: NsqdHarness, lookupd: LookupdHarness) -> None:
    nsqd.create_channel("t", "c")
    nsqd.restart()
    wait_until(lambda: lookupd.get("/lookup?topic=t").status == 200 and lookupd.producer_count("t") == 1)
    assert lookupd.channels("t") == ["c"]


def test_an_ephemeral_channel_is_unregistered_with_its_last_consumer(
    nsqd: NsqdHarness, lookupd: LookupdHarness
) -> None:
    consumer = nsqd.consumer("t", "c#ephemeral")
    wait_until(lambda: lookupd.channels("t") == ["c#ephemeral"])
    consumer.close()
    wait_until(lambda: lookupd.channels("t") == [])


@pytest.mark.conformance(197)
def test_a_running_nsqd_registers_with_the_nsqlookupds_it_is_given(
    start_nsqd: StartNsqd, lookupd: LookupdHarness
) -> None:
    nsqd = start_nsqd()
    nsqd.create_topic("t")
    http = HttpClient(nsqd.http_address)
    addresses = [tcp_address(lookupd)]
    assert http.put("/config/nsqlookupd_tcp_addresses", json.dumps(addresses).encode()).json() == addresses
    wait_until(lambda: lookupd.topics() == ["t"])
    assert http.put("/config/nsqlookupd_tcp_addresses", b"[]").json() == []
    wait_until(lambda: lookupd.producer_count("t") == 0)


def test_an_nsqlookupd_that_hangs_delays_only_the_first_delivery_of_a_new_topic(start_nsqd: StartNsqd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        nsqd = start_nsqd()
        old = nsqd.consumer("old", "c", rdy=1)
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        nsqd.call(lambda: nsqd.nsqd.set_lookupd_tcp_addresses((address,)))
        new = nsqd.consumer("new", "c", rdy=2)
        publisher = nsqd.connect()
        publisher.pub("new", b"a")
        publisher.pub("old", b"b")
        assert old.read_message().body == b"b"
        assert nsqd.topic("new").depth == 1
        assert not nsqd.topic("new").paused
        nsqd.advance(ms=2000)
        assert new.read_message().body == b"a"
        publisher.pub("new", b"c")
        assert new.read_message().body == b"c"
        nsqd.stop()
