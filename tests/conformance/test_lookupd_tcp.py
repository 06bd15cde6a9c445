"""nsqlookupd over TCP: registering, leaving, tombstones, and what is refused (rows 205-219)."""

from __future__ import annotations

import struct

import pytest

from tests.support.lookupd_harness import IDENTITY, NODE, LookupdHarness
from tests.support.waiting import wait_until

LIFETIME_MS = 45_000


@pytest.mark.conformance(205)
def test_a_registered_channel_is_found_with_its_topic_and_producer(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd()
    nsqd.register("t", "channel1")
    assert [node["topics"] for node in lookupd.nodes()] == [["t"]]
    assert lookupd.topics() == ["t"]
    shown = {"remote_address": nsqd.address, "topology_zone": "", "topology_region": ""}
    assert lookupd.lookup("t") == {"channels": ["channel1"], "producers": [IDENTITY | shown]}


@pytest.mark.conformance(206)
def test_a_topic_and_its_channels_stay_when_the_producer_leaves(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd()
    nsqd.register("t", "channel1")
    lookupd.leave(nsqd)
    assert lookupd.lookup("t") == {"channels": ["channel1"], "producers": []}


@pytest.mark.conformance(207)
def test_unregistering_a_channel_leaves_keys_and_the_topics_producer(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd()
    nsqd.register("t", "ch1")
    nsqd.unregister("t", "ch1")
    assert (lookupd.topics(), lookupd.channels("t")) == (["t"], ["ch1"])
    assert lookupd.producer_count("t") == 1


@pytest.mark.conformance(208)
def test_a_tombstone_hides_one_topic_of_a_node_for_its_lifetime(lookupd: LookupdHarness) -> None:
    lookupd.nsqd("t", "other")
    assert lookupd.post(f"/topic/tombstone?topic=t&node={NODE}").status == 200
    assert (lookupd.producer_count("t"), lookupd.producer_count("other")) == (0, 1)
    lookupd.advance(ms=LIFETIME_MS - 1)
    assert lookupd.producer_count("t") == 0
    lookupd.advance(ms=1)
    assert lookupd.producer_count("t") == 1


@pytest.mark.conformance(209)
def test_a_topic_unregistered_while_tombstoned_does_not_come_back(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("t")
    lookupd.post(f"/topic/tombstone?topic=t&node={NODE}")
    nsqd.unregister("t")
    lookupd.advance(ms=LIFETIME_MS)
    assert lookupd.producer_count("t") == 0


@pytest.mark.conformance(210)
def test_registering_again_does_not_lift_a_tombstone_unless_unregistered_before(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("t")
    lookupd.post(f"/topic/tombstone?topic=t&node={NODE}")
    nsqd.register("t")
    assert lookupd.producer_count("t") == 0
    nsqd.unregister("t")
    nsqd.register("t")
    assert lookupd.producer_count("t") == 1


@pytest.mark.conformance(211)
def test_ephemeral_keys_outlive_a_disconnect(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd()
    nsqd.register("t#ephemeral", "c#ephemeral")
    lookupd.leave(nsqd)
    assert lookupd.lookup("t#ephemeral") == {"channels": ["c#ephemeral"], "producers": []}


@pytest.mark.conformance(211)
def test_ephemeral_keys_go_when_the_last_producer_unregisters_them(lookupd: LookupdHarness) -> None:
    first, last = lookupd.nsqd(), lookupd.nsqd()
    for nsqd in (first, last):
        nsqd.register("t#ephemeral", "c#ephemeral")
    first.unregister("t#ephemeral", "c#ephemeral")
    first.unregister("t#ephemeral")
    assert (lookupd.topics(), lookupd.channels("t#ephemeral")) == (["t#ephemeral"], ["c#ephemeral"])
    last.unregister("t#ephemeral", "c#ephemeral")
    assert (lookupd.topics(), lookupd.channels("t#ephemeral")) == (["t#ephemeral"], [])
    last.unregister("t#ephemeral")
    assert lookupd.topics() == []


@pytest.mark.conformance(212)
def test_a_producer_that_does_not_ping_is_hidden_until_it_does() -> None:
    with LookupdHarness(inactive_producer_timeout_ns=200_000_000) as lookupd:
        nsqd = lookupd.nsqd("t")
        lookupd.advance(ms=200)
        assert len(lookupd.nodes()) == 1
        lookupd.advance(ms=50)
        assert lookupd.nodes() == []
        assert lookupd.producer_count("t") == 0
        nsqd.ping()
        assert len(lookupd.nodes()) == 1
        assert lookupd.producer_count("t") == 1


@pytest.mark.conformance(213)
def test_a_tombstoned_node_is_listed_and_flagged(lookupd: LookupdHarness) -> None:
    lookupd.nsqd("t", "other")
    lookupd.post(f"/topic/tombstone?topic=t&node={NODE}")
    (node,) = lookupd.nodes()
    assert (node["topics"], node["tombstones"]) == (["t", "other"], [True, False])


@pytest.mark.conformance(214)
@pytest.mark.parametrize("line", ["REGISTER t", "UNREGISTER t", "REGISTER"])
def test_nothing_is_registered_before_identify(lookupd: LookupdHarness, line: str) -> None:
    client = lookupd.connect()
    assert client.command(line) == b"E_INVALID client must IDENTIFY"
    client.expect_closed()


@pytest.mark.conformance(215)
def test_a_client_identifies_itself_once(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd()
    assert client.command("IDENTIFY") == b"E_INVALID cannot IDENTIFY again"
    client.expect_closed()


@pytest.mark.conformance(216)
@pytest.mark.parametrize("missing", [None, "broadcast_address", "tcp_port", "http_port", "version"])
def test_an_identity_must_say_where_the_nsqd_is(lookupd: LookupdHarness, missing: str | None) -> None:
    client = lookupd.connect()
    if missing is None:
        assert client.command("IDENTIFY", b"{}") == b"E_BAD_BODY IDENTIFY missing fields"
    else:
        client.send(b"IDENTIFY\n")
        body = b"{%s}" % b",".join(
            b'"%s":%s' % (key.encode(), b"7" if key.endswith("port") else b'"x"') for key in IDENTITY if key != missing
        )
        client.send(struct.pack(">i", len(body)) + body)
        assert client.read() == b"E_BAD_BODY IDENTIFY missing fields"
    client.expect_closed()


@pytest.mark.conformance(217)
def test_an_unknown_command_ends_the_connection(lookupd: LookupdHarness) -> None:
    client = lookupd.connect()
    assert client.command("INVALID_COMMAND") == b"E_INVALID invalid command INVALID_COMMAND"
    client.expect_closed()


@pytest.mark.conformance(217)
def test_an_unknown_command_ends_the_connection_even_if_the_answer_cannot_be_sent(lookupd: LookupdHarness) -> None:
    client = lookupd.nsqd("t")
    client.send(b"INVALID_COMMAND\n")
    client.reset()
    wait_until(lambda: lookupd.nodes() == [])
    assert lookupd.producer_count("t") == 0


@pytest.mark.conformance(218)
def test_a_wrong_magic_is_refused(lookupd: LookupdHarness) -> None:
    client = lookupd.connect(magic=b"  V2")
    assert client.read() == b"E_BAD_PROTOCOL"
    client.expect_closed()


@pytest.mark.conformance(219)
def test_a_ping_needs_no_identity(lookupd: LookupdHarness) -> None:
    client = lookupd.connect()
    client.ping()
    client.identify()
    client.ping()
