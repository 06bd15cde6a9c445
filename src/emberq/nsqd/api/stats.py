"""GET /stats: JSON for programs with `format=json`, text for people otherwise.

Both are made from one `StatsReport`, so that they cannot differ in what they show. They are made in pieces: the answer
of a large node is assembled while other connections are served. (So there are generator functions here, and no
generator expressions: a compiled module makes lists of those.) Parameters choose what is in it:

    topic, channel    only those of this name; an empty name is no filter
    include_clients   false or 0 leaves out who is connected
    include_mem       false or 0 leaves out memory

A topic filter that finds nothing answers with no list at all; a channel filter drops the topics that lack it. Producers
are connections, not parts of a topic: the filter leaves them in place and narrows what each is said to have published.

JSON uses the reference's keys in the reference's order. Some keys are left out when they are empty: the counts by
locality, a client's identity, and what it published. A list that was not asked for is null. Some keys are not NSQ's: a
journaled topic has `is_journaled` and `journal`, whose `problem` says why it takes no messages; a channel with a
dead-letter policy has `policy`; a channel that messages have left for another topic has `dead_letter_count` or
`redriven_count`. Where limits are set, a topic has `refused_count`, and topics and channels have `dropped_count` and
`expired_count`, if these are not 0. Where messages wait, `oldest_age_ms` says how long ago the one that is next in line
was published; it is left out if that is not known, as for a disk queue of an earlier run that was not read yet.

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
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import emberq
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.base.text import format_duration, one_line
from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.broker.stats import ChannelStats, ClientStats, JournalStats, LatencySummary, TopicStats
from emberq.broker.topic import Topic
from emberq.http.body import Assembly
from emberq.http.message import Query, Request, Response, json_answer, json_text, text
from emberq.nsqd.api.argument import is_wanted
from emberq.nsqd.api.node import Node, shortest
from emberq.nsqd.metrics import MemoryStats


class StatsApi:
    """GET /stats."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._assembly = Assembly(node.clock)
        self._memory = RecentMemory(node)

    def stats(self, request: Request) -> Response | Awaitable[Response]:
        query = request.query()
        report = take_report(self._node, query, self._memory)
        if query.get("format") == "json":
            return self._assembly.make(json_pieces(report), json_answer)
        return self._assembly.make(text_pieces(report), text)


MEMORY_AGE_NS = 100 * NS_PER_MS
"""How old the figures of memory may be. To read them takes longer than to make the rest of a short answer."""


