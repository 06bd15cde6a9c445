"""The documents that live pages show, one for each view.

`GET /api/live?view=…` sends them as server-sent events, again and again; `GET /api/view?view=…` answers one.

    view=topics                      every topic in a line
    view=topic&topic=T               a topic as in /api/topics/T
    view=channel&topic=T&channel=C[&search=WORDS]
                                     a channel as in /api/topics/T/C, with some of its clients
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
    channel   "rates": {"channel", "finished", "nodes": {node: rate}}, "clients_matching"
    nodes     each also has "node" (H:P), "depth" (with channels), "message_count", "client_count", "topic_count",
              "registered_count" and "tombstoned_count" (of topics that the nsqlookupds list for it), "rate"; and
              "rates": {"total", "finished"}
    node      "rates": {"total", "finished", "topics": {name: rate}}, "memory" (as nsqd says it, or null)
    counter   "total_messages" (all that were published), "rates": {"total", "finished"}

A browser takes a document every few seconds, so it must stay small however large the cluster is:

    channel   `clients` are the first thousand of those that have every word of the search in their name, host, address,
              agent or node; `client_count` says how many there are, `clients_matching` how many of them match. The
              parts in `nodes` have none
    nodes     `topics` are null: there are counts
    counter   more than two thousand counters are told by channel, over all nodes (`*`); the sum stays the same
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emberq.admin.api.document import (
    channel_document,
    counters_document,
    node_document,
    producer_document,
    topic_document,
)
from emberq.base.clock import NS_PER_MS
from emberq.cluster.client_sieve import ClientSieve
from emberq.cluster.latency import Latency
from emberq.cluster.observer import ChannelCounter, NodeStats
from emberq.cluster.producer import Producer
from emberq.cluster.rate import Rates
from emberq.cluster.stats import EVERY_NODE, ChannelStats, TopicStats
from emberq.cluster.survey import IDLE, Survey, Total

Document = dict[str, Any]

MAX_CLIENTS = 1_000
"""That a channel's document lists."""
MAX_COUNTERS = 2_000
"""That are told node by node."""

