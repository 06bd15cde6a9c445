"""Statistics for Prometheus: how much the registry holds, and how the process itself is doing.

    # HELP nsqlookupd_topics Topics known, with or without producers.
    # TYPE nsqlookupd_topics gauge
    nsqlookupd_topics 17

There is no series for each topic: a look-up tells who produces it, and hundreds of thousands of series would drown the
rest.
"""

from __future__ import annotations

import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.loop_lag import Lag
from emberq.lookupd.registry import Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OPEN_FILES = Path("/proc/self/fd")
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What only the daemon can tell."""

    start_time_s: int
    tcp_connection_count: int
    http_connection_count: int
    lag: Lag


class Family(NamedTuple):
    """One metric: samples are labels as they are written, `{protocol="tcp"}` or nothing, and a value."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    samples: tuple[tuple[str, int | float], ...]


def render(registry: Registry, scrape: Scrape) -> bytes:
    """All families in the text format of Prometheus."""
    lines: list[str] = []
    for family in (*_registry_families(registry), *_daemon_families(scrape), *_process_families()):
        lines.append(f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n")
        lines += [f"{family.name}{labels} {value}\n" for labels, value in family.samples]
    return "".join(lines).encode()


def _gauge(name: str, meaning: str, value: float) -> Family:
    return Family(name, "gauge", meaning, (("", value),))


def _registry_families(registry: Registry) -> list[Family]:
    producers = list(registry.producers)
    tombstone_count = sum(
        registry.is_tombstoned(producer, topic) for producer in producers for topic in producer.tombstones
    )
    return [
        _gauge("nsqlookupd_topics", "Topics known, with or without producers.", registry.topic_count),
        _gauge("nsqlookupd_channels", "Channels known, of all topics.", registry.channel_count),
        _gauge("nsqlookupd_producers", "nsqds connected and identified.", len(producers)),
        _gauge(
            "nsqlookupd_active_producers",
            "nsqds heard of within the inactivity timeout.",
            len(registry.active_producers()),
        ),
        _gauge(
            "nsqlookupd_topic_registrations",
            "Topics of all nsqds, added up.",
            sum(len(producer.topics) for producer in producers),
        ),
        _gauge("nsqlookupd_tombstones", "Tombstones that hide a topic of an nsqd now.", tombstone_count),
    ]


def _daemon_families(scrape: Scrape) -> list[Family]:
    versions = f'version="{emberq.NSQ_VERSION}",emberq_version="{emberq.__version__}"'
    info = f'{{{versions},python_version="{platform.python_version()}"}}'
    connections = (
        ('{protocol="tcp"}', scrape.tcp_connection_count),
        ('{protocol="http"}', scrape.http_connection_count),
    )
    lag = scrape.lag
    return [
        Family("nsqlookupd_info", "gauge", "Versions of this nsqlookupd, as labels.", ((info, 1),)),
        _gauge("nsqlookupd_start_time_seconds", "When nsqlookupd started, Unix time.", scrape.start_time_s),
        Family("nsqlookupd_connections", "gauge", "Open connections, by protocol.", connections),
        _gauge(
            "nsqlookupd_loop_lag_seconds",
            "How late the event loop was at the latest look.",
            lag.last_ns / NS_PER_SECOND,
        ),
        _gauge(
            "nsqlookupd_loop_lag_recent_max_seconds",
            "Largest loop lag of the last minute.",
            lag.recent_max_ns / NS_PER_SECOND,
        ),
        _gauge("nsqlookupd_loop_lag_max_seconds", "Largest loop lag since the start.", lag.max_ns / NS_PER_SECOND),
    ]


def _process_families() -> list[Family]:
    """The process, under the names that all Prometheus clients give it; without /proc, what can be had."""
    families = [
        Family("process_cpu_seconds_total", "counter", "User and system CPU time.", (("", time.process_time()),)),
        _gauge("process_max_fds", "Limit of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ]
    try:
        open_file_count = sum(1 for _ in _OPEN_FILES.iterdir()) - 1  # without the one that reads the directory
        resident_bytes = int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return families
    return [
        *families,
        _gauge("process_open_fds", "Open file descriptors.", open_file_count),
        _gauge("process_resident_memory_bytes", "Resident memory.", resident_bytes),
    ]
