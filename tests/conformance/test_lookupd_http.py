"""nsqlookupd over HTTP: creating and deleting keys, and the complaints in their order (rows 220-226)."""

from __future__ import annotations

import pytest

from tests.support.lookupd_harness import LookupdHarness

BAD_REQUEST = 400


@pytest.mark.conformance(220)
def test_it_answers_a_ping_and_tells_its_version(lookupd: LookupdHarness) -> None:
    ping = lookupd.get("/ping")
    assert (ping.status, ping.body) == (200, b"OK")
    assert "x-nsq-content-type" not in ping.headers
    assert lookupd.get("/info").json()["version"] == "1.3.0-emberq"


@pytest.mark.conformance(221)
def test_creating_a_topic(lookupd: LookupdHarness) -> None:
    assert lookupd.post("/topic/create").error == (BAD_REQUEST, "MISSING_ARG_TOPIC")
    assert lookupd.post("/topic/create?topic=a$").error == (BAD_REQUEST, "INVALID_ARG_TOPIC")
    answer = lookupd.post("/topic/create?topic=good")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert "content-type" not in answer.headers
    assert lookupd.lookup("good") == {"channels": [], "producers": []}


@pytest.mark.conformance(222)
def test_deleting_a_topic(lookupd: LookupdHarness) -> None:
    lookupd.post("/topic/create?topic=bare")
    lookupd.post("/channel/create?topic=full&channel=c")
    assert lookupd.post("/topic/delete").error == (BAD_REQUEST, "MISSING_ARG_TOPIC")
    for topic in ("bare", "full", "unknown"):
        answer = lookupd.post(f"/topic/delete?topic={topic}")
        assert (answer.status, answer.body) == (200, b"")
    assert lookupd.topics() == []
    assert lookupd.channels("full") == []


@pytest.mark.conformance(223)
def test_asking_for_channels(lookupd: LookupdHarness) -> None:
    assert lookupd.get("/channels").error == (BAD_REQUEST, "MISSING_ARG_TOPIC")
    lookupd.post("/topic/create?topic=t")
    assert lookupd.get("/channels?topic=t").body == b'{"channels":[]}'
    lookupd.post("/channel/create?topic=t&channel=c")
    assert lookupd.get("/channels?topic=t").body == b'{"channels":["c"]}'


CHANNEL_LADDER = [
    ("", "MISSING_ARG_TOPIC"),
    ("?topic=a$&channel=b$", "INVALID_ARG_TOPIC"),
    ("?topic=a", "MISSING_ARG_CHANNEL"),
    ("?topic=a&channel=b$", "INVALID_ARG_CHANNEL"),
]


@pytest.mark.conformance(224)
def test_creating_a_channel_creates_its_topic(lookupd: LookupdHarness) -> None:
    for query, complaint in CHANNEL_LADDER:
        assert lookupd.post(f"/channel/create{query}").error == (BAD_REQUEST, complaint)
    answer = lookupd.post("/channel/create?topic=a&channel=b")
    assert (answer.status, answer.body) == (200, b"")
    assert (lookupd.topics(), lookupd.channels("a")) == (["a"], ["b"])


@pytest.mark.conformance(225)
def test_deleting_a_channel_leaves_its_topic(lookupd: LookupdHarness) -> None:
    for query, complaint in CHANNEL_LADDER:
        assert lookupd.post(f"/channel/delete{query}").error == (BAD_REQUEST, complaint)
    lookupd.post("/channel/create?topic=a&channel=b")
    assert lookupd.post("/channel/delete?topic=a&channel=other").error == (404, "CHANNEL_NOT_FOUND")
    answer = lookupd.post("/channel/delete?topic=a&channel=b")
    assert (answer.status, answer.body) == (200, b"")
    assert (lookupd.topics(), lookupd.channels("a")) == (["a"], [])


def test_looking_up_a_topic_that_is_not_there(lookupd: LookupdHarness) -> None:
    assert lookupd.get("/lookup").error == (BAD_REQUEST, "MISSING_ARG_TOPIC")
    assert lookupd.get("/lookup?topic=t").error == (404, "TOPIC_NOT_FOUND")


def test_a_tombstone_needs_a_topic_and_a_node_but_neither_has_to_exist(lookupd: LookupdHarness) -> None:
    assert lookupd.post("/topic/tombstone?node=n").error == (BAD_REQUEST, "MISSING_ARG_TOPIC")
    assert lookupd.post("/topic/tombstone?topic=t").error == (BAD_REQUEST, "MISSING_ARG_NODE")
    answer = lookupd.post("/topic/tombstone?topic=t&node=n")
    assert (answer.status, answer.body) == (200, b"")
    assert lookupd.topics() == []


@pytest.mark.parametrize("query", ["topic=%zz", "topic=a;channel=b"])
def test_a_malformed_query_is_refused_everywhere(lookupd: LookupdHarness, query: str) -> None:
    for path in ("/lookup", "/channels"):
        assert lookupd.get(f"{path}?{query}").error == (BAD_REQUEST, "INVALID_REQUEST")
    for path in ("/topic/create", "/topic/delete", "/topic/tombstone", "/channel/create", "/channel/delete"):
        assert lookupd.post(f"{path}?{query}").error == (BAD_REQUEST, "INVALID_REQUEST")


def test_a_star_stands_for_every_topic(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("bare")
    nsqd.register("t", "c")
    nsqd.register("u", "c")
    nsqd.register("u", "d")
    assert lookupd.channels("*") == ["c", "d"]
    assert [producer["remote_address"] for producer in lookupd.lookup("*")["producers"]] == [nsqd.address]
    assert lookupd.post("/topic/delete?topic=*").status == 200
    assert (lookupd.topics(), lookupd.channels("*")) == ([], [])
    assert lookupd.get("/lookup?topic=*").error == (404, "TOPIC_NOT_FOUND")
    assert [node["topics"] for node in lookupd.nodes()] == [[]]


def test_answers_are_json_as_the_reference_writes_it(lookupd: LookupdHarness) -> None:
    nsqd = lookupd.nsqd("t", hostname="<&é>")
    peer = (
        f'{{"remote_address":"{nsqd.address}","hostname":"\\u003c\\u0026é\\u003e","broadcast_address":"nsqd.example",'
        '"tcp_port":4150,"http_port":4151,"version":"1.3.0","topology_zone":"","topology_region":""'
    )
    assert lookupd.get("/lookup?topic=t").text == f'{{"channels":[],"producers":[{peer}}}]}}'
    node = f'{peer},"tombstones":[false],"topics":["t"]}}'
    assert lookupd.get("/nodes").text == f'{{"producers":[{node}]}}'
    assert lookupd.get("/topics").text == '{"topics":["t"]}'
    assert lookupd.get("/nodes").headers["content-type"] == "application/json; charset=utf-8"