_RATE_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one time, with what happened since the look before."""

    survey: Survey
    names: tuple[str, ...] = ()
    """All topics that the nsqlookupds know, sorted; some may be on no node."""
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


def topics_view(look: Look) -> Document:
    """Every topic in a line, with those that no nsqd has."""
    lines = {topic: _topic_line(topic, total, channels) for topic, total, channels in look.survey.topic_totals()}
    lines |= {name: _topic_line(name, _NOWHERE, []) for name in look.names if name not in lines}
    return {
        "topics": [lines[name] for name in sorted(lines)],
        "node_count": len(look.survey.producers),
        "rates": _totals(look.survey.total_rates()),
        **look.head,
    }


_NOWHERE = Total()
"""A topic that no nsqd has."""


def _topic_line(name: str, topic: Total, named_channels: Sequence[tuple[str, Total]]) -> Document:
    channels = [channel for _, channel in named_channels]
    finished = (channel.rates.left for channel in channels if channel.rates is not None)
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
        "node_count": topic.node_count,
        "paused": topic.paused,
        "e2e_p99": slowest_ns(topic.latency),
        "rate": _came(topic.rates),
        "finish_rate": round(sum(finished), _RATE_DIGITS),
    }


def slowest_ns(latency: Latency) -> int | None:
    """The highest percentile that is tracked, on the node where it is highest; None if none is."""
    slowest = latency.percentiles[0].max if latency.percentiles else math.nan
    return round(slowest) if math.isfinite(slowest) else None  # a daemon may claim anything


def topic_view(topic: TopicStats, look: Look) -> Document:
    """A topic with the rates of its parts."""
    name, survey = topic.topic_name, look.survey
    of_channels = {channel.channel_name: _rates(survey, name, channel.channel_name) for channel in topic.channels}
    return {
        **topic_document(topic, now_ns=look.taken_ns),
        "rates": {
            "topic": _came(_rates(survey, name)),
            "channels": {channel: _came(each) for channel, each in of_channels.items()},
            "finished": {channel: _left(each) for channel, each in of_channels.items()},
            "nodes": _came_by_node(survey, name),
        },
        **look.head,
    }


def channel_view(channel: ChannelStats, clients: ClientSieve, look: Look) -> Document:
    """A channel with the rates of its parts, and with those of its clients that are to be shown."""
    topic, name, survey = channel.topic_name, channel.channel_name, look.survey
    return {
        **channel_document(channel._replace(clients=tuple(clients.kept)), now_ns=look.taken_ns),
        "clients_matching": clients.match_count,
        "rates": {
            "channel": _came(_rates(survey, topic, name)),
            "finished": _left(_rates(survey, topic, name)),
            "nodes": _came_by_node(survey, topic, name),
        },
        **look.head,
    }


def nodes_view(producers: Iterable[Producer], look: Look) -> Document:
    """The nsqds, and what each has to do."""
    return {
        "nodes": [_node_line(producer, look.survey) for producer in producers],
        "rates": _totals(look.survey.total_rates()),
        **look.head,
    }


def _node_line(producer: Producer, survey: Survey) -> Document:
    work = survey.work.get(producer.node, IDLE)
    return {
        **producer_document(replace(producer, topics=())),
        "node": producer.node,
        "depth": work.depth,
        "message_count": work.message_count,
        "client_count": work.client_count,
        "topic_count": work.topic_count,
        "registered_count": len(producer.topics),
        "tombstoned_count": sum(topic.tombstoned for topic in producer.topics),
        "rate": _came(work.rates),
    }


def node_view(node: NodeStats, look: Look) -> Document:
    """An nsqd with the rates of its topics."""
    figures = look.survey.nodes.get(node.node)
    rates = look.survey.rates_by_topic(node.node)
    return {
        **node_document(node, now_ns=look.taken_ns),
        "memory": None if figures is None else figures.memory,
        "rates": {
            **_totals(look.survey.work.get(node.node, IDLE).rates),
            "topics": {topic.topic_name: _came(rates.get(topic.topic_name)) for topic in node.topics},
        },
        **look.head,
    }


def counter_view(look: Look) -> Document:
    """The message count of every channel on every node, or in a large cluster of every channel."""
    survey = look.survey
    count = sum(total.node_count for (_, channel), total in survey.totals.items() if channel)
    counters = _counters_by_node(survey) if count <= MAX_COUNTERS else _counters_by_channel(survey)
    return {
        "stats": counters_document(counters),
        "total_messages": sum(total.message_count for (_, channel), total in survey.totals.items() if not channel),
        "rates": _totals(survey.total_rates()),
        **look.head,
    }


def _counters_by_node(survey: Survey) -> Iterator[ChannelCounter]:
    for node, figures in survey.nodes.items():
        for (topic, channel), count in zip(figures.keys, figures.columns["message_count"], strict=True):
            if channel:
                yield ChannelCounter(node=node, topic_name=topic, channel_name=channel, message_count=count)


def _counters_by_channel(survey: Survey) -> Iterator[ChannelCounter]:
    for (topic, channel), total in survey.totals.items():
        if channel:
            yield ChannelCounter(
                node=EVERY_NODE, topic_name=topic, channel_name=channel, message_count=total.message_count
            )


def pipelines_view(reported: Document, look: Look) -> Document:
    """What the pipelines reported last."""
    return {**reported, **look.head}


def _rates(survey: Survey, topic: str, channel: str = "") -> Rates | None:
    total = survey.totals.get((topic, channel))
    return None if total is None else total.rates


def _came_by_node(survey: Survey, topic: str, channel: str = "") -> Document:
    return {node: _came(rates) for node, rates in survey.rates_by_node(topic, channel).items()}


def _totals(rates: Rates | None) -> Document:
    return {"total": _came(rates), "finished": _left(rates)}


def _came(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.came, _RATE_DIGITS)


def _left(rates: Rates | None) -> float | None:
    return None if rates is None else round(rates.left, _RATE_DIGITS)
