"""A channel and its disk: overflow, restarts, a disk that fails, and channels that have no disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.error import StoreError
from tests.broker.rig import Consumer, Message, Rig, numbered, stored
from tests.broker.simulated_disk import REFUSAL

EPHEMERAL = "e#ephemeral"
HOUR_MS = 3_600_000
"""The longest delay, by default."""


def finish_all(consumer: Consumer) -> list[bytes]:
    """Finish everything until nothing more comes; the bodies in order."""
    bodies = []
    while new := consumer.take_new():
        bodies += [message.body for message in new]
        consumer.finish(*new)
    return bodies


# Overflow.


@pytest.mark.parametrize("mem_queue_size", [0, 1, 3, 1000])
def test_nothing_is_lost_between_memory_and_disk(mem_queue_size: int, tmp_path: Path) -> None:
    with Rig(folder=tmp_path, mem_queue_size=mem_queue_size, max_bytes_per_file=200) as rig:
        rig.channel()
        for first in range(0, 60, 6):
            rig.publish(*numbered(6, first=first))
        assert rig.stats().backend_depth == max(0, 60 - mem_queue_size)
        assert sorted(finish_all(rig.consumer(rdy=7))) == numbered(60)
        assert (rig.stats().depth, rig.stats().in_flight_count) == (0, 0)


def test_without_memory_messages_are_delivered_in_the_order_they_came(tmp_path: Path) -> None:
    with Rig(folder=tmp_path, mem_queue_size=0, max_bytes_per_file=200) as rig:
        consumer = rig.consumer(rdy=3)
        rig.publish(*numbered(20))
        assert finish_all(consumer) == numbered(20)


# Restarts.


@pytest.mark.parametrize("on_files", [True, False])
def test_everything_a_channel_holds_survives_a_restart(on_files: bool, tmp_path: Path) -> None:
    with Rig(folder=tmp_path if on_files else None, mem_queue_size=3) as rig:
        consumer = rig.consumer(rdy=4)
        rig.publish(*numbered(12))
        finished, tried, *_ = consumer.take_new()
        consumer.ready(0)
        consumer.finish(finished)
        consumer.requeue(tried)
        rig.restart()
        assert consumer.closed
        assert (rig.stats().depth, rig.stats().message_count) == (11, 0)
        again = rig.consumer(rdy=100).take_new()
        assert sorted(message.body for message in again) == numbered(11, first=1)
        attempts = {message.body: message.attempts for message in again}
        assert [attempts[body] for body in numbered(11, first=1)] == [2, 2, 2] + [1] * 8


def test_what_departed_consumers_held_survives_a_restart() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=5)
    rig.publish(*numbered(5))
    consumer.leave()
    rig.restart()
    assert sorted(rig.consumer(rdy=9).new_bodies()) == numbered(5)


@pytest.mark.parametrize("on_files", [True, False])
def test_deferred_messages_are_due_at_the_same_moment_after_a_restart(on_files: bool, tmp_path: Path) -> None:
    with Rig(folder=tmp_path if on_files else None) as rig:
        consumer = rig.consumer(rdy=1)
        rig.publish(b"requeued")
        consumer.requeue(consumer.take_one(), delay_ms=10_000)
        rig.publish_deferred(b"published", delay_ms=20_000)
        rig.advance(ms=1000)
        rig.restart(down_ms=2000)
        consumer = rig.consumer(rdy=5)
        rig.advance(ms=6999)
        assert consumer.received == []
        rig.advance(ms=1)
        requeued = consumer.take_one()
        assert (requeued.body, requeued.attempts) == (b"requeued", 2)
        rig.advance(ms=9999)
        assert consumer.take_new() == []
        rig.advance(ms=1)
        assert consumer.new_bodies() == [b"published"]


def test_a_wall_clock_that_was_set_back_does_not_hold_deferred_messages_longer_than_any_may_be() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.restart(wall_ns=rig.clock.wall_ns() - 24 * HOUR_MS * NS_PER_MS)
    consumer = rig.consumer(rdy=1)
    rig.advance(ms=HOUR_MS - 1)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_a_message_that_became_due_while_the_broker_was_down_comes_at_once() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.restart(down_ms=1000)
    assert rig.consumer(rdy=1).new_bodies() == [b"later"]


def test_due_times_survive_several_restarts_without_a_consumer() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=10_000)
    for _ in range(3):
        rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=1)
    rig.advance(ms=6999)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_messages_that_are_not_due_do_not_hold_up_the_others_after_a_restart() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.publish(*numbered(4))
    rig.publish_deferred(b"much later", delay_ms=20_000)
    rig.restart()
    consumer = rig.consumer(rdy=2)
    assert sorted(finish_all(consumer)) == numbered(4)
    assert (rig.stats().depth, rig.stats().deferred_count) == (0, 2)


def test_a_restarted_broker_does_not_give_old_ids_to_new_messages() -> None:
    rig = Rig()
    rig.channel()
    rig.publish(*numbered(5))
    rig.restart(down_ms=2)
    rig.publish(*numbered(5))
    consumer = rig.consumer(rdy=10)
    assert len({message.id for message in consumer.received}) == 10


def test_nothing_is_left_to_wait_for_after_an_emptied_channel_was_restarted() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.restart()
    rig.channel().empty()
    rig.restart()
    assert rig.stats().depth == 0
    assert rig.disk.times["t:c due"] == {}


def test_a_message_that_a_crash_left_twice_on_disk_does_not_narrow_the_window_for_good() -> None:
    rig = Rig(mem_queue_size=0)
    twice = Message(timestamp_ns=1, attempts=0, id=b"00000000000000aa", body=b"twice")
    rig.channel()
    rig.disk.files["t:c"].extend([stored(twice), stored(twice)])
    consumer = rig.consumer(rdy=2, msg_timeout_ms=1000)
    consumer.finish(*consumer.take_new())
    rig.advance(ms=1000)
    consumer.finish(*consumer.take_new())
    assert rig.stats().in_flight_count == 0
    rig.publish(b"a", b"b")
    assert consumer.new_bodies() == [b"a", b"b"]


# A disk that fails.


def test_a_refused_message_is_an_error_and_what_fits_into_memory_is_kept() -> None:
    rig = Rig(mem_queue_size=2)
    rig.channel()
    rig.disk.room["t:c"] = 1
    with pytest.raises(StoreError, match="no space left"):
        rig.publish(*numbered(5))
    assert rig.broker.health == REFUSAL
    assert (rig.stats().depth, rig.stats().backend_depth) == (3, 1)
    del rig.disk.room["t:c"]
    rig.publish(b"again")
    assert rig.broker.health is None
    assert sorted(rig.consumer(rdy=9).new_bodies()) == sorted([*numbered(3), b"again"])


def test_a_refused_message_is_not_counted() -> None:
    rig = Rig(mem_queue_size=2)
    rig.channel()
    rig.disk.room["t:c"] = 1
    with pytest.raises(StoreError):
        rig.publish(*numbered(5))
    assert rig.stats().message_count == rig.stats().depth == 3


def test_ready_consumers_get_what_was_stored_before_the_disk_refused() -> None:
    rig = Rig(mem_queue_size=2)
    consumer = rig.consumer(rdy=9)
    rig.disk.room["t:c"] = 0
    with pytest.raises(StoreError):
        rig.publish(*numbered(5))
    assert consumer.new_bodies() == numbered(2)


def test_one_channels_disk_does_not_keep_a_message_from_the_others() -> None:
    rig = Rig(mem_queue_size=0)
    consumers = {name: Consumer(rig.channel(name), rdy=9) for name in ("first", "broken", "last")}
    rig.disk.room["t:broken"] = 0
    with pytest.raises(StoreError):
        rig.publish(*numbered(3))
    bodies = {name: consumer.new_bodies() for name, consumer in consumers.items()}
    assert bodies == {"first": numbered(3), "broken": [], "last": numbered(3)}


def test_a_requeued_message_is_kept_in_memory_when_the_disk_refuses_it() -> None:
    rig = Rig(mem_queue_size=0)
    consumer = rig.consumer(rdy=1)
    rig.publish(b"a", b"b")
    rig.disk.room["t:c"] = 0
    consumer.requeue(consumer.take_one())
    assert rig.broker.health == REFUSAL
    assert (rig.stats().requeue_count, rig.stats().depth + rig.stats().in_flight_count) == (1, 2)
    assert sorted(finish_all(consumer)) == [b"a", b"b"]


def test_messages_that_time_out_or_become_due_are_kept_in_memory_when_the_disk_refuses_them() -> None:
    rig = Rig(mem_queue_size=2)
    consumer = rig.consumer(rdy=20, msg_timeout_ms=1000)
    rig.publish(*numbered(6))
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.disk.room["t:c"] = 1
    consumer.ready(0)
    rig.advance(ms=1000)
    assert (rig.stats().timeout_count, rig.stats().depth, rig.stats().backend_depth) == (6, 7, 1)
    assert rig.broker.health == REFUSAL
    consumer.take_new()
    consumer.ready(20)
    attempts = {message.body: message.attempts for message in consumer.take_new()}
    assert attempts == dict.fromkeys(numbered(6), 2) | {b"later": 1}


def test_a_disk_that_could_not_be_read_is_tried_again_as_time_passes() -> None:
    rig = Rig(mem_queue_size=0)
    rig.channel()
    rig.publish(b"x")
    rig.disk.unreadable.add("t:c")
    consumer = rig.consumer(rdy=1)
    assert consumer.received == []
    rig.disk.unreadable.clear()
    rig.advance(ms=60_000)
    assert consumer.new_bodies() == [b"x"]


def test_a_disk_that_could_not_be_read_is_left_alone_for_a_second() -> None:
    rig = Rig(mem_queue_size=0)
    rig.channel()
    rig.publish(b"x")
    rig.disk.unreadable.add("t:c")
    consumer = rig.consumer(rdy=1)
    rig.disk.unreadable.clear()
    rig.advance(ms=999)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"x"]


def test_a_disk_that_could_not_be_read_is_tried_again_with_the_next_message() -> None:
    rig = Rig(mem_queue_size=0)
    rig.channel()
    rig.publish(b"x")
    rig.disk.unreadable.add("t:c")
    consumer = rig.consumer(rdy=2)
    rig.disk.unreadable.clear()
    rig.publish(b"y")
    assert consumer.new_bodies() == [b"x", b"y"]


def test_a_channel_that_cannot_be_saved_does_not_keep_others_from_being_saved() -> None:
    rig = Rig()
    for name in ("first", "broken", "last"):
        rig.channel(name)
    rig.publish(*numbered(3))
    rig.disk.room["t:broken"] = 0
    rig.restart()
    assert [rig.stats(name).depth for name in ("first", "broken", "last")] == [3, 0, 3]


def test_a_channel_that_cannot_be_synced_does_not_keep_others_from_being_saved() -> None:
    rig = Rig()
    for name in ("broken", "last"):
        rig.channel(name)
    rig.publish(*numbered(3))
    rig.publish(b"other", topic="u")
    rig.disk.unsyncable.add("t:broken")
    rig.restart()
    assert rig.stats("last").depth == 3
    assert rig.topic_stats("u").depth == 1


def test_due_times_are_saved_even_when_the_messages_could_not_be_synced() -> None:
    rig = Rig()
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=10_000)
    rig.disk.unsyncable.add("t:c")
    rig.restart(down_ms=1000)
    consumer = rig.consumer(rdy=1)
    assert consumer.received == []
    rig.advance(ms=9000)
    assert consumer.new_bodies() == [b"later"]


# Channels without a disk.


@pytest.mark.conformance(121)
def test_an_ephemeral_channel_drops_what_does_not_fit_into_memory() -> None:
    rig = Rig(mem_queue_size=3)
    channel = rig.channel(EPHEMERAL)
    rig.publish(*numbered(5))
    rig.publish(b"more")
    assert (rig.stats(EPHEMERAL).depth, rig.stats(EPHEMERAL).backend_depth) == (3, 0)
    assert rig.broker.health is None
    assert Consumer(channel, rdy=9).new_bodies() == numbered(3)


def test_an_ephemeral_channel_drops_what_is_too_many_bytes_for_memory() -> None:
    rig = Rig(mem_queue_bytes=1000)
    channel = rig.channel(EPHEMERAL)
    rig.publish(*[b"x" * 400] * 4)
    assert channel.depth == 2


@pytest.mark.parametrize("mem_queue_size", [0, 1, 3])
def test_an_ephemeral_channel_drops_nothing_that_a_ready_consumer_takes(mem_queue_size: int) -> None:
    rig = Rig(mem_queue_size=mem_queue_size)
    consumer = Consumer(rig.channel(EPHEMERAL), rdy=8)
    rig.publish(*numbered(10))
    assert consumer.new_bodies() == numbered(8)
    assert rig.stats(EPHEMERAL).depth == min(2, mem_queue_size)


def test_an_ephemeral_channel_without_memory_hands_over_what_consumers_take_at_once() -> None:
    rig = Rig(mem_queue_size=0)
    consumer = Consumer(rig.channel(EPHEMERAL), rdy=2)
    rig.publish(*numbered(5))
    assert rig.stats(EPHEMERAL).depth == 0
    held = consumer.take_new()
    assert [message.body for message in held] == numbered(2)
    consumer.finish(*held)
    assert consumer.take_new() == []
    rig.publish(b"next")
    assert consumer.new_bodies() == [b"next"]


def test_an_ephemeral_channel_without_memory_drops_what_comes_while_it_is_paused() -> None:
    rig = Rig(mem_queue_size=0)
    consumer = Consumer(rig.channel(EPHEMERAL), rdy=2)
    consumer.channel.pause()
    rig.publish(b"lost")
    consumer.channel.unpause()
    assert (rig.stats(EPHEMERAL).depth, consumer.received) == (0, [])


def test_a_retry_on_an_ephemeral_channel_without_memory_goes_to_whoever_is_ready() -> None:
    rig = Rig(mem_queue_size=0)
    consumer = Consumer(rig.channel(EPHEMERAL), rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    consumer.requeue(consumer.take_one())
    assert consumer.take_one().attempts == 2
    rig.advance(ms=1000)
    assert consumer.take_one().attempts == 3
    consumer.ready(0)
    rig.advance(ms=1000)
    assert (rig.stats(EPHEMERAL).depth, rig.stats(EPHEMERAL).in_flight_count) == (0, 0)


def test_an_ephemeral_channel_leaves_nothing_behind() -> None:
    rig = Rig()
    consumer = Consumer(rig.channel(EPHEMERAL), rdy=1)
    rig.publish(b"a", b"b")
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.restart()
    assert consumer.closed
    assert rig.topic().channels == {}
    assert rig.stats(EPHEMERAL).depth == 0


def test_a_normal_channel_of_an_ephemeral_topic_has_a_disk() -> None:
    rig = Rig(mem_queue_size=1)
    rig.channel("c", topic="t#ephemeral")
    rig.publish(*numbered(3), topic="t#ephemeral")
    assert rig.stats("c", topic="t#ephemeral").backend_depth == 2
