"""Statistics as JSON: keys, their order, and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import emberq
from emberq.broker.stats import ClientStats
from emberq.nsqd.api import stats
from emberq.nsqd.api.stats import StatsReport
from tests.nsqd.api.stats_sample import CHANNEL, REPORT, TOPIC, as_shown

TOP_KEYS = ["version", "health", "start_time", "topics", "memory", "producers"]
TOPIC_KEYS = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "zone_local_msg_count",
    "region_local_msg_count",
    "global_msg_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
MEMORY_KEYS = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]
CLIENT_KEYS = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "authed",
    "auth_identity",
    "auth_identity_url",
    "topology_zone",
    "topology_region",
    "pub_counts",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]


def rendered(report: StatsReport = REPORT) -> dict[str, Any]:
    members: dict[str, Any] = json.loads("".join(stats.json_pieces(report)))
    return members


def only_topic(report: Any = REPORT) -> dict[str, Any]:
    (topic,) = rendered(report)["topics"]
    shown: dict[str, Any] = topic
    return shown


def only_channel(**changes: Any) -> dict[str, Any]:
    topic = replace(TOPIC, channels=(replace(CHANNEL, **changes),))
    (channel,) = only_topic(replace(REPORT, topics=(as_shown(topic),)))["channels"]
    shown: dict[str, Any] = channel
    return shown


def test_the_answer_has_its_keys_in_order() -> None:
    members = rendered()
    assert list(members) == TOP_KEYS
    assert (members["version"], members["health"], members["start_time"]) == (emberq.NSQ_VERSION, "OK", 1_700_000_000)
    assert list(members["memory"]) == MEMORY_KEYS


def test_the_age_of_the_oldest_message_stands_behind_what_nsq_has() -> None:
    assert list(only_channel(oldest_age_ns=1_999_999)) == [*only_channel(), "oldest_age_ms"]
    assert only_channel(oldest_age_ns=1_999_999)["oldest_age_ms"] == 1


def test_a_drain_is_told_while_it_lasts_and_else_left_out() -> None:
    assert rendered(replace(REPORT, is_draining=True))["draining"] is True
    assert "draining" not in rendered()


def test_memory_is_left_out_but_lists_are_null() -> None:
    members = rendered(replace(REPORT, topics=None, memory=None, producers=()))
    assert list(members) == [key for key in TOP_KEYS if key != "memory"]
    assert (members["topics"], members["producers"]) == (None, None)


def test_no_topics_are_an_empty_list() -> None:
    assert rendered(replace(REPORT, topics=()))["topics"] == []


def test_a_topic_has_its_keys_in_order() -> None:
    members = only_topic()
    assert list(members) == TOPIC_KEYS
    assert (members["topic_name"], members["depth"], members["message_bytes"]) == ("orders", 6, 4200)
    assert members["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_a_channel_has_its_keys_in_order_and_counts_by_locality_only_when_there_are_any() -> None:
    members = only_channel()
    assert list(members) == [key for key in CHANNEL_KEYS if key != "zone_local_msg_count"]
    assert (members["region_local_msg_count"], members["global_msg_count"], members["client_count"]) == (6, 8, 1)
    assert list(only_channel(zone_local_msg_count=1)) == CHANNEL_KEYS


def test_latencies_are_listed_as_configured() -> None:
    assert only_channel()["e2e_processing_latency"] == {
        "count": 9,
        "percentiles": [{"quantile": 1, "value": 2_500_000_000}, {"quantile": 0.95, "value": 1_500}],
    }


def test_clients_that_were_not_asked_for_are_null_but_counted() -> None:
    (channel,) = only_topic(replace(REPORT, shows_clients=False))["channels"]
    assert (channel["clients"], channel["client_count"]) == (None, 1)


def test_a_channel_without_clients_has_an_empty_list() -> None:
    assert only_channel(clients=())["clients"] == []


def test_a_client_has_its_keys_in_order() -> None:
    (client,) = rendered()["producers"]
    assert list(client) == CLIENT_KEYS
    assert client["pub_counts"] == [{"topic": "orders", "count": 40}, {"topic": "visits", "count": 2}]
    assert (client["authed"], client["auth_identity"]) == (True, "source")
    assert (client["tls_version"], client["tls_negotiated_protocol_is_mutual"]) == ("tls1.3", True)


def test_a_client_leaves_out_what_it_did_not_do() -> None:
    (client,) = only_channel()["clients"]
    left_out = {"authed", "auth_identity", "auth_identity_url", "pub_counts"}
    assert list(client) == [key for key in CLIENT_KEYS if key not in left_out]
    assert (client["version"], client["ready_count"], client["snappy"]) == ("V2", 2, True)
    assert (client["tls"], client["tls_version"], client["tls_negotiated_protocol_is_mutual"]) == (False, "", False)


def test_every_field_of_a_client_is_shown() -> None:
    """A field that is added to the snapshot must find its way here."""
    (client,) = rendered()["producers"]
    assert set(ClientStats.__dataclass_fields__) <= set(client)
