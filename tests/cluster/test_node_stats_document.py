from __future__ import annotations

import pytest

from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import UNTRACKED
from emberq.cluster.upstream import MalformedDocumentError
from tests.support.cluster_rig import NODE, channel_entry, topic_entry

CLIENT = {
    "client_id": "id",
    "hostname": "client-host",
    "version": "V2",
    "remote_address": "10.0.0.2:6000",
    "state": 3,
    "ready_count": 5,
    "in_flight_count": 2,
    "message_count": 9,
    "finish_count": 6,
    "requeue_count": 1,
    "connect_ts": 1_700_000_000,
    "sample_rate": 25,
    "deflate": False,
    "snappy": True,
    "user_agent": "agent/1.0",
    "topology_zone": "eu-1",
    "topology_region": "eu",
    "tls": True,
    "tls_version": "TLS1.3",
}


def test_figures_of_a_topic_and_its_channels_are_read() -> None:
    channel = channel_entry(
        "c", depth=5, backend_depth=2, in_flight_count=1, deferred_count=3, message_count=20, client_count=4
    )
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel, depth=7, backend_depth=7, paused=True)]})
    assert (topic.node, topic.hostname, topic.topic_name) == ("nsqd.example:4151", "host", "t")
    assert (topic.depth, topic.memory_depth, topic.paused) == (7, 0, True)
    (read,) = topic.channels
    assert (read.node, read.topic_name, read.channel_name) == ("nsqd.example:4151", "t", "c")
    assert (read.depth, read.memory_depth, read.backend_depth) == (5, 3, 2)
    assert (read.client_count, read.clients, read.nodes) == (4, (), None)


def test_a_client_is_read_with_the_place_of_its_node() -> None:
    channel = channel_entry("c", clients=[CLIENT], client_count=1)
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel)]})
    (client,) = topic.channels[0].clients
    assert (client.client_id, client.remote_address, client.user_agent) == ("id", "10.0.0.2:6000", "agent/1.0")
    assert (client.snappy, client.tls, client.tls_version, client.authed) == (True, True, "TLS1.3", False)
    assert (client.node_topology_region, client.node_topology_zone, client.distance) == ("eu", "eu-1", 0)


def test_an_old_nsqd_tells_less() -> None:
    old = {"topic_name": "t", "channels": [{"channel_name": "c", "depth": 1, "clients": [{"name": "id"}, {}]}]}
    (topic,) = StatsReader(NODE).topics({"topics": [old]})
    (channel,) = topic.channels
    assert (channel.depth, channel.client_count, channel.latency) == (1, 2, UNTRACKED)
    assert channel.clients[0].client_id == "id"


def test_an_nsqd_without_topics_says_null() -> None:
    assert StatsReader(NODE).topics({"topics": None}) == []


@pytest.mark.parametrize(
    "wrong", [{"depth": "many"}, {"e2e_processing_latency": []}, {"channels": {}}, {"channels": [{"policy": 5}]}]
)
def test_nonsense_is_not_taken_for_figures(wrong: dict[str, object]) -> None:
    with pytest.raises(MalformedDocumentError):
        StatsReader(NODE).topics({"topics": [topic_entry("t", **wrong)]})
