"""/metrics: everything in /stats for Prometheus, and how the process itself is doing.

    # HELP nsqd_channel_depth Messages waiting in the channel, in memory and on disk.
    # TYPE nsqd_channel_depth gauge
    nsqd_channel_depth{topic="orders",channel="billing"} 17

`FAMILIES` lists every metric, with its type, its meaning and where its value comes from.

Figures of single connections are summed up per channel, because a series for every client that ever connected would
drown the rest. Such sums shrink when a client leaves, so they are gauges. Percentiles are gauges too: they cover a
window, and cannot be added up.

A `Scrape` is taken in the loop's thread. Thousands of channels are read in steps (`read_topics`), so that others have
their turn, and turned into text in `pieces` for the same reason. Reading the data folder may take long on a slow disk:
`read_system` does it and belongs in another thread.

Memory. /stats and statsd have names for it that speak of Go's heap. Each shows the nearest thing that Python knows:

    heap_objects          blocks of memory that Python objects and their buffers occupy
    heap_in_use_bytes     resident memory that is the process's own (not files mapped or shared libraries)
    heap_released_bytes   how far resident memory is below its peak, that is, given back to the system
    heap_idle_bytes       the same: Python does not tell what its allocator holds and does not use
    gc_pause_usec_*       the longest, and the 99th and 95th percentile, of the last 256 runs of the cyclic collector
    next_gc_bytes         0: no run is due at a certain size
    gc_total_runs         runs of the cyclic collector
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emberq.base import metrics
from emberq.base.clock import NS_PER_SECOND
from emberq.base.metrics import (
    PROCESS_FAMILIES,
    DaemonScrape,
    Family,
    ProcessStats,
    Sample,
    Sampler,
    connections_family,
    counter,
    gauge,
    info_family,
    labels,
    lag_families,
    read_process,
    read_resident,
    single,
    start_time_family,
    with_labels,
)
from emberq.broker.broker import Broker
from emberq.broker.stats import ChannelStats, ClientStats, JournalStats, LatencySummary, TopicStats
from emberq.nsqd.health import DiskUsage, measure

_DAEMON = "nsqd"
_USEC_PER_SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape(DaemonScrape):
    """nsqd at one moment: what must be read in the loop's thread."""

    is_healthy: bool
    refuses_publishing: bool
    is_draining: bool
    topics: tuple[TopicStats, ...]
    producers: tuple[ClientStats, ...]
    memory: MemoryStats
    min_free_bytes: int


def read_topics(broker: Broker) -> Generator[None, None, tuple[TopicStats, ...]]:
    """The state of all topics, as `Broker.snapshot` gives it, in steps of a channel or a client."""
    read: list[TopicStats] = []
    for topic in broker.topics():
        channels: list[ChannelStats] = []
        for name in sorted(topic.channels):
            yield
            channel = topic.find_channel(name)
            if channel is not None:
                clients = yield from read_clients(channel.clients())
                channels.append(replace(channel.stats(with_clients=False), clients=clients))
        yield
        if broker.find_topic(topic.name) is topic:
            read.append(replace(topic.stats(with_channels=False), channels=tuple(channels)))
    return tuple(read)


def read_clients(clients: Iterator[ClientStats]) -> Generator[None, None, tuple[ClientStats, ...]]:
    """All of them, in steps of one."""
    read: list[ClientStats] = []
    for client in clients:
        read.append(client)
        yield
    return tuple(read)


def read_system(data_path: Path) -> tuple[DiskUsage | None, ProcessStats]:
    """What the system knows. Reads the data folder, so it may take long."""
    try:
        disk = measure(data_path)
    except OSError:
        disk = None  # when the disk is sick, the other metrics matter all the more
    return disk, read_process()


def pieces(scrape: Scrape, *, disk: DiskUsage | None, process: ProcessStats) -> Iterator[str]:
    """The answer to GET /metrics: all families in the text format of Prometheus."""
    source = _NsqdSource(scrape, disk, process)
    for topic in scrape.topics:
        source.topics.append((labels(topic=topic.name), topic))
        for channel in topic.channels:
            sums = ClientSums()
            for client in channel.clients:
                sums.add(client)
                yield ""
            source.channels.append((labels(topic=topic.name, channel=channel.name), channel, sums))
            yield ""
        yield ""
    yield from metrics.pieces(FAMILIES, source)


@dataclass(slots=True)
class ClientSums:
    """The clients connected to a channel, summed up."""

    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    tls: int = 0
    snappy: int = 0
    deflate: int = 0
    sampling: int = 0

    def add(self, client: ClientStats) -> None:
        self.ready_count += client.ready_count
        self.in_flight_count += client.in_flight_count
        self.message_count += client.message_count
        self.finish_count += client.finish_count
        self.requeue_count += client.requeue_count
        self.tls += client.tls
        self.snappy += client.snappy
        self.deflate += client.deflate
        self.sampling += client.sample_rate > 0


