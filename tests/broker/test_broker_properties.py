"""The broker against a model: any history of publishing, consuming, administration, time and restarts.

After each step everything that the broker shows must agree with the model (see `broker_model`): each message in exactly
one place, counters that add up, nobody who waits beside a message. Memory and files are tiny, so that every few
messages something overflows or rolls.
"""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.broker.error import MessageNotInFlightError, NotOwnerError
from tests.broker.broker_model import BrokerModel, ChannelModel, ConsumerModel, TopicModel
from tests.broker.rig import Consumer, Rig, fin_lines
from tests.support.examples import examples

DROPPING_ACTS = ["empty a topic", "empty a channel", "delete a topic", "delete a channel"]
MAX_MSG_TIMEOUT_MS = 5000
UNKNOWN_ID = b"f" * 16

topic_names = st.sampled_from(["t", "t", "t", "u"])
channel_names = st.sampled_from(["c", "c", "c", "d", "e#ephemeral"])
"""Names repeat because histories are dense when most of what happens happens in one place."""
choices = st.integers(0, 1 << 16)
"""Picks one of however many there are."""
paddings = st.one_of(
    st.just([0]), st.integers(1, 20).map(lambda n: [5] * n), st.lists(st.integers(0, 60), min_size=1, max_size=8)
)
"""How much longer than its number the body of each message is."""
ready_counts = st.sampled_from([0, 1, 4, 10, 20, 20])
rarely = st.sampled_from([False, False, False, True])
"""For what stops the messages, so that most of the time they flow."""
delays_ms = st.sampled_from([1, 500, 2500, 30_000])
steps_ms = st.sampled_from([0, 1, 500, 1000, 2500, 20_000])


