"""A topic: what is published reaches every channel, at once or when the way is free."""

from __future__ import annotations

import tracemalloc

import pytest

from emberq.base.clock import ManualClock
from emberq.broker.batch import MAX_BATCH_BYTES
from emberq.broker.channel import Channel
from emberq.broker.classic import PORTION_BYTES, PORTION_COUNT
from emberq.broker.error import ExitingError, GateClosedError, StoreError
from emberq.broker.topic import Pending, TopicConfig
from emberq.nsqd.options import NsqdOptions
from tests.broker.rig import Consumer, Rig, numbered, published
from tests.broker.simulated_disk import REFUSAL

MEBIBYTE = 1024 * 1024


# Publishing.


def test_every_channel_gets_a_copy_with_the_same_id() -> None:
    rig = Rig()
    consumers = [Consumer(rig.channel(name), rdy=10) for name in ("one", "two", "three")]
    rig.publish(b"a", b"bb", b"ccc")
    first, *others = [consumer.take_new() for consumer in consumers]
    assert [message.body for message in first] == [b"a", b"bb", b"ccc"]
    assert others == [first, first]


def test_messages_are_counted_with_their_bytes() -> None:
    rig = Rig()
    rig.publish(b"a", b"bb", b"ccc")
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.channel()
    rig.publish(b"dddd")
    rig.publish_deferred(b"later", delay_ms=1000)
    stats = rig.topic_stats()
    assert (stats.message_count, stats.message_bytes) == (6, 20)


@pytest.mark.parametrize("size", [MAX_BATCH_BYTES - 4, MAX_BATCH_BYTES, MEBIBYTE])
@pytest.mark.parametrize("has_channel", [True, False])
def test_a_large_message_is_a_message_like_any_other(size: int, has_channel: bool) -> None:
    rig = Rig()
    if has_channel:
        rig.channel()
    rig.publish(b"x" * size)
    assert rig.consumer(rdy=1).new_bodies() == [b"x" * size]
    assert (rig.topic_stats().message_count, rig.topic_stats().message_bytes) == (1, size)


def test_small_messages_around_a_large_one_keep_their_order() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    bodies = [b"before", b"x" * (MAX_BATCH_BYTES + 1), b"after"]
    rig.publish(*bodies)
    assert consumer.new_bodies() == bodies


@pytest.mark.parametrize("count", [4096, 4097, 9000])
def test_a_publish_of_thousands_keeps_order_and_gives_each_an_id(count: int) -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=count)
    rig.publish(*numbered(count))
    assert [message.body for message in consumer.received] == numbered(count)
    ids = [message.id for message in consumer.received]
    assert ids == sorted(set(ids))


def test_publishing_nothing_changes_nothing() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.publish()
    rig.publish(b"x")
    assert consumer.new_bodies() == [b"x"]
    assert rig.topic_stats().message_count == 1


def test_nothing_is_taken_while_the_gate_is_closed() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.broker.gate.reason = "disk almost full"
    with pytest.raises(GateClosedError, match=r"^disk almost full$"):
        rig.publish(b"x")
    with pytest.raises(GateClosedError, match=r"^disk almost full$"):
        rig.publish_deferred(b"x", delay_ms=1000)
    assert (rig.topic_stats().message_count, rig.stats().deferred_count, consumer.received) == (0, 0, [])
    rig.broker.gate.reason = None
    rig.publish(b"y")
    assert consumer.new_bodies() == [b"y"]


def test_a_topic_that_is_going_refuses_messages_and_channels_and_lets_its_consumers_go() -> None:
    rig = Rig()
    topic = rig.topic()
    consumer = rig.consumer(rdy=1)
    rig.broker.delete_topic("t")
    assert consumer.closed
    assert rig.disk.files == {}
    blob, ends = published([b"x"])
    with pytest.raises(ExitingError, match=r"^exiting$"):
        topic.publish(blob, ends)
    with pytest.raises(ExitingError, match=r"^exiting$"):
        topic.publish_deferred(blob, delay_ns=1)
    with pytest.raises(ExitingError, match=r"^exiting$"):
        topic.channel("c")