# Where values come from.


class _NsqdSource:
    """Where samples come from; the labels of topics and channels are written once for all families."""

    def __init__(self, scrape: Scrape, disk: DiskUsage | None, process: ProcessStats) -> None:
        self.scrape = scrape
        self.disk = disk
        self.process = process
        self.topics: list[tuple[str, TopicStats]] = []
        self.channels: list[tuple[str, ChannelStats, ClientSums]] = []


# Where values come from.


def _node(value: Callable[[Scrape], int | float]) -> Sampler[_NsqdSource]:
    return single(lambda source: value(source.scrape))


def _topic(value: Callable[[TopicStats], int]) -> Sampler[_NsqdSource]:
    return lambda source: ((written, value(topic)) for written, topic in source.topics)


def _journal(value: Callable[[JournalStats], int]) -> Sampler[_NsqdSource]:
    """One sample for each topic that has a journal."""
    return lambda source: (
        (written, value(topic.journal)) for written, topic in source.topics if topic.journal is not None
    )


def _channel(value: Callable[[ChannelStats], int]) -> Sampler[_NsqdSource]:
    return lambda source: ((written, value(channel)) for written, channel, _ in source.channels)


def _clients(value: Callable[[ClientSums], int]) -> Sampler[_NsqdSource]:
    """A sum over the clients of each channel."""
    return lambda source: ((written, value(sums)) for written, _, sums in source.channels)


def _memory(value: Callable[[MemoryStats], int]) -> Sampler[_NsqdSource]:
    return _node(lambda scrape: value(scrape.memory))


def _disk(value: Callable[[DiskUsage], int]) -> Sampler[_NsqdSource]:
    return lambda source: [] if source.disk is None else [("", value(source.disk))]


def _producer_messages(source: _NsqdSource) -> Iterator[Sample]:
    totals: dict[str, int] = {}
    for producer in source.scrape.producers:
        for topic, count in producer.pub_counts:
            totals[topic] = totals.get(topic, 0) + count
    for topic in sorted(totals):
        yield labels(topic=topic), totals[topic]


def _delivered(source: _NsqdSource) -> Iterator[Sample]:
    for written, channel, _ in source.channels:
        yield with_labels(written, locality="zone"), channel.zone_local_msg_count
        yield with_labels(written, locality="region"), channel.region_local_msg_count
        yield with_labels(written, locality="global"), channel.global_msg_count


def _client_features(source: _NsqdSource) -> Iterator[Sample]:
    for written, _, sums in source.channels:
        yield with_labels(written, feature="tls"), sums.tls
        yield with_labels(written, feature="snappy"), sums.snappy
        yield with_labels(written, feature="deflate"), sums.deflate
        yield with_labels(written, feature="sampling"), sums.sampling


def _topic_latency(source: _NsqdSource) -> Iterator[Sample]:
    for written, topic in source.topics:
        yield from _percentiles(written, topic.e2e)


def _channel_latency(source: _NsqdSource) -> Iterator[Sample]:
    for written, channel, _ in source.channels:
        yield from _percentiles(written, channel.e2e)


def _oldest_age(source: _NsqdSource) -> Iterator[Sample]:
    for written, channel, _ in source.channels:
        if channel.oldest_age_ns is not None:
            yield written, channel.oldest_age_ns / NS_PER_SECOND


def _percentiles(written: str, summary: LatencySummary) -> Iterator[Sample]:
    if summary.count:  # a latency of 0 would be a lie
        for percentile in summary.percentiles or ():
            yield with_labels(written, quantile=f"{percentile.quantile:g}"), percentile.value_ns / NS_PER_SECOND


def _gc_pauses(source: _NsqdSource) -> Iterator[Sample]:
    memory = source.scrape.memory
    yield labels(quantile="1"), memory.gc_pause_usec_100 / _USEC_PER_SECOND
    yield labels(quantile="0.99"), memory.gc_pause_usec_99 / _USEC_PER_SECOND
    yield labels(quantile="0.95"), memory.gc_pause_usec_95 / _USEC_PER_SECOND


# The metrics.

