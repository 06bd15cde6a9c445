"""Statistics for Prometheus: everything in /stats, and how the process itself is doing.

    # HELP nsqd_channel_depth Messages waiting in the channel, in memory and on disk.
    # TYPE nsqd_channel_depth gauge
    nsqd_channel_depth{topic="orders",channel="billing"} 17

`FAMILIES` is the whole of it: one line for each metric, with its type, its meaning, and where its value comes from.

Names follow Prometheus: base units (seconds, bytes), `_total` at the end of what only grows. What belongs to one
connection is summed up per channel, because a series for every client that ever connected would drown the rest. Such
sums shrink when a client leaves, so they are gauges. Percentiles are gauges too: they cover a window, and cannot be
added up.

A `Scrape` is taken on the loop's thread. Turning it into text takes a while with thousands of channels, and reading
the data folder may take long on a slow disk; `expose` does both and is meant for another thread.
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.loop_lag import Lag
from emberq.broker.latency import LatencySummary
from emberq.broker.stats import ChannelStats, ClientStats, TopicStats
from emberq.nsqd.disk_space import DiskUsage, measure
from emberq.nsqd.memory import MemoryStats, read_resident

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_USEC_PER_SECOND = 1_000_000
_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """nsqd at one moment, as far as only the loop's thread can tell."""

    start_time_s: int
    is_healthy: bool
    refuses_publishing: bool
    topics: tuple[TopicStats, ...]
    producers: tuple[ClientStats, ...]
    tcp_connection_count: int
    http_connection_count: int
    memory: MemoryStats
    lag: Lag
    min_free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """What the system says about the process. Without /proc there is no count of open files, and it is None."""

    cpu_seconds: float
    resident_bytes: int
    open_file_count: int | None
    max_open_file_count: int


