"""A channel: joining and leaving, who may answer what, and what pausing, emptying and deleting do."""

from __future__ import annotations

from collections import Counter

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.channel import ChannelLimits
from emberq.broker.error import ExitingError, MessageNotInFlightError, NotOwnerError, TooManyConsumersError
from emberq.broker.stats import LatencyConfig
from emberq.broker.subscriber import Subscriber
from tests.broker.dead_letters import fail, give_up_after
from tests.broker.rig import Consumer, Message, Rig, numbered

UNKNOWN = Message(timestamp_ns=0, attempts=1, id=b"0" * 16, body=b"")


# Joining and leaving.


@pytest.mark.conformance(83)
def test_a_channel_takes_only_so_many_consumers() -> None:
    rig = Rig(max_channel_consumers=1)
    first = rig.consumer()
    with pytest.raises(TooManyConsumersError, match=r"^consumers for t:c exceeds limit of 1$"):
        rig.consumer()
    first.leave()
    assert rig.consumer().channel.subscriber_count == 1


def test_joining_again_changes_nothing() -> None:
    rig = Rig(max_channel_consumers=1)
    consumer = rig.consumer(rdy=1)
    rig.channel().subscribe(consumer.subscriber)
    rig.publish(b"a", b"b")
    assert rig.stats().client_count == 1
    assert len(consumer.received) == 1


def test_leaving_twice_changes_nothing() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"x")
    consumer.leave()
    consumer.leave()
    assert rig.stats().in_flight_count == 1
    assert rig.stats().client_count == 0


def test_a_deleted_channel_cannot_be_joined() -> None:
    rig = Rig()
    channel = rig.channel()
    rig.topic().delete_channel("c")
    with pytest.raises(ExitingError, match=r"^exiting$"):
        channel.subscribe(Subscriber(Consumer(rig.channel("other")), msg_timeout_ns=1))


def test_a_closed_channel_cannot_be_joined() -> None:
    rig = Rig()
    channel = rig.channel()
    channel.close()
    with pytest.raises(ExitingError, match=r"^exiting$"):
        channel.subscribe(Subscriber(Consumer(rig.channel("other")), msg_timeout_ns=1))


def test_a_channel_takes_any_number_of_consumers_unless_told_otherwise() -> None:
    assert ChannelLimits().max_consumers == 0
    assert Rig(max_channel_consumers=0).consumer().channel.subscriber_count == 1


def test_who_has_left_wants_nothing_more() -> None:
    consumer = Rig().consumer(rdy=5)
    consumer.leave()
    assert consumer.subscriber.window == 0


# Answers.


def test_an_answer_to_an_unknown_message_is_refused() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    assert consumer.finish(UNKNOWN) == [UNKNOWN.id]
    assert str(rig.channel().why_not(UNKNOWN.id)) == "ID not in flight"
    with pytest.raises(MessageNotInFlightError, match=r"^ID not in flight$"):
        consumer.requeue(UNKNOWN)
    with pytest.raises(MessageNotInFlightError, match=r"^ID not in flight$"):
        consumer.touch(UNKNOWN)


@pytest.mark.parametrize("owner_left", [False, True])
def test_only_the_consumer_that_got_a_message_may_answer_it(owner_left: bool) -> None:
    rig = Rig()
    owner, other = rig.consumer(rdy=10), rig.consumer()
    rig.publish(*numbered(6))
    message = owner.take_new()[3]
    if owner_left:
        owner.leave()
    assert other.finish(message) == [message.id]
    assert str(rig.channel().why_not(message.id)) == "client does not own message"
    with pytest.raises(NotOwnerError, match=r"^client does not own message$"):
        other.requeue(message)
    with pytest.raises(NotOwnerError, match=r"^client does not own message$"):
        other.touch(message)
    assert rig.stats().in_flight_count == 6


@pytest.mark.conformance(96)
def test_a_requeued_message_comes_again_with_one_more_attempt() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"x")
    for attempts in (1, 2, 3):
        message = consumer.take_one()
        assert (message.body, message.attempts) == (b"x", attempts)
        consumer.requeue(message)
    assert rig.stats().requeue_count == 3
    assert rig.stats().message_count == 1


def test_a_requeued_message_goes_to_the_end_of_the_line() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"a", b"b", b"c")
    consumer.requeue(consumer.take_one())
    seen = []
    while new := consumer.take_new():
        seen += [message.body for message in new]
        consumer.finish(*new)
    assert seen == [b"b", b"c", b"a"]


def test_a_requeued_message_may_go_to_another_consumer() -> None:
    rig = Rig()
    first = rig.consumer(rdy=1)
    rig.publish(b"x")
    second = rig.consumer(rdy=1)
    first.ready(0)
    message = first.take_one()
    first.requeue(message)
    assert second.take_one() == message._replace(attempts=2)


