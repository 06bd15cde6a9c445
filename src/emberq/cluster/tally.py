"""Adds up the figures of nodes, one node at a time: a few milliseconds each, however many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from emberq.cluster.latency import UNTRACKED, Latency, combined
from emberq.cluster.node_figures import FIGURES, Key, NodeFigures
from emberq.cluster.rate import Growth, growth

NOTHING: Mapping[str, NodeFigures] = MappingProxyType({})


class Sum(NamedTuple):
    """A topic or a channel over all nodes that have it. The first fields are `FIGURES`."""

    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    requeue_count: int
    timeout_count: int
    message_count: int
    client_count: int
    paused: int
    """Nodes where it is."""
    came: int
    """Messages since the look before, like those that left."""
    left: int
    known: int
    """Nodes of which it is known how many came and left."""


class Tally:
    """What has been added up so far."""

    def __init__(self, before: Mapping[str, NodeFigures] = NOTHING) -> None:
        """`before` is what the nodes said at the look before."""
        self._before = before
        self.nodes: dict[str, NodeFigures] = {}
        self.growth: dict[str, Growth] = {}
        """Of each node, since the look before."""
        self._rows: dict[Key, list[tuple[int, ...]]] = defaultdict(list)
        self._latencies: dict[Key, list[Latency]] = defaultdict(list)

    def add(self, figures: NodeFigures) -> None:
        """Add one node."""
        node = figures.node
        grown = growth(figures, self._before.get(node))
        self.nodes[node], self.growth[node] = figures, grown
        columns = [figures.columns[name] for name in FIGURES]
        table = zip(*columns, figures.paused, grown.came, grown.left, grown.is_known, strict=True)
        for key, row in zip(figures.keys, table, strict=True):
            self._rows[key].append(row)
        for key, latency in figures.latencies.items():
            self._latencies[key].append(latency)

    def sums(self) -> Iterator[tuple[Key, Sum, int, Latency]]:
        """By topic and channel, sorted: the sum, of how many nodes, and their percentiles. Can be had once.

        Rows are let go of one key at a time: to free a quarter of a million at once would hold up all threads.
        """
        for key in sorted(self._rows):
            rows = self._rows.pop(key)
            latencies = self._latencies.get(key)
            latency = UNTRACKED if latencies is None else combined(latencies, topic=key[0], channel=key[1])
            yield key, Sum(*map(sum, zip(*rows, strict=True))), len(rows), latency