_LATENCY = "Time from publish to finish, percentiles over the configured window."
_LATENCY_MESSAGES = "Messages in the window that the latency percentiles cover."
FAMILIES: tuple[Family[_NsqdSource], ...] = (
    # The node.
    info_family(_DAEMON),
    start_time_family(_DAEMON),
    gauge("nsqd_healthy", "1 while /ping answers OK, else 0.", _node(lambda s: int(s.is_healthy))),
    gauge(
        "nsqd_publishing_refused",
        "1 while publishing is refused, for want of disk space or because of a drain, else 0.",
        _node(lambda s: int(s.refuses_publishing)),
    ),
    gauge("nsqd_draining", "1 while nsqd is being drained, else 0.", _node(lambda s: int(s.is_draining))),
    connections_family(_DAEMON),
    gauge("nsqd_producers", "Open connections that have published.", _node(lambda s: len(s.producers))),
    gauge("nsqd_producer_messages", "Messages published by connections still open.", _producer_messages),
    # Topics.
    gauge("nsqd_topic_channels", "Channels of the topic.", _topic(lambda t: len(t.channels))),
    gauge("nsqd_topic_depth", "Messages waiting in the topic for a channel.", _topic(lambda t: t.depth)),
    gauge("nsqd_topic_backend_depth", "Messages waiting in the topic, on disk.", _topic(lambda t: t.backend_depth)),
    counter("nsqd_topic_messages_total", "Messages published.", _topic(lambda t: t.message_count)),
    counter("nsqd_topic_message_bytes_total", "Bytes of bodies published.", _topic(lambda t: t.message_bytes)),
    counter(
        "nsqd_topic_refused_total",
        "Messages refused because too many waited (--topic-limit).",
        _topic(lambda t: t.refused_count),
    ),
    counter(
        "nsqd_topic_dropped_total",
        "Messages dropped before a channel got them, because too many waited.",
        _topic(lambda t: t.dropped_count),
    ),
    counter(
        "nsqd_topic_expired_total",
        "Messages dropped before a channel got them, because they were too old.",
        _topic(lambda t: t.expired_count),
    ),
    gauge("nsqd_topic_paused", "1 while the topic is paused, else 0.", _topic(lambda t: int(t.paused))),
    gauge("nsqd_topic_e2e_latency_seconds", _LATENCY, _topic_latency),
    gauge("nsqd_topic_e2e_latency_messages", _LATENCY_MESSAGES, _topic(lambda t: t.e2e.count)),
    # Journals.
    gauge("nsqd_topic_journal_bytes", "Size of the topic's journal.", _journal(lambda j: j.size_bytes)),
    gauge("nsqd_topic_journal_first_offset", "Oldest message that is kept.", _journal(lambda j: j.first_offset)),
    gauge("nsqd_topic_journal_next_offset", "Offset of the next message.", _journal(lambda j: j.next_offset)),
    gauge("nsqd_topic_journal_synced_offset", "Messages before it are on disk.", _journal(lambda j: j.synced_offset)),
    counter(
        "nsqd_topic_journal_overtaken_messages_total",
        "Messages removed by --journal-max-bytes before a channel had read them.",
        _journal(lambda j: j.overtaken_count),
    ),
    gauge("nsqd_topic_journal_lag", "Messages the slowest channel has to finish.", _journal(lambda j: j.lag)),
    gauge(
        "nsqd_topic_journal_healthy",
        "1 while the topic's journal takes messages, else 0.",
        _journal(lambda j: int(j.problem is None)),
    ),
    # Channels.
    gauge("nsqd_channel_depth", "Messages waiting in the channel, in memory and on disk.", _channel(lambda c: c.depth)),
    gauge(
        "nsqd_channel_backend_depth", "Messages waiting in the channel, on disk.", _channel(lambda c: c.backend_depth)
    ),
    gauge("nsqd_channel_in_flight", "Messages delivered and not answered.", _channel(lambda c: c.in_flight_count)),
    gauge("nsqd_channel_deferred", "Messages held back until they are due.", _channel(lambda c: c.deferred_count)),
    gauge(
        "nsqd_channel_oldest_message_age_seconds",
        "How long ago the message that is next in line was published, where one waits and that is known.",
        _oldest_age,
    ),
    counter("nsqd_channel_messages_total", "Messages put into the channel.", _channel(lambda c: c.message_count)),
    counter("nsqd_channel_requeued_total", "Messages returned by consumers.", _channel(lambda c: c.requeue_count)),
    counter("nsqd_channel_timed_out_total", "Messages not answered in time.", _channel(lambda c: c.timeout_count)),
    counter(
        "nsqd_channel_dead_letters_total",
        "Messages tried too often, moved to the dead-letter topic.",
        _channel(lambda c: c.dead_letter_count),
    ),
    counter(
        "nsqd_channel_redriven_total",
        "Messages moved to another topic to be tried again.",
        _channel(lambda c: c.redriven_count),
    ),
    counter(
        "nsqd_channel_dropped_total",
        "Messages dropped because too many waited (--topic-limit).",
        _channel(lambda c: c.dropped_count),
    ),
    counter(
        "nsqd_channel_expired_total",
        "Messages dropped because they were too old (--topic-limit).",
        _channel(lambda c: c.expired_count),
    ),
    counter("nsqd_channel_delivered_from_memory_total", "Deliveries not from disk, by nearness.", _delivered),
    gauge("nsqd_channel_paused", "1 while the channel is paused, else 0.", _channel(lambda c: int(c.paused))),
    gauge("nsqd_channel_e2e_latency_seconds", _LATENCY, _channel_latency),
    gauge("nsqd_channel_e2e_latency_messages", _LATENCY_MESSAGES, _channel(lambda c: c.e2e.count)),
    # The clients connected to a channel, summed up.
    gauge("nsqd_channel_clients", "Consumers connected.", _channel(lambda c: c.client_count)),
    gauge("nsqd_channel_client_features", "Consumers connected that use a feature.", _client_features),
    gauge("nsqd_channel_client_ready", "Sum of the consumers' RDY counts.", _clients(lambda c: c.ready_count)),
    gauge(
        "nsqd_channel_client_in_flight", "Messages held by consumers connected.", _clients(lambda c: c.in_flight_count)
    ),
    gauge(
        "nsqd_channel_client_messages",
        "Messages delivered to consumers connected.",
        _clients(lambda c: c.message_count),
    ),
    gauge(
        "nsqd_channel_client_finished", "Messages finished by consumers connected.", _clients(lambda c: c.finish_count)
    ),
    gauge(
        "nsqd_channel_client_requeued", "Messages returned by consumers connected.", _clients(lambda c: c.requeue_count)
    ),
    # The event loop.
    *lag_families(_DAEMON),
    # The disk.
    gauge("nsqd_disk_free_bytes", "Free on the data folder's file system.", _disk(lambda d: d.free_bytes)),
    gauge("nsqd_disk_size_bytes", "Size of the data folder's file system.", _disk(lambda d: d.total_bytes)),
    gauge("nsqd_disk_min_free_bytes", "Publishing is refused below this.", _node(lambda s: s.min_free_bytes)),
    gauge("nsqd_data_bytes", "Size of the files in the data folder.", _disk(lambda d: d.data_bytes)),
    # Memory.
    gauge("nsqd_memory_objects", "Blocks of memory used by Python.", _memory(lambda m: m.heap_objects)),
    gauge("nsqd_memory_in_use_bytes", "Resident memory, not shared.", _memory(lambda m: m.heap_in_use_bytes)),
    gauge("nsqd_memory_released_bytes", "Resident memory below its peak.", _memory(lambda m: m.heap_released_bytes)),
    counter("nsqd_gc_runs_total", "Runs of the cyclic garbage collector.", _memory(lambda m: m.gc_total_runs)),
    gauge("nsqd_gc_pause_seconds", "Pauses by the cyclic garbage collector, percentiles.", _gc_pauses),
    # The process.
    *PROCESS_FAMILIES,
)
"""Every metric there is, in the order they are written."""


