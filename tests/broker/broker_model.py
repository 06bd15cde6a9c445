"""A broker so simple that it can be believed: sets of bodies in named places.

The model knows what must happen (what was published, answered, is overdue), and is told what the broker was free to
choose (which message went to which consumer). A message is known by its body, which no other message of the test has.
Places of a message in a channel:

    queued -> in_flight -> (finished: forgotten)
       ^          |  \\
       |  timeout |   REQ with a delay
       |<---------+     \\
       |<------------ deferred        also where a deferred publish starts
       |
       +-- restored: lies in the queue's files since before a restart, and is not due yet. The broker counts it as
           queued until it first tries to deliver it, from then on as deferred; both are right.

An ephemeral channel may drop what it has no room for, at any time; the model lets it, and asks only that nothing that
was dropped is counted or comes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from emberq.base.clock import NS_PER_MS
from emberq.broker.stats import ChannelStats, TopicStats
from tests.broker.rig import Consumer, Message


@dataclass
class Flight:
    """A message that a consumer, perhaps one that has left, holds."""

    consumer: Consumer
    delivered_ns: int
    deadline_ns: int


@dataclass
class ConsumerModel:
    """What a consumer should be counted as."""

    consumer: Consumer
    rdy: int = 0
    blocked: bool = False
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0


@dataclass
class ChannelModel:
    """Where every message of a channel is."""

    is_ephemeral: bool
    max_held_ns: int
    paused: bool = False
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    deliveries: dict[bytes, int] = field(default_factory=dict)
    """How often each message was delivered so far."""
    queued: set[bytes] = field(default_factory=set)
    in_flight: dict[bytes, Flight] = field(default_factory=dict)
    deferred: dict[bytes, int] = field(default_factory=dict)
    """Due times by the monotonic clock."""
    restored: dict[bytes, int] = field(default_factory=dict)
    """Due times by the wall clock."""
    saved: set[bytes] = field(default_factory=set)
    """Messages that were restored and not delivered since: the broker may compare their due times with the wall clock
    at any moment until then, however long ago they were due."""
    consumers: list[ConsumerModel] = field(default_factory=list)

    # What the test does.

    def put(self, body: bytes, *, delay_ms: int, now_ns: int) -> None:
        self.message_count += 1
        if delay_ms:
            self.deferred[body] = now_ns + delay_ms * NS_PER_MS
        else:
            self.queued.add(body)

    def held_by(self, consumer: Consumer) -> list[bytes]:
        """In the order of delivery."""
        return [body for body, flight in self.in_flight.items() if flight.consumer is consumer]

    def finish(self, model: ConsumerModel, body: bytes) -> None:
        del self.in_flight[body]
        model.finish_count += 1

    def requeue(self, model: ConsumerModel, body: bytes, *, delay_ms: int, now_ns: int) -> None:
        del self.in_flight[body]
        self.requeue_count += 1
        model.requeue_count += 1
        if delay_ms:
            self.deferred[body] = now_ns + delay_ms * NS_PER_MS
        else:
            self.queued.add(body)

    def touch(self, body: bytes, *, now_ns: int) -> None:
        flight = self.in_flight[body]
        asked_ns = now_ns + flight.consumer.subscriber.msg_timeout_ns
        flight.deadline_ns = min(asked_ns, flight.delivered_ns + self.max_held_ns)

    def empty(self) -> None:
        for place in (self.queued, self.in_flight, self.deferred, self.restored, self.saved):
            place.clear()

    def restart(self, *, wall_offset_ns: int) -> None:
        """What is left of it in the next run."""
        self.queued |= self.in_flight.keys()
        self.in_flight.clear()
        self.restored |= {body: due_ns + wall_offset_ns for body, due_ns in self.deferred.items()}
        self.saved |= self.restored.keys()
        self.deferred.clear()
        self.consumers.clear()
        self.message_count = self.requeue_count = self.timeout_count = 0

    # What the broker does by itself.

    def let_time_pass(self, *, now_ns: int, wall_ns: int) -> None:
        for body in [body for body, flight in self.in_flight.items() if flight.deadline_ns <= now_ns]:
            del self.in_flight[body]
            self.queued.add(body)
            self.timeout_count += 1
        for times, moment_ns in ((self.deferred, now_ns), (self.restored, wall_ns)):
            for body in [body for body, due_ns in times.items() if due_ns <= moment_ns]:
                del times[body]
                self.queued.add(body)

    def note_delivery(self, model: ConsumerModel, message: Message, *, now_ns: int) -> None:
        """The broker chose to deliver this message to this consumer; it must have been free to."""
        body, consumer = message.body, model.consumer
        assert body in self.queued, "delivered, but not waiting to be"
        self.queued.remove(body)
        self.saved.discard(body)
        self.deliveries[body] = self.deliveries.get(body, 0) + 1
        assert message.attempts == self.deliveries[body]
        self.in_flight[body] = Flight(consumer, now_ns, now_ns + consumer.subscriber.msg_timeout_ns)
        model.message_count += 1
        assert len(self.held_by(consumer)) <= model.rdy, "more than the window allows"
        assert not self.paused

    # Whether the broker agrees.

    def check(self, stats: ChannelStats) -> None:
        assert stats.paused == self.paused
        assert stats.message_count == self.message_count
        assert stats.requeue_count == self.requeue_count
        assert stats.timeout_count == self.timeout_count
        assert stats.in_flight_count == len(self.in_flight)
        self._check_waiting(stats)
        self._check_consumers(stats)

    def _check_waiting(self, stats: ChannelStats) -> None:
        if self.is_ephemeral:
            assert stats.backend_depth == 0
            assert stats.depth <= len(self.queued)
            assert stats.deferred_count == len(self.deferred)
            if stats.depth == 0:
                self.queued.clear()
            return
        assert stats.depth >= len(self.queued)
        assert stats.deferred_count >= len(self.deferred)
        waiting = len(self.queued) + len(self.deferred) + len(self.restored)
        assert stats.depth + stats.deferred_count == waiting

    def _check_consumers(self, stats: ChannelStats) -> None:
        assert stats.client_count == len(self.consumers)
        for model, seen in zip(self.consumers, stats.clients, strict=True):
            held = len(self.held_by(model.consumer))
            expected = (held, model.message_count, model.finish_count, model.requeue_count)
            assert (seen.in_flight_count, seen.message_count, seen.finish_count, seen.requeue_count) == expected
            if not self.paused and not model.blocked and held < model.rdy:
                assert stats.depth == 0, "a message waits, and a consumer that could have it"


@dataclass
class TopicModel:
    """What waits in a topic, and its channels."""

    paused: bool = False
    message_count: int = 0
    message_bytes: int = 0
    waiting: dict[bytes, int] = field(default_factory=dict)
    """Messages that no channel has got yet, with their delays in ms."""
    channels: dict[str, ChannelModel] = field(default_factory=dict)
    seen: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Id and publish time of the messages that were delivered by any channel."""
    bodies: dict[bytes, bytes] = field(default_factory=dict)
    """Which message has an id."""

    def publish(self, body: bytes, *, delay_ms: int) -> None:
        self.message_count += 1
        self.message_bytes += len(body)
        self.waiting[body] = delay_ms

    def move(self, *, now_ns: int) -> None:
        """Let through what waits, if it may go."""
        if self.paused or not self.channels:
            return
        for body, delay_ms in self.waiting.items():
            for channel in self.channels.values():
                channel.put(body, delay_ms=delay_ms, now_ns=now_ns)
        self.waiting.clear()

    def note_message(self, message: Message) -> None:
        """Every delivery of a message shows the same id and time, and no other message has the id."""
        assert self.bodies.setdefault(message.id, message.body) == message.body
        facts = (message.id, message.timestamp_ns)
        assert self.seen.setdefault(message.body, facts) == facts

    def restart(self, *, wall_offset_ns: int) -> None:
        self.message_count = self.message_bytes = 0
        self.channels = {name: channel for name, channel in self.channels.items() if not channel.is_ephemeral}
        for channel in self.channels.values():
            channel.restart(wall_offset_ns=wall_offset_ns)

    def check(self, stats: TopicStats) -> None:
        assert stats.paused == self.paused
        assert (stats.message_count, stats.message_bytes) == (self.message_count, self.message_bytes)
        assert stats.depth == len(self.waiting)
        assert [channel.name for channel in stats.channels] == sorted(self.channels)
        for channel in stats.channels:
            self.channels[channel.name].check(channel)