def read_process() -> ProcessStats:
    """The process as it is now."""
    try:
        open_file_count = sum(1 for _ in _OPEN_FILES.iterdir()) - 1  # without the one that reads the directory
    except OSError:
        open_file_count = None
    return ProcessStats(
        cpu_seconds=time.process_time(),
        resident_bytes=read_resident().all_bytes,
        open_file_count=open_file_count,
        max_open_file_count=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def expose(scrape: Scrape, *, data_path: Path) -> bytes:
    """The answer to GET /metrics: `scrape`, and what there is to read besides. Reads the data folder."""
    try:
        disk = measure(data_path)
    except OSError:
        disk = None  # the rest is worth having all the more when the disk is sick
    return render(scrape, disk=disk, process=read_process())


def render(scrape: Scrape, *, disk: DiskUsage | None, process: ProcessStats) -> bytes:
    """All families in the text format of Prometheus."""
    source = _Source(scrape, disk, process)
    lines: list[str] = []
    for family in FAMILIES:
        lines.append(f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n")
        lines += [f"{family.name}{labels} {value}\n" for labels, value in family.samples(source)]
    return "".join(lines).encode()


Sample = tuple[str, int | float]
"""Labels as they are written, `{topic="t"}` or nothing, and the value."""

Sampler = Callable[["_Source"], Iterable[Sample]]
"""Where a family gets its samples from."""


class _Source:
    """Where samples come from; the labels of topics and channels are written once for all families."""

    def __init__(self, scrape: Scrape, disk: DiskUsage | None, process: ProcessStats) -> None:
        self.scrape = scrape
        self.disk = disk
        self.process = process
        self.topics = [(_labels(topic=topic.name), topic) for topic in scrape.topics]
        self.channels = [
            (_labels(topic=topic.name, channel=channel.name), channel)
            for topic in scrape.topics
            for channel in topic.channels
        ]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: Sampler


def _gauge(name: str, meaning: str, samples: Sampler) -> Family:
    return Family(name, "gauge", meaning, samples)


def _counter(name: str, meaning: str, samples: Sampler) -> Family:
    return Family(name, "counter", meaning, samples)


def _labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _with_label(labels: str, name: str, value: str) -> str:
    """One label more, whose value needs no escaping."""
    return f'{labels[:-1]},{name}="{value}"}}'


# Where values come from.


def _node(value: Callable[[Scrape], int | float]) -> Sampler:
    return lambda source: [("", value(source.scrape))]


def _topic(value: Callable[[TopicStats], int]) -> Sampler:
    return lambda source: [(labels, value(topic)) for labels, topic in source.topics]


def _channel(value: Callable[[ChannelStats], int]) -> Sampler:
    return lambda source: [(labels, value(channel)) for labels, channel in source.channels]


def _clients(value: Callable[[ClientStats], int]) -> Sampler:
    """The sum over the clients of each channel."""
    return _channel(lambda channel: sum(map(value, channel.clients)))


def _process(value: Callable[[ProcessStats], int | float | None]) -> Sampler:
    def samples(source: _Source) -> Iterator[Sample]:
        known = value(source.process)
        if known is not None:
            yield "", known

    return samples


def _lag(value_ns: Callable[[Lag], int]) -> Sampler:
    return _node(lambda scrape: value_ns(scrape.lag) / NS_PER_SECOND)


def _memory(value: Callable[[MemoryStats], int]) -> Sampler:
    return _node(lambda scrape: value(scrape.memory))


def _disk(value: Callable[[DiskUsage], int]) -> Sampler:
    return lambda source: [] if source.disk is None else [("", value(source.disk))]


def _info(_source: _Source) -> Iterator[Sample]:
    versions = {"version": emberq.NSQ_VERSION, "emberq_version": emberq.__version__}
    yield _labels(**versions, python_version=platform.python_version()), 1


def _connections(source: _Source) -> Iterator[Sample]:
    yield _labels(protocol="tcp"), source.scrape.tcp_connection_count
    yield _labels(protocol="http"), source.scrape.http_connection_count


def _producer_messages(source: _Source) -> Iterator[Sample]:
    totals: dict[str, int] = {}
    for producer in source.scrape.producers:
        for topic, count in producer.pub_counts:
            totals[topic] = totals.get(topic, 0) + count
    for topic in sorted(totals):
        yield _labels(topic=topic), totals[topic]


def _delivered(source: _Source) -> Iterator[Sample]:
    for labels, channel in source.channels:
        yield _with_label(labels, "locality", "zone"), channel.zone_local_msg_count
        yield _with_label(labels, "locality", "region"), channel.region_local_msg_count
        yield _with_label(labels, "locality", "global"), channel.global_msg_count


def _client_features(source: _Source) -> Iterator[Sample]:
    for labels, channel in source.channels:
        clients = channel.clients
        yield _with_label(labels, "feature", "tls"), sum(client.tls for client in clients)
        yield _with_label(labels, "feature", "snappy"), sum(client.snappy for client in clients)
        yield _with_label(labels, "feature", "deflate"), sum(client.deflate for client in clients)
        yield _with_label(labels, "feature", "sampling"), sum(client.sample_rate > 0 for client in clients)


def _topic_latency(source: _Source) -> Iterator[Sample]:
    for labels, topic in source.topics:
        yield from _percentiles(labels, topic.e2e)


def _channel_latency(source: _Source) -> Iterator[Sample]:
    for labels, channel in source.channels:
        yield from _percentiles(labels, channel.e2e)


def _percentiles(labels: str, summary: LatencySummary) -> Iterator[Sample]:
    if summary.count:  # a latency of 0 would be a lie
        for percentile in summary.percentiles or ():
            yield _with_label(labels, "quantile", f"{percentile.quantile:g}"), percentile.value_ns / NS_PER_SECOND


def _gc_pauses(source: _Source) -> Iterator[Sample]:
    memory = source.scrape.memory
    yield _labels(quantile="1"), memory.gc_pause_usec_100 / _USEC_PER_SECOND
    yield _labels(quantile="0.99"), memory.gc_pause_usec_99 / _USEC_PER_SECOND
    yield _labels(quantile="0.95"), memory.gc_pause_usec_95 / _USEC_PER_SECOND


_LATENCY = "Time from publish to finish, percentiles over the configured window."
_LATENCY_MESSAGES = "Messages in the window that the latency percentiles cover."

FAMILIES = (
    # The node.
    _gauge("nsqd_info", "Versions of this nsqd, as labels.", _info),
    _gauge("nsqd_start_time_seconds", "When nsqd started, Unix time.", _node(lambda s: s.start_time_s)),
    _gauge("nsqd_healthy", "1 while /ping answers OK, else 0.", _node(lambda s: int(s.is_healthy))),
    _gauge(
        "nsqd_publishing_refused",
        "1 while publishing is refused for want of disk space, else 0.",
        _node(lambda s: int(s.refuses_publishing)),
    ),
    _gauge("nsqd_connections", "Open connections, by protocol.", _connections),
    _gauge("nsqd_producers", "Open connections that have published.", _node(lambda s: len(s.producers))),
    _gauge("nsqd_producer_messages", "Messages published by connections still open.", _producer_messages),
    # Topics.
    _gauge("nsqd_topic_channels", "Channels of the topic.", _topic(lambda t: len(t.channels))),
    _gauge("nsqd_topic_depth", "Messages waiting in the topic for a channel.", _topic(lambda t: t.depth)),
    _gauge("nsqd_topic_backend_depth", "Messages waiting in the topic, on disk.", _topic(lambda t: t.backend_depth)),
    _counter("nsqd_topic_messages_total", "Messages published.", _topic(lambda t: t.message_count)),
    _counter("nsqd_topic_message_bytes_total", "Bytes of bodies published.", _topic(lambda t: t.message_bytes)),
    _gauge("nsqd_topic_paused", "1 while the topic is paused, else 0.", _topic(lambda t: int(t.paused))),
    _gauge("nsqd_topic_e2e_latency_seconds", _LATENCY, _topic_latency),
    _gauge("nsqd_topic_e2e_latency_messages", _LATENCY_MESSAGES, _topic(lambda t: t.e2e.count)),
    # Channels.
    _gauge(
        "nsqd_channel_depth", "Messages waiting in the channel, in memory and on disk.", _channel(lambda c: c.depth)
    ),
    _gauge(
        "nsqd_channel_backend_depth", "Messages waiting in the channel, on disk.", _channel(lambda c: c.backend_depth)
    ),
    _gauge("nsqd_channel_in_flight", "Messages delivered and not answered.", _channel(lambda c: c.in_flight_count)),
    _gauge("nsqd_channel_deferred", "Messages held back until they are due.", _channel(lambda c: c.deferred_count)),
    _counter("nsqd_channel_messages_total", "Messages put into the channel.", _channel(lambda c: c.message_count)),
    _counter("nsqd_channel_requeued_total", "Messages returned by consumers.", _channel(lambda c: c.requeue_count)),
    _counter("nsqd_channel_timed_out_total", "Messages not answered in time.", _channel(lambda c: c.timeout_count)),
    _counter("nsqd_channel_delivered_from_memory_total", "Deliveries not from disk, by nearness.", _delivered),
    _gauge("nsqd_channel_paused", "1 while the channel is paused, else 0.", _channel(lambda c: int(c.paused))),
    _gauge("nsqd_channel_e2e_latency_seconds", _LATENCY, _channel_latency),
    _gauge("nsqd_channel_e2e_latency_messages", _LATENCY_MESSAGES, _channel(lambda c: c.e2e.count)),
    # The clients connected to a channel, summed up.
    _gauge("nsqd_channel_clients", "Consumers connected.", _channel(lambda c: c.client_count)),
    _gauge("nsqd_channel_client_features", "Consumers connected that use a feature.", _client_features),
    _gauge("nsqd_channel_client_ready", "Sum of the consumers' RDY counts.", _clients(lambda c: c.ready_count)),
    _gauge(
        "nsqd_channel_client_in_flight", "Messages held by consumers connected.", _clients(lambda c: c.in_flight_count)
    ),
    _gauge(
        "nsqd_channel_client_messages",
        "Messages delivered to consumers connected.",
        _clients(lambda c: c.message_count),
    ),
    _gauge(
        "nsqd_channel_client_finished", "Messages finished by consumers connected.", _clients(lambda c: c.finish_count)
    ),
    _gauge(
        "nsqd_channel_client_requeued", "Messages returned by consumers connected.", _clients(lambda c: c.requeue_count)
    ),
    # The event loop.
    _gauge("nsqd_loop_lag_seconds", "How late the event loop was at the latest look.", _lag(lambda lag: lag.last_ns)),
    _gauge(
        "nsqd_loop_lag_recent_max_seconds", "Largest loop lag of the last minute.", _lag(lambda lag: lag.recent_max_ns)
    ),
    _gauge("nsqd_loop_lag_max_seconds", "Largest loop lag since the start.", _lag(lambda lag: lag.max_ns)),
    # The disk.
    _gauge("nsqd_disk_free_bytes", "Free on the data folder's file system.", _disk(lambda d: d.free_bytes)),
    _gauge("nsqd_disk_size_bytes", "Size of the data folder's file system.", _disk(lambda d: d.total_bytes)),
    _gauge("nsqd_disk_min_free_bytes", "Publishing is refused below this.", _node(lambda s: s.min_free_bytes)),
    _gauge("nsqd_data_bytes", "Size of the files in the data folder.", _disk(lambda d: d.data_bytes)),
    # Memory.
    _gauge("nsqd_memory_objects", "Blocks of memory used by Python.", _memory(lambda m: m.heap_objects)),
    _gauge("nsqd_memory_in_use_bytes", "Resident memory, not shared.", _memory(lambda m: m.heap_in_use_bytes)),
    _gauge("nsqd_memory_released_bytes", "Resident memory below its peak.", _memory(lambda m: m.heap_released_bytes)),
    _counter("nsqd_gc_runs_total", "Runs of the cyclic garbage collector.", _memory(lambda m: m.gc_total_runs)),
    _gauge("nsqd_gc_pause_seconds", "Pauses by the cyclic garbage collector, percentiles.", _gc_pauses),
    # The process, under the names that all Prometheus clients give it.
    _counter("process_cpu_seconds_total", "User and system CPU time.", _process(lambda p: p.cpu_seconds)),
    _gauge("process_resident_memory_bytes", "Resident memory.", _process(lambda p: p.resident_bytes)),
    _gauge("process_open_fds", "Open file descriptors.", _process(lambda p: p.open_file_count)),
    _gauge("process_max_fds", "Limit of open file descriptors.", _process(lambda p: p.max_open_file_count)),
)
"""Every metric there is, in the order they are written."""
