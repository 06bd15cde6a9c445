"""The whole cluster at one time, with what happened since the time before.

It is made of the figures of each node (`node_figures`), added up for every topic and channel (`tally`). That is all
that lists and histories need. What a page shows of one topic, part by part, is put together when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.aggregate import total_topic
from emberq.cluster.latency import UNTRACKED, Latency
from emberq.cluster.node_figures import NodeFigures
from emberq.cluster.producer import Producer
from emberq.cluster.rate import Rates
from emberq.cluster.stats import TopicStats
from emberq.cluster.tally import Sum, Tally


class Total(NamedTuple):
    """A topic or a channel over all nodes that have it; of some figures a topic has none."""

    depth: int = 0
    """Of a topic, the messages that no channel has taken yet."""
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0
    client_count: int = 0
    node_count: int = 0
    paused: bool = False
    """On any node."""
    latency: Latency = UNTRACKED
    rates: Rates | None = None
    """None for what was not there at both of two times, on any node."""


class Work(NamedTuple):
    """What one node has to do."""

    depth: int = 0
    """Of topics and channels."""
    message_count: int = 0
    client_count: int = 0
    topic_count: int = 0
    rates: Rates | None = None
    """Messages that came to its topics, and that its channels are done with."""


IDLE = Work()
"""Of a node that did not answer."""


class Survey:
    """What was seen. Immutable."""

    def __init__(
        self, producers: Sequence[Producer], tally: Tally, *, taken_ns: int, before: Survey | None = None
    ) -> None:
        """`tally` is used up; it must know the figures of `before`. `taken_ns` is the monotonic clock's."""
        self.producers = tuple(producers)
        """All nsqds that should be there, by host name."""
        self.nodes = {each.node: tally.nodes[each.node] for each in producers if each.node in tally.nodes}
        """Those that answered."""
        self._taken_ns = taken_ns
        self._elapsed_s = (taken_ns - before._taken_ns) / NS_PER_SECOND if before is not None else 0.0
        self._growth = tally.growth
        self.totals = {key: self._total(sum_, count, latency) for key, sum_, count, latency in tally.sums()}
        """By topic and channel, sorted: each topic comes right before its channels."""
        self.channels = self._channels()
        """The names of each topic's channels; topics and channels by name."""
        self.work = {node: self._work(figures) for node, figures in self.nodes.items()}
        """What each node has to do."""

    def _total(self, added: Sum, node_count: int, latency: Latency) -> Total:
        return Total(
            depth=added.depth,
            backend_depth=added.backend_depth,
            in_flight_count=added.in_flight_count,
            deferred_count=added.deferred_count,
            requeue_count=added.requeue_count,
            timeout_count=added.timeout_count,
            message_count=added.message_count,
            client_count=added.client_count,
            node_count=node_count,
            paused=added.paused > 0,
            latency=latency,
            rates=self._rates(added.came, added.left, added.known),
        )

    def _work(self, figures: NodeFigures) -> Work:
        count, columns, grown = figures.topic_count, figures.columns, self._growth[figures.node]
        return Work(
            depth=sum(columns["depth"]),
            message_count=sum(columns["message_count"][:count]),
            client_count=sum(columns["client_count"]),
            topic_count=count,
            rates=self._rates(sum(grown.came[:count]), sum(grown.left[count:]), any(grown.is_known)),
        )

    def _rates(self, came: int, left: int, is_known: int) -> Rates | None:
        if not is_known or self._elapsed_s <= 0:
            return None
        return Rates(came / self._elapsed_s, left / self._elapsed_s)

    def _channels(self) -> dict[str, list[str]]:
        channels: dict[str, list[str]] = {}
        for topic, channel in self.totals:
            if channel:
                channels[topic].append(channel)
            else:
                channels[topic] = []
        return channels

    # One thing of many.

    def topic(self, name: str) -> TopicStats | None:
        """A topic, node by node; None if no node has it."""
        if name not in self.channels:
            return None
        parts = (figures.topic(name, self.channels[name]) for figures in self.nodes.values())
        return total_topic(name, [part for part in parts if part is not None])

    def rates_by_node(self, topic: str, channel: str = "") -> dict[str, Rates | None]:
        """On each node that has it, of a topic or a channel; None where it is not known."""
        found: dict[str, Rates | None] = {}
        if (topic, channel) not in self.totals:
            return found
        for node, figures in self.nodes.items():
            position = figures.position((topic, channel))
            if position is not None:
                grown = self._growth[node]
                found[node] = self._rates(grown.came[position], grown.left[position], grown.is_known[position])
        return found

    def rates_by_topic(self, node: str) -> dict[str, Rates | None]:
        """On one node, of each topic that it has; None where it is not known."""
        figures, grown = self.nodes.get(node), self._growth.get(node)
        if figures is None or grown is None:
            return {}
        table = zip(figures.keys[: figures.topic_count], grown.came, grown.left, grown.is_known, strict=False)
        return {topic: self._rates(came, left, is_known) for (topic, _), came, left, is_known in table}

    def total_rates(self) -> Rates | None:
        """Messages that came to topics, and that channels are done with; None if that is not known of any node."""
        known = [work.rates for work in self.work.values() if work.rates is not None]
        return Rates(*map(sum, zip(*known, strict=True))) if known else None

    def topic_totals(self) -> Iterator[tuple[str, Total, list[tuple[str, Total]]]]:
        """Each topic with its channels, by name."""
        for topic, names in self.channels.items():
            yield topic, self.totals[topic, ""], [(name, self.totals[topic, name]) for name in names]
