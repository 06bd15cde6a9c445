"""Figures as the API words them.

**The API** has the same keys in the same order as the reference, so that scripts can stay. What the reference leaves
out when it says nothing (deliveries by distance, regions and zones) is left out here too. Nothing is `null` that the
reference does not make so; `clients` is, where they were not asked for.

**Large documents** are encoded in pieces. While a document is encoded nothing else runs, not even in another thread: it
is one call into the interpreter. So long lists are encoded some rows at a time, and between two pieces other threads
get their turn. The result is the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from emberq.cluster.action import DrainState
from emberq.cluster.stats import (
    EVERY_NODE,
    LOCALITIES,
    ChannelFigures,
    ClientFigures,
    Latency,
    LatencyPercentile,
    TopicFigures,
)
from emberq.cluster.survey import ChannelCounter, NodeStats
from emberq.cluster.topology import ClusterNode
from emberq.http.message import encode_json

Document = dict[str, Any]


def topic_document(topic: TopicFigures, *, now_ns: int, with_clients: bool = False) -> Document:
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


def channel_document(channel: ChannelFigures, *, now_ns: int, with_clients: bool = False) -> Document:
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


def _dead_letters(channel: ChannelFigures) -> Document:
    """What emberq's nsqds add for channels that give up on messages; the others are as the reference has them."""
    counts = {"dead_letter_count": channel.dead_letter_count, "redriven_count": channel.redriven_count}
    policy = {} if channel.policy is None else {"policy": channel.policy._asdict()}
    return policy | {key: count for key, count in counts.items() if count}


def client_document(client: ClientFigures, *, now_ns: int) -> Document:
    """A consumer."""
    document: Document = {}
    for name, value in client._asdict().items():
        if value or name not in _PLACES:
            document[name] = value
        if name == "connect_ts":
            document["connected"] = client.connected_ns(now_ns)
    return document


_PLACES = frozenset({"node_topology_region", "node_topology_zone", "topology_region", "topology_zone"})


def producer_document(producer: ClusterNode) -> Document:
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


def drain_document(state: DrainState) -> Document:
    """How far the drain of an nsqd is."""
    if not state.is_draining:
        return {"draining": False}
    return {
        "draining": True,
        "since": state.since_s,
        "topic_count": state.topic_count,
        "message_count": state.message_count,
        "topics": [
            {"topic_name": topic, "message_count": count, "waits_for": reason} for topic, count, reason in state.waits
        ],
    }


def settings_document(settings: Mapping[str, Mapping[str, Any]]) -> Document:
    """The settings of nodes, option by option: each value with the nodes that have it, the most common one first."""
    options: list[Document] = []
    for option in sorted({option for of_node in settings.values() for option in of_node}):
        nodes_by_value: dict[str, list[str]] = {}
        for node in sorted(settings):
            written = json.dumps(settings[node].get(option), sort_keys=True)
            nodes_by_value.setdefault(written, []).append(node)
        values = sorted(nodes_by_value.items(), key=lambda each: -len(each[1]))
        listed = [{"value": json.loads(written), "nodes": nodes} for written, nodes in values]
        options.append({"option": option, "is_own": option in _OWN_OPTIONS, "values": listed})
    return {"nodes": sorted(settings), "options": options}


_OWN_OPTIONS = frozenset(
    {
        "broadcast_address",
        "broadcast_http_port",
        "broadcast_tcp_port",
        "data_path",
        "http_address",
        "https_address",
        "id",
        "node_id",
        "tcp_address",
        "tls_cert",
        "tls_key",
        "topology_region",
        "topology_zone",
    }
)
"""Options that nodes are expected to differ in."""


def counters_document(counters: Iterable[ChannelCounter]) -> Document:
    """Message counts of channels, by topic, channel and node."""
    return {counter.key: counter._asdict() for counter in sorted(counters, key=lambda each: each.key)}


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


def _percentile(percentile: LatencyPercentile) -> Document:
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


def _distances(stats: TopicFigures | ChannelFigures) -> Document:
    """Deliveries by how far the client was, where there are any."""
    return {name: count for name in LOCALITIES if (count := getattr(stats, name))}


def _list(documents: Iterable[Document]) -> list[Document] | None:
    """A list, or null if it is empty, as in the reference."""
    return list(documents) or None


# Large documents

ROWS_PER_PIECE = 250
"""Some hundred kilobytes, which take a few milliseconds."""


def encode_in_pieces(document: dict[str, Any]) -> bytes:
    """The same as `encode_json`. Long lists in the document are taken apart, and in its rows if these are few."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode_json(name), _encoded(value)) for name, value in document.items())


def _encoded(value: Any) -> bytes:
    if not isinstance(value, list):
        return encode_json(value)
    if len(value) <= ROWS_PER_PIECE:
        if not any(map(_has_long_list, value)):
            return encode_json(value)
        return b"[%b]" % b",".join(encode_in_pieces(row) if _has_long_list(row) else encode_json(row) for row in value)
    starts = range(0, len(value), ROWS_PER_PIECE)
    return b"[%b]" % b",".join(encode_json(value[start : start + ROWS_PER_PIECE])[1:-1] for start in starts)


def _has_long_list(row: Any) -> bool:
    return isinstance(row, dict) and any(isinstance(each, list) and len(each) > ROWS_PER_PIECE for each in row.values())
