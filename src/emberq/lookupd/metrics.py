"""Statistics for Prometheus: how much the registry holds, and how the process itself is doing.

    # HELP nsqlookupd_topics Topics known, with or without producers.
    # TYPE nsqlookupd_topics gauge
    nsqlookupd_topics 17

`FAMILIES` is the whole of it. There is no series for each topic: a look-up tells who produces it, and hundreds of
thousands of series would drown the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from emberq.base import prometheus
from emberq.base.daemon_metrics import (
    PROCESS_FAMILIES,
    DaemonScrape,
    ProcessStats,
    connections_family,
    info_family,
    lag_families,
    read_process,
    start_time_family,
)
from emberq.base.prometheus import Family, Sampler, gauge, single
from emberq.lookupd.registry import Registry

_DAEMON = "nsqlookupd"


class _Source:
    """Where samples come from."""

    def __init__(self, registry: Registry, scrape: DaemonScrape, process: ProcessStats) -> None:
        self.registry = registry
        self.scrape = scrape
        self.process = process


def render(registry: Registry, scrape: DaemonScrape) -> bytes:
    """All families in the text format of Prometheus."""
    return prometheus.render(FAMILIES, _Source(registry, scrape, read_process()))


def _registry(value: Callable[[Registry], int]) -> Sampler[_Source]:
    return single(lambda source: value(source.registry))


def _producer_count(registry: Registry) -> int:
    return sum(1 for _ in registry.producers)


def _registration_count(registry: Registry) -> int:
    return sum(len(producer.topics) for producer in registry.producers)


def _tombstone_count(registry: Registry) -> int:
    return sum(
        registry.is_tombstoned(producer, topic) for producer in registry.producers for topic in producer.tombstones
    )


FAMILIES: tuple[Family[_Source], ...] = (
    # The registry.
    gauge("nsqlookupd_topics", "Topics known, with or without producers.", _registry(lambda r: r.topic_count)),
    gauge("nsqlookupd_channels", "Channels known, of all topics.", _registry(lambda r: r.channel_count)),
    gauge("nsqlookupd_producers", "nsqds connected and identified.", _registry(_producer_count)),
    gauge(
        "nsqlookupd_active_producers",
        "nsqds heard of within the inactivity timeout.",
        _registry(lambda r: len(r.active_producers())),
    ),
    gauge("nsqlookupd_topic_registrations", "Topics of all nsqds, added up.", _registry(_registration_count)),
    gauge("nsqlookupd_tombstones", "Tombstones that hide a topic of an nsqd now.", _registry(_tombstone_count)),
    # The daemon and its process.
    info_family(_DAEMON),
    start_time_family(_DAEMON),
    connections_family(_DAEMON),
    *lag_families(_DAEMON),
    *PROCESS_FAMILIES,
)
"""Every metric there is, in the order they are written."""
