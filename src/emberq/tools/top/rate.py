"""Messages per second, from two looks at the cluster.

nsqd only counts. A rate is the difference of two counts by the time between them, and it is taken node by node before
it is added up: an nsqd that has joined, left or restarted in between, whose counts began anew, then does not make a
leap in the sum; it simply is not in it until the next look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.stats import TopicStats

Name = tuple[str, str]
"""Topic and channel; for the topic itself the channel is empty."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second that came, and that were dealt with: by a channel finished, by a topic handed on."""

    came: float
    left: float


_Counts = dict[tuple[str, str, str], tuple[int, int]]
"""Messages that came and that left so far, by topic, channel and node."""


class RateMeter:
    """Remembers the last look."""

    def __init__(self) -> None:
        self._counts: _Counts = {}
        self._taken_ns = 0

    def measure(self, topics: Iterable[TopicStats], *, now_ns: int) -> dict[Name, Rates]:
        """The rates since the last look, by the monotonic clock, of whatever was there at both."""
        before, elapsed_s = self._counts, (now_ns - self._taken_ns) / NS_PER_SECOND
        self._counts, self._taken_ns = _counts(topics), now_ns
        if not before or elapsed_s <= 0:
            return {}
        came_sums: dict[Name, int] = defaultdict(int)
        left_sums: dict[Name, int] = defaultdict(int)
        for (topic, channel, node), (came, left) in self._counts.items():
            then = before.get((topic, channel, node))
            if then is None or came < then[0]:  # it is new, or began anew
                continue
            came_sums[topic, channel] += came - then[0]
            # Counts of one channel are not read in one instant, so this may be a message too few.
            left_sums[topic, channel] += max(left - then[1], 0)
        return {name: Rates(came_sums[name] / elapsed_s, left_sums[name] / elapsed_s) for name in came_sums}


def _counts(topics: Iterable[TopicStats]) -> _Counts:
    counts: _Counts = {}
    for topic in topics:
        name = topic.topic_name
        for part in topic.nodes or ():
            counts[name, "", part.node] = part.message_count, part.message_count - part.depth
            for channel in part.channels:
                counts[name, channel.channel_name, part.node] = channel.message_count, channel.settled_count
    return counts