def test_a_topic_that_was_closed_refuses_messages_and_channels_and_lets_its_consumers_go() -> None:
    rig = Rig()
    topic = rig.topic()
    consumer = rig.consumer(rdy=1)
    rig.broker.close()
    assert consumer.closed
    blob, ends = published([b"x"])
    with pytest.raises(ExitingError):
        topic.publish(blob, ends)
    with pytest.raises(ExitingError):
        topic.channel("new")


def test_the_defaults_are_those_of_nsqd() -> None:
    options = NsqdOptions()
    assert TopicConfig().max_message_bytes == options.max_msg_size
    assert TopicConfig().node_id == 0
    limits = TopicConfig().channel
    assert limits.mem_queue_size == options.mem_queue_size
    assert limits.max_consumers == options.max_channel_consumers
    assert limits.requeues_on_disconnect == options.requeue_on_disconnect


# A publish that is not stored yet.


@pytest.mark.parametrize("failure", [None, StoreError("disk full", stored_count=0)])
def test_a_publisher_that_asked_is_told_once_when_its_messages_are_settled(failure: Exception | None) -> None:
    pending, told = Pending(), list[Exception | None]()
    pending.when_settled(told.append)
    assert told == []
    pending.settle(failure)
    pending.settle(failure)
    assert told == [failure]


@pytest.mark.parametrize("failure", [None, StoreError("disk full", stored_count=0)])
def test_a_publisher_that_asks_later_is_told_at_once(failure: Exception | None) -> None:
    pending, told = Pending(), list[Exception | None]()
    pending.settle(failure)
    pending.when_settled(told.append)
    assert told == [failure]


# Waiting in the topic.


@pytest.mark.conformance(119)
def test_messages_wait_for_the_first_channel() -> None:
    rig = Rig()
    rig.publish(b"a", b"b")
    assert rig.topic_stats().depth == 2
    rig.channel()
    assert (rig.topic_stats().depth, rig.stats().depth, rig.stats().message_count) == (0, 2, 2)
    rig.channel("late")
    assert rig.stats("late").depth == 0


@pytest.mark.conformance(115)
def test_a_paused_topic_keeps_its_messages_until_it_goes_on() -> None:
    rig = Rig()
    rig.channel()
    rig.topic().pause()
    rig.publish(b"x")
    assert (rig.topic_stats().depth, rig.stats().depth, rig.topic_stats().paused) == (1, 0, True)
    rig.topic().unpause()
    assert (rig.topic_stats().depth, rig.stats().depth, rig.topic_stats().paused) == (0, 1, False)
    rig.publish(b"y")
    assert rig.stats().depth == 2


def test_a_channel_made_while_the_topic_is_paused_gets_what_waits_there() -> None:
    rig = Rig()
    rig.topic().pause()
    rig.publish(b"x")
    rig.channel()
    assert rig.stats().depth == 0
    rig.topic().unpause()
    assert rig.stats().depth == 1


@pytest.mark.conformance(117)
def test_messages_wait_again_when_the_last_channel_is_gone() -> None:
    rig = Rig()
    rig.channel()
    rig.topic().delete_channel("c")
    rig.publish(b"x")
    assert rig.topic_stats().depth == 1
    assert rig.consumer(rdy=1).new_bodies() == [b"x"]


def test_what_waits_in_the_topic_can_be_emptied_without_touching_the_channels() -> None:
    rig = Rig(mem_queue_size=1)
    rig.channel()
    rig.publish(b"in the channel")
    rig.topic().pause()
    rig.publish(*numbered(3))
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.topic().empty()
    rig.topic().unpause()
    assert (rig.topic_stats().depth, rig.stats().depth, rig.stats().deferred_count) == (0, 1, 0)
    rig.publish(b"next")
    assert rig.stats().depth == 2


def test_what_does_not_fit_into_the_topics_memory_waits_on_disk() -> None:
    rig = Rig(mem_queue_size=2)
    rig.publish(*numbered(5))
    assert (rig.topic_stats().depth, rig.topic_stats().backend_depth) == (5, 3)
    assert sorted(rig.consumer(rdy=9).new_bodies()) == numbered(5)
    assert rig.disk.files["t"] == rig.disk.files["t:c"]


