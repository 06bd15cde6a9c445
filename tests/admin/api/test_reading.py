"""Reading the cluster through nsqadmin: the reference's documents, from real daemons."""

from __future__ import annotations

import socket

import pytest

from emberq.embedded import EmbeddedThread
from tests.admin.conftest import StartAdmin
from tests.support.admin_rig import AdminThread, of_cluster, of_nsqds
from tests.support.cluster_rig import DEAD
from tests.support.embedded import create, post, publish
from tests.support.raw_client import Client
from tests.support.recording_daemon import RecordingDaemon
from tests.support.waiting import wait_until


@pytest.mark.conformance(232)
def test_ping_is_answered(admin: AdminThread) -> None:
    answer = admin.get("/ping")
    assert (answer.status, answer.text) == (200, "OK")


@pytest.mark.conformance(233)
def test_topics_are_listed(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    assert admin.get("/api/topics").json() == {"topics": ["t"], "message": ""}


def test_no_topics_are_null(admin: AdminThread) -> None:
    assert admin.get("/api/topics").text == '{"topics":null,"message":""}'


def test_topics_without_an_nsqd_are_listed_with_their_channels(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "alive")
    lookupd = cluster.lookupd_http_addresses[0]
    post(lookupd, "/topic/create?topic=dead")
    post(lookupd, "/channel/create?topic=dead&channel=two")
    post(lookupd, "/channel/create?topic=dead&channel=one")
    assert admin.get("/api/topics?inactive=true").json() == {"topics": {"dead": ["one", "two"]}, "message": ""}
    assert admin.get("/api/topics").json()["topics"] == ["alive", "dead"]


@pytest.mark.conformance(234)
def test_a_topic_is_summed_over_its_nodes(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", node=0)
    create(cluster, "t", node=1)
    topic = admin.get("/api/topics/t").json()
    nodes = topic.pop("nodes")
    assert topic == {
        "node": "*",
        "hostname": "",
        "topic_name": "t",
        "depth": 0,
        "memory_depth": 0,
        "backend_depth": 0,
        "message_count": 0,
        "delivery_msg_count": 0,
        "channels": [],
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None, "topic": "t", "channel": "", "host": "*"},
        "message": "",
    }
    assert sorted(node["node"] for node in nodes) == sorted(cluster.nsqd_http_addresses)
    assert {node["hostname"] for node in nodes} == {socket.gethostname()}
    assert all(node["nodes"] is None for node in nodes)


@pytest.mark.conformance(235)
def test_a_channel_without_clients_counts_nothing(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    channel = admin.get("/api/topics/t/ch").json()
    nodes = channel.pop("nodes")
    assert channel == {
        "node": "*",
        "hostname": "",
        "topic_name": "t",
        "channel_name": "ch",
        "depth": 0,
        "memory_depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "message_count": 0,
        "client_count": 0,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": {"count": 0, "percentiles": None, "topic": "t", "channel": "ch", "host": "*"},
        "message": "",
    }
    assert [node["node"] for node in nodes] == [cluster.nsqd_http_addresses[0]]
    assert nodes[0]["clients"] == []


def test_a_channel_shows_its_clients(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    host, _, port = cluster.nsqd_tcp_addresses[0].rpartition(":")
    client = Client((host, int(port)))
    try:
        client.identify(client_id="<img src=x>", user_agent="a/1 </script>")
        client.sub("t", "ch")
        shown = admin.get("/api/topics/t/ch")
        (seen,) = shown.json()["clients"]
        assert seen["client_id"] == "<img src=x>"
        assert seen["user_agent"] == "a/1 </script>"
        assert seen["node"] == cluster.nsqd_http_addresses[0]
        assert seen["connected"] % 1_000_000_000 == 0
        assert b"<" not in shown.body  # nothing in it can end a script or begin an element
    finally:
        client.close()


@pytest.mark.conformance(236)
def test_nodes_are_listed(cluster: EmbeddedThread, admin: AdminThread) -> None:
    wait_until(lambda: len(admin.get("/api/nodes").json()["nodes"]) == 2)  # they register by themselves
    answer = admin.get("/api/nodes").json()
    assert answer["message"] == ""
    assert len(answer["nodes"]) == 2
    host, port = cluster.lookupd_http_addresses[0].split(":")
    for node in answer["nodes"]:
        assert node["hostname"] == socket.gethostname()
        assert node["broadcast_address"] == "127.0.0.1"
        assert f"127.0.0.1:{node['http_port']}" in cluster.nsqd_http_addresses
        assert f"127.0.0.1:{node['tcp_port']}" in cluster.nsqd_tcp_addresses
        assert node["version"] == "1.3.0-emberq"
        assert node["topics"] is None
        assert node["out_of_date"] is False
        assert node["remote_addresses"] == [f"{host}:{port}/{node['remote_address']}"]


@pytest.mark.conformance(237)
def test_a_node_is_shown_with_its_topics(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    publish(cluster, "t", b"one", b"two")
    node = cluster.nsqd_http_addresses[0]
    shown = admin.get(f"/api/nodes/{node}").json()
    assert shown["node"] == node
    assert [topic["topic_name"] for topic in shown["topics"]] == ["t"]
    assert shown["topics"][0]["channels"][0]["clients"] == []
    assert (shown["total_messages"], shown["total_clients"], shown["message"]) == (2, 0, "")


@pytest.mark.conformance(238)
def test_an_unknown_node_is_not_found(admin: AdminThread) -> None:
    assert admin.get("/api/nodes/unknown").error == (404, "NODE_NOT_FOUND")


def test_messages_are_counted_by_topic_channel_and_node(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch")
    publish(cluster, "t", b"one", b"two")
    node = cluster.nsqd_http_addresses[0]
    assert admin.get("/api/counter").json() == {
        "stats": {f"t:ch:{node}": {"node": node, "topic_name": "t", "channel_name": "ch", "message_count": 2}},
        "message": "",
    }


@pytest.mark.conformance(251)
def test_an_unknown_topic_is_an_upstream_error(admin: AdminThread) -> None:
    refused = 'got response 404 Not Found "{\\"message\\":\\"TOPIC_NOT_FOUND\\"}"'
    status, message = admin.get("/api/topics/nope").error
    assert (status, message) == (502, f"UPSTREAM_ERROR: failed to query any nsqlookupd: {refused}")


def test_a_topic_without_a_live_nsqd_is_an_upstream_error(admin: AdminThread, cluster: EmbeddedThread) -> None:
    post(cluster.lookupd_http_addresses[0], "/topic/create?topic=idle")
    assert admin.get("/api/topics/idle").error == (502, "UPSTREAM_ERROR: failed to query any nsqd: ")


def test_an_unknown_channel_is_not_found(admin: AdminThread, cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    assert admin.get("/api/topics/t/nope").error == (404, "CHANNEL_NOT_FOUND")


def test_a_dead_nsqlookupd_is_a_warning(cluster: EmbeddedThread) -> None:
    create(cluster, "t")
    lookupds = (*cluster.lookupd_http_addresses, DEAD)
    with AdminThread(lookupd_http_address=lookupds) as admin:
        answer = admin.get("/api/topics").json()
        assert answer["topics"] == ["t"]
        assert answer["message"] == f'WARNING: Get "http://{DEAD}/topics": cannot connect: Connection refused'


def test_only_dead_nsqlookupds_are_an_upstream_error() -> None:
    with AdminThread(lookupd_http_address=(DEAD,)) as admin:
        status, message = admin.get("/api/topics").error
        assert status == 502
        assert message.startswith("UPSTREAM_ERROR: failed to query any nsqlookupd: Get ")


def test_everything_is_found_without_nsqlookupd(cluster: EmbeddedThread) -> None:
    create(cluster, "t", "ch", node=1)
    publish(cluster, "t", b"one", node=1)
    with of_cluster(cluster) as through_lookupd, of_nsqds(cluster) as directly:
        for path in ("/api/topics", "/api/topics/t", "/api/topics/t/ch", "/api/counter"):
            assert directly.get(path).json() == through_lookupd.get(path).json()
        node = directly.get("/api/nodes").json()["nodes"][0]
        assert (node["remote_addresses"], node["remote_address"]) == (None, "")
        assert directly.get("/api/topics?inactive=true").json() == {"topics": {}, "message": ""}
        assert directly.get("/api/topics/nope").error == (502, "UPSTREAM_ERROR: failed to query any nsqd: ")


@pytest.mark.conformance(246)
def test_everything_lies_below_the_base_path(start_admin: StartAdmin) -> None:
    admin = start_admin(base_path="nsq/")
    assert admin.get("/nsq/ping").text == "OK"
    assert admin.get("/nsq/api/topics").status == 200
    assert admin.get("/nsq/topics").status == 200
    assert admin.get("/nsq/").status == 200
    assert admin.get("/api/topics").error == (404, "NOT_FOUND")
    assert admin.get("/ping").error == (404, "NOT_FOUND")


def test_the_settings_of_all_nsqds_are_told_except_of_those_that_are_not_ours(cluster: EmbeddedThread) -> None:
    info = {"broadcast_address": "127.0.0.1", "tcp_port": 1, "version": "1.3.0"}
    with RecordingDaemon("", {"/stats": {"topics": []}}, []) as other:
        other.answers["/info"] = info | {"http_port": int(other.address.rpartition(":")[2])}
        ours = tuple(cluster.nsqd_http_addresses)
        with AdminThread(nsqd_http_address=(*ours, other.address)) as admin:
            told = admin.get("/api/settings").json()
    assert told["nodes"] == sorted(ours)
    assert "does not tell its settings: it is not emberq's" in told["message"]
    (paths,) = [each for each in told["options"] if each["option"] == "data_path"]
    assert (paths["is_own"], len(paths["values"])) == (True, 2)
    (queues,) = [each for each in told["options"] if each["option"] == "mem_queue_size"]
    assert (queues["is_own"], len(queues["values"])) == (False, 1)
