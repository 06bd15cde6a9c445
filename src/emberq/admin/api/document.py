"""Figures as nsqadmin's API words them: the same keys in the same order as the reference, so that scripts can stay.

What the reference leaves out when it says nothing (deliveries by distance, regions and zones) is left out here too.
Nothing is `null` that the reference does not make so; `clients` is, where they were not asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from emberq.cluster.latency import Latency, Percentile
from emberq.cluster.observer import ChannelCounter, NodeStats
from emberq.cluster.producer import Producer
from emberq.cluster.stats import EVERY_NODE, ChannelStats, ClientStats, TopicStats

Document = dict[str, Any]


def topic_document(topic: TopicStats, *, now_ns: int, with_clients: bool = False) -> Document:
    """A topic, on one node or over all."""
    return {
        "node": topic.node,
        "hostname": topic.hostname,
        "topic_name": topic.topic_name,
        "depth": topic.depth,
        "memory_depth": topic.memory_depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "delivery_msg_count": topic.delivery_msg_count,
        **_distances(topic),
        "nodes": _list(topic_document(part, now_ns=now_ns, with_clients=with_clients) for part in topic.nodes or ()),
        "channels": [channel_document(channel, now_ns=now_ns, with_clients=with_clients) for channel in topic.channels],
        "paused": topic.paused,
        "e2e_processing_latency": latency_document(topic.latency),
    }


def channel_document(channel: ChannelStats, *, now_ns: int, with_clients: bool = False) -> Document:
    """A channel, on one node or over all. `now_ns` is the wall clock's, to tell how long clients are connected."""
    clients = [client_document(client, now_ns=now_ns) for client in channel.clients]
    has_list = with_clients and channel.node != EVERY_NODE
    deliveries = {"delivery_msg_count": channel.delivery_msg_count} if channel.delivery_msg_count else {}
    return {
        "node": channel.node,
        "hostname": channel.hostname,
        "topic_name": channel.topic_name,
        "channel_name": channel.channel_name,
        "depth": channel.depth,
        "memory_depth": channel.memory_depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "message_count": channel.message_count,
        **deliveries,
        **_distances(channel),
        "client_count": channel.client_count,
        "nodes": _list(
            channel_document(part, now_ns=now_ns, with_clients=with_clients) for part in channel.nodes or ()
        ),
        "clients": clients if clients or has_list else None,
        "paused": channel.paused,
        "e2e_processing_latency": latency_document(channel.latency),
        **_dead_letters(channel),
    }


def _dead_letters(channel: ChannelStats) -> Document:
    """What emberq's nsqds add for channels that give up on messages; the others are as the reference has them."""
    counts = {"dead_letter_count": channel.dead_letter_count, "redriven_count": channel.redriven_count}
    policy = {} if channel.policy is None else {"policy": channel.policy._asdict()}
    return policy | {key: count for key, count in counts.items() if count}


def client_document(client: ClientStats, *, now_ns: int) -> Document:
    """A consumer."""
    places = {
        "node_topology_region": client.node_topology_region,
        "node_topology_zone": client.node_topology_zone,
        "topology_region": client.topology_region,
        "topology_zone": client.topology_zone,
    }
    return {
        "node": client.node,
        "remote_address": client.remote_address,
        "version": client.version,
        "client_id": client.client_id,
        "hostname": client.hostname,
        "user_agent": client.user_agent,
        "connect_ts": client.connect_ts,
        "connected": client.connected_ns(now_ns),
        "in_flight_count": client.in_flight_count,
        "ready_count": client.ready_count,
        "finish_count": client.finish_count,
        "requeue_count": client.requeue_count,
        "message_count": client.message_count,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "authed": client.authed,
        "auth_identity": client.auth_identity,
        "auth_identity_url": client.auth_identity_url,
        **{key: place for key, place in places.items() if place},
        "tls": client.tls,
        "tls_cipher_suite": client.tls_cipher_suite,
        "tls_version": client.tls_version,
        "tls_negotiated_protocol": client.tls_negotiated_protocol,
        "tls_negotiated_protocol_is_mutual": client.tls_negotiated_protocol_is_mutual,
    }


def producer_document(producer: Producer) -> Document:
    """An nsqd in the list of nodes."""
    places = {"topology_zone": producer.topology_zone, "topology_region": producer.topology_region}
    return {
        "remote_addresses": None if producer.remote_addresses is None else list(producer.remote_addresses),
        "remote_address": producer.remote_address,
        "hostname": producer.hostname,
        "broadcast_address": producer.broadcast_address,
        "tcp_port": producer.tcp_port,
        "http_port": producer.http_port,
        "version": producer.version,
        **{key: place for key, place in places.items() if place},
        "topics": _list({"topic": each.topic, "tombstoned": each.tombstoned} for each in producer.topics),
        "out_of_date": producer.out_of_date,
    }


def node_document(node: NodeStats, *, now_ns: int) -> Document:
    """All that one nsqd has."""
    return {
        "node": node.node,
        "topics": [topic_document(topic, now_ns=now_ns, with_clients=True) for topic in node.topics],
        "total_messages": node.total_messages,
        "total_clients": node.total_clients,
    }


def counters_document(counters: Iterable[ChannelCounter]) -> Document:
    """Message counts of channels, by topic, channel and node."""
    return {
        counter.key: {
            "node": counter.node,
            "topic_name": counter.topic_name,
            "channel_name": counter.channel_name,
            "message_count": counter.message_count,
        }
        for counter in sorted(counters, key=lambda each: each.key)
    }


def latency_document(latency: Latency) -> Document:
    """Percentiles in nanoseconds."""
    percentiles = latency.percentiles
    return {
        "count": latency.message_count,
        "percentiles": None if percentiles is None else [_percentile(each) for each in percentiles],
        "topic": latency.topic,
        "channel": latency.channel,
        "host": latency.host,
    }


def _percentile(percentile: Percentile) -> Document:
    said = {} if percentile.value is None else {"value": _number(percentile.value)}
    return {
        "average": _number(percentile.average),
        "count": percentile.message_count,
        "max": _number(percentile.max),
        "min": _number(percentile.min),
        "quantile": _number(percentile.quantile),
        **said,
    }


def _number(value: float) -> float | int:
    """A whole number without a point; what is not a number at all, which a daemon may claim, is 0."""
    if not math.isfinite(value):
        return 0
    return int(value) if value.is_integer() else value


def _distances(stats: TopicStats | ChannelStats) -> Document:
    """Deliveries by how far the client was, where there are any."""
    counts = {
        "zone_local_msg_count": stats.zone_local_msg_count,
        "region_local_msg_count": stats.region_local_msg_count,
        "global_msg_count": stats.global_msg_count,
    }
    return {key: count for key, count in counts.items() if count}


def _list(documents: Iterable[Document]) -> list[Document] | None:
    """As the reference says that there are none."""
    return list(documents) or None