@dataclass
class BrokerModel:
    """All topics."""

    topics: dict[str, TopicModel] = field(default_factory=dict)

    def consumers(self) -> Iterator[tuple[TopicModel, ChannelModel, ConsumerModel]]:
        """Every consumer that has not left, with what it belongs to."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for consumer in channel.consumers:
                    yield topic, channel, consumer

    def moments_ns(self) -> Iterator[int]:
        """When something is due, by the monotonic clock."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                yield from (flight.deadline_ns for flight in channel.in_flight.values())
                yield from channel.deferred.values()

    @property
    def has_restored(self) -> bool:
        channels = [channel for topic in self.topics.values() for channel in topic.channels.values()]
        return any(channel.restored or channel.saved for channel in channels)

    def settle(self, *, now_ns: int, wall_ns: int) -> None:
        """Do what the broker does by itself, then take note of what its consumers got."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.let_time_pass(now_ns=now_ns, wall_ns=wall_ns)
            topic.move(now_ns=now_ns)
        for topic, channel, model in self.consumers():
            for message in model.consumer.take_new():
                topic.note_message(message)
                channel.note_delivery(model, message, now_ns=now_ns)

    def restart(self, *, wall_offset_ns: int) -> None:
        for topic in self.topics.values():
            topic.restart(wall_offset_ns=wall_offset_ns)

    def check(self, snapshot: tuple[TopicStats, ...]) -> None:
        assert [topic.name for topic in snapshot] == sorted(self.topics)
        for topic in snapshot:
            self.topics[topic.name].check(topic)
