"""Statistics as JSON: keys, their order, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import emberq
from emberq.broker.stats import ClientStats
from emberq.nsqd.api import stats
from tests.nsqd.api.stats_sample import CHANNEL, REPORT, TOPIC

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


def only_topic(report: Any = REPORT) -> dict[str, Any]:
    (topic,) = stats.render_json(report)["topics"]
    shown: dict[str, Any] = topic
    return shown


def only_channel(**changes: Any) -> dict[str, Any]:
    topic = replace(TOPIC, channels=(replace(CHANNEL, **changes),))
    (channel,) = only_topic(replace(REPORT, topics=(topic,)))["channels"]
    shown: dict[str, Any] = channel
    return shown


def test_the_answer_has_its_keys_in_order() -> None:
    shown = stats.render_json(REPORT)
    assert list(shown) == TOP_KEYS
    assert (shown["version"], shown["health"], shown["start_time"]) == (emberq.NSQ_VERSION, "OK", 1_700_000_000)
    assert list(shown["memory"]) == MEMORY_KEYS


def test_memory_is_left_out_but_lists_are_null() -> None:
    shown = stats.render_json(replace(REPORT, topics=None, memory=None, producers=None))
    assert list(shown) == [key for key in TOP_KEYS if key != "memory"]
    assert (shown["topics"], shown["producers"]) == (None, None)


def test_no_topics_are_an_empty_list() -> None:
    assert stats.render_json(replace(REPORT, topics=()))["topics"] == []


def test_a_topic_has_its_keys_in_order() -> None:
    shown = only_topic()
    assert list(shown) == TOPIC_KEYS
    assert (shown["topic_name"], shown["depth"], shown["message_bytes"]) == ("orders", 6, 4200)
    assert shown["e2e_processing_latency"] == {"count": 0, "percentiles": None}


def test_a_channel_has_its_keys_in_order_and_counts_by_locality_only_when_there_are_any() -> None:
    shown = only_channel()
    assert list(shown) == [key for key in CHANNEL_KEYS if key != "zone_local_msg_count"]
    assert (shown["region_local_msg_count"], shown["global_msg_count"], shown["client_count"]) == (6, 8, 1)
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
    (client,) = stats.render_json(REPORT)["producers"]
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
    (client,) = stats.render_json(REPORT)["producers"]
    assert set(ClientStats.__dataclass_fields__) <= set(client)
