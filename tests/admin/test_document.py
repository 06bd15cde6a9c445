"""Figures as the API words them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from emberq.admin.document import (
    channel_document,
    client_document,
    latency_document,
    producer_document,
    settings_document,
    topic_document,
)
from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import ChannelFigures, latency_of, total_channel, total_topic
from emberq.http.message import encode_json
from tests.support.cluster_rig import NODE, channel_entry, topic_entry

NOW_NS = 1_000 * NS_PER_SECOND
CLIENT = {"client_id": "c", "connect_ts": 990, "topology_region": "eu", "topology_zone": "eu-1"}


def channel(**fields: object) -> ChannelFigures:
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel_entry("c", **fields))]})
    return topic.channels[0]


def test_deliveries_by_distance_are_shown_if_there_are_any() -> None:
    keys = {"delivery_msg_count", "zone_local_msg_count", "region_local_msg_count", "global_msg_count"}
    assert keys.isdisjoint(channel_document(channel(), now_ns=NOW_NS))
    shown = channel_document(channel(zone_local_msg_count=2, global_msg_count=3), now_ns=NOW_NS)
    assert {key: shown[key] for key in keys & shown.keys()} == {
        "delivery_msg_count": 5,
        "zone_local_msg_count": 2,
        "global_msg_count": 3,
    }


def test_a_topic_always_says_how_many_deliveries_were_counted() -> None:
    assert topic_document(total_topic("t", ()), now_ns=NOW_NS)["delivery_msg_count"] == 0


def test_a_policy_is_shown_where_there_is_one() -> None:
    keys = {"policy", "dead_letter_count", "redriven_count"}
    assert keys.isdisjoint(channel_document(channel(), now_ns=NOW_NS))
    policy = {"max_attempts": 5, "dead_letter_topic": "t.dead"}
    strict, lax = channel(policy=policy, dead_letter_count=2), channel(policy=policy | {"max_attempts": 9})
    shown = channel_document(strict, now_ns=NOW_NS)
    assert {key: shown[key] for key in keys & shown.keys()} == {"policy": policy, "dead_letter_count": 2}
    agreed = channel_document(total_channel([strict, strict]), now_ns=NOW_NS)
    assert (agreed["policy"], agreed["dead_letter_count"]) == (policy, 4)
    differing = channel_document(total_channel([strict, lax]), now_ns=NOW_NS)
    assert "policy" not in differing
    assert [part["policy"]["max_attempts"] for part in differing["nodes"]] == [5, 9]


def test_clients_are_null_where_they_were_not_asked_for() -> None:
    one = channel()
    assert channel_document(one, now_ns=NOW_NS)["clients"] is None
    assert channel_document(one, now_ns=NOW_NS, with_clients=True)["clients"] == []
    total = channel_document(total_channel([one]), now_ns=NOW_NS, with_clients=True)
    assert (total["clients"], total["nodes"][0]["clients"]) == (None, [])


def test_a_client_has_been_connected_for_whole_seconds() -> None:
    (client,) = channel(clients=[CLIENT]).clients
    shown = client_document(client, now_ns=NOW_NS + 1)
    assert (shown["connect_ts"], shown["connected"]) == (990, 10 * NS_PER_SECOND)
    assert shown["node"] == "nsqd.example:4151"
    assert (shown["topology_region"], shown["node_topology_zone"]) == ("eu", "eu-1")


def test_places_are_left_out_where_there_are_none() -> None:
    nowhere = replace(NODE, topology_region="", topology_zone="")
    assert "topology_region" not in producer_document(nowhere)
    assert producer_document(NODE)["topology_zone"] == "eu-1"
    assert producer_document(nowhere)["topics"] is None


def test_whole_percentiles_have_no_point() -> None:
    entries = [{"quantile": 0.99, "value": 2e9}, {"quantile": 1, "value": 1.5}]
    shown = latency_document(latency_of({"count": 3, "percentiles": entries}))
    assert encode_json(shown["percentiles"]) == (
        b'[{"average":2000000000,"count":3,"max":2000000000,"min":2000000000,"quantile":0.99,"value":2000000000},'
        b'{"average":1.5,"count":3,"max":1.5,"min":1.5,"quantile":1,"value":1.5}]'
    )


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_no_number_does_not_break_the_document(value: float) -> None:
    shown = latency_document(latency_of({"count": 1, "percentiles": [{"quantile": value, "value": value}]}))
    assert json.loads(encode_json(shown))["percentiles"][0]["max"] == 0


def test_settings_are_told_option_by_option_with_the_most_common_value_first() -> None:
    common = {"tcp_address": "0.0.0.0:4150", "mem_queue_size": 100}
    document = settings_document({"a:1": common, "b:1": common | {"mem_queue_size": 5, "new": [1]}, "c:1": common})
    assert document == {
        "nodes": ["a:1", "b:1", "c:1"],
        "options": [
            {
                "option": "mem_queue_size",
                "is_own": False,
                "values": [{"value": 100, "nodes": ["a:1", "c:1"]}, {"value": 5, "nodes": ["b:1"]}],
            },
            {
                "option": "new",
                "is_own": False,
                "values": [{"value": None, "nodes": ["a:1", "c:1"]}, {"value": [1], "nodes": ["b:1"]}],
            },
            {
                "option": "tcp_address",
                "is_own": True,
                "values": [{"value": "0.0.0.0:4150", "nodes": ["a:1", "b:1", "c:1"]}],
            },
        ],
    }
