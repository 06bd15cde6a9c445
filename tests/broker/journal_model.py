"""The model of `broker_model` for journaled topics, which differ from classic ones in a few things that show.

- A deferred message is due at a moment of the wall clock, counted from when it was published, wherever it waits.
- A channel that has not come to such a message yet counts it as queued, later as deferred; both are right. So here
  these messages are `restored` ones from the start.
- Everything that was published is kept, so a channel can be moved: `log` is what the journal should hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from emberq.base.clock import NS_PER_MS
from emberq.broker.stats import ChannelStats
from tests.broker.broker_model import BrokerModel, ChannelModel, TopicModel


@dataclass
class JournaledChannelModel(ChannelModel):
    """Where every message of a channel is."""

    def put_until(self, body: bytes, *, due_wall_ns: int, now_ns: int, wall_ns: int) -> None:
        self.message_count += 1
        if due_wall_ns:
            self.saved.add(body)
        if due_wall_ns <= wall_ns:
            self.queued.add(body)
        elif self.is_ephemeral:
            self.deferred[body] = now_ns + due_wall_ns - wall_ns
        else:
            self.restored[body] = due_wall_ns

    def seek(self, log: list[tuple[bytes, int]], *, wall_ns: int) -> None:
        """It delivers these messages, as if it had never seen them."""
        self.empty()
        for body, due_wall_ns in log:
            self.deliveries.pop(body, None)
            if due_wall_ns:
                self.saved.add(body)
            if due_wall_ns > wall_ns:
                self.restored[body] = due_wall_ns
            else:
                self.queued.add(body)

    def check(self, stats: ChannelStats) -> None:
        if self.is_ephemeral:  # what waited in the topic is offered to it only until it is full
            assert stats.message_count <= self.message_count
            assert stats.deferred_count <= len(self.deferred)
            self.message_count = stats.message_count
            if not stats.deferred_count:
                self.deferred.clear()
        super().check(stats)


@dataclass
class JournaledTopicModel(TopicModel):
    """What waits in a topic (`waiting`: with moments of the wall clock), its channels, and all it ever got."""

    wall_ns: Callable[[], int] = lambda: 0
    log: list[tuple[bytes, int]] = field(default_factory=list)
    """Every message in order of publishing, with the moment when it is due, or 0."""

    def publish(self, body: bytes, *, delay_ms: int) -> None:
        self.message_count += 1
        self.message_bytes += len(body)
        due_wall_ns = self.wall_ns() + delay_ms * NS_PER_MS if delay_ms else 0
        self.waiting[body] = due_wall_ns
        self.log.append((body, due_wall_ns))

    def move(self, *, now_ns: int) -> None:
        if self.paused or not self.channels:
            return
        for body, due_wall_ns in self.waiting.items():
            for channel in self.channels.values():
                assert isinstance(channel, JournaledChannelModel)
                channel.put_until(body, due_wall_ns=due_wall_ns, now_ns=now_ns, wall_ns=self.wall_ns())
        self.waiting.clear()

    @property
    def released(self) -> list[tuple[bytes, int]]:
        """What channels may have."""
        return self.log[: len(self.log) - len(self.waiting)]


class JournaledBrokerModel(BrokerModel):
    """All topics."""

    @property
    def has_restored(self) -> bool:
        return super().has_restored or any(any(topic.waiting.values()) for topic in self.topics.values())
