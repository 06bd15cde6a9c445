"""Changing the cluster through nsqadmin: every action of the reference, on real daemons."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, of_nsqds
from tests.support.cluster_rig import topic_entry
from tests.support.embedded import create, http_of, post, publish
from tests.support.recording_daemon import RecordingDaemon
from tests.support.waiting import wait_until

DONE = (200, {"message": ""})

WRITES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/api/topics", {"topic": "new"}),
    ("POST", "/api/topics/t", {"action": "pause"}),
    ("POST", "/api/topics/t/ch", {"action": "pause"}),
    ("POST", "/api/publish/t", {"body": "x"}),
    ("DELETE", "/api/topics/t", None),
    ("DELETE", "/api/topics/t/ch", None),
    ("DELETE", "/api/nodes/127.0.0.1:4151", {"topic": "t"}),
    ("DELETE", "/api/absent/127.0.0.1:4151", None),
    ("POST", "/api/nodes/127.0.0.1:4151", {"action": "drain"}),
    ("PUT", "/api/rules", {"rules": []}),
    ("POST", "/api/actions", {"action": "pause", "targets": [{"topic": "t"}]}),
]


def outcome(answer: Any) -> tuple[int, Any]:
    return answer.status, answer.json()


def topics_of(cluster: EmbeddedThread, node: int = 0) -> dict[str, Any]:
    """The topics that an nsqd has, by name."""
    stats = http_of(cluster.nsqd_http_addresses[node]).get("/stats?format=json").json()
    return {topic["topic_name"]: topic for topic in stats["topics"]}


def channel_of(cluster: EmbeddedThread, topic: str, channel: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in topics_of(cluster)[topic]["channels"] if each["channel_name"] == channel]
    return found


@pytest.mark.conformance(239)
def test_a_topic_and_a_channel_are_created(admin: AdminThread, cluster: EmbeddedThread) -> None:
    assert outcome(admin.post("/api/topics", {"topic": "t"})) == DONE
    assert admin.get("/api/topics?inactive=true").json()["topics"] == {"t": []}
    create(cluster, "t")
    assert outcome(admin.post("/api/topics", {"topic": "t", "channel": "ch"})) == DONE
    assert channel_of(cluster, "t", "ch")["depth"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "INVALID_TOPIC"),
        ({"topic": "*"}, "INVALID_TOPIC"),
        ({"topic": "<script>"}, "INVALID_TOPIC"),
        ({"topic": "a", "channel": "$"}, "INVALID_CHANNEL"),
        ({"topic": 5}, "topic must be a string"),
        (b"", "EOF"),
        (b"[]", "invalid JSON: not an object"),
        (b"x", "invalid JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_what_cannot_be_created_is_refused(admin: AdminThread, body: Any, message: str) -> None:
    assert admin.post("/api/topics", body).error == (400, message)


def test_without_nsqlookupd_only_nothing_can_be_created(cluster: EmbeddedThread) -> None:
    with of_nsqds(cluster) as admin:
        assert outcome(admin.post("/api/topics", {"topic": "t"})) == DONE
        refused = (502, "UPSTREAM_ERROR: failed to query any nsqlookupd: ")
        assert admin.post("/api/topics", {"topic": "t", "channel": "ch"}).error == refused
        assert topics_of(cluster) == {}


@pytest.mark.conformance(240)
def test_a_tombstone_takes_a_topic_from_a_node(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", node=0)
    create(cluster, "t", node=1)
    node = cluster.nsqd_http_addresses[0]
    assert outcome(admin.delete(f"/api/nodes/{node}", {"topic": "t"})) == DONE
    assert topics_of(cluster, 0) == {}
    assert list(topics_of(cluster, 1)) == ["t"]


def test_a_tombstone_needs_a_topic(admin: AdminThread) -> None:
    assert admin.delete("/api/nodes/n:1", b"x").error == (400, "INVALID_BODY")
    assert admin.delete("/api/nodes/n:1", {}).error == (400, "INVALID_TOPIC")


def test_a_tombstone_is_for_a_node_of_the_cluster(admin: AdminThread) -> None:
    assert admin.delete("/api/nodes/127.0.0.1:1", {"topic": "t"}).error == (404, "NODE_NOT_FOUND")


def test_a_node_that_is_gone_is_dismissed() -> None:
    with ExitStack() as running:
        names = ("here", "gone")
        nsqds = [running.enter_context(RecordingDaemon(name, {}, [])) for name in names]
        for name, nsqd in zip(names, nsqds, strict=True):
            identity = {"broadcast_address": name, "hostname": name, "http_port": 4151, "version": "1.3.0"}
            nsqd.answers = {"/info": identity, "/stats": {"topics": [topic_entry("t", depth=3)]}}
        addresses = tuple(nsqd.address for nsqd in nsqds)
        admin = running.enter_context(AdminThread(nsqd_http_address=addresses, live_interval_ns=100 * NS_PER_MS))
        assert len(admin.get("/api/view?view=nodes").json()["nodes"]) == 2
        assert admin.get("/api/absent").json() == {"nodes": [], "message": ""}
        nsqds[1].answers = {}

        def absent() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = admin.get("/api/view?view=topics").json()["absent"]
            return found

        wait_until(lambda: len(absent()) == 1)
        (node,) = admin.get("/api/absent").json()["nodes"]
        assert (node["node"], node["state"], node["depth"]) == ("gone:4151", "gone", 3)
        (mark,) = admin.get("/api/history").json()["marks"]
        assert (mark["node"], mark["state"], mark["time"]) == ("gone:4151", "gone", node["since"])
        assert admin.delete("/api/absent/here:4151").error == (404, "NODE_NOT_FOUND")
        assert outcome(admin.delete("/api/absent/gone:4151")) == DONE
        assert absent() == admin.get("/api/absent").json()["nodes"] == []


@pytest.mark.conformance(241)
def test_a_channel_and_a_topic_are_deleted(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    assert outcome(admin.delete("/api/topics/t/ch")) == DONE
    assert topics_of(cluster)["t"]["channels"] == []
    assert outcome(admin.delete("/api/topics/t")) == DONE
    assert topics_of(cluster) == {}
    wait_until(lambda: admin.get("/api/topics").json()["topics"] is None)


def test_the_topic_that_means_all_topics_is_not_deleted(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    assert admin.delete("/api/topics/*").error == (400, "INVALID_TOPIC")
    assert admin.delete("/api/topics/*/ch").error == (400, "INVALID_TOPIC")
    assert admin.delete("/api/topics/t/*").error == (400, "INVALID_CHANNEL")
    assert channel_of(cluster, "t", "ch")["channel_name"] == "ch"


def test_what_some_daemons_refuse_is_a_warning(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    refused = 'got response 404 Not Found "{\\"message\\":\\"CHANNEL_NOT_FOUND\\"}"'
    assert outcome(admin.post("/api/topics/t/ch", {"action": "pause"})) == (200, {"message": f"WARNING: {refused}"})


@pytest.mark.conformance(242)
def test_a_topic_and_a_channel_are_paused_and_unpaused(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    assert outcome(admin.post("/api/topics/t", {"action": "pause"})) == DONE
    assert outcome(admin.post("/api/topics/t/ch", {"action": "pause"})) == DONE
    assert (topics_of(cluster)["t"]["paused"], channel_of(cluster, "t", "ch")["paused"]) == (True, True)
    assert admin.get("/api/topics/t").json()["paused"] is True
    assert outcome(admin.post("/api/topics/t", {"action": "unpause"})) == DONE
    assert outcome(admin.post("/api/topics/t/ch", {"action": "unpause"})) == DONE
    assert (topics_of(cluster)["t"]["paused"], channel_of(cluster, "t", "ch")["paused"]) == (False, False)


@pytest.mark.conformance(243)
def test_a_topic_and_a_channel_are_emptied(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    publish(cluster, "t", b"one")
    assert topics_of(cluster)["t"]["depth"] == 1
    assert outcome(admin.post("/api/topics/t", {"action": "empty"})) == DONE
    assert topics_of(cluster)["t"]["depth"] == 0

    post(cluster.nsqd_http_addresses[0], "/channel/create?topic=t&channel=ch")
    publish(cluster, "t", b"two")
    assert channel_of(cluster, "t", "ch")["depth"] == 1
    assert outcome(admin.post("/api/topics/t/ch", {"action": "empty"})) == DONE
    assert channel_of(cluster, "t", "ch")["depth"] == 0


@pytest.mark.conformance(244)
@pytest.mark.parametrize("path", ["/api/topics/t", "/api/topics/t/ch"])
def test_an_unknown_action_is_refused(admin: AdminThread, path: str) -> None:
    assert admin.post(path, {"action": "explode"}).error == (400, "INVALID_ACTION")
    assert admin.post(path, {}).error == (400, "INVALID_ACTION")


@pytest.mark.conformance(247)
@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_only_an_admin_user_may_act(start_admin: StartAdmin, method: str, path: str, body: Any) -> None:
    admin = start_admin(admin_user=("ada",), acl_http_header="X-User")
    assert admin.request(method, path, body).error == (403, "FORBIDDEN")
    assert admin.request(method, path, b"no JSON", X_User="eve").error == (403, "FORBIDDEN")
    assert admin.request(method, path, body, X_User="ada").status != 403
    assert admin.get("/api/topics").status == 200


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_page_of_another_site_cannot_act(admin: AdminThread, method: str, path: str, body: Any) -> None:
    elsewhere = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}]
    for headers in elsewhere:
        assert admin.request(method, path, body, **headers).error == (403, "FORBIDDEN")


def test_our_own_pages_can_act(admin: AdminThread) -> None:
    assert (
        outcome(admin.post("/api/topics", {"topic": "t"}, Host="localhost:4171", Origin="http://localhost:4171"))
        == DONE
    )


@pytest.mark.parametrize("name", ["journal", "peek", "policy", "publish"])
def test_a_channel_may_have_any_name(admin: AdminThread, cluster: EmbeddedThread, name: str) -> None:
    create(cluster, "t", name)
    path = f"/api/topics/t/{name}"
    assert admin.get(path).json()["channel_name"] == name
    assert outcome(admin.post(path, {"action": "pause"})) == DONE
    assert channel_of(cluster, "t", name)["paused"] is True
    assert outcome(admin.delete(path)) == DONE
    assert topics_of(cluster)["t"]["channels"] == []


def test_a_node_is_drained_which_the_pages_show_until_it_is_cancelled(
    admin: AdminThread, cluster: EmbeddedThread
) -> None:
    create(cluster, "t", "c")
    publish(cluster, "t", b"one")
    node = cluster.nsqd_http_addresses[0]

    def shown() -> dict[str, Any]:
        nodes = admin.get("/api/view?view=nodes").json()["nodes"]
        return next(each for each in nodes if each["node"] == node)

    assert (shown()["is_healthy"], shown()["is_draining"], shown()["is_ready"]) == (True, False, True)
    begun = admin.post(f"/api/nodes/{node}", {"action": "drain"}).json()
    assert (begun["draining"], begun["message_count"]) == (True, 1)
    assert begun["topics"] == [{"topic_name": "t", "message_count": 1, "waits_for": "consumers"}]
    assert admin.get(f"/api/drain/{node}").json() == begun
    wait_until(lambda: shown()["is_draining"])
    assert (shown()["is_healthy"], shown()["is_ready"]) == (True, False)
    one = admin.get(f"/api/view?view=node&node={node}").json()
    assert (one["is_draining"], one["health"]) == (True, "OK")
    assert [mark["text"] for mark in admin.get("/api/marks").json()["marks"]] == [f"drain on {node}"]
    assert outcome(admin.post(f"/api/nodes/{node}", {"action": "cancel_drain"})) == (
        200,
        {"draining": False, "message": ""},
    )
    assert admin.post(f"/api/nodes/{node}", {"action": "stop"}).status == 400
    assert outcome(admin.post("/api/nodes/127.0.0.1:1", {"action": "drain"})) == (404, {"message": "NODE_NOT_FOUND"})
