"""What /stats shows, before it is given a shape.

    topic, channel    only those of this name; an empty name is no filter
    include_clients   false or 0 leaves out who is connected
    include_mem       false or 0 leaves out memory

A topic filter that finds nothing answers with no list at all; a channel filter drops the topics that lack it. Producers
are connections, not parts of a topic: the filter leaves them in place and narrows what each is said to have published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.broker import Broker
from emberq.broker.stats import ChannelStats, ClientStats, TopicStats
from emberq.http.message import Query
from emberq.nsqd.api.argument import is_wanted
from emberq.nsqd.api.node import Node
from emberq.nsqd.memory import MemoryStats


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReport:
    """The state of a node at one moment. None stands for what was not asked for or not found."""

    health: str
    start_time_s: int
    now_s: int
    topics: tuple[TopicStats, ...] | None
    memory: MemoryStats | None
    producers: tuple[ClientStats, ...] | None
    shows_clients: bool


def take_report(node: Node, query: Query) -> StatsReport:
    """What the parameters ask for, as it is now."""
    topic_name = query.get("topic") or None
    shows_clients = is_wanted(query, "include_clients")
    topics = _select(node.broker, topic_name=topic_name, channel_name=query.get("channel") or None)
    producers = node.producers() if shows_clients and topics is not None else ()
    if topic_name is not None:
        topics = None if topics is None else tuple(_published_to(topic, topic_name) for topic in topics)
        producers = _narrowed(producers, topic_name)
    return StatsReport(
        health=node.health(),
        start_time_s=node.start_time_s,
        now_s=node.clock.wall_ns() // NS_PER_SECOND,
        topics=topics,
        memory=node.memory.stats() if is_wanted(query, "include_mem") else None,
        producers=producers or None,
        shows_clients=shows_clients,
    )


def _select(broker: Broker, *, topic_name: str | None, channel_name: str | None) -> tuple[TopicStats, ...] | None:
    if topic_name is None:
        topics = broker.snapshot()
    else:
        topic = broker.find_topic(topic_name)
        if topic is None:
            return None
        topics = (topic.stats(),)
    if channel_name is None:
        return topics
    with_channel = (_only_channel(topic, channel_name) for topic in topics)
    return tuple(topic for topic in with_channel if topic.channels)


def _only_channel(topic: TopicStats, name: str) -> TopicStats:
    return replace(topic, channels=tuple(channel for channel in topic.channels if channel.name == name))


def _published_to(topic: TopicStats, topic_name: str) -> TopicStats:
    return replace(topic, channels=tuple(_with_clients_of(channel, topic_name) for channel in topic.channels))


def _with_clients_of(channel: ChannelStats, topic_name: str) -> ChannelStats:
    return replace(channel, clients=_narrowed(channel.clients, topic_name))


def _narrowed(clients: Iterable[ClientStats], topic_name: str) -> tuple[ClientStats, ...]:
    """The clients, with only what they published to this topic."""
    return tuple(
        replace(client, pub_counts=tuple(entry for entry in client.pub_counts if entry[0] == topic_name))
        for client in clients
    )
