from __future__ import annotations

from dataclasses import replace
from typing import Any

from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import (
    ClientFigures,
    DeadLetterPolicy,
    TopicFigures,
    nearness,
    total_channel,
    total_topic,
)
from emberq.cluster.topology import ClusterNode
from tests.support.cluster_rig import NODE, channel_entry, topic_entry

FIRST = replace(NODE, hostname="a", broadcast_address="a.example")
SECOND = replace(NODE, hostname="b", broadcast_address="b.example")


def on(node: ClusterNode, *topics: dict[str, Any]) -> list[TopicFigures]:
    return StatsReader(node).topics({"topics": list(topics)})


def client(node: str, *, region: str = "", zone: str = "") -> ClientFigures:
    entry = {"topology_region": region, "topology_zone": zone, "remote_address": f"{region}/{zone}"}
    (topic,) = on(replace(NODE, broadcast_address=node), topic_entry("t", channel_entry("c", clients=[entry])))
    return topic.channels[0].clients[0]


def test_figures_of_a_topic_are_added_up_over_its_nodes() -> None:
    parts = [
        *on(SECOND, topic_entry("t", depth=3, backend_depth=1, message_count=10)),
        *on(FIRST, topic_entry("t", depth=4, backend_depth=4, message_count=5, paused=True)),
    ]
    total = total_topic("t", parts)
    assert (total.node, total.hostname) == ("*", "")
    assert (total.depth, total.backend_depth, total.memory_depth, total.message_count) == (7, 5, 2, 15)
    assert total.paused
    assert [part.hostname for part in total.nodes or ()] == ["a", "b"]


def test_channels_of_the_same_name_are_merged_and_each_node_keeps_its_own_figures() -> None:
    parts = [
        *on(FIRST, topic_entry("t", channel_entry("c", depth=1, in_flight_count=2, requeue_count=3))),
        *on(SECOND, topic_entry("t", channel_entry("c", depth=10, in_flight_count=20, timeout_count=4))),
    ]
    total = total_topic("t", parts)
    (channel,) = total.channels
    assert (channel.node, channel.depth, channel.in_flight_count) == ("*", 11, 22)
    assert (channel.requeue_count, channel.timeout_count) == (3, 4)
    assert [part.channels[0].depth for part in total.nodes or ()] == [1, 10]
    assert [part.depth for part in channel.nodes or ()] == [1, 10]


def test_a_channel_on_one_node_only_stays_that_nodes() -> None:
    parts = [*on(FIRST, topic_entry("t", channel_entry("z"))), *on(SECOND, topic_entry("t", channel_entry("b")))]
    channels = total_topic("t", parts).channels
    assert [(each.channel_name, each.node, each.nodes) for each in channels] == [
        ("b", SECOND.node, None),
        ("z", FIRST.node, None),
    ]


def test_a_channel_asked_for_by_itself_lists_even_a_single_node() -> None:
    (topic,) = on(FIRST, topic_entry("t", channel_entry("c", depth=3)))
    total = total_channel(topic.channels)
    assert (total.node, total.depth, total.nodes) == ("*", 3, topic.channels)


def test_a_topic_that_no_node_has_is_all_zero() -> None:
    total = total_topic("t", [])
    assert (total.depth, total.channels, total.nodes, total.paused) == (0, (), (), False)


def test_a_policy_is_the_one_that_all_nodes_have() -> None:
    policy = {"max_attempts": 5, "dead_letter_topic": "t.dead"}
    (same, other, none) = (
        on(node, topic_entry("t", channel_entry("c", policy=said, dead_letter_count=2)))[0].channels[0]
        for node, said in ((FIRST, policy), (SECOND, policy), (NODE, None))
    )
    assert total_channel([same, other]).policy == DeadLetterPolicy(max_attempts=5, dead_letter_topic="t.dead")
    differing = total_channel([same, other, none])
    assert (differing.policy, differing.dead_letter_count, differing.redriven_count) == (None, 6, 0)


def test_latency_is_combined_over_nodes() -> None:
    def latency(count: int, value: int) -> dict[str, Any]:
        return {"e2e_processing_latency": {"count": count, "percentiles": [{"quantile": 0.5, "value": value}]}}

    parts = [*on(FIRST, topic_entry("t", **latency(1, 10))), *on(SECOND, topic_entry("t", **latency(3, 30)))]
    combined = total_topic("t", parts).latency
    assert (combined.message_count, combined.host, combined.topic) == (4, "*", "t")
    assert [each.average for each in combined.percentiles or ()] == [25.0]


def test_clients_are_sorted_by_node_and_then_the_nearest_first() -> None:
    near, in_region = client("a", region="eu", zone="eu-1"), client("a", region="eu", zone="eu-2")
    far, farther = client("a", region="us", zone="1"), client("a", region="us", zone="2")
    elsewhere = client("b", region="eu", zone="eu-1")
    expected = [near, in_region, far, farther, elsewhere]
    assert sorted([elsewhere, farther, far, in_region, near], key=nearness) == expected
