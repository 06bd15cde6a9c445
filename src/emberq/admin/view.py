"""The documents that live pages show, one for each view.

`GET /api/live?view=…` sends them as server-sent events, again and again; `GET /api/view?view=…` answers one.

    view=topics                      every topic in a line
    view=topic&topic=T               a topic as in /api/topics/T
    view=channel&topic=T&channel=C   a channel as in /api/topics/T/C, with clients
    view=nodes                       the nsqds as in /api/nodes
    view=node&node=H:P               an nsqd as in /api/nodes/H:P, with clients
    view=counter                     message counts as in /api/counter
    view=pipelines                   as in /api/pipelines

Every document has `message` ("" or `WARNING: …`) and `time`, when it was gathered, in seconds since the Unix epoch.
Beside the figures of the reference stand rates, in messages per second. What was not there at both of two looks has no
rate: it is null, or missing where names lead to rates.

    topics    {"topics": [{"topic_name", "depth", "backend_depth", "channel_depth", "in_flight_count", "deferred_count",
              "requeue_count", "timeout_count", "message_count", "client_count", "channel_count", "node_count",
              "paused", "e2e_p99", "rate", "finish_rate"}], "node_count", "rates": {"total", "finished"}}
              `depth` is what waits in the topic itself, `channel_depth` in all its channels together
    topic     "rates": {"topic", "channels": {name: rate}, "finished": {name: rate}, "nodes": {node: rate}}
    channel   "rates": {"channel", "finished", "nodes": {node: rate}}
    nodes     each also has "node" (H:P), "depth" (with channels), "message_count", "client_count", "topic_count",
              "rate"; and "rates": {"total", "finished"}
    node      "rates": {"total", "finished", "topics": {name: rate}}
    counter   "total_messages" (all that were published), "rates": {"total", "finished"}
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from emberq.admin.api.document import (
    channel_document,
    counters_document,
    node_document,
    producer_document,
    topic_document,
)
from emberq.admin.rate import NO_RATES, RateBook, Rates
from emberq.base.clock import NS_PER_MS
from emberq.cluster.aggregate import total_topic
from emberq.cluster.latency import Latency
from emberq.cluster.observer import ChannelCounter, NodeStats, Snapshot
from emberq.cluster.producer import Producer
from emberq.cluster.stats import ChannelStats, TopicStats

Document = dict[str, Any]

_RATE_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one time, with what happened since the look before."""

    snapshot: Snapshot
    rates: RateBook = NO_RATES
    taken_ns: int = 0
    """By the wall clock."""
    warnings: tuple[str, ...] = ()

    @property
    def head(self) -> Document:
        """What every document has."""
        return {
            "message": f"WARNING: {'; '.join(self.warnings)}" if self.warnings else "",
            "time": self.taken_ns // NS_PER_MS / 1000,
        }

    @property
    def part_count(self) -> int:
        """Topics, counted on each node: how much there is to reckon with."""
        return sum(len(topic.nodes or ()) for topic in self.snapshot.topics)

    def topic(self, name: str) -> TopicStats | None:
        """A topic over all nodes."""
        return next((topic for topic in self.snapshot.topics if topic.topic_name == name), None)


def topics_view(look: Look, names: Iterable[str] = ()) -> Document:
    """Every topic in a line, and those of `names` that no nsqd has."""
    topics = {topic.topic_name: topic for topic in look.snapshot.topics}
    topics |= {name: total_topic(name, ()) for name in names if name not in topics}
    return {
        "topics": [_topic_line(topics[name], look.rates) for name in sorted(topics)],
        "node_count": len(look.snapshot.producers),
        "rates": _totals(look.rates.total()),
        **look.head,
    }


def _topic_line(topic: TopicStats, rates: RateBook) -> Document:
    name, channels = topic.topic_name, topic.channels
    finished = [rates.of(name, channel.channel_name) for channel in channels]
    return {
        "topic_name": name,
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "channel_depth": sum(channel.depth for channel in channels),
        "in_flight_count": sum(channel.in_flight_count for channel in channels),
        "deferred_count": sum(channel.deferred_count for channel in channels),
        "requeue_count": sum(channel.requeue_count for channel in channels),
        "timeout_count": sum(channel.timeout_count for channel in channels),
        "message_count": topic.message_count,
        "client_count": sum(channel.client_count for channel in channels),
        "channel_count": len(channels),
        "node_count": len(topic.nodes or ()),
        "paused": topic.paused,
        "e2e_p99": slowest_ns(topic.latency),
        "rate": _came(rates.of(name)),
        "finish_rate": round(sum(each.left for each in finished if each is not None), _RATE_DIGITS),
    }


