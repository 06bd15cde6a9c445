"""Prometheus text, and the metrics that every daemon has.

    # HELP nsqd_channel_depth Messages waiting in the channel, in memory and on disk.
    # TYPE nsqd_channel_depth gauge
    nsqd_channel_depth{topic="orders",channel="billing"} 17

A daemon lists its metrics as a table of `Family`: name, type, meaning, and a function that takes the samples from a
source. The daemon decides what the source is. All families are rendered from one source, and so from one moment. Names
follow Prometheus: base units (seconds, bytes), `_total` at the end of counters.

Every daemon tells its version, its connections, its event loop and its process. Metrics of the daemon bear its name,
`nsqd_loop_lag_seconds`; those of the process have the names that all Prometheus clients give them. A `DaemonScrape` is
taken on the loop's thread; the process can be read on any.

Memory in RAM is read from /proc/self/status on Linux:

    VmHWM:     20480 kB     the peak
    VmRSS:     16384 kB     now
    RssAnon:    8192 kB     of that, without files and libraries mapped into memory
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import emberq
from emberq.base.clock import NS_PER_SECOND
from emberq.base.daemon import Lag

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, int | float]
"""Labels as they are written, `{topic="t"}` or nothing, and the value."""

Source_contra = TypeVar("Source_contra", contravariant=True)
"""What samples are taken from. A source with more attributes can stand in for one with fewer."""

Sampler = Callable[[Source_contra], Iterable[Sample]]
"""Where a family gets its samples from."""


@dataclass(frozen=True, slots=True)
class Family(Generic[Source_contra]):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: Sampler[Source_contra]


def gauge(name: str, meaning: str, samples: Sampler[Source_contra]) -> Family[Source_contra]:
    """A number that goes up and down."""
    return Family(name, "gauge", meaning, samples)


def counter(name: str, meaning: str, samples: Sampler[Source_contra]) -> Family[Source_contra]:
    """A number that only grows while the daemon runs."""
    return Family(name, "counter", meaning, samples)


def single(value: Callable[[Source_contra], int | float]) -> Sampler[Source_contra]:
    """One sample, without labels."""
    return lambda source: [("", value(source))]


def labels(**values: str) -> str:
    """Labels as they are written."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def with_labels(written: str, **more: str) -> str:
    """Labels as they are written, and more of them."""
    return f"{written[:-1]},{labels(**more)[1:]}"


def render(families: Iterable[Family[Source_contra]], source: Source_contra) -> bytes:
    """The families as Prometheus reads them, in their order."""
    return "".join(pieces(families, source)).encode()


PIECE_SAMPLES = 10
"""As many lines as take some ten microseconds to write."""


def pieces(families: Iterable[Family[Source_contra]], source: Source_contra) -> Iterator[str]:
    """The same in pieces, for daemons with very many samples."""
    for family in families:
        yield f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} {family.kind}\n"
        samples = iter(family.samples(source))
        while lines := [f"{family.name}{written} {value}\n" for written, value in islice(samples, PIECE_SAMPLES)]:
            yield "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Memory.

_STATUS = Path("/proc/self/status")
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory that is in RAM."""

    all_bytes: int
    own_bytes: int
    """Without files and libraries mapped into memory, which may be shared."""
    peak_bytes: int
    """The largest since the process started."""


def read_resident() -> Resident:
    """The process's memory now. Where there is no /proc, the peak has to stand for all three."""
    try:
        status = _STATUS.read_bytes()
    except OSError:
        peak_bytes = _peak_by_rusage()
        return Resident(all_bytes=peak_bytes, own_bytes=peak_bytes, peak_bytes=peak_bytes)
    return Resident(
        all_bytes=_status_bytes(status, b"VmRSS:"),
        own_bytes=_status_bytes(status, b"RssAnon:"),
        peak_bytes=_status_bytes(status, b"VmHWM:"),
    )


def _status_bytes(status: bytes, name: bytes) -> int:
    r"""The value of a line such as `VmRSS:\t   12345 kB`; 0 if this kernel has no such line."""
    fields = status.partition(name)[2].split(maxsplit=1)
    return int(fields[0]) * _KIB if fields else 0


def _peak_by_rusage() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIB


# The metrics that every daemon has.

_OPEN_FILES = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonScrape:
    """A daemon at one moment: what only the loop's thread can read."""

    start_time_s: int
    tcp_connection_count: int
    http_connection_count: int
    lag: Lag


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStats:
    """The process as the system sees it. Without /proc the count of open files is not known: None."""

    cpu_seconds: float
    resident_bytes: int
    open_file_count: int | None
    max_open_file_count: int


class DaemonSource(Protocol):
    """What the samples of these families are taken from; a daemon's own source has more."""

    @property
    def scrape(self) -> DaemonScrape: ...

    @property
    def process(self) -> ProcessStats: ...


def read_process() -> ProcessStats:
    """The process as it is now."""
    import resource

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
    return gauge(f"{daemon}_info", f"Versions of this {daemon}, as labels.", _versions)


def start_time_family(daemon: str) -> Family[DaemonSource]:
    return gauge(
        f"{daemon}_start_time_seconds",
        f"When {daemon} started, Unix time.",
        single(lambda source: source.scrape.start_time_s),
    )


def connections_family(daemon: str) -> Family[DaemonSource]:
    return gauge(f"{daemon}_connections", "Open connections, by protocol.", _connections)


def lag_families(daemon: str) -> tuple[Family[DaemonSource], ...]:
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