# Memory, under the names of /stats.

KEPT_PAUSES = 256
"""As many as the reference keeps."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """The fields are the keys of `memory` in /stats, in their order; statsd calls the last one `gc_runs`."""

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


class Memory:
    """Times the runs of the collector from `start` to `stop`; `stats` works at any time. Owned by the daemon."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=KEPT_PAUSES)
        self._run_began_ns = 0

    def start(self) -> None:
        gc.callbacks.append(self._on_collector)

    def stop(self) -> None:
        if self._on_collector in gc.callbacks:
            gc.callbacks.remove(self._on_collector)

    def _on_collector(self, phase: str, _info: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._run_began_ns = now_ns
        else:
            self._pauses_ns.append(now_ns - self._run_began_ns)

    def stats(self) -> MemoryStats:
        """The memory of the process now."""
        resident = read_resident()
        released_bytes = max(0, resident.peak_bytes - resident.all_bytes)
        pauses_ns = sorted(self._pauses_ns)
        return MemoryStats(
            heap_objects=sys.getallocatedblocks(),
            heap_idle_bytes=released_bytes,
            heap_in_use_bytes=resident.own_bytes,
            heap_released_bytes=released_bytes,
            gc_pause_usec_100=pause_usec(pauses_ns, percentile=100),
            gc_pause_usec_99=pause_usec(pauses_ns, percentile=99),
            gc_pause_usec_95=pause_usec(pauses_ns, percentile=95),
            gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
        )


def pause_usec(sorted_pauses_ns: Sequence[int], *, percentile: int) -> int:
    """A percentile of the pauses, chosen by the reference's rule."""
    count = len(sorted_pauses_ns)
    if not count:
        return 0
    index = int(percentile / 100 * count + 0.5)
    return sorted_pauses_ns[min(index, count - 1)] // 1000