class RecentMemory:
    """The memory of the process, as it was at most MEMORY_AGE_NS ago."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stats = MemoryStats()
        self._read_at_ns = -MEMORY_AGE_NS

    def stats(self) -> MemoryStats:
        now_ns = self._node.clock.monotonic_ns()
        if now_ns - self._read_at_ns >= MEMORY_AGE_NS:
            self._stats = self._node.memory.stats()
            self._read_at_ns = now_ns
        return self._stats


# What is shown.


class ShownChannel(NamedTuple):
    """A channel, and its clients one by one."""

    stats: ChannelStats
    """Without clients."""
    client_count: int
    clients: Iterable[ClientStats]


class ShownTopic(NamedTuple):
    """A topic, and its channels one by one."""

    stats: TopicStats
    """Without channels."""
    channels: Iterable[ShownChannel]


@dataclass(slots=True, kw_only=True)
class StatsReport:
    """The state of a node, to be read once. None: not asked for, or not found.

    What there may be thousands of is read while it is iterated over. So a long report is of several moments, and a
    short one is of one.
    """

    health: str
    is_draining: bool = False
    start_time_s: int
    now_s: int
    topics: Iterable[ShownTopic] | None
    memory: MemoryStats | None
    producers: Iterable[ClientStats]
    shows_clients: bool


def take_report(node: Node, query: Query, memory: RecentMemory) -> StatsReport:
    """What the parameters ask for."""
    topic_name = query.get("topic") or None
    shows_clients = is_wanted(query, "include_clients")
    topics = _selected(node.broker, topic_name=topic_name)
    shown = None if topics is None else _shown_topics(node.broker, topics, query.get("channel") or None, topic_name)
    producers = node.producers() if shows_clients and topics is not None else ()
    return StatsReport(
        health=node.health(),
        is_draining=node.draining.is_on,
        start_time_s=node.start_time_s,
        now_s=node.clock.wall_ns() // NS_PER_SECOND,
        topics=shown,
        memory=memory.stats() if is_wanted(query, "include_mem") else None,
        producers=_narrowed(producers, topic_name),
        shows_clients=shows_clients,
    )


def _selected(broker: Broker, *, topic_name: str | None) -> list[Topic] | None:
    if topic_name is None:
        return broker.topics()
    topic = broker.find_topic(topic_name)
    return None if topic is None else [topic]


def _shown_topics(
    broker: Broker, topics: list[Topic], channel_name: str | None, published_to: str | None
) -> Iterator[ShownTopic]:
    for topic in topics:
        if broker.find_topic(topic.name) is not topic:
            continue  # deleted meanwhile
        if channel_name is None:
            channels = [topic.channels[name] for name in sorted(topic.channels)]
        elif (channel := topic.find_channel(channel_name)) is not None:
            channels = [channel]
        else:
            continue
        yield ShownTopic(topic.stats(with_channels=False), _shown_channels(topic, channels, published_to))


def _shown_channels(topic: Topic, channels: list[Channel], published_to: str | None) -> Iterator[ShownChannel]:
    for channel in channels:
        if topic.find_channel(channel.name) is channel:
            clients = _narrowed(channel.clients(), published_to)
            yield ShownChannel(channel.stats(with_clients=False), channel.subscriber_count, clients)


def _narrowed(clients: Iterable[ClientStats], topic_name: str | None) -> Iterator[ClientStats]:
    """The clients, with only what they published to this topic if one is named."""
    for client in clients:
        if topic_name is None:
            yield client
        else:
            counts = tuple([entry for entry in client.pub_counts if entry[0] == topic_name])
            yield replace(client, pub_counts=counts)


# As JSON.
#
# Topics and channels are written as text, because there may be many and their fields are numbers. A name needs no
# escapes: the broker admits letters, digits, `.`, `_`, `-` and `#`.


JsonObject = dict[str, Any]


def json_pieces(report: StatsReport) -> Iterator[str]:
    """The whole answer, in pieces of at most one topic, channel or client."""
    yield f'{{"version":"{emberq.NSQ_VERSION}","health":{json_text(report.health)},"start_time":{report.start_time_s}'
    if report.is_draining:
        yield ',"draining":true'
    if report.topics is None:
        yield ',"topics":null'
    else:
        yield ',"topics":['
        comma = ""
        for topic in report.topics:
            yield comma
            yield from _json_topic(topic, shows_clients=report.shows_clients)
            comma = ","
        yield "]"
    if report.memory is not None:
        yield _json_memory(report.memory)
    yield from _json_producers(report.producers)
    yield "}"


@lru_cache(maxsize=1)
def _json_memory(memory: MemoryStats) -> str:
    """Kept, because the same figures are shown until they are read again."""
    return f',"memory":{json_text(asdict(memory))}'


def _json_producers(producers: Iterable[ClientStats]) -> Iterator[str]:
    begin = ',"producers":['
    for client in producers:
        yield begin + json_text(_client(client))
        begin = ","
    yield "]" if begin == "," else ',"producers":null'


def _json_topic(topic: ShownTopic, *, shows_clients: bool) -> Iterator[str]:
    stats = topic.stats
    yield f'{{"topic_name":"{stats.name}","channels":['
    comma = ""
    for channel in topic.channels:
        yield comma + _channel_start(channel.stats, channel.client_count)
        if shows_clients:
            yield from _json_clients(channel.clients)
        else:
            yield '"clients":null'
        yield _channel_end(channel.stats)
        comma = ","
    journal = "" if stats.journal is None else f',"is_journaled":true,"journal":{json_text(_journal(stats.journal))}'
    yield (
        f'],"depth":{stats.depth},"backend_depth":{stats.backend_depth},"message_count":{stats.message_count},'
        f'"message_bytes":{stats.message_bytes},{_unless_0("refused_count", stats.refused_count)}'
        f"{_unless_0('dropped_count', stats.dropped_count)}{_unless_0('expired_count', stats.expired_count)}"
        f'"paused":{_BOOL[stats.paused]},'
        f'"e2e_processing_latency":{_json_latency(stats.e2e)}{journal}{_oldest(stats.oldest_age_ns)}}}'
    )


def _journal(journal: JournalStats) -> JsonObject:
    return {
        "first_offset": journal.first_offset,
        "next_offset": journal.next_offset,
        "synced_offset": journal.synced_offset,
        "bytes": journal.size_bytes,
        "lag": journal.lag,
        "problem": journal.problem,
    }


def _channel_start(channel: ChannelStats, client_count: int) -> str:
    """The members before `clients`."""
    return (
        f'{{"channel_name":"{channel.name}","depth":{channel.depth},"backend_depth":{channel.backend_depth},'
        f'"in_flight_count":{channel.in_flight_count},"deferred_count":{channel.deferred_count},'
        f'"message_count":{channel.message_count},{_unless_0("zone_local_msg_count", channel.zone_local_msg_count)}'
        f"{_unless_0('region_local_msg_count', channel.region_local_msg_count)}"
        f"{_unless_0('global_msg_count', channel.global_msg_count)}"
        f'"requeue_count":{channel.requeue_count},"timeout_count":{channel.timeout_count},'
        f"{_unless_0('dead_letter_count', channel.dead_letter_count)}"
        f"{_unless_0('redriven_count', channel.redriven_count)}"
        f"{_unless_0('dropped_count', channel.dropped_count)}{_unless_0('expired_count', channel.expired_count)}"
        f'"client_count":{client_count},'
    )


def _channel_end(channel: ChannelStats) -> str:
    """The members behind `clients`."""
    policy = "" if channel.policy is None else f',"policy":{json_text(asdict(channel.policy))}'
    latency, oldest = _json_latency(channel.e2e), _oldest(channel.oldest_age_ns)
    return f',"paused":{_BOOL[channel.paused]},"e2e_processing_latency":{latency}{policy}{oldest}}}'


_BOOL = ("false", "true")


def _unless_0(name: str, count: int) -> str:
    return f'"{name}":{count},' if count else ""


def _oldest(age_ns: int | None) -> str:
    return "" if age_ns is None else f',"oldest_age_ms":{age_ns // NS_PER_MS}'


def _json_latency(summary: LatencySummary) -> str:
    if summary.percentiles is None:
        return f'{{"count":{summary.count},"percentiles":null}}'
    percentiles = [{"quantile": shortest(each.quantile), "value": each.value_ns} for each in summary.percentiles]
    return json_text({"count": summary.count, "percentiles": percentiles})


def _json_clients(clients: Iterable[ClientStats]) -> Iterator[str]:
    begin = '"clients":['
    for client in clients:
        yield begin + json_text(_client(client))
        begin = ","
    yield "]" if begin == "," else '"clients":[]'


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
    """The fields that are neither false nor empty."""
    return {name: value for name, value in fields.items() if value}


# As text.


def text_pieces(report: StatsReport) -> Iterator[str]:
    """The whole answer, a line at a time."""
    for line in _lines(report):
        yield line + "\n"


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
    yield from _text_producers(report)


def _memory(memory: MemoryStats) -> Iterator[str]:
    yield ""
    yield "Memory:"
    for name, value in asdict(memory).items():
        yield f"   {name:<25}\t{value}"


def _text_topics(report: StatsReport) -> Iterator[str]:
    title = "Topics:"
    for topic in report.topics or ():
        if title:
            yield title
            title = ""
        yield ""
        yield _text_topic(topic.stats)
        if topic.stats.journal is not None and topic.stats.journal.problem is not None:
            yield f"      journal: {one_line(topic.stats.journal.problem)}"
        for channel in topic.channels:
            yield _text_channel(channel.stats)
            for client in channel.clients if report.shows_clients else ():
                yield "        " + _consumer(client, report.now_s)
    if title:
        yield f"{title} None"


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


def _text_producers(report: StatsReport) -> Iterator[str]:
    title = "Producers:"
    for client in report.producers:
        if title:
            yield title
            title = ""
        yield "   " + (_producer if client.pub_counts else _consumer)(client, report.now_s)
    if title:
        yield f"{title} None"


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
