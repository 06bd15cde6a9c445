"""GET /stats: JSON for programs with `format=json`, text for people otherwise.

Both are made from one `StatsReport`, so that they cannot differ in what they show. Parameters choose what is in it:

    topic, channel    only those of this name; an empty name is no filter
    include_clients   false or 0 leaves out who is connected
    include_mem       false or 0 leaves out memory

A topic filter that finds nothing answers with no list at all; a channel filter drops the topics that lack it. Producers
are connections, not parts of a topic: the filter leaves them in place and narrows what each is said to have published.

JSON uses the reference's keys in the reference's order. Some keys are left out when they are empty: the counts by
locality, a client's identity, and what it published. A list that was not asked for is null. Some keys are not NSQ's: a
journaled topic has `is_journaled` and `journal`; a channel with a dead-letter policy has `policy`; a channel that
messages have left for another topic has `dead_letter_count` or `redriven_count`.

Text is what `curl localhost:4151/stats` shows. Paused topics and channels are marked `*P`:

    nsqd v1.3.0 (built w/…)
    start_time 2026-11-15T00:45:26Z
    uptime 1m18s

    Health: OK

    Memory:
       heap_objects             	3134
       …

    Topics:

       [orders         ] depth: 6     be-depth: 0     msgs: 6        e2e%:
          [archive                  ] depth: 7     be-depth: 0     inflt: 2    def: 0    re-q: 0     …
            [V2 host:43210 agent/1.0  ] state: 3 inflt: 2    rdy: 2    fin: 0        re-q: 0        …

    Producers:
       [V2 host:43212 agent/1.0  ] msgs: 1        topics: orders=1 connected: 0s
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import format_duration, one_line
from emberq.broker.broker import Broker
from emberq.broker.stats import ChannelStats, ClientStats, JournalStats, LatencySummary, TopicStats
from emberq.http.message import Query, Request, Response, json, text
from emberq.nsqd.api.argument import is_wanted
from emberq.nsqd.api.node import Node, shortest
from emberq.nsqd.metrics import MemoryStats


class StatsApi:
    """GET /stats."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def stats(self, request: Request) -> Response:
        query = request.query()
        report = take_report(self._node, query)
        if query.get("format") == "json":
            return json(render_json(report))
        return text(render_text(report))


# What is shown.


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReport:
    """The state of a node at one moment. None: not asked for, or not found."""

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


# As JSON.


JsonObject = dict[str, Any]


def render_json(report: StatsReport) -> JsonObject:
    """The whole answer."""
    shown: JsonObject = {
        "version": emberq.NSQ_VERSION,
        "health": report.health,
        "start_time": report.start_time_s,
        "topics": _json_topics(report),
    }
    if report.memory is not None:
        shown["memory"] = asdict(report.memory)
    shown["producers"] = None if report.producers is None else _clients(report.producers)
    return shown


def _json_topics(report: StatsReport) -> list[JsonObject] | None:
    if report.topics is None:
        return None
    return [_json_topic(topic, shows_clients=report.shows_clients) for topic in report.topics]


def _json_topic(topic: TopicStats, *, shows_clients: bool) -> JsonObject:
    return {
        "topic_name": topic.name,
        "channels": [_json_channel(channel, shows_clients=shows_clients) for channel in topic.channels],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _json_latency(topic.e2e),
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


def _json_channel(channel: ChannelStats, *, shows_clients: bool) -> JsonObject:
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
        "e2e_processing_latency": _json_latency(channel.e2e),
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
        "tls_negotiated_protocol_is_mutual": client.tls,  # with ALPN it always is
    }


def _unless_void(**fields: Any) -> JsonObject:
    """The fields that are neither 0 nor false nor empty."""
    return {name: value for name, value in fields.items() if value}


def _json_latency(summary: LatencySummary) -> JsonObject:
    if summary.percentiles is None:
        return {"count": summary.count, "percentiles": None}
    percentiles = [{"quantile": shortest(each.quantile), "value": each.value_ns} for each in summary.percentiles]
    return {"count": summary.count, "percentiles": percentiles}


