"""A channel and time: timeouts, TOUCH, deferred messages, and what departed consumers held."""

from __future__ import annotations

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.channel import MATURING_COUNT
from tests.broker.rig import Consumer, Rig, numbered

# Timeouts.


@pytest.mark.conformance(100)
def test_an_unanswered_message_times_out_at_its_deadline() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    message = consumer.take_one()
    consumer.ready(0)
    rig.advance(ms=999.999999)
    assert (rig.stats().in_flight_count, rig.stats().timeout_count) == (1, 0)
    rig.advance(ms=0.000001)
    stats = rig.stats()
    assert (stats.in_flight_count, stats.timeout_count, stats.requeue_count, stats.depth) == (0, 1, 0, 1)
    assert consumer.finish(message) == [message.id]
    assert str(rig.channel().why_not(message.id)) == "ID not in flight"


def test_a_message_that_timed_out_comes_again_with_one_more_attempt() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    first = consumer.take_one()
    rig.advance(ms=1000)
    assert consumer.take_one() == first._replace(attempts=2)
    rig.advance(ms=1000)
    assert consumer.take_one() == first._replace(attempts=3)
    assert rig.stats().timeout_count == 2
    assert rig.stats().message_count == 1


@pytest.mark.conformance(103)
def test_many_messages_time_out_together() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=250, msg_timeout_ms=100)
    for body in numbered(250):
        rig.publish(body)
    consumer.ready(0)
    assert rig.stats().in_flight_count == 250
    rig.advance(ms=400)
    stats = rig.stats()
    assert (stats.in_flight_count, stats.timeout_count, stats.depth) == (0, 250, 250)
    assert stats.clients[0].in_flight_count == 0


def test_each_consumer_has_the_timeout_it_asked_for() -> None:
    rig = Rig()
    hasty = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"short")
    patient = rig.consumer(rdy=1, msg_timeout_ms=5000)
    rig.publish(b"long")
    for consumer in (hasty, patient):
        consumer.ready(0)
    rig.advance(ms=1000)
    assert (hasty.subscriber.in_flight_count, patient.subscriber.in_flight_count) == (0, 1)
    rig.advance(ms=4000)
    assert (rig.stats().in_flight_count, rig.stats().timeout_count) == (0, 2)


def test_messages_delivered_at_different_times_have_different_deadlines() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10, msg_timeout_ms=1000)
    for body in numbered(5):
        rig.publish(body)
        rig.advance(ms=100)
    consumer.ready(0)
    rig.advance(ms=500)
    timed_out = []
    for _ in range(5):
        timed_out.append(rig.stats().timeout_count)
        rig.advance(ms=100)
    assert timed_out == [1, 2, 3, 4, 5]


def test_timeouts_go_on_while_the_channel_is_paused() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    rig.channel().pause()
    rig.advance(ms=1000)
    assert (rig.stats().timeout_count, rig.stats().depth, len(consumer.received)) == (1, 1, 1)


def test_a_timeout_opens_the_window_for_other_messages() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"a", b"b")
    consumer.take_new()
    rig.advance(ms=1000)
    assert consumer.new_bodies() == [b"b"], "what timed out goes to the end"


def test_a_finished_message_does_not_time_out() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10, msg_timeout_ms=1000)
    rig.publish(*numbered(10))
    consumer.finish(*consumer.take_new())
    rig.advance(ms=100_000)
    assert (rig.stats().timeout_count, rig.stats().depth) == (0, 0)


def test_hundreds_of_channels_keep_their_deadlines() -> None:
    rig = Rig()
    consumers = [Consumer(rig.channel(f"c{number}"), rdy=1, msg_timeout_ms=1000 + number) for number in range(200)]
    rig.publish(b"x")
    for consumer in consumers:
        consumer.ready(0)
    for timed_out in (0, 50, 120, 200):
        due_ms = 999 + timed_out
        rig.advance(ms=due_ms - (rig.clock.monotonic_ns() - NS_PER_SECOND) / 1_000_000)
        assert sum(rig.stats(f"c{number}").timeout_count for number in range(200)) == timed_out


def test_a_wall_clock_that_jumps_does_not_move_deadlines() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    rig.publish_deferred(b"later", delay_ms=1000)
    consumer.ready(0)
    for hours in (-5, 5):
        rig.clock.set_wall(rig.clock.wall_ns() + hours * 3600 * NS_PER_SECOND)
        rig.advance(ms=499)
        assert (rig.stats().in_flight_count, rig.stats().deferred_count) == (1, 1)
    rig.advance(ms=2)
    assert (rig.stats().timeout_count, rig.stats().deferred_count, rig.stats().depth) == (1, 0, 2)


def test_a_wall_clock_that_goes_back_gives_no_id_twice() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1000)
    for seconds in (0, -3600, 3600, -1, 0):
        rig.clock.set_wall(rig.clock.wall_ns() + seconds * NS_PER_SECOND)
        rig.publish(*numbered(100))
    assert len({message.id for message in consumer.received}) == 500


# TOUCH.


