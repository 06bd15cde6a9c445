"""Figures since nsqadmin started: of the cluster, of each topic and of each channel.

Each has a ring of points, one for every --history-interval, reaching back --history-duration. All rings turn together:
they share the times, and whatever is not there at one time has a gap there. What has been gone for a whole turn is
forgotten.

    times    | 10:00:00 | 10:00:10 | 10:00:20 | …          one ring for all
    figures  | depth in_flight rate finish_rate e2e_p99 |  for each, single precision: they are drawn, not reckoned with

Memory is bounded by points x series: 360 x 4,000 x 20 bytes are 29 MB, when it is full.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from emberq.admin.rate import RateBook
from emberq.admin.view import Look, slowest_ns
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.cluster.stats import ChannelStats, TopicStats

MAX_POINTS = 2_000
MAX_SERIES = 4_000
"""Topics and channels; the history of more begins when others are forgotten."""
RECENT_COUNT = 30
"""As many as a sparkline shows."""

FIGURES = ("depth", "in_flight", "rate", "finish_rate", "e2e_p99")
_RATE = FIGURES.index("rate")
_GAP = math.nan

Name = tuple[str, str]
"""Topic and channel. A topic's own has no channel, the cluster's neither."""
CLUSTER: Name = ("", "")
Point = tuple[float, float, float, float, float]


class History:
    """Owned by the gatherer."""

    def __init__(self, *, interval_ns: int, duration_ns: int) -> None:
        self.interval_ns = interval_ns
        self._size = min(duration_ns // interval_ns, MAX_POINTS)
        self._times_ms = array("d", [0.0]) * self._size
        self._count = 0
        """Points recorded so far, of which the last `_size` are kept."""
        self._rings: dict[Name, _Ring] = {}
        self._due_ns = 0

    @property
    def is_kept(self) -> bool:
        """Whether there is a history at all."""
        return self._size > 0

    def due_ns(self) -> int:
        """When the next point should be recorded, by the monotonic clock."""
        return self._due_ns

    def record(self, look: Look, *, now_ns: int) -> None:
        """Add a point, if one is due at `now_ns` by the monotonic clock."""
        if not self.is_kept or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self.interval_ns
        slot = self._count % self._size
        self._times_ms[slot] = look.taken_ns // NS_PER_MS
        self._count += 1
        for ring in self._rings.values():
            ring.clear(slot)
        self._forget()
        for name, point in _points(look):
            ring_ = self._ring(name)
            if ring_ is not None:
                ring_.write(slot, point, turn=self._count)

    def _ring(self, name: Name) -> _Ring | None:
        ring = self._rings.get(name)
        if ring is None and len(self._rings) < MAX_SERIES:
            ring = self._rings[name] = _Ring(self._size)
        return ring

    def _forget(self) -> None:
        for name in [name for name, ring in self._rings.items() if self._count - ring.last_turn >= self._size]:
            del self._rings[name]

    def document(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """The points of a topic, a channel or the whole cluster."""
        ring = self._rings.get((topic, channel))
        points = []
        for slot in self._slots() if ring is not None else ():
            figures = ring.read(slot) if ring is not None else None
            if figures is not None:
                shown = {name: _shown(value) for name, value in zip(FIGURES, figures, strict=True)}
                points.append({"time": self._times_ms[slot] / 1000, **shown})
        return {"interval": self.interval_ns / NS_PER_SECOND, "points": points}

    def recent_rates(self) -> dict[str, Any]:
        """The last rates of every topic."""
        slots = list(self._slots())[-RECENT_COUNT:]
        return {
            "interval": self.interval_ns / NS_PER_SECOND,
            "topics": {
                topic: [_shown(ring.figure(slot, _RATE)) for slot in slots]
                for (topic, channel), ring in self._rings.items()
                if topic and not channel
            },
        }

    def _slots(self) -> Iterator[int]:
        """From the oldest point to the newest."""
        kept = min(self._count, self._size)
        return (number % self._size for number in range(self._count - kept, self._count))


class _Ring:
    """The figures of one series."""

    def __init__(self, size: int) -> None:
        self._values = array("f", [_GAP]) * (size * len(FIGURES))
        self.last_turn = 0
        """When it was last written."""

    def clear(self, slot: int) -> None:
        start = slot * len(FIGURES)
        for index in range(start, start + len(FIGURES)):
            self._values[index] = _GAP

    def write(self, slot: int, point: Point, *, turn: int) -> None:
        start = slot * len(FIGURES)
        self._values[start : start + len(FIGURES)] = array("f", point)
        self.last_turn = turn

    def read(self, slot: int) -> Iterable[float] | None:
        """The figures; None in a gap."""
        start = slot * len(FIGURES)
        values = self._values[start : start + len(FIGURES)]
        return None if math.isnan(values[0]) else values

    def figure(self, slot: int, index: int) -> float:
        return self._values[slot * len(FIGURES) + index]


def _points(look: Look) -> Iterator[tuple[Name, Point]]:
    """What is recorded of a look."""
    depth = in_flight = 0.0
    for topic in look.snapshot.topics:
        own = _topic_point(topic, look.rates)
        depth += own[0]
        in_flight += own[1]
        yield (topic.topic_name, ""), own
        for channel in topic.channels:
            yield (topic.topic_name, channel.channel_name), _channel_point(channel, look.rates)
    rates = look.rates.total()
    yield CLUSTER, (depth, in_flight, rates.came if rates else _GAP, rates.left if rates else _GAP, _GAP)


def _topic_point(topic: TopicStats, rates: RateBook) -> Point:
    """What waits in a topic waits in it or in its channels."""
    own = rates.of(topic.topic_name)
    done = [rates.of(topic.topic_name, channel.channel_name) for channel in topic.channels]
    return (
        topic.depth + sum(channel.depth for channel in topic.channels),
        sum(channel.in_flight_count for channel in topic.channels),
        own.came if own is not None else _GAP,
        sum(each.left for each in done if each is not None) if own is not None else _GAP,
        _latency(slowest_ns(topic.latency)),
    )


def _channel_point(channel: ChannelStats, rates: RateBook) -> Point:
    own = rates.of(channel.topic_name, channel.channel_name)
    return (
        channel.depth,
        channel.in_flight_count,
        own.came if own is not None else _GAP,
        own.left if own is not None else _GAP,
        _latency(slowest_ns(channel.latency)),
    )


def _latency(value_ns: int | None) -> float:
    return _GAP if value_ns is None else value_ns


def _shown(value: float) -> float | int | None:
    """A gap as null, a whole number without a point."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else round(value, 2)