def slowest_ns(latency: Latency) -> int | None:
    """The highest percentile that is tracked, on the node where it is highest; None if none is."""
    slowest = latency.percentiles[0].max if latency.percentiles else math.nan
    return round(slowest) if math.isfinite(slowest) else None  # a daemon may claim anything


def topic_view(topic: TopicStats, look: Look) -> Document:
    """A topic with the rates of its parts."""
    name, rates = topic.topic_name, look.rates
    of_channels = {channel.channel_name: rates.of(name, channel.channel_name) for channel in topic.channels}
    return {
        **topic_document(topic, now_ns=look.taken_ns),
        "rates": {
            "topic": _came(rates.of(name)),
            "channels": {channel: _came(each) for channel, each in of_channels.items()},
            "finished": {channel: _left(each) for channel, each in of_channels.items()},
            "nodes": {part.node: _came(rates.of(name, node=part.node)) for part in topic.nodes or ()},
        },
        **look.head,
    }


def channel_view(channel: ChannelStats, look: Look) -> Document:
    """A channel with the rates of its parts."""
    topic, name, rates = channel.topic_name, channel.channel_name, look.rates
    return {
        **channel_document(channel, now_ns=look.taken_ns, with_clients=True),
        "rates": {
            "channel": _came(rates.of(topic, name)),
            "finished": _left(rates.of(topic, name)),
            "nodes": {part.node: _came(rates.of(topic, name, node=part.node)) for part in channel.nodes or ()},
        },
        **look.head,
    }


def nodes_view(producers: Iterable[Producer], look: Look) -> Document:
    """The nsqds, and what each has to do."""
    by_node: dict[str, list[TopicStats]] = {}
    for topic in look.snapshot.topics:
        for part in topic.nodes or ():
            by_node.setdefault(part.node, []).append(part)
    return {
        "nodes": [
            producer_document(producer) | _work(by_node.get(producer.node, []), producer.node, look.rates)
            for producer in producers
        ],
        "rates": _totals(look.rates.total()),
        **look.head,
    }


def _work(topics: list[TopicStats], node: str, rates: RateBook) -> Document:
    channels = [channel for topic in topics for channel in topic.channels]
    return {
        "node": node,
        "depth": sum(topic.depth for topic in topics) + sum(channel.depth for channel in channels),
        "message_count": sum(topic.message_count for topic in topics),
        "client_count": sum(channel.client_count for channel in channels),
        "topic_count": len(topics),
        "rate": _came(rates.total(node=node)),
    }


def node_view(node: NodeStats, look: Look) -> Document:
    """An nsqd with the rates of its topics."""
    names = [topic.topic_name for topic in node.topics]
    return {
        **node_document(node, now_ns=look.taken_ns),
        "rates": {
            **_totals(look.rates.total(node=node.node)),
            "topics": {name: _came(look.rates.of(name, node=node.node)) for name in names},
        },
        **look.head,
    }


def counter_view(look: Look) -> Document:
    """The message count of every channel on every node."""
    counters = (
        ChannelCounter(
            node=channel.node,
            topic_name=channel.topic_name,
            channel_name=channel.channel_name,
            message_count=channel.message_count,
        )
        for topic in look.snapshot.topics
        for part in topic.nodes or ()
        for channel in part.channels
    )
    return {
        "stats": counters_document(counters),
        "total_messages": sum(topic.message_count for topic in look.snapshot.topics),
        "rates": _totals(look.rates.total()),
        **look.head,
    }


def pipelines_view(reported: Document, look: Look) -> Document:
    """What the pipelines reported last."""
    return {**reported, **look.head}


def _totals(rates: Rates | None) -> Document:
    return {"total": _came(rates), "finished": _left(rates)}


def _came(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.came, _RATE_DIGITS)


def _left(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.left, _RATE_DIGITS)
