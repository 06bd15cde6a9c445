"""Statistics as JSON, in the words and the order of the reference.

Keys in NSQ's answers come in a fixed order. Some are left out when they have nothing to say: the counts by locality, as
whom a client was authorized, and what it published. A list that was not asked for is null. A journaled topic has two
keys more than NSQ knows, `is_journaled` and `journal`; other topics have neither. So has a channel that gives up on
messages its `policy`, and one that messages have left for another topic their `dead_letter_count` or `redriven_count`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import emberq
from emberq.broker.latency import LatencySummary
from emberq.broker.stats import ChannelStats, ClientStats, JournalStats, TopicStats
from emberq.nsqd.api.number import shortest
from emberq.nsqd.api.stats_report import StatsReport

JsonObject = dict[str, Any]


def render(report: StatsReport) -> JsonObject:
    """The whole answer."""
    shown: JsonObject = {
        "version": emberq.NSQ_VERSION,
        "health": report.health,
        "start_time": report.start_time_s,
        "topics": _topics(report),
    }
    if report.memory is not None:
        shown["memory"] = asdict(report.memory)
    shown["producers"] = None if report.producers is None else _clients(report.producers)
    return shown


def _topics(report: StatsReport) -> list[JsonObject] | None:
    if report.topics is None:
        return None
    return [_topic(topic, shows_clients=report.shows_clients) for topic in report.topics]


def _topic(topic: TopicStats, *, shows_clients: bool) -> JsonObject:
    return {
        "topic_name": topic.name,
        "channels": [_channel(channel, shows_clients=shows_clients) for channel in topic.channels],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.e2e),
        **({} if topic.journal is None else {"is_journaled": True, "journal": _journal(topic.journal)}),
    }


def _journal(journal: JournalStats) -> JsonObject:
    return {
        "first_offset": journal.first_offset,
        "next_offset": journal.next_offset,
        "synced_offset": journal.synced_offset,
        "bytes": journal.size_bytes,
        "lag": journal.lag,
    }


def _channel(channel: ChannelStats, *, shows_clients: bool) -> JsonObject:
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **_unless_void(
            zone_local_msg_count=channel.zone_local_msg_count,
            region_local_msg_count=channel.region_local_msg_count,
            global_msg_count=channel.global_msg_count,
        ),
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        **_unless_void(dead_letter_count=channel.dead_letter_count, redriven_count=channel.redriven_count),
        "client_count": channel.client_count,
        "clients": _clients(channel.clients) if shows_clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _latency(channel.e2e),
        **({} if channel.policy is None else {"policy": asdict(channel.policy)}),
    }


def _clients(clients: Iterable[ClientStats]) -> list[JsonObject]:
    return [_client(client) for client in clients]


def _client(client: ClientStats) -> JsonObject:
    return {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": client.ready_count,
        "in_flight_count": client.in_flight_count,
        "message_count": client.message_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "connect_ts": client.connect_ts,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
        **_unless_void(
            authed=client.authed, auth_identity=client.auth_identity, auth_identity_url=client.auth_identity_url
        ),
        "topology_zone": client.topology_zone,
        "topology_region": client.topology_region,
        **_unless_void(pub_counts=[{"topic": topic, "count": count} for topic, count in client.pub_counts]),
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls,  # with TLS of today there is no other way to agree
    }


def _unless_void(**fields: Any) -> JsonObject:
    """The fields that have something to say: neither 0 nor false nor empty."""
    return {name: value for name, value in fields.items() if value}


def _latency(summary: LatencySummary) -> JsonObject:
    if summary.percentiles is None:
        return {"count": summary.count, "percentiles": None}
    percentiles = [{"quantile": shortest(each.quantile), "value": each.value_ns} for each in summary.percentiles]
    return {"count": summary.count, "percentiles": percentiles}
