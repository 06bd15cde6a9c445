"""Statistics as text, for people: what `curl localhost:4151/stats` shows.

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

Paused topics and channels are marked `*P`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.duration import format_duration
from emberq.base.printable import one_line
from emberq.broker.latency import LatencySummary
from emberq.broker.stats import ChannelStats, ClientStats, TopicStats
from emberq.nsqd.api.stats_report import StatsReport
from emberq.nsqd.memory import MemoryStats


def render(report: StatsReport) -> str:
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
    yield from _topics(report)
    yield ""
    yield from _producers(report)


def _memory(memory: MemoryStats) -> Iterator[str]:
    yield ""
    yield "Memory:"
    for name, value in asdict(memory).items():
        yield f"   {name:<25}\t{value}"


def _topics(report: StatsReport) -> Iterator[str]:
    if not report.topics:
        yield "Topics: None"
        return
    yield "Topics:"
    for topic in report.topics:
        yield ""
        yield _topic(topic)
        for channel in topic.channels:
            yield _channel(channel)
            for client in channel.clients if report.shows_clients else ():
                yield "        " + _consumer(client, report.now_s)


def _topic(topic: TopicStats) -> str:
    return (
        f"{'*P ' if topic.paused else '   '}[{topic.name:<15}]"
        f" depth: {topic.depth:<5} be-depth: {topic.backend_depth:<5}"
        f" msgs: {topic.message_count:<8} e2e%: {_latency(topic.e2e)}"
    )


def _channel(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.name:<25}]"
        f" depth: {channel.depth:<5} be-depth: {channel.backend_depth:<5}"
        f" inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4}"
        f" re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5}"
        f" msgs: {channel.message_count:<8} e2e%: {_latency(channel.e2e)}"
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
    """Host, port and program. Host and program are what the client says they are, so they are made one line."""
    port = client.remote_address.rpartition(":")[2] if ":" in client.remote_address else ""
    return one_line(f"{client.hostname}:{port} {client.user_agent}")


def _connected(client: ClientStats, now_s: int) -> str:
    return _seconds(max(0, now_s - client.connect_ts))


def _latency(summary: LatencySummary) -> str:
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
