"""Answers that the conformance table does not ask for: routes, several producers, and what is never shown."""

from __future__ import annotations

import pytest

from tests.support.lookupd_harness import LookupdHarness


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/lookup", 405),
        ("GET", "/topic/create", 405),
        ("HEAD", "/ping", 405),
        ("GET", "/topics/", 301),
        ("POST", "/TOPIC/CREATE", 307),
        ("GET", "/nope", 404),
        ("OPTIONS", "/nodes", 200),
        ("GET", "/debug/pprof", 301),
        ("POST", "/debug/pprof/heap", 405),
    ],
)
def test_routes_are_those_of_the_reference(lookupd: LookupdHarness, method: str, path: str, status: int) -> None:
    assert lookupd.http.request(method, path).status == status


def test_a_running_nsqlookupd_can_be_looked_into(lookupd: LookupdHarness) -> None:
    assert "goroutine" in lookupd.get("/debug/pprof/").text
    assert lookupd.get("/debug/pprof/cmdline").status == 200
    assert "data_received" in lookupd.get("/debug/pprof/goroutine").text
    assert lookupd.get("/debug/pprof/profile?seconds=0.05").status == 200
    assert lookupd.get("/debug/pprof/profile?seconds=0").status == 400
    assert "still in use" in lookupd.get("/debug/pprof/heap?seconds=0.05").text


def test_info_tells_both_versions(lookupd: LookupdHarness) -> None:
    assert lookupd.get("/info").json().keys() == {"version", "emberq_version"}


def test_every_producer_of_a_topic_is_found_once(lookupd: LookupdHarness) -> None:
    first, second = lookupd.nsqd("t", "u"), lookupd.nsqd("t")
    first.register("t")
    assert [peer["remote_address"] for peer in lookupd.lookup("t")["producers"]] == [first.address, second.address]
    assert [peer["remote_address"] for peer in lookupd.lookup("*")["producers"]] == [first.address, second.address]


def test_a_tombstone_is_for_the_node_that_is_named_exactly(lookupd: LookupdHarness) -> None:
    lookupd.nsqd("t", broadcast_address="a")
    other = lookupd.nsqd("t", broadcast_address="b")
    for node in ("a", "a:4150", "A:4151", "a:4151 "):
        lookupd.post(f"/topic/tombstone?topic=t&node={node.replace(' ', '+')}")
        assert lookupd.producer_count("t") == 2
    lookupd.post("/topic/tombstone?topic=t&node=a:4151")
    assert [peer["remote_address"] for peer in lookupd.lookup("t")["producers"]] == [other.address]


def test_a_node_without_topics_has_empty_lists(lookupd: LookupdHarness) -> None:
    lookupd.nsqd()
    assert lookupd.get("/nodes").text.endswith(',"tombstones":[],"topics":[]}]}')


def test_an_empty_registry_answers_with_empty_lists(lookupd: LookupdHarness) -> None:
    assert lookupd.get("/topics").body == b'{"topics":[]}'
    assert lookupd.get("/nodes").body == b'{"producers":[]}'
    assert lookupd.get("/channels?topic=*").body == b'{"channels":[]}'


def test_a_topic_that_was_deleted_is_not_listed_at_its_nodes(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("t", "u")
    lookupd.post("/topic/delete?topic=t")
    assert [node["topics"] for node in lookupd.nodes()] == [["u"]]
    nsqd.register("t")
    assert lookupd.producer_count("t") == 1


def test_an_empty_name_is_a_name_that_nothing_has(lookupd: LookupdHarness) -> None:
    assert lookupd.get("/lookup?topic=").error == (404, "TOPIC_NOT_FOUND")
    assert lookupd.post("/topic/create?topic=").error == (400, "INVALID_ARG_TOPIC")
    assert lookupd.post("/topic/delete?topic=").status == 200