# As text.


def render_text(report: StatsReport) -> str:
    """The whole answer."""
    return "".join(line + "\n" for line in _lines(report))


def _lines(report: StatsReport) -> Iterator[str]:
    uptime_s = max(0, report.now_s - report.start_time_s)
    yield f"nsqd v{emberq.NSQ_VERSION} (built w/python{platform.python_version()})"
    yield f"start_time {_local_time(report.start_time_s)}"
    yield f"uptime {_seconds(uptime_s)}"
    yield ""
    yield f"Health: {report.health}"
    if report.memory is not None:
        yield from _memory(report.memory)
    yield ""
    yield from _text_topics(report)
    yield ""
    yield from _producers(report)


def _memory(memory: MemoryStats) -> Iterator[str]:
    yield ""
    yield "Memory:"
    for name, value in asdict(memory).items():
        yield f"   {name:<25}\t{value}"


def _text_topics(report: StatsReport) -> Iterator[str]:
    if not report.topics:
        yield "Topics: None"
        return
    yield "Topics:"
    for topic in report.topics:
        yield ""
        yield _text_topic(topic)
        for channel in topic.channels:
            yield _text_channel(channel)
            for client in channel.clients if report.shows_clients else ():
                yield "        " + _consumer(client, report.now_s)


def _text_topic(topic: TopicStats) -> str:
    return (
        f"{'*P ' if topic.paused else '   '}[{topic.name:<15}]"
        f" depth: {topic.depth:<5} be-depth: {topic.backend_depth:<5}"
        f" msgs: {topic.message_count:<8} e2e%: {_text_latency(topic.e2e)}"
    )


def _text_channel(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.name:<25}]"
        f" depth: {channel.depth:<5} be-depth: {channel.backend_depth:<5}"
        f" inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4}"
        f" re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5}"
        f" msgs: {channel.message_count:<8} e2e%: {_text_latency(channel.e2e)}"
    )


def _consumer(client: ClientStats, now_s: int) -> str:
    return (
        f"[V2 {_identity(client):<21}] state: {client.state}"
        f" inflt: {client.in_flight_count:<4} rdy: {client.ready_count:<4}"
        f" fin: {client.finish_count:<8} re-q: {client.requeue_count:<8}"
        f" msgs: {client.message_count:<8} connected: {_connected(client, now_s)}"
    )


def _producers(report: StatsReport) -> Iterator[str]:
    if not report.producers:
        yield "Producers: None"
        return
    yield "Producers:"
    for client in report.producers:
        yield "   " + (_producer if client.pub_counts else _consumer)(client, report.now_s)


def _producer(client: ClientStats, now_s: int) -> str:
    total = sum(count for _, count in client.pub_counts)
    topics = ", ".join(f"{topic}={count}" for topic, count in client.pub_counts)
    return f"[V2 {_identity(client):<21}] msgs: {total:<8} topics: {topics} connected: {_connected(client, now_s)}"


def _identity(client: ClientStats) -> str:
    """Host, port and program. Host and program are chosen by the client, so line breaks are escaped."""
    port = client.remote_address.rpartition(":")[2] if ":" in client.remote_address else ""
    return one_line(f"{client.hostname}:{port} {client.user_agent}")


def _connected(client: ClientStats, now_s: int) -> str:
    return _seconds(max(0, now_s - client.connect_ts))


def _text_latency(summary: LatencySummary) -> str:
    return ", ".join(_short_duration(each.value_ns) for each in summary.percentiles or ())


def _short_duration(duration_ns: int) -> str:
    for unit, unit_ns in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if duration_ns > unit_ns:
            return f"{duration_ns / unit_ns:.1f}{unit}"
    return f"{duration_ns:.1f}ns"


def _seconds(duration_s: int) -> str:
    return format_duration(duration_s * NS_PER_SECOND)


def _local_time(time_s: int) -> str:
    """RFC 3339 in the zone of the machine."""
    return datetime.fromtimestamp(time_s).astimezone().isoformat().replace("+00:00", "Z")
