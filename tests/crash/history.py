"""What clients do to an nsqd before and between crashes: a random run, all of which follows from one seed.

Publishers number their batches and send several before the first is answered, or do not number them at all. Consumers
finish, requeue and defer. Channels come, are moved and go, one with a policy for dead letters; topics go. Threads run
when the dice say so, and so does the clock. `trouble` adds faults of the disk.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

from emberq.base.clock import NS_PER_MS
from emberq.broker.error import BrokerError
from emberq.broker.journaled_channel import LOG_INTERVAL_NS, LOGS_PER_TURN, JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.broker.topic import Pending
from emberq.storage.data_folder import ChannelPolicy
from emberq.storage.error import StorageError
from emberq.wire.parameter import ProducerSequence
from tests.broker.rig import Consumer, Message, published
from tests.crash.model import Model, PublishedBatch
from tests.crash.node import Node
from tests.crash.simulated_files import Fault

CLASSIC = "classic"
"""A topic that is not journaled. It has no channel while it is published to, so its messages are in its disk queue."""
DEAD_LETTERS = "dead"
"""It is journaled because the topics are from which its messages come."""
POLICED = "policed"
"""The channel that gives messages up, if there is one of this name."""
POLICY = ChannelPolicy(max_attempts=2, dead_letter_topic=DEAD_LETTERS)
MAX_OUTSTANDING = 8
SIZES = (20, 150, 900, 3000, 6000)


class Numbers:
    """Numbers that no two batches and no two topics of a run share, whatever crashes it has."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