@pytest.mark.conformance(101)
def test_a_touched_message_can_be_finished_after_its_first_deadline() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=150)
    rig.publish(b"x")
    message = consumer.take_one()
    rig.advance(ms=75)
    consumer.touch(message)
    rig.advance(ms=149)
    assert consumer.finish(message) == []
    rig.advance(ms=1000)
    assert rig.stats().timeout_count == 0


@pytest.mark.conformance(102)
def test_touching_does_not_help_beyond_the_longest_timeout() -> None:
    rig = Rig(max_msg_timeout_ms=3000)
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    message = consumer.take_one()
    consumer.ready(0)
    for _ in range(5):
        rig.advance(ms=590)
        consumer.touch(message)
    rig.advance(ms=49)
    assert rig.stats().timeout_count == 0
    rig.advance(ms=1)
    assert rig.stats().timeout_count == 1


def test_a_redelivered_message_may_be_held_for_the_longest_timeout_again() -> None:
    rig = Rig(max_msg_timeout_ms=1500)
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    rig.publish(b"x")
    rig.advance(ms=1000)
    _, second = consumer.take_new()
    rig.advance(ms=900)
    consumer.touch(second)
    rig.advance(ms=599)
    assert rig.stats().timeout_count == 1
    rig.advance(ms=1)
    assert rig.stats().timeout_count == 2


def test_touching_one_message_leaves_the_others_their_deadline() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10, msg_timeout_ms=1000)
    rig.publish(*numbered(10))
    message = consumer.take_new()[4]
    consumer.ready(0)
    rig.advance(ms=500)
    consumer.touch(message)
    rig.advance(ms=500)
    assert rig.stats().timeout_count == 9
    rig.advance(ms=500)
    assert rig.stats().timeout_count == 10


def test_a_touch_with_a_shorter_timeout_brings_the_deadline_nearer() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1, msg_timeout_ms=10_000)
    rig.publish(b"x")
    message = consumer.take_one()
    rig.channel().touch(consumer.subscriber, message.id, msg_timeout_ns=NS_PER_SECOND)
    rig.advance(ms=1000)
    assert rig.stats().timeout_count == 1


# Consumers that left.


@pytest.mark.conformance(104)
def test_what_a_departed_consumer_held_goes_to_another_when_it_times_out() -> None:
    rig = Rig()
    gone = rig.consumer(rdy=1, msg_timeout_ms=2000)
    rig.publish(b"x")
    message = gone.take_one()
    gone.leave()
    other = rig.consumer(rdy=1)
    rig.advance(ms=1999)
    assert other.received == []
    assert rig.stats().in_flight_count == 1
    rig.advance(ms=1)
    assert other.take_one() == message._replace(attempts=2)
    assert rig.stats().timeout_count == 1


def test_what_several_departed_consumers_held_comes_back() -> None:
    rig = Rig()
    for timeout_ms in (1000, 2000, 3000):
        consumer = rig.consumer(rdy=10, msg_timeout_ms=timeout_ms)
        rig.publish(*numbered(10))
        consumer.finish(*consumer.take_new()[:3])
        consumer.ready(0)
        consumer.leave()
    depths = []
    for _ in range(4):
        depths.append((rig.stats().in_flight_count, rig.stats().depth))
        rig.advance(ms=1000)
    assert depths == [(21, 0), (14, 7), (7, 14), (0, 21)]


def test_what_a_departed_consumer_held_can_be_requeued_at_once() -> None:
    rig = Rig(requeues_on_disconnect=True)
    gone = rig.consumer(rdy=10)
    rig.publish(*numbered(10))
    held = gone.take_new()
    gone.finish(held[0], held[4])  # the second answer breaks the run up
    gone.leave()
    other = rig.consumer(rdy=20)
    assert other.received == []
    rig.run_due()
    again = [message._replace(attempts=2) for message in held[1:4] + held[5:]]
    assert sorted(other.take_new()) == sorted(again)
    stats = rig.stats()
    assert (stats.in_flight_count, stats.depth, stats.requeue_count, stats.timeout_count) == (8, 0, 8, 0)
    rig.advance(ms=59_999)
    assert other.take_new() == []


def test_many_consumers_that_leave_with_much_are_cleared_away_in_portions() -> None:
    rig = Rig(requeues_on_disconnect=True)
    consumers = [rig.consumer(rdy=500) for _ in range(10)]
    rig.publish(*numbered(5_000))
    stayed, *gone = consumers
    kept = len(stayed.take_new())
    for consumer in gone:
        consumer.leave()
    left = []
    while rig.stats().in_flight_count > kept:
        left.append(rig.stats().in_flight_count)
        rig.run_due()
    assert len(left) >= 4
    assert rig.stats().depth == 5_000 - kept


def test_what_is_emptied_or_closed_before_a_departure_is_seen_to_does_not_come_back() -> None:
    rig = Rig(requeues_on_disconnect=True)
    gone = rig.consumer(rdy=10)
    rig.publish(*numbered(10))
    gone.leave()
    rig.channel().empty()
    rig.run_due()
    assert rig.stats().depth == 0
    gone = rig.consumer(rdy=10)
    rig.publish(*numbered(10))
    gone.leave()
    rig.restart()
    rig.run_due()
    assert rig.stats().depth == 10