def test_every_answer_is_counted_for_the_consumer() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=3)
    rig.publish(*numbered(3))
    first, second, third = consumer.take_new()
    consumer.finish(first, UNKNOWN)
    consumer.requeue(second)
    consumer.touch(third)
    (stats,) = rig.stats().clients
    counts = (stats.message_count, stats.finish_count, stats.requeue_count, stats.in_flight_count)
    assert counts == (4, 1, 1, 2)


@pytest.mark.parametrize("mem_queue_size", [0, 100])
@pytest.mark.parametrize("order", ["as delivered", "backwards"])
def test_finished_messages_are_measured_from_publish_to_finish(mem_queue_size: int, order: str) -> None:
    rig = Rig(mem_queue_size=mem_queue_size, latency=LatencyConfig(quantiles=(1.0, 0.5)))
    consumer = rig.consumer(rdy=20)
    for first in (0, 5):
        rig.publish(*numbered(5, first=first))
        rig.advance(ms=100)
    held = consumer.take_new()
    consumer.requeue(held.pop(), delay_ms=1000)
    consumer.finish(UNKNOWN, *(held if order == "as delivered" else held[::-1]))
    for summary in (rig.stats().e2e, rig.topic_stats().e2e):
        assert summary.count == 9
        assert summary.percentiles is not None
        longest, median = (percentile.value_ns / NS_PER_MS for percentile in summary.percentiles)
        assert longest == pytest.approx(200, rel=0.01)
        assert median == pytest.approx(200, rel=0.01), "five of nine took 200 ms, four took 100"


def test_channels_answer_independently() -> None:
    rig = Rig()
    one, two = Consumer(rig.channel("one"), rdy=1), Consumer(rig.channel("two"), rdy=1)
    rig.publish(b"x")
    message = one.take_one()
    assert two.take_one() == message, "id, time and body are the same for all channels"
    one.requeue(message)
    one.requeue(one.take_one())
    assert one.take_one().attempts == 3
    assert two.finish(message) == []


# The channel as a whole.


@pytest.mark.conformance(113)
def test_a_paused_channel_keeps_its_messages() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.channel().pause()
    rig.publish(b"x")
    consumer.ready(20)
    assert consumer.received == []
    assert (rig.stats().depth, rig.stats().backend_depth, rig.stats().paused) == (1, 0, True)


@pytest.mark.conformance(114)
def test_an_unpaused_channel_delivers_what_waited_and_what_comes() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    rig.channel().pause()
    rig.publish(b"waited")
    rig.channel().unpause()
    rig.publish(b"came")
    assert consumer.new_bodies() == [b"waited", b"came"]


@pytest.mark.conformance(105, 106)
def test_an_emptied_channel_holds_nothing_anywhere() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=25)
    rig.publish(*numbered(25), b"queued")
    last = consumer.take_new()[-1]
    consumer.ready(0)
    consumer.requeue(last, delay_ms=100)
    before = rig.stats()
    assert (before.in_flight_count, before.deferred_count, before.depth) == (24, 1, 1)
    rig.channel().empty()
    after = rig.stats()
    assert (after.in_flight_count, after.deferred_count, after.depth) == (0, 0, 0)
    assert after.clients[0].in_flight_count == 0
    rig.advance(ms=100_000)
    assert (rig.stats().depth, rig.stats().timeout_count) == (0, 0)
    assert consumer.finish(consumer.received[0]) == [consumer.received[0].id]


def test_emptying_opens_the_windows_again() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(2))
    rig.channel().empty()
    consumer.take_new()
    rig.publish(b"a", b"b")
    assert consumer.new_bodies() == [b"a", b"b"]


def test_emptying_drops_what_departed_consumers_held() -> None:
    rig = Rig()
    gone = rig.consumer(rdy=5)
    rig.publish(*numbered(5))
    gone.leave()
    rig.channel().empty()
    stays = rig.consumer(rdy=5)
    rig.advance(ms=100_000)
    assert stays.received == []


def test_deleting_a_channel_closes_its_consumers() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(b"x", b"y")
    rig.topic().delete_channel("c")
    assert consumer.closed
    rig.advance(ms=100_000)
    assert len(consumer.received) == 1


def test_counters_of_a_channel_add_up() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=4)
    rig.publish(*numbered(10))
    rig.publish_deferred(b"later", delay_ms=1000)
    finished, deferred, *held = consumer.take_new()
    consumer.finish(finished)
    consumer.requeue(deferred, delay_ms=1000)
    stats = rig.stats()
    places = Counter(queued=stats.depth, in_flight=stats.in_flight_count, deferred=stats.deferred_count, finished=1)
    assert places.total() == stats.message_count == 11
    assert (len(held), stats.in_flight_count, stats.deferred_count) == (2, 4, 2)


def test_a_message_is_tried_as_often_as_the_policy_says_and_then_leaves() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 3)
    rig.publish(b"x")
    fail(rig, consumer, times=5)
    assert [message.attempts for message in consumer.received] == [1, 2, 3]
    assert (rig.stats().depth, rig.stats().in_flight_count, rig.stats().dead_letter_count) == (0, 0, 1)