class History:
    """The clients of one run of the nsqd."""

    def __init__(self, node: Node, model: Model, *, dice: random.Random, numbers: Numbers, trouble: bool) -> None:
        self.node = node
        self.model = model
        self._dice = dice
        self._numbers = numbers
        self._trouble = trouble
        self._outstanding: dict[tuple[str, bytes], int] = {}
        self._stopped: set[tuple[str, bytes]] = set()
        """Producers that were refused a batch: they may not go on before they have sent it again."""
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._seeks: dict[JournaledChannel, int] = {}
        """The latest seek of each channel."""
        self._topics = sorted(model.now.topics() - model.now.leaving - {CLASSIC})

    @property
    def _moment(self) -> int:
        return self.node.fs.moment

    def run(self, steps: int) -> None:
        """Do so many things."""
        deeds: list[tuple[int, Callable[[], None]]] = [
            (30, self._publish_numbered),
            (12, self._publish_plain),
            (4, self._publish_deferred),
            (35, self._let_a_thread_run),
            (8, self._let_time_pass),
            (14, self._consume),
            (4, self._create_channel),
            (2, self._seek),
            (1, self._delete_channel),
            (1, self._delete_topic),
        ]
        if self.node.settings.mem_queue_size == 0:  # else a process that dies loses what is in memory
            deeds.append((6, self._publish_classic))
        if self._trouble:
            deeds.append((2, self._make_trouble))
        weights = [weight for weight, _ in deeds]
        for _ in range(steps):
            (deed,) = self._dice.choices([deed for _, deed in deeds], weights)
            deed()
            self.node.run_due()

    # Publishing.

    def _topic(self) -> str:
        if not self._topics or (len(self._topics) < 2 and self._dice.random() < 0.2):
            self._topics.append(f"j{self._numbers.next()}")
        return self._dice.choice(self._topics)

    def _bodies(self, number: int) -> tuple[bytes, ...]:
        size = self._dice.choice(SIZES)
        return tuple(b"<%d.%d>" % (number, index) + b"." * size for index in range(self._dice.choice((1, 1, 2, 5))))

    def _publish_numbered(self) -> None:
        topic, name = self._topic(), self._dice.choice((b"p", b"q"))
        producer_id = b"%s of %s" % (name, topic.encode())
        key = (topic, producer_id.ljust(16, b"."))
        if self._outstanding.get(key, 0) >= MAX_OUTSTANDING or key in self._stopped:
            return
        self._outstanding[key] = self._outstanding.get(key, 0) + 1
        self._publish(topic, ProducerSequence(key[1], self._numbers.next()))

    def _publish_plain(self) -> None:
        self._publish(self._topic(), None)

    def _publish_deferred(self) -> None:
        self._publish(self._topic(), None, delay_ms=self._dice.choice((10, 5000, 100_000)))

    def _publish_classic(self) -> None:
        number = self._numbers.next()
        bodies = self._bodies(number)
        self.model.published(self._moment, number, PublishedBatch(CLASSIC, bodies, None))
        try:
            pending = self.node.broker.topic(CLASSIC).publish(*published(bodies))
        except (BrokerError, StorageError):
            return
        assert pending is None
        self.model.stored(self._moment, number)

    def _publish(self, topic: str, producer: ProducerSequence | None, *, delay_ms: int = 0) -> None:
        number = self._numbers.next()
        bodies = self._bodies(number)[: 1 if delay_ms else None]
        self.model.published(self._moment, number, PublishedBatch(topic, bodies, producer))
        send(self, number, topic, bodies, producer, delay_ms=delay_ms)

    def answered(self, number: int, producer: ProducerSequence | None, failure: Exception | None) -> None:
        """A publisher is told."""
        batch = self.model.now.batches[number]
        if producer is not None:
            key = (batch.topic, producer.producer_id)
            self._outstanding[key] = self._outstanding.get(key, 1) - 1
            if failure is not None:
                self._stopped.add(key)
        if failure is None:
            self.model.stored(self._moment, number)

    # Channels.

    def _journaled(self) -> JournaledTopic | None:
        names = [name for name in self._topics if self.node.broker.find_topic(name) is not None]
        return self.node.journaled_topic(self._dice.choice(names)) if names else None

    def _created_topic(self) -> JournaledTopic | None:
        """A topic that a consumer made, before anything was published to it."""
        name = f"j{self._numbers.next()}"
        try:
            topic = self.node.broker.topic(name)
        except (BrokerError, StorageError):
            return None
        self._topics.append(name)
        assert isinstance(topic, JournaledTopic)
        return topic

    def _create_channel(self) -> None:
        topic = self._journaled() if self._dice.random() < 0.8 else self._created_topic()
        name = self._dice.choice(("c", "d", POLICED))
        if topic is None or topic.find_channel(name) is not None:
            return
        self.model.channel_begins(self._moment, topic.name, name)
        try:
            channel = topic.channel(name)
            if name == POLICED:
                self.node.broker.set_policy(channel, POLICY)
        except (BrokerError, StorageError):
            return
        assert isinstance(channel, JournaledChannel)
        self.model.channel_created(self._moment, topic.name, name, floor=channel.low_water)

    def _channel(self) -> JournaledChannel | None:
        topic = self._journaled()
        if topic is None or not topic.channels:
            return None
        channel = topic.channels[self._dice.choice(sorted(topic.channels))]
        assert isinstance(channel, JournaledChannel)
        return channel

    def _seek(self) -> None:
        channel = self._channel()
        if channel is None:
            return
        topic = self.node.journaled_topic(channel.topic_name)
        assert topic is not None
        offset = self._dice.randint(topic.journal.first_offset, topic.stored_offset)
        name = channel.name
        self.model.channel_moved(self._moment, topic.name, name, floor=offset, is_certain=False)
        self._seeks[channel] = seek = self._numbers.next()
        channel.seek(offset)

        def saved(failure: StorageError | None) -> None:
            is_latest = self._seeks[channel] == seek and topic.find_channel(name) is channel
            if failure is None and is_latest and (topic.name, name) in self.model.now.channels:
                self.model.channel_moved(self._moment, topic.name, name, floor=offset, is_certain=True)

        channel.when_saved(saved)

    def _delete_channel(self) -> None:
        channel = self._channel()
        if channel is None:
            return
        topic, name, deletion = channel.topic_name, channel.name, self._numbers.next()
        self.model.channel_leaves(self._moment, topic, name, deletion=deletion)
        self._consumers.pop((topic, name), None)
        try:
            pending = self.node.broker.topic(topic).delete_channel(name)
        except StorageError:
            self.model.channel_leaves(self._moment, topic, name, deletion=0)
            return

        def deleted(failure: Exception | None) -> None:
            if failure is None:
                self.model.channel_deleted(self._moment, topic, name, deletion=deletion)

        assert pending is not None
        pending.when_settled(deleted)

    def _delete_topic(self) -> None:
        topic = self._journaled()
        if topic is None:
            return
        name = topic.name
        self.model.topic_leaves(self._moment, name)
        try:
            pending = self.node.broker.delete_topic(name)
        except StorageError:
            self.model.topic_stays(self._moment, name)
            return
        self._topics.remove(name)
        for key in [key for key in self._consumers if key[0] == name]:
            del self._consumers[key]

        def deleted(failure: Exception | None) -> None:
            if failure is None:
                self.model.topic_deleted(self._moment, name)

        pending.when_settled(deleted)

    # Consuming.

    def _consume(self) -> None:
        channel = self._channel()
        if channel is None:
            return
        key = (channel.topic_name, channel.name)
        consumer = self._consumers.get(key)
        if consumer is None or consumer.channel is not channel:
            consumer = self._consumers[key] = Consumer(channel, rdy=self._dice.choice((1, 3, 50)))
        for message in consumer.take_new():
            self._answer(consumer, message)

    def _answer(self, consumer: Consumer, message: Message) -> None:
        verdict = self._dice.random()
        if consumer.subscriber.in_flight_count == 0:
            return  # the channel was moved: it does not know the message any more
        if verdict < 0.6:
            topic, name = consumer.channel.topic_name, consumer.channel.name
            if not consumer.finish(message):
                self.model.finished(self._moment, topic, name, message.body)
        elif verdict < 0.9:
            try:
                consumer.requeue(message, delay_ms=self._dice.choice((0, 0, 200, 60_000)))
            except BrokerError:
                return  # as above

    # The world.

    def _let_a_thread_run(self) -> None:
        self.node.scheduler.step(self._dice)

    def _let_time_pass(self) -> None:
        ms = self._dice.choice((1, 20, 300, 1100, 11_000))
        self.node.advance(ms=ms)
        channel_count = sum(len(topic.channels) for topic in self.node.broker.topics())
        if ms * NS_PER_MS >= LOG_INTERVAL_NS and channel_count <= LOGS_PER_TURN and not self._trouble:
            self.model.logged(self._moment)

    def _make_trouble(self) -> None:
        self.node.fs.faults.append(
            self._dice.choice(
                (
                    Fault("sync", suffix=".log"),
                    Fault("sync_folder"),
                    Fault("sync", suffix=".tmp"),
                    Fault("write", errno.ENOSPC, suffix=".log"),
                    Fault("write", suffix=".log", taken_bytes=self._dice.choice((1, 70, 200))),
                    Fault("write", errno.ENOSPC, suffix=".tmp"),
                    Fault("rename"),
                    Fault("truncate", suffix=".log"),
                    Fault("write", errno.ENOSPC, suffix=".acks"),
                    Fault("write", suffix=".acks", taken_bytes=self._dice.choice((1, 50, 100))),
                    Fault("sync", suffix=".acks"),
                    Fault("duplicate", errno.EMFILE),
                )
            )
        )


def send(
    history: History,
    number: int,
    topic_name: str,
    bodies: tuple[bytes, ...],
    producer: ProducerSequence | None,
    *,
    delay_ms: int = 0,
) -> None:
    """Publish a batch, for the first time or again; the answer goes to `history.answered`."""
    node, model = history.node, history.model
    try:
        topic = node.broker.topic(topic_name)
        assert isinstance(topic, JournaledTopic)
        before = topic.journal.next_offset
        blob, ends = published(bodies)
        pending: Pending | None
        if delay_ms:
            pending = topic.publish_deferred(blob, delay_ns=delay_ms * 1_000_000, producer=producer)
        else:
            pending = topic.publish(blob, ends, producer=producer)
    except (BrokerError, StorageError) as refusal:
        history.answered(number, producer, refusal)
        return
    after = topic.journal.next_offset
    if after != before:
        model.appended(node.fs.moment, number, journal=topic.journal.uuid, base_offset=after - len(bodies))
    if pending is None:
        history.answered(number, producer, None)
    else:
        pending.when_settled(lambda failure: history.answered(number, producer, failure))
