"""Figures of the last hour or so: of the cluster, of each topic and channel, and of each node.

Each has a ring of points, one for every --history-interval, reaching back --history-duration. All rings turn together:
they share the times, and whatever is not there at one time has a gap there. What has been gone for a whole turn is
forgotten.

    times    | 10:00:00 | 10:00:10 | 10:00:20 | …     one ring for all
    figures  | depth in_flight rate in_rate … |       for each, single precision: they are drawn, not reckoned with

    rate               messages published to a topic, or that came to a channel
    in_rate            the same as copies, one for each channel (see `survey` on flows), in the unit of
    finish_rate        copies that consumers finished, or that were thrown away
    dead_letter_rate   copies that were given up
    requeue_rate       deliveries that failed: given back by the consumer, or timed out

A rate is the mean since the point before, however often nsqadmin looked meanwhile. That of the last look alone would be
one of two seconds while a browser looks and of ten while none does: a line of both has spikes that never were.

A look that lacks a silent node (see `absence`) is a gap in all sums that the node has a part in: a line that falls and
rises again would tell of messages that were never worked off.

With a store (`history_store`) every point goes there, too. What the rings do not hold any more, or not yet after a
restart, is read from it.

Memory is bounded by points x series: 360 x (4,000 x 32 + 500 x 40) bytes are 53 MB, when it is full.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from emberq.admin.history_store import HistoryStore, SeriesKind
from emberq.admin.view import Look, slowest_ns
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.cluster.survey import Rates, Survey, Total, flow_of

MAX_POINTS = 2_000
MAX_SERIES = 4_000
"""Topics and channels; the history of more begins when others are forgotten."""
MAX_NODES = 500
"""The same for nodes."""
RECENT_COUNT = 30
"""As many as a sparkline shows."""
_EARLY_PART = 8
"""A look that is early by this part of the interval makes the next point: looks take now longer, now less long."""
_MEAN_COUNT = 3
"""As many as tell where a backlog goes: half a minute."""

RATE_FIGURES = ("rate", "in_rate", "finish_rate", "dead_letter_rate", "requeue_rate")
FIGURES = ("depth", "in_flight", *RATE_FIGURES, "e2e_p99")
_DEPTH = FIGURES.index("depth")
_RATE = FIGURES.index("rate")
_IN = FIGURES.index("in_rate")
MEMORY_FIGURES = ("heap_in_use_bytes", "heap_idle_bytes", "heap_released_bytes", "gc_pause_usec_100")
NODE_FIGURES = ("depth", *RATE_FIGURES, *MEMORY_FIGURES)
SERIES = SeriesKind(0, FIGURES)
NODES = SeriesKind(1, NODE_FIGURES)
_GAP = math.nan

Name = tuple[str, str]
"""Topic and channel. A topic's own has no channel, the cluster's neither; a node's is its address, without channel."""
CLUSTER: Name = ("", "")
Point = tuple[float, ...]


