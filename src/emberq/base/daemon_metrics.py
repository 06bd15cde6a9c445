"""The metrics that every daemon has: which version it is, its connections, its event loop, its process.

What is about the daemon bears its name, `nsqd_loop_lag_seconds`; what is about the process has the names that all
Prometheus clients give it. A `DaemonScrape` is taken on the loop's thread; the process can be read on any.
"""

from __future__ import annotations

import platform
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.loop_lag import Lag
from emberq.base.prometheus import Family, Sample, Sampler, counter, gauge, labels, single
from emberq.base.resident import read_resident

_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonScrape:
    """A daemon at one moment, as far as only the loop's thread can tell."""

    start_time_s: int
    tcp_connection_count: int
    http_connection_count: int
    lag: Lag


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """What the system says about the process. Without /proc there is no count of open files, and it is None."""

    cpu_seconds: float
    resident_bytes: int
    open_file_count: int | None
    max_open_file_count: int


class DaemonSource(Protocol):
    """Where the samples of these families come from; a daemon's own source tells more."""

    @property
    def scrape(self) -> DaemonScrape: ...

    @property
    def process(self) -> ProcessStats: ...


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


def info_family(daemon: str) -> Family[DaemonSource]:
    """Versions."""
    return gauge(f"{daemon}_info", f"Versions of this {daemon}, as labels.", _versions)


def start_time_family(daemon: str) -> Family[DaemonSource]:
    """When it started."""
    return gauge(
        f"{daemon}_start_time_seconds",
        f"When {daemon} started, Unix time.",
        single(lambda source: source.scrape.start_time_s),
    )


def connections_family(daemon: str) -> Family[DaemonSource]:
    """Connections."""
    return gauge(f"{daemon}_connections", "Open connections, by protocol.", _connections)


def lag_families(daemon: str) -> tuple[Family[DaemonSource], ...]:
    """How late its event loop is."""
    return (
        gauge(
            f"{daemon}_loop_lag_seconds",
            "How late the event loop was at the latest look.",
            _lag(lambda lag: lag.last_ns),
        ),
        gauge(
            f"{daemon}_loop_lag_recent_max_seconds",
            "Largest loop lag of the last minute.",
            _lag(lambda lag: lag.recent_max_ns),
        ),
        gauge(f"{daemon}_loop_lag_max_seconds", "Largest loop lag since the start.", _lag(lambda lag: lag.max_ns)),
    )


def _versions(_source: DaemonSource) -> Iterator[Sample]:
    versions = {"version": emberq.NSQ_VERSION, "emberq_version": emberq.__version__}
    yield labels(**versions, python_version=platform.python_version()), 1


def _connections(source: DaemonSource) -> Iterator[Sample]:
    yield labels(protocol="tcp"), source.scrape.tcp_connection_count
    yield labels(protocol="http"), source.scrape.http_connection_count


def _lag(value_ns: Callable[[Lag], int]) -> Sampler[DaemonSource]:
    return single(lambda source: value_ns(source.scrape.lag) / NS_PER_SECOND)


def _process(value: Callable[[ProcessStats], int | float | None]) -> Sampler[DaemonSource]:
    def samples(source: DaemonSource) -> Iterator[Sample]:
        known = value(source.process)
        if known is not None:
            yield "", known

    return samples


PROCESS_FAMILIES = (
    counter("process_cpu_seconds_total", "User and system CPU time.", _process(lambda p: p.cpu_seconds)),
    gauge("process_resident_memory_bytes", "Resident memory.", _process(lambda p: p.resident_bytes)),
    gauge("process_open_fds", "Open file descriptors.", _process(lambda p: p.open_file_count)),
    gauge("process_max_fds", "Limit of open file descriptors.", _process(lambda p: p.max_open_file_count)),
)
"""The process."""
