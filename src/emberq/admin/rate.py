"""Messages per second, from two looks at the cluster.

nsqd only counts. A rate is the difference of two counts by the time between them, and it is taken node by node before
it is added up: an nsqd that has joined, left or restarted in between, whose counts began anew, then does not make a
leap in the sum; it simply is not in it until the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.stats import EVERY_NODE, TopicStats


class Rates(NamedTuple):
    """Per second."""

    came: float
    """Messages published to a topic, or that came to a channel."""
    left: float
    """Messages that a topic handed on, or that a channel is done with."""


_Key = tuple[str, str, str]
"""Topic, channel (empty for the topic itself) and node."""
_Counts = tuple[int, int]
"""Messages that came, and that left. A plain tuple: a large cluster has a quarter of a million of them."""


class RateBook:
    """The rates between two looks. Immutable."""

    def __init__(self, rates: dict[_Key, Rates]) -> None:
        self._rates = rates
        self._totals = _totals(rates)

    def of(self, topic: str, channel: str = "", *, node: str = EVERY_NODE) -> Rates | None:
        """On one node or over all; None for what was not there at both looks."""
        return self._rates.get((topic, channel, node))

    def total(self, *, node: str = EVERY_NODE) -> Rates | None:
        """Messages that came to topics, and that channels are done with; None if there is nothing to compare."""
        return self._totals.get(node)


def _totals(rates: dict[_Key, Rates]) -> dict[str, Rates]:
    """By node."""
    totals: dict[str, Rates] = {}
    for (_, channel, node), rate in rates.items():
        came, left = totals.get(node, (0.0, 0.0))
        totals[node] = Rates(came, left + rate.left) if channel else Rates(came + rate.came, left)
    return totals


NO_RATES = RateBook({})


class Meter:
    """Remembers the last look."""

    def __init__(self) -> None:
        self._counts: dict[_Key, _Counts] = {}
        self._taken_ns = 0

    def measure(self, topics: Iterable[TopicStats], *, now_ns: int) -> RateBook:
        """The rates since the last look, by the monotonic clock."""
        before, elapsed_s = self._counts, (now_ns - self._taken_ns) / NS_PER_SECOND
        self._counts, self._taken_ns = dict(_counts(topics)), now_ns
        if not before or elapsed_s <= 0:
            return NO_RATES
        rates: dict[_Key, Rates] = {}
        for (topic, channel, node), now in self._counts.items():
            then = before.get((topic, channel, node))
            if then is None or now[0] < then[0]:  # it is new, or began anew
                continue
            came = (now[0] - then[0]) / elapsed_s
            # Counts of one channel are not read in one instant, so this may be a message too few.
            left = max(now[1] - then[1], 0) / elapsed_s
            rates[topic, channel, node] = Rates(came, left)
            came_sum, left_sum = rates.get((topic, channel, EVERY_NODE), (0.0, 0.0))
            rates[topic, channel, EVERY_NODE] = Rates(came_sum + came, left_sum + left)
        return RateBook(rates)


def _counts(topics: Iterable[TopicStats]) -> Iterator[tuple[_Key, _Counts]]:
    for topic in topics:
        name = topic.topic_name
        for part in topic.nodes or ():
            yield (name, "", part.node), (part.message_count, part.message_count - part.depth)
            for channel in part.channels:
                yield (name, channel.channel_name, part.node), (channel.message_count, channel.settled_count)