class History:
    """All series. Owned by the gatherer."""

    def __init__(self, *, interval_ns: int, duration_ns: int, store: HistoryStore | None = None) -> None:
        self.interval_ns = interval_ns
        self._store = store
        self._size = min(duration_ns // interval_ns, MAX_POINTS)
        self._times_ms = array("d", [0.0]) * self._size
        self.point_count = 0
        """Points recorded so far, of which the last `_size` are kept."""
        self._series = _Rings(FIGURES, self._size)
        self._nodes = _Rings(NODE_FIGURES, self._size)
        self._due_ns = 0
        self._means = _Means()
        self._recent_flows: dict[Name, Rates | None] = {}
        """What was reckoned since the last point was recorded: every look asks for that of every channel."""

    @property
    def is_kept(self) -> bool:
        """Whether there is a history at all."""
        return self._size > 0

    def record(self, look: Look, *, now_ns: int) -> None:
        """Add a point, if one is due at `now_ns` by the monotonic clock."""
        if not self.is_kept:
            return
        self._means.add(look.survey)
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + self.interval_ns - self.interval_ns // _EARLY_PART
        slot = self.point_count % self._size
        self._times_ms[slot] = look.taken_ns // NS_PER_MS
        self.point_count += 1
        means, self._means = self._means, _Means()
        points, node_points = list(_points(look, means)), list(_node_points(look, means))
        self._series.record(points, slot=slot, turn=self.point_count, max_count=MAX_SERIES)
        self._nodes.record(node_points, slot=slot, turn=self.point_count, max_count=MAX_NODES)
        self._recent_flows = {}  # another one: a thread may be at work with the old
        if self._store is not None:
            kept = ((SERIES, points[:MAX_SERIES]), (NODES, node_points[:MAX_NODES]))
            time_ms = self._times_ms[slot]
            self._store.add(time_ms, [(kind.number, name, point) for kind, of_kind in kept for name, point in of_kind])

    def document(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """The points of a topic, a channel or the whole cluster."""
        return self._points_of(self._series, (topic, channel))

    def node_document(self, node: str) -> dict[str, Any]:
        """The points of a node: what it has to do, and its memory."""
        return self._points_of(self._nodes, (node, ""))

    @property
    def reach_s(self) -> float:
        """How far the rings reach back."""
        return self._size * self.interval_ns / NS_PER_SECOND

    async def recalled(
        self, topic: str = "", channel: str = "", *, node: str = "", range_s: float | None = None, now_s: float
    ) -> dict[str, Any]:
        """The points of a topic, a channel, the cluster or a node over the last `range_s`, of rings and store together.

        Without a range it is what the rings hold, or would hold if nsqadmin had been there all the time.
        """
        kind, name = (NODES, (node, "")) if node else (SERIES, (topic, channel))
        document = self._points_of(self._nodes if node else self._series, name)
        since_s = now_s - (self.reach_s if range_s is None else range_s)
        recent = [point for point in document["points"] if point["time"] >= since_s]
        if self._store is None:
            return document | {"points": recent}
        if range_s is None or range_s <= self.reach_s:
            # The step in which the rings begin is told by both; its stored part comes right before theirs.
            until_s = recent[0]["time"] - document["interval"] / 2 if recent else now_s
            _, stored = await self._store.points(kind.number, name, since_s=since_s, until_s=until_s, now_s=now_s)
            return document | {"points": [*(_point(kind, time_s, point) for time_s, point in stored), *recent]}
        level, stored = await self._store.points(kind.number, name, since_s=since_s, until_s=now_s, now_s=now_s)
        points = [_point(kind, time_s, point) for time_s, point in stored]
        newest = recent[-1:] if recent and (not points or recent[-1]["time"] > points[-1]["time"]) else []
        return {"interval": float(level.step_s), "points": points + newest}

    def _points_of(self, rings: _Rings, name: Name) -> dict[str, Any]:
        ring = rings.by_name.get(name)
        points = []
        for slot in self._slots():
            figures = ring.read(slot) if ring is not None else None
            if figures is not None:
                shown = {figure: _shown(value) for figure, value in zip(rings.figures, figures, strict=True)}
                points.append({"time": self._times_ms[slot] / 1000, **shown})
        return {"interval": self.interval_ns / NS_PER_SECOND, "points": points}

    def recent_rates(self) -> dict[str, Any]:
        """The last rates of every topic."""
        slots = self._latest_slots(RECENT_COUNT)
        return {
            "interval": self.interval_ns / NS_PER_SECOND,
            "topics": {
                topic: [_shown(ring.figure(slot, _RATE)) for slot in slots]
                for (topic, channel), ring in self._series.by_name.items()
                if topic and not channel
            },
        }

    def recent_depths(self) -> dict[str, Any]:
        """The last depths of every channel, by topic and channel."""
        slots = self._latest_slots(RECENT_COUNT)
        depths: dict[str, dict[str, list[float | int | None]]] = {}
        for (topic, channel), ring in list(self._series.by_name.items()):
            if channel:
                depths.setdefault(topic, {})[channel] = [_shown(ring.figure(slot, _DEPTH)) for slot in slots]
        return {"interval": self.interval_ns / NS_PER_SECOND, "channels": depths}

    def recent_rates_of(self, topic: str, channel: str) -> Rates | None:
        """The mean flow of a channel over the last points; None if there is none."""
        known, name = self._recent_flows, (topic, channel)
        if name not in known:
            known[name] = self._recent_flow(name)
        return known[name]

    def _recent_flow(self, name: Name) -> Rates | None:
        ring = self._series.by_name.get(name)
        if ring is None:
            return None
        points = (ring.read(slot) for slot in self._latest_slots(_MEAN_COUNT))
        flows = [tuple(point)[_IN : _IN + 4] for point in points if point is not None]
        known = [flow for flow in flows if not math.isnan(flow[0])]
        if not known:
            return None
        came, finished, dead_lettered, requeued = (sum(each) / len(known) for each in zip(*known, strict=True))
        return Rates(came, finished + dead_lettered, requeued, dead_lettered)

    def waiting_s(self, topic: str, channel: str, depth: int) -> tuple[float | None, bool]:
        """How long ago the last `depth` messages of a channel began to come, and whether it may be longer.

        None if it is not known, or nothing waits.
        """
        ring = self._series.by_name.get((topic, channel))
        if depth == 0 or ring is None:
            return None, False
        interval_s = self.interval_ns / NS_PER_SECOND
        wanted, so_far, place = depth / interval_s, 0.0, -1
        for place, rate in enumerate(self._backwards(ring.column(_IN))):
            if rate >= wanted - so_far:
                return round((place + (wanted - so_far) / rate) * interval_s, 1), False
            if rate > 0:  # which a gap is not
                so_far += rate
        return (round((place + 1) * interval_s, 1), True) if place >= 0 else (None, False)

    def _slots(self) -> list[int]:
        """From the oldest point to the newest."""
        return self._latest_slots(self._size)

    def _latest_slots(self, count: int) -> list[int]:
        kept = min(self.point_count, self._size, count)
        return [number % self._size for number in range(self.point_count - kept, self.point_count)]

    def _backwards(self, column: Sequence[float]) -> Iterator[float]:
        """The values of all slots, from the newest point to the oldest."""
        end = self.point_count % self._size
        older = column[end:] if self.point_count >= self._size else ()
        return chain(reversed(column[:end]), reversed(older))


class _Rings:
    """Series with the same figures."""

    def __init__(self, figures: Sequence[str], size: int) -> None:
        self.figures = figures
        self.by_name: dict[Name, _Ring] = {}
        self._size = size

    def record(self, points: Iterable[tuple[Name, Point]], *, slot: int, turn: int, max_count: int) -> None:
        """Write the points into a slot. A series without one has a gap there, and is forgotten after a turn of gaps."""
        for name, point in points:
            ring = self.by_name.get(name)
            if ring is None:
                if len(self.by_name) >= max_count:
                    continue
                ring = self.by_name[name] = _Ring(self._size, len(self.figures))
            ring.write(slot, point, turn=turn)
        for name in [name for name, ring in self.by_name.items() if ring.last_turn != turn]:
            if turn - self.by_name[name].last_turn >= self._size:
                del self.by_name[name]
            else:
                self.by_name[name].clear(slot)


class _Ring:
    """The figures of one series."""

    def __init__(self, size: int, width: int) -> None:
        self._gap = array("f", [_GAP]) * width
        self._values = self._gap * size
        self._width = width
        self.last_turn = 0
        """When it was last written."""

    def clear(self, slot: int) -> None:
        self._values[slot * self._width : (slot + 1) * self._width] = self._gap

    def write(self, slot: int, point: Point, *, turn: int) -> None:
        self._values[slot * self._width : (slot + 1) * self._width] = array("f", point)
        self.last_turn = turn

    def read(self, slot: int) -> Iterable[float] | None:
        """The figures; None in a gap."""
        values = self._values[slot * self._width : (slot + 1) * self._width]
        return None if math.isnan(values[0]) else values

    def column(self, index: int) -> Sequence[float]:
        """One figure, slot by slot."""
        return self._values[index :: self._width]

    def figure(self, slot: int, index: int) -> float:
        return self._values[slot * self._width + index]


class _Means:
    """The mean of rates over several looks, each weighed by the time it stands for."""

    def __init__(self) -> None:
        self._sums: dict[Name, list[float]] = {}
        """The time in seconds, and what came, left and so on in it."""

    def add(self, survey: Survey) -> None:
        elapsed_s = survey.elapsed_s
        for key, total in survey.totals.items():
            if total.rates is not None:
                self._add(key, elapsed_s, total.rates)
        for node, work in survey.work.items():
            if work.rates is not None and work.flow is not None:
                self._add(_published(node), elapsed_s, work.rates)
                self._add(_flowing(node), elapsed_s, work.flow)

    def _add(self, name: Name, elapsed_s: float, rates: Rates) -> None:
        sums = self._sums.setdefault(name, [0.0] * (1 + len(rates)))
        sums[0] += elapsed_s
        for index, rate in enumerate(rates, start=1):
            sums[index] += rate * elapsed_s

    def of(self, name: Name) -> Rates | None:
        """None for what has no rate."""
        sums = self._sums.get(name)
        return None if sums is None else Rates(*(each / sums[0] for each in sums[1:]))


def _published(node: str) -> Name:
    """What the rates of a node are summed under; topics have no such names."""
    return "", f"{node} published"


def _flowing(node: str) -> Name:
    return "", f"{node} flow"


def _points(look: Look, means: _Means) -> Iterator[tuple[Name, Point]]:
    """What is recorded of topics and channels."""
    depth = in_flight = 0.0
    lacking = look.incomplete_topics()
    for name, topic, channels in look.survey.topic_totals():
        rates = means.of((name, ""))
        of_channels = [means.of((name, channel_name)) for channel_name, _ in channels]
        own = _topic_point(topic, [channel for _, channel in channels], _rates(rates, flow_of(rates, of_channels)))
        depth += own[0]
        in_flight += own[1]
        if name in lacking:
            continue
        yield (name, ""), own
        for (channel_name, channel), each in zip(channels, of_channels, strict=True):
            latency = _latency(slowest_ns(channel.latency))
            yield (name, channel_name), (channel.depth, channel.in_flight_count, *_rates(each, each), latency)
    if look.silent:
        return
    nodes = look.survey.work
    published = _added_up(means.of(_published(node)) for node in nodes)
    flow = _added_up(means.of(_flowing(node)) for node in nodes)
    yield CLUSTER, (depth, in_flight, *_rates(published, flow), _GAP)


def _topic_point(topic: Total, channels: Sequence[Total], rates: Point) -> Point:
    """The messages of a topic wait in it or in its channels."""
    return (
        topic.depth + sum(channel.depth for channel in channels),
        sum(channel.in_flight_count for channel in channels),
        *rates,
        _latency(slowest_ns(topic.latency)),
    )


def _node_points(look: Look, means: _Means) -> Iterator[tuple[Name, Point]]:
    """What is recorded of nodes."""
    for node, figures in look.survey.nodes.items():
        rates = _rates(means.of(_published(node)), means.of(_flowing(node)))
        memory = figures.memory or {}
        depth = look.survey.work[node].depth
        yield (node, ""), (depth, *rates, *(memory.get(figure, _GAP) for figure in MEMORY_FIGURES))


def _added_up(parts: Iterable[Rates | None]) -> Rates | None:
    known = [each for each in parts if each is not None]
    return Rates(*map(sum, zip(*known, strict=True))) if known else None


def _rates(rates: Rates | None, flow: Rates | None) -> Point:
    """The `RATE_FIGURES`."""
    if rates is None or flow is None:
        return (_GAP,) * len(RATE_FIGURES)
    return rates.came, flow.came, flow.finished, flow.dead_lettered, flow.requeued


def _latency(value_ns: int | None) -> float:
    return _GAP if value_ns is None else value_ns


def _point(kind: SeriesKind, time_s: float, figures: Sequence[float]) -> dict[str, Any]:
    return {"time": time_s, **{name: _shown(value) for name, value in zip(kind.figures, figures, strict=True)}}


def _shown(value: float) -> float | int | None:
    """A gap as null, a whole number without a point."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else round(value, 2)