def test_a_large_backlog_is_moved_a_portion_at_a_time() -> None:
    rig = Rig(mem_queue_size=3 * PORTION_COUNT)
    total = 2 * PORTION_COUNT + 500
    rig.publish(*numbered(total))
    rig.channel()
    assert rig.stats().depth == PORTION_COUNT
    rig.publish(b"behind")
    assert rig.topic_stats().depth == PORTION_COUNT + 501
    rig.run_due()
    assert rig.stats().depth == 2 * PORTION_COUNT
    rig.run_due()
    assert (rig.topic_stats().depth, rig.stats().depth) == (0, total + 1)
    consumer = rig.consumer(rdy=total + 1)
    assert consumer.new_bodies() == [*numbered(total), b"behind"]


def test_a_backlog_of_large_messages_is_moved_a_portion_at_a_time() -> None:
    rig = Rig(mem_queue_size=100)
    for _ in range(4 * PORTION_BYTES // MEBIBYTE):
        rig.publish(*[b"x" * (MAX_BATCH_BYTES - 4)] * 4)
    rig.channel()
    moved_bytes = rig.stats().depth * MAX_BATCH_BYTES
    assert PORTION_BYTES / 2 <= moved_bytes <= 2 * PORTION_BYTES
    for _ in range(8):
        rig.run_due()
    assert (rig.topic_stats().depth, rig.stats().depth) == (0, 16 * PORTION_BYTES // MEBIBYTE)


@pytest.mark.parametrize("stop", ["pause", "delete the channel"])
def test_a_move_that_was_interrupted_goes_on_later(stop: str) -> None:
    rig = Rig(mem_queue_size=3 * PORTION_COUNT)
    rig.publish(*numbered(2 * PORTION_COUNT))
    rig.channel()
    if stop == "pause":
        rig.topic().pause()
    else:
        rig.topic().delete_channel("c")
    rig.run_due()
    assert rig.topic_stats().depth == PORTION_COUNT
    rig.topic().unpause()
    rig.channel()
    rig.run_due()
    assert rig.topic_stats().depth == 0


def test_a_backlog_that_cannot_be_read_is_tried_again() -> None:
    rig = Rig(mem_queue_size=0)
    rig.publish(b"x")
    rig.disk.unreadable.add("t")
    consumer = rig.consumer(rdy=9)
    rig.disk.unreadable.clear()
    rig.publish(b"y")
    rig.advance(ms=60_000)
    assert sorted(consumer.new_bodies()) == [b"x", b"y"]
    rig.publish(b"z")
    assert consumer.new_bodies() == [b"z"]


def test_a_backlog_that_cannot_be_read_is_left_alone_for_a_second() -> None:
    rig = Rig(mem_queue_size=0)
    rig.publish(b"x")
    rig.disk.unreadable.add("t")
    consumer = rig.consumer(rdy=9)
    rig.disk.unreadable.clear()
    rig.advance(ms=999)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"x"]


# Deferred messages that wait in the topic.


def test_the_delay_of_a_deferred_message_starts_when_it_reaches_the_channel() -> None:
    rig = Rig()
    rig.publish_deferred(b"later", delay_ms=1000)
    assert rig.topic_stats().depth == 1
    rig.advance(ms=5000)
    consumer = rig.consumer(rdy=1)
    assert (rig.stats().deferred_count, rig.topic_stats().depth) == (1, 0)
    rig.advance(ms=999)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_deferred_and_other_messages_that_wait_together_are_told_apart() -> None:
    rig = Rig()
    rig.publish(b"a", b"b")
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.publish(b"c")
    rig.publish_deferred(b"later still", delay_ms=2000)
    rig.publish(b"d")
    consumer = rig.consumer(rdy=10)
    assert consumer.new_bodies() == [b"a", b"b", b"c", b"d"]
    rig.advance(ms=1000)
    assert consumer.new_bodies() == [b"later"]
    rig.advance(ms=1000)
    assert consumer.new_bodies() == [b"later still"]


@pytest.mark.parametrize("mem_queue_size", [0, 1, 100])
def test_a_delay_survives_the_topics_disk_and_a_restart(mem_queue_size: int) -> None:
    rig = Rig(mem_queue_size=mem_queue_size)
    rig.publish(b"now")
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.restart(down_ms=5000)
    consumer = rig.consumer(rdy=10)
    assert consumer.new_bodies() == [b"now"]
    rig.advance(ms=999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_delays_are_remembered_only_for_messages_that_wait() -> None:
    rig = Rig(mem_queue_size=0)
    rig.disk.room["t"] = 1
    rig.publish_deferred(b"kept", delay_ms=1000)
    with pytest.raises(StoreError):
        rig.publish_deferred(b"refused", delay_ms=1000)
    rig.restart()
    assert len(rig.disk.times["t delay"]) == 1


def test_delays_are_forgotten_when_the_topic_is_emptied() -> None:
    rig = Rig()
    rig.publish_deferred(b"dropped", delay_ms=1000)
    rig.topic().empty()
    rig.restart()
    assert rig.disk.times["t delay"] == {}


def test_delays_are_not_remembered_for_messages_that_an_ephemeral_topic_dropped() -> None:
    rig = Rig(mem_queue_size=1)
    for body in numbered(5):
        rig.publish_deferred(body, delay_ms=1000, topic="t#ephemeral")
    assert rig.topic_stats("t#ephemeral").depth == 1
    rig.broker.close()
    assert len(rig.disk.times.get("t#ephemeral delay", {})) <= 1


# A disk that fails.


@pytest.mark.conformance(123)
def test_a_batch_that_the_disk_refuses_is_an_error_until_the_disk_recovers() -> None:
    rig = Rig(mem_queue_size=2)
    rig.disk.room["t"] = 0
    with pytest.raises(StoreError, match="no space left"):
        rig.publish(*numbered(3))
    assert rig.broker.health == REFUSAL
    assert rig.topic_stats().depth == 2
    del rig.disk.room["t"]
    rig.publish(b"x")
    assert rig.broker.health is None


@pytest.mark.parametrize("has_channel", [True, False])
def test_a_refused_batch_counts_the_messages_before_the_failure(has_channel: bool) -> None:
    rig = Rig(mem_queue_size=2)
    if has_channel:
        rig.channel()
    rig.disk.room = {"t": 1, "t:c": 1}
    with pytest.raises(StoreError):
        rig.publish(b"a", b"bb", b"ccc", b"dddd", b"eeeee")
    stats = rig.topic_stats()
    assert (stats.message_count, stats.message_bytes) == (3, 6)


@pytest.mark.parametrize("room", [{"t:a": 2, "t:b": 0}, {"t:a": 0, "t:b": 2}])
def test_a_batch_that_two_channels_refuse_counts_what_both_have(room: dict[str, int]) -> None:
    rig = Rig(mem_queue_size=1)
    for name in ("a", "b"):
        rig.channel(name)
    rig.disk.room = room
    with pytest.raises(StoreError) as refusal:
        rig.publish(*numbered(5))
    assert (refusal.value.stored_count, rig.topic_stats().message_count) == (1, 1)


def test_memory_takes_messages_whatever_the_disk_does() -> None:
    rig = Rig(mem_queue_size=2)
    rig.disk.room["t"] = 0
    rig.publish(b"a", b"b")
    assert rig.broker.health is None


def test_a_backlog_goes_to_the_other_channels_when_the_disk_of_one_refuses() -> None:
    rig = Rig(mem_queue_size=0)
    rig.publish(*numbered(3))
    rig.topic().pause()
    for name in ("broken", "good"):
        rig.channel(name)
    rig.disk.room["t:broken"] = 0
    rig.topic().unpause()
    assert (rig.stats("broken").depth, rig.stats("good").depth, rig.topic_stats().depth) == (0, 3, 0)


# Channels.


def test_channels_are_found_by_name() -> None:
    rig = Rig()
    channel = rig.channel("one")
    assert rig.channel("one") is channel
    assert rig.channel("two") is not channel
    assert rig.topic().find_channel("one") is channel
    assert rig.topic().find_channel("three") is None


def test_listeners_hear_of_each_channel_that_comes_and_goes() -> None:
    rig = Rig()
    rig.topic()
    heard: list[tuple[str | None, bool]] = []
    rig.broker.add_listener(lambda change: heard.append((change.channel, change.exists)))
    rig.channel("one")
    rig.channel("one")
    rig.channel("two")
    rig.topic().delete_channel("one")
    assert heard == [("one", True), ("two", True), ("one", False)]


def test_a_channel_that_does_not_exist_cannot_be_deleted() -> None:
    rig = Rig()
    with pytest.raises(KeyError):
        rig.topic().delete_channel("c")


def test_a_deleted_channel_leaves_no_files_and_starts_empty_when_made_again() -> None:
    rig = Rig(mem_queue_size=1)
    rig.channel("stays")
    rig.channel()
    rig.publish(*numbered(3))
    rig.topic().delete_channel("c")
    assert "t:c" not in rig.disk.files
    assert rig.stats("stays").depth == 3
    assert rig.stats().depth == 0


def test_channels_are_listed_by_name() -> None:
    rig = Rig()
    for name in ("b", "c", "a"):
        rig.channel(name)
    assert [channel.name for channel in rig.topic_stats().channels] == ["a", "b", "c"]


def test_a_held_topic_keeps_what_is_published_until_it_is_released() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.topic().hold()
    rig.publish(b"first", b"second")
    assert (rig.topic_stats().depth, consumer.new_bodies()) == (2, [])
    rig.topic().release()
    assert (rig.topic_stats().depth, consumer.new_bodies()) == (0, [b"first", b"second"])


def test_a_hold_shows_nowhere_and_a_pause_outlasts_it() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.topic().hold()
    assert not rig.topic_stats().paused
    assert not rig.broker.metadata("1").topics[0].paused
    rig.topic().pause()
    rig.publish(b"x")
    rig.topic().release()
    assert consumer.new_bodies() == []
    rig.topic().unpause()
    assert consumer.new_bodies() == [b"x"]


def test_a_channel_created_while_the_topic_is_held_gets_its_first_message() -> None:
    rig = Rig()
    rig.topic().hold()
    rig.publish(b"first")
    early, late = rig.channel("early"), rig.channel("late")
    rig.topic().release()
    assert (early.depth, late.depth) == (1, 1)


# Many channels.


class SlowConsumer(Consumer):
    """Each delivery to it takes a millisecond."""

    def __init__(self, channel: Channel, clock: ManualClock) -> None:
        self._clock = clock
        super().__init__(channel, rdy=100)

    def deliver(self, frames: bytes) -> None:
        super().deliver(frames)
        self._clock.advance(ms=1)


def test_many_slow_channels_get_their_copies_in_several_turns_and_in_order() -> None:
    rig = Rig()
    consumers = [SlowConsumer(rig.channel(f"c{number}"), rig.clock) for number in range(30)]
    rig.publish(b"first")
    assert [len(consumer.received) for consumer in consumers] == [1] * 4 + [0] * 26
    rig.publish(b"second")
    assert rig.topic_stats().depth == 1, "it waits for the first"
    rig.broker.topic("t").delete_channel("c29")
    for _ in range(20):
        rig.run_due()
    assert [consumer.new_bodies() for consumer in consumers[:29]] == [[b"first", b"second"]] * 29
    assert (consumers[29].new_bodies(), rig.topic_stats().depth) == ([], 0)
    rig.publish(b"third")
    assert consumers[0].new_bodies() == [b"third"]


def test_copies_that_are_under_way_are_not_lost_when_nsqd_stops() -> None:
    rig = Rig()
    for number in range(30):
        SlowConsumer(rig.channel(f"c{number}"), rig.clock)
    rig.publish(b"a")
    rig.restart()
    depths = [rig.stats(f"c{number}").depth for number in range(30)]
    assert depths == [1] * 30


# Single publishes that wait.


def test_publishes_that_wait_share_their_batches() -> None:
    rig = Rig()
    rig.channel()
    bodies = [b"%04d" % number for number in range(1000)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for body in bodies:
            rig.publish(body)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(bodies) < 150, "a frame of 38 bytes and little else"
    consumer = rig.consumer(rdy=1000)
    assert consumer.new_bodies() == bodies
    assert len({message.id for message in consumer.received}) == 1000
