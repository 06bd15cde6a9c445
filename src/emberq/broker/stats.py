"""Snapshots of what the broker holds, and percentiles of latency.

A snapshot is taken at one moment and not changed.

The latency of a message is the time from publish to finish. Each channel has its percentiles over the last minutes.
Finished messages are counted in the current of two half-windows. When it is as old as half the window, the older half
is dropped and a new one begun; a question is answered from both. So an answer covers between half of the window and all
of it, and nothing has to be done while no message is finished.

Each half is a histogram with buckets that grow by a constant factor:

    bucket k counts latencies from G**k up to G**(k+1) nanoseconds,  G = 1.01 / 0.99
    it is reported as the value that is at most 1 % away from both of its ends

So every percentile is the latency of a real message, give or take 1 %. There are fewer than 2,200 buckets between a
nanosecond and 292 years, and a busy channel fills some hundred. These are the buckets of DDSketch, whose Python library
we do not use: it takes more than twice as long to record, counts in floating point and is larger than this module. The
compiled sketches (KLL, t-digest) record one message at a time or promise no bound on the error of a value; here a whole
batch that was published together and finished together is one addition.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from emberq.base.clock import Clock
from emberq.storage.data_folder import ChannelPolicy

RELATIVE_ERROR = 0.01

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BUCKETS_PER_E = 1 / math.log(_GROWTH)
_MIDDLE = 2 * _GROWTH / (1 + _GROWTH)
"""From the lower end of a bucket to the value it is reported as."""

_log = math.log


# Latency.


@dataclass(frozen=True, slots=True)
class Percentile:
    """The share `quantile` (up to 1) of the messages was finished within `value_ns`."""

    quantile: float
    value_ns: int


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """How many messages were finished in the window, and how long they took."""

    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None
    """In the order they were configured; None when no percentile is."""


NO_LATENCY = LatencySummary()
"""The summary where no percentile is configured."""


class Histogram:
    """Latencies, counted by size. Owned by its creator."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many latencies were recorded."""
        self._counts: dict[int, int] = {}

    def record(self, latency_ns: int, count: int) -> None:
        """`count` messages took this long. Less than a nanosecond (the clock was set back) counts as one."""
        bucket = int(_log(latency_ns) * _BUCKETS_PER_E) if latency_ns > 0 else 0
        counts = self._counts
        counts[bucket] = counts.get(bucket, 0) + count
        self.count += count

    def add(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        counts = self._counts
        for bucket, count in other._counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        self.count += other.count

    def values_at(self, quantiles: Sequence[float]) -> list[int]:
        """The latency at each quantile; 0 when nothing was recorded."""
        if not self.count:
            return [0] * len(quantiles)
        buckets = sorted(self._counts)
        totals = list(accumulate(self._counts[bucket] for bucket in buckets))
        positions = [bisect_left(totals, math.ceil(quantile * self.count)) for quantile in quantiles]
        return [round(_GROWTH ** buckets[position] * _MIDDLE) for position in positions]


class LatencyWindow:
    """The latencies of one channel. Owned by the channel."""

    __slots__ = ("_clock", "_current", "_current_ends_ns", "_half_ns", "_previous")

    def __init__(self, *, window_ns: int, clock: Clock) -> None:
        self._clock = clock
        self._half_ns = max(1, window_ns // 2)
        self._current = Histogram()
        self._previous = Histogram()
        self._current_ends_ns = clock.monotonic_ns() + self._half_ns

    def finished(self, published_ns: int, count: int = 1) -> None:
        """`count` messages that were published at this time, by the wall clock, are finished now."""
        self.record(self._clock.wall_ns() - published_ns, count)

    def record(self, latency_ns: int, count: int = 1) -> None:
        """`count` messages took this long."""
        if self._clock.monotonic_ns() >= self._current_ends_ns:
            self._drop_what_is_old()
        self._current.record(latency_ns, count)

    def add_to(self, total: Histogram) -> None:
        """Add what both halves hold to `total`."""
        self._drop_what_is_old()
        total.add(self._previous)
        total.add(self._current)

    def _drop_what_is_old(self) -> None:
        overdue_ns = self._clock.monotonic_ns() - self._current_ends_ns
        if overdue_ns < 0:
            return
        is_all_old = overdue_ns >= self._half_ns
        self._previous = Histogram() if is_all_old else self._current
        self._current = Histogram()
        self._current_ends_ns += (1 + overdue_ns // self._half_ns) * self._half_ns


@dataclass(frozen=True, slots=True)
class LatencyConfig:
    """Which percentiles to keep (none: nothing is recorded), and for how long."""

    quantiles: tuple[float, ...] = ()
    window_ns: int = 600 * 1_000_000_000

    def new_window(self, clock: Clock) -> LatencyWindow | None:
        """A window for a new channel; None when no percentile is configured, so that nothing is recorded."""
        return LatencyWindow(window_ns=self.window_ns, clock=clock) if self.quantiles else None

    def summarize(self, windows: Iterable[LatencyWindow | None]) -> LatencySummary:
        """All messages of these windows together: of one channel, or of all channels of a topic."""
        if not self.quantiles:
            return NO_LATENCY
        total = Histogram()
        for window in windows:
            if window is not None:
                window.add_to(total)
        values_ns = total.values_at(self.quantiles)
        return LatencySummary(total.count, tuple(map(Percentile, self.quantiles, values_ns)))


# Snapshots. Those of which there may be thousands are not frozen: that would make them three times as expensive. Their
# readers change nothing all the same.


@dataclass(slots=True)
class ClientStats:
    """One connection of a client."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    remote_address: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    tls: bool = False
    tls_version: str = ""
    tls_cipher_suite: str = ""
    tls_negotiated_protocol: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: tuple[tuple[str, int], ...] = ()
    """How many messages it published, by topic."""


@dataclass(slots=True)
class ChannelStats:
    name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    paused: bool
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    clients: tuple[ClientStats, ...]
    e2e: LatencySummary = NO_LATENCY
    """How long its messages took from publish to finish."""
    dead_letter_count: int = 0
    """Messages that were tried too often and went to the dead-letter topic."""
    redriven_count: int = 0
    """Messages that were moved to another topic to be tried again."""
    dropped_count: int = 0
    """Messages that were dropped because too many waited."""
    expired_count: int = 0
    """Messages that were dropped because they were too old."""
    oldest_age_ns: int | None = None
    """How long ago the oldest of the next messages was published; None if none waits, or it is not known."""
    policy: ChannelPolicy | None = None
    """After how many attempts messages are given up, and where they go; None: never."""

    @property
    def client_count(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStats:
    """The journal of one topic."""

    first_offset: int
    """The oldest message that is kept."""
    next_offset: int
    """The offset that the next message will get."""
    synced_offset: int
    """Everything before it is on the disk."""
    size_bytes: int
    lag: int
    """How many messages the channel that is furthest behind has still to finish."""
    overtaken_count: int = 0
    """Messages that went, to keep the journal within its limit, before a channel had read them; for each such channel.
    Since nsqd was started."""
    problem: str | None = None
    """Why it takes no messages; None if it does."""

    @classmethod
    def unknown(cls, *, problem: str) -> JournalStats:
        """Of a journal that cannot be opened."""
        return cls(first_offset=0, next_offset=0, synced_offset=0, size_bytes=0, lag=0, problem=problem)


@dataclass(slots=True)
class TopicStats:
    name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e: LatencySummary = NO_LATENCY
    """How long the messages of all its channels took from publish to finish."""
    journal: JournalStats | None = None
    """None if the topic is not journaled."""
    refused_count: int = 0
    """Messages that were not taken because too many waited."""
    dropped_count: int = 0
    """Messages that were dropped before a channel got them, because too many waited."""
    expired_count: int = 0
    """Messages that were dropped before a channel got them, because they were too old."""
    oldest_age_ns: int | None = None
    """Of those that wait in the topic itself, as in `ChannelStats`."""