# Deferred messages.


@pytest.mark.conformance(64)
def test_a_deferred_message_is_counted_at_once_and_waits() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish_deferred(b"later", delay_ms=1000)
    stats = rig.stats()
    assert (stats.deferred_count, stats.message_count, stats.depth) == (1, 1, 0)
    assert consumer.received == []


@pytest.mark.conformance(107, 108)
def test_a_deferred_message_comes_when_it_is_due_even_on_a_new_channel() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish_deferred(b"later", delay_ms=200)
    rig.advance(ms=199)
    assert consumer.received == []
    rig.advance(ms=1)
    message = consumer.take_one()
    assert (message.body, message.attempts) == (b"later", 1)
    assert (rig.stats().deferred_count, rig.stats().message_count) == (0, 1)


@pytest.mark.conformance(68)
def test_a_message_deferred_by_nothing_comes_without_delay() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish_deferred(b"now", delay_ms=0)
    rig.run_due()
    assert consumer.new_bodies() == [b"now"]


def test_deferred_messages_come_in_the_order_they_are_due() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    for delay_ms in (300, 100, 200):
        rig.publish_deferred(b"%d" % delay_ms, delay_ms=delay_ms)
    rig.advance(ms=1000)
    assert consumer.new_bodies() == [b"100", b"200", b"300"]


def test_every_channel_defers_its_own_copy() -> None:
    rig = Rig()
    one, two = Consumer(rig.channel("one"), rdy=1), Consumer(rig.channel("two"), rdy=1)
    rig.publish_deferred(b"later", delay_ms=200)
    rig.advance(ms=200)
    assert one.take_one() == two.take_one()


@pytest.mark.conformance(98)
def test_a_requeue_with_a_delay_waits_that_long() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"x")
    message = consumer.take_one()
    consumer.requeue(message, delay_ms=60_000)
    assert (rig.stats().deferred_count, rig.stats().in_flight_count, rig.stats().requeue_count) == (1, 0, 1)
    rig.advance(ms=59_999)
    assert consumer.take_new() == []
    rig.advance(ms=1)
    assert consumer.take_one() == message._replace(attempts=2)


def test_a_delayed_requeue_opens_the_window() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"a", b"b")
    consumer.requeue(consumer.take_one(), delay_ms=1000)
    assert consumer.new_bodies() == [b"b"]


def test_deferrals_end_while_the_channel_is_paused_but_nothing_is_delivered() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.channel().pause()
    rig.publish_deferred(b"later", delay_ms=200)
    rig.advance(ms=200)
    assert (rig.stats().deferred_count, rig.stats().depth, consumer.received) == (0, 1, [])
    rig.channel().unpause()
    assert consumer.new_bodies() == [b"later"]


def test_a_message_that_became_due_goes_to_disk_when_memory_is_full() -> None:
    rig = Rig(mem_queue_size=1)
    rig.channel()
    rig.publish_deferred(b"later", delay_ms=200)
    rig.publish(b"in memory")
    rig.advance(ms=200)
    assert (rig.stats().depth, rig.stats().backend_depth) == (2, 1)


def test_what_another_topic_did_not_take_waits_in_the_channel_before_it_is_tried_again() -> None:
    rig = Rig()
    rig.channel()
    rig.publish(b"a", b"b")
    transit = rig.channel().in_transit
    (span,) = rig.channel().take_out(max_count=2, max_bytes=1000) or []
    transit.add([span])
    assert (rig.stats().depth, rig.stats().in_flight_count) == (0, 2)
    transit.put_back(span, delay_ns=5 * NS_PER_SECOND)
    assert (rig.stats().deferred_count, rig.stats().in_flight_count) == (2, 0)
    consumer = rig.consumer(rdy=10)
    rig.advance(ms=4999)
    assert consumer.received == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"a", b"b"]


# The end.


def test_a_deleted_channel_holds_nothing_any_more_and_nothing_is_due_in_it() -> None:
    rig = Rig()
    channel = rig.channel()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"held", b"queued")
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.topic().delete_channel("c")
    assert consumer.closed
    stats = channel.stats()
    assert (stats.depth, stats.in_flight_count, stats.deferred_count, stats.clients) == (0, 0, 0, ())
    rig.advance(ms=900_000)
    assert (channel.depth, channel.timeout_count) == (0, 0)


def test_many_deferred_messages_that_are_due_together_are_queued_in_several_turns() -> None:
    rig = Rig(mem_queue_size=100)
    rig.channel()
    for number in range(2 * MATURING_COUNT + 50):
        rig.publish_deferred(b"%d" % number, delay_ms=1000)
    rig.clock.advance(ms=1000)
    depths = []
    for _ in range(3):
        rig.run_due()
        depths.append(rig.stats().depth)
    assert depths == [MATURING_COUNT, 2 * MATURING_COUNT, 2 * MATURING_COUNT + 50]
    assert rig.stats().deferred_count == 0