class BrokerMachine(RuleBasedStateMachine):
    """Does the same things to the broker and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = BrokerModel()
        self.numbers = count()
        self.latest_wall_ns = 0
        self.quiet_steps = 0
        """Steps since the last one that left little behind."""

    def has_been_quiet(self) -> bool:
        """Whether things have had time to grow: a condition of whatever drops or stops much of them."""
        return self.quiet_steps >= 10

    @initialize(mem_queue_size=st.sampled_from([0, 1, 3, 1000]), max_bytes_per_file=st.sampled_from([50, 500, 100_000]))
    def start(self, mem_queue_size: int, max_bytes_per_file: int) -> None:
        self.rig = Rig(
            folder=self.folder,
            mem_queue_size=mem_queue_size,
            max_msg_timeout_ms=MAX_MSG_TIMEOUT_MS,
            max_bytes_per_file=max_bytes_per_file,
        )
        self.subscribe(topic="t", name="c", timeout_ms=4000, rdy=10)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.broker.close()
        shutil.rmtree(self.folder)

    # Publishing.

    @rule(length=st.sampled_from([5, 20]), message_count=st.integers(1, 30))
    def publish_a_burst(self, length: int, message_count: int) -> None:
        self.publish(name="t", lengths=[length] * message_count)

    @rule(name=topic_names, lengths=paddings)
    def publish(self, name: str, lengths: list[int]) -> None:
        bodies = [self.new_body(length) for length in lengths]
        self.rig.publish(*bodies, topic=name)
        for body in bodies:
            self.topic_model(name).publish(body, delay_ms=0)

    @rule(name=topic_names, length=st.integers(0, 60), delay_ms=delays_ms)
    def publish_deferred(self, name: str, length: int, delay_ms: int) -> None:
        body = self.new_body(length)
        self.rig.publish_deferred(body, delay_ms=delay_ms, topic=name)
        self.topic_model(name).publish(body, delay_ms=delay_ms)

    def new_body(self, length: int) -> bytes:
        return b"%05d" % next(self.numbers) + b"." * length

    # Topics and channels.

    def topic_model(self, name: str) -> TopicModel:
        return self.model.topics.setdefault(name, TopicModel())

    @rule(topic=topic_names, name=channel_names)
    def create_channel(self, topic: str, name: str) -> None:
        self.rig.channel(name, topic=topic)
        self.channel_model(topic, name)

    def channel_model(self, topic: str, name: str) -> ChannelModel:
        is_ephemeral = name.endswith("#ephemeral")
        new = ChannelModel(is_ephemeral, max_held_ns=MAX_MSG_TIMEOUT_MS * NS_PER_MS)
        return self.topic_model(topic).channels.setdefault(name, new)

    @rule(name=topic_names, pauses=rarely)
    def pause_topic(self, name: str, pauses: bool) -> None:
        topic = self.rig.topic(name)
        topic.pause() if pauses else topic.unpause()
        self.topic_model(name).paused = pauses

    @rule(topic=topic_names, name=channel_names, pauses=rarely)
    def pause_channel(self, topic: str, name: str, pauses: bool) -> None:
        channel = self.rig.channel(name, topic=topic)
        channel.pause() if pauses else channel.unpause()
        self.channel_model(topic, name).paused = pauses

    @rule(
        act=st.sampled_from(["empty a topic", "empty a channel", "delete a topic", "delete a channel"]), choice=choices
    )
    def drop_something(self, act: str, choice: int) -> None:
        """One rule for all that leaves little behind, or nothing would ever grow old."""
        topics = sorted(self.model.topics)
        name = topics[choice % len(topics)] if topics else "t"
        channels = sorted(self.model.topics[name].channels) if topics else []
        if act == "empty a topic":
            self.rig.topic(name).empty()
            self.topic_model(name).waiting.clear()
        elif act == "delete a topic" and topics:
            self.delete_topic(name)
        elif channels and act == "empty a channel":
            self.rig.channel(channels[choice % len(channels)], topic=name).empty()
            self.model.topics[name].channels[channels[choice % len(channels)]].empty()
        elif channels and act == "delete a channel":
            self.delete_channel(name, channels[choice % len(channels)])

    def delete_topic(self, name: str) -> None:
        self.rig.broker.delete_topic(name)
        self.rig.save_metadata()
        del self.model.topics[name]
        assert not [path for path in self.folder.iterdir() if path.name.startswith((f"{name}.", f"{name}:"))]

    def delete_channel(self, topic: str, name: str) -> None:
        self.rig.topic(topic).delete_channel(name)
        gone = self.model.topics[topic].channels.pop(name)
        assert all(model.consumer.closed for model in gone.consumers)

    # Consumers.

    @rule(topic=topic_names, name=channel_names, timeout_ms=st.sampled_from([1000, 4000]), rdy=ready_counts)
    def subscribe(self, topic: str, name: str, timeout_ms: int, rdy: int) -> None:
        consumer = Consumer(self.rig.channel(name, topic=topic), msg_timeout_ms=timeout_ms)
        self.channel_model(topic, name).consumers.append(ConsumerModel(consumer, rdy=rdy))
        consumer.ready(rdy)

    def some_consumer(self, choice: int) -> tuple[TopicModel, ChannelModel, ConsumerModel]:
        consumers = list(self.model.consumers())
        return consumers[choice % len(consumers)]

    def has_consumers(self) -> bool:
        return any(True for _ in self.model.consumers())

    @precondition(has_consumers)
    @rule(choice=choices, rdy=ready_counts)
    def ready(self, choice: int, rdy: int) -> None:
        _, _, model = self.some_consumer(choice)
        model.consumer.ready(rdy)
        model.rdy = rdy

    @precondition(has_consumers)
    @rule(choice=choices)
    def fill_or_drain_the_socket(self, choice: int) -> None:
        _, _, model = self.some_consumer(choice)
        model.consumer.unblock() if model.blocked else model.consumer.block()
        model.blocked = not model.blocked

    @precondition(has_consumers)
    @rule(choice=choices)
    def leave(self, choice: int) -> None:
        topic, channel, model = self.some_consumer(choice)
        model.consumer.leave()
        self.rig.broker.leave(model.consumer.channel)
        channel.consumers.remove(model)
        if channel.is_ephemeral and not channel.consumers:
            del topic.channels[model.consumer.channel.name]

    # Answers.

    def has_holders(self) -> bool:
        return bool(self.holders())

    def holders(self) -> list[tuple[TopicModel, ChannelModel, ConsumerModel]]:
        """The consumers that have something to answer."""
        return [each for each in self.model.consumers() if each[1].held_by(each[2].consumer)]

    def some_holder(self, choice: int) -> tuple[TopicModel, ChannelModel, ConsumerModel]:
        holders = self.holders()
        return holders[choice % len(holders)]

    @precondition(has_holders)
    @rule(choice=choices, part=st.integers(1, 20))
    def finish_in_order(self, choice: int, part: int) -> None:
        topic, channel, model = self.some_holder(choice)
        bodies = channel.held_by(model.consumer)[:part]
        lines = fin_lines([topic.seen[body][0] for body in bodies])
        assert model.consumer.channel.finish(model.consumer.subscriber, lines) == []
        model.consumer.channel.pump()
        for body in bodies:
            channel.finish(model, body)

    @precondition(has_consumers)
    @rule(choice=choices, data=st.data())
    def finish_in_any_order(self, choice: int, data: st.DataObject) -> None:
        """Own messages, some of them twice, with those of others and unknown ones among them."""
        topic, channel, model = self.some_consumer(choice)
        everything = [*topic.bodies, UNKNOWN_ID]
        ids = data.draw(st.lists(st.sampled_from(everything), max_size=12))
        held = channel.held_by(model.consumer)
        refused: list[bytes] = []
        for message_id in ids:
            body = topic.bodies.get(message_id)
            if body in held:
                held.remove(body)
                channel.finish(model, body)
            else:
                refused.append(message_id)
        answered = model.consumer.channel.finish(model.consumer.subscriber, fin_lines(ids))
        model.consumer.channel.pump()
        assert answered == refused

    @precondition(has_holders)
    @rule(choice=choices, which=choices, delay_ms=st.one_of(st.just(0), delays_ms))
    def requeue(self, choice: int, which: int, delay_ms: int) -> None:
        topic, channel, model = self.some_holder(choice)
        held = channel.held_by(model.consumer)
        body, consumer = held[which % len(held)], model.consumer
        consumer.channel.requeue(consumer.subscriber, topic.seen[body][0], delay_ns=delay_ms * NS_PER_MS)
        consumer.channel.pump()
        channel.requeue(model, body, delay_ms=delay_ms, now_ns=self.now_ns)

    @precondition(has_holders)
    @rule(choice=choices, which=choices)
    def touch(self, choice: int, which: int) -> None:
        topic, channel, model = self.some_holder(choice)
        held = channel.held_by(model.consumer)
        body, subscriber = held[which % len(held)], model.consumer.subscriber
        model.consumer.channel.touch(subscriber, topic.seen[body][0], msg_timeout_ns=subscriber.msg_timeout_ns)
        channel.touch(body, now_ns=self.now_ns)

    @precondition(has_consumers)
    @rule(choice=choices, which=choices)
    def answer_what_is_not_its_own(self, choice: int, which: int) -> None:
        topic, channel, model = self.some_consumer(choice)
        held = channel.held_by(model.consumer)
        others = [message_id for message_id, body in topic.bodies.items() if body not in held]
        message_id = [*others, UNKNOWN_ID][which % (len(others) + 1)]
        is_in_flight = topic.bodies.get(message_id) in channel.in_flight
        refusal = NotOwnerError if is_in_flight else MessageNotInFlightError
        consumer = model.consumer
        with pytest.raises(refusal):
            consumer.channel.requeue(consumer.subscriber, message_id, delay_ns=0)
        with pytest.raises(refusal):
            consumer.channel.touch(consumer.subscriber, message_id, msg_timeout_ns=NS_PER_SECOND)
        assert isinstance(consumer.channel.why_not(message_id), refusal)

    # Time.

    @property
    def now_ns(self) -> int:
        return self.rig.clock.monotonic_ns()

    @rule(ms=steps_ms)
    def advance(self, ms: int) -> None:
        self.rig.advance(ms=ms)

    @rule(early_ms=st.sampled_from([0, 1]))
    def advance_to_the_next_moment(self, early_ms: int) -> None:
        """To the moment when something is due, or to just before it; both are full milliseconds."""
        next_ns = min(self.model.moments_ns(), default=self.now_ns)
        self.rig.advance(ms=max(0, (next_ns - self.now_ns) // NS_PER_MS - early_ms))

    @precondition(lambda self: not self.model.has_restored)
    @rule(seconds=st.sampled_from([-86_400, -1, 1, 86_400]))
    def set_the_wall_clock(self, seconds: int) -> None:
        """Due times that were saved are moments of the wall clock, so it is left alone while there are any."""
        self.latest_wall_ns = max(self.latest_wall_ns, self.rig.clock.wall_ns())
        self.rig.clock.set_wall(self.rig.clock.wall_ns() + seconds * NS_PER_SECOND)

    @precondition(has_been_quiet)
    @rule(down_ms=st.sampled_from([2, 1000, 10_000]), rdy=ready_counts)
    def restart(self, down_ms: int, rdy: int) -> None:
        """A new broker starts later than the old one ever was, or its ids would not be new."""
        self.quiet_steps = 0
        wall_ns = self.rig.clock.wall_ns()
        self.latest_wall_ns = max(self.latest_wall_ns, wall_ns)
        self.model.restart(wall_offset_ns=wall_ns - self.now_ns)
        self.rig.restart(down_ms=down_ms, wall_ns=self.latest_wall_ns)
        self.subscribe(topic="t", name="c", timeout_ms=4000, rdy=rdy)

    # The comparison.

    @invariant()
    def agrees_with_the_model(self) -> None:
        if hasattr(self, "rig"):
            self.quiet_steps += 1
            self.rig.run_due()
            self.model.settle(now_ns=self.now_ns, wall_ns=self.rig.clock.wall_ns())
            self.model.check(self.rig.broker.snapshot())


BrokerMachine.TestCase.settings = examples(120, stateful_step_count=80)


class TestAnyHistory(BrokerMachine.TestCase):  # type: ignore[misc, valid-type]
    """Any history leaves the broker where the model is."""
