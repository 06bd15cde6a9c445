"""Who gets what from a channel: the window, fairness, topology, sampling."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence

import pytest

from emberq.broker.channel import MAX_HAND_OVER_BYTES, MAX_HAND_OVERS
from emberq.broker.subscriber import Locality, Subscriber
from tests.broker.rig import Consumer, Rig, numbered


def received_counts(consumers: Sequence[Consumer]) -> list[int]:
    """How many messages each of them has got so far."""
    return [len(consumer.received) for consumer in consumers]


# The window.


@pytest.mark.conformance(81)
def test_rdy_is_a_window_that_every_fin_opens_again() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(5))
    first, second = consumer.take_new()
    assert (first.body, second.body) == tuple(numbered(2))
    assert rig.stats().depth == 3
    consumer.finish(first)
    assert consumer.new_bodies() == numbered(1, first=2)
    assert rig.stats().in_flight_count == 2


def test_a_new_consumer_gets_nothing_before_it_says_how_much_it_wants() -> None:
    rig = Rig()
    consumer = rig.consumer()
    rig.publish(b"x")
    assert consumer.received == []
    consumer.ready(1)
    assert consumer.new_bodies() == [b"x"]


@pytest.mark.conformance(82)
def test_rdy_zero_stops_the_messages_and_keeps_what_is_in_flight() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=2)
    rig.publish(*numbered(3))
    held = consumer.take_new()
    consumer.ready(0)
    consumer.finish(held[0])
    assert consumer.take_new() == []
    assert (rig.stats().in_flight_count, rig.stats().depth) == (1, 1)
    assert consumer.finish(held[1]) == []


def test_a_lowered_rdy_counts_what_is_in_flight_already() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=5)
    rig.publish(*numbered(8))
    held = consumer.take_new()
    consumer.ready(3)
    for message in held[:2]:
        consumer.finish(message)
        assert consumer.take_new() == []
    consumer.finish(held[2])
    assert len(consumer.take_new()) == 1


def test_a_raised_rdy_brings_more_at_once() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    rig.publish(*numbered(5))
    consumer.ready(4)
    assert consumer.new_bodies() == numbered(4)


def test_a_full_socket_gets_nothing_until_it_drains() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    consumer.block()
    rig.publish(*numbered(3))
    assert consumer.received == []
    consumer.unblock()
    assert consumer.new_bodies() == numbered(3)


def test_large_messages_are_handed_over_in_portions_so_that_a_full_socket_is_noticed() -> None:
    rig = Rig()
    consumer = rig.consumer()
    rig.publish(*[b"x" * 50_000] * 20)
    consumer.blocks_itself = True
    consumer.ready(20)
    assert 0 < len(consumer.received) * 50_000 <= MAX_HAND_OVER_BYTES + 50_000
    assert len(consumer.deliveries) == 1
    consumer.blocks_itself = False
    consumer.unblock()
    assert len(consumer.received) == 20


def test_one_portion_is_a_quarter_of_a_mebibyte() -> None:
    rig = Rig()
    consumer = rig.consumer()
    for _ in range(300):
        rig.publish(b"x" * (1024 - 34))  # a frame has 34 bytes before the body
    consumer.ready(300)
    assert consumer.deliveries == [256, 44]


def test_a_blocked_consumer_leaves_the_messages_to_the_others() -> None:
    rig = Rig()
    blocked, free = rig.consumer(rdy=10), rig.consumer(rdy=10)
    blocked.block()
    rig.publish(*numbered(6))
    assert (blocked.new_bodies(), free.new_bodies()) == ([], numbered(6))


def test_messages_show_when_they_were_published_and_how_often_they_were_tried() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1)
    published_ns = rig.clock.wall_ns()
    rig.publish(b"x")
    first = consumer.take_one()
    rig.clock.advance(ms=500)
    consumer.requeue(first)
    second = consumer.take_one()
    assert (first.timestamp_ns, first.attempts) == (published_ns, 1)
    assert second == first._replace(attempts=2)


# Fairness.


@pytest.mark.parametrize("consumer_count", [2, 3, 7])
def test_a_burst_is_spread_over_all_ready_consumers(consumer_count: int) -> None:
    rig = Rig()
    consumers = [rig.consumer(rdy=1000) for _ in range(consumer_count)]
    rig.publish(*numbered(100))
    counts = received_counts(consumers)
    assert sum(counts) == 100
    assert max(counts) - min(counts) <= consumer_count, "no more than rounding explains"


def test_single_messages_go_round() -> None:
    rig = Rig()
    consumers = [rig.consumer(rdy=1000) for _ in range(4)]
    for body in numbered(40):
        rig.publish(body)
    assert received_counts(consumers) == [10] * 4


def test_one_consumer_gets_a_burst_in_one_piece() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=1000)
    rig.publish(*numbered(500))
    assert consumer.deliveries == [500]


def test_the_rest_of_a_burst_and_what_came_after_it_go_in_one_piece() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=4)
    rig.publish(*numbered(6))
    rig.publish(*numbered(2, first=6))
    consumer.finish(*consumer.take_new())
    assert consumer.deliveries == [4, 4]


def test_what_one_consumer_cannot_take_goes_to_the_others() -> None:
    rig = Rig()
    small, large = rig.consumer(rdy=1), rig.consumer(rdy=1000)
    rig.publish(*numbered(20))
    assert received_counts([small, large]) == [1, 19]
    assert rig.stats().depth == 0


def test_what_a_small_window_left_over_is_shared_among_the_others() -> None:
    rig = Rig()
    consumers = [rig.consumer(rdy=rdy) for rdy in (10, 100, 100)]
    rig.publish(*numbered(90))
    assert received_counts(consumers) == [10, 40, 40]


def test_what_the_nearest_left_over_is_shared_among_the_others() -> None:
    rig = Rig()
    near = [rig.consumer(rdy=rdy, locality=Locality.ZONE) for rdy in (3, 5)]
    far = [rig.consumer(rdy=100) for _ in range(3)]
    rig.publish(*numbered(38))
    assert received_counts([*near, *far]) == [3, 5, 10, 10, 10]


def test_a_consumer_that_answers_at_once_does_not_starve_a_slow_one() -> None:
    rig = Rig()
    quick, slow = rig.consumer(rdy=1), rig.consumer(rdy=1)
    rig.publish(*numbered(40))
    for _ in range(5):
        for _ in range(4):
            quick.finish(*quick.take_new())
        slow.finish(*slow.take_new())
    assert len(slow.received) == 6, "one at the start, and one for each answer"


def test_a_consumer_that_joins_a_busy_channel_gets_its_share() -> None:
    rig = Rig()
    first = rig.consumer(rdy=10)
    rig.publish(*numbered(100))
    second = rig.consumer(rdy=10)
    assert len(second.received) == 10
    for _ in range(4):
        first.finish(*first.take_new())
        second.finish(*second.take_new())
    assert abs(len(first.received) - len(second.received)) <= 10


def test_a_consumer_that_left_does_not_take_a_share() -> None:
    rig = Rig()
    gone, stays = rig.consumer(rdy=10), rig.consumer(rdy=10)
    gone.leave()
    rig.publish(*numbered(10))
    assert received_counts([gone, stays]) == [0, 10]


def test_a_consumer_that_left_is_forgotten_even_when_nothing_is_published() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=10)
    consumer.leave()
    connection = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert connection() is None


# Topology.


@pytest.mark.conformance(276)
def test_the_nearest_ready_consumers_are_served_first() -> None:
    rig = Rig()
    near = [rig.consumer(rdy=10, locality=Locality.ZONE) for _ in range(2)]
    far = [rig.consumer(rdy=10, locality=Locality.GLOBAL) for _ in range(2)]
    for body in numbered(21):
        rig.publish(body)
    assert received_counts(near) == [10, 10]
    assert sum(received_counts(far)) == 1


def test_a_region_comes_between_zone_and_the_rest() -> None:
    rig = Rig()
    anywhere = rig.consumer(rdy=5, locality=Locality.GLOBAL)
    region = rig.consumer(rdy=5, locality=Locality.REGION)
    zone = rig.consumer(rdy=5, locality=Locality.ZONE)
    rig.publish(*numbered(8))
    assert received_counts([zone, region, anywhere]) == [5, 3, 0]
    rig.publish(*numbered(4))
    assert received_counts([zone, region, anywhere]) == [5, 5, 2]
    stats = rig.stats()
    assert (stats.zone_local_msg_count, stats.region_local_msg_count, stats.global_msg_count) == (5, 5, 2)


@pytest.mark.conformance(277)
def test_without_topology_every_message_from_memory_counts_as_global() -> None:
    rig = Rig()
    rig.consumer(rdy=2)
    rig.publish(b"a", b"b")
    stats = rig.stats()
    assert (stats.zone_local_msg_count, stats.region_local_msg_count, stats.global_msg_count) == (0, 0, 2)


def test_messages_from_disk_are_not_counted_by_nearness() -> None:
    rig = Rig(mem_queue_size=0)
    consumer = rig.consumer(rdy=2)
    rig.publish(b"a", b"b")
    assert len(consumer.received) == 2
    assert rig.stats().global_msg_count == 0


# Sampling.


@pytest.mark.conformance(84)
@pytest.mark.parametrize("sample_rate", [1, 42, 99])
def test_a_sampling_consumer_gets_its_percentage_and_the_rest_is_gone(sample_rate: int) -> None:
    random.seed(sample_rate)
    rig = Rig()
    consumer = Consumer(rig.channel(), rdy=10_000, sample_rate=sample_rate)
    bodies = numbered(10_000)
    rig.publish(*bodies)
    expected = (sample_rate + 1) * 100
    assert abs(len(consumer.received) - expected) <= 150, "three standard deviations"
    assert [message.body for message in consumer.received] == sorted(message.body for message in consumer.received)
    assert rig.stats().in_flight_count == len(consumer.received)
    assert rig.stats().depth == 0


def test_sampling_does_not_use_up_the_window() -> None:
    random.seed(1)
    rig = Rig()
    consumer = Consumer(rig.channel(), rdy=50, sample_rate=20)
    rig.publish(*numbered(2000))
    assert len(consumer.received) == 50
    assert rig.stats().depth > 0


# Turns of the event loop.


def test_many_consumers_get_their_messages_in_several_turns() -> None:
    rig = Rig()
    consumers = [rig.consumer(rdy=1) for _ in range(2 * MAX_HAND_OVERS + 10)]
    rig.publish(*numbered(len(consumers)))
    assert sum(received_counts(consumers)) == MAX_HAND_OVERS
    rig.run_due()
    assert sum(received_counts(consumers)) == 2 * MAX_HAND_OVERS
    rig.run_due()
    assert received_counts(consumers) == [1] * len(consumers)


class SlowConsumer(Consumer):
    """A consumer to whom each delivery takes a millisecond."""

    def __init__(self, rig: Rig, *, rdy: int) -> None:
        self._clock = rig.clock
        super().__init__(rig.channel(), rdy=rdy)

    def deliver(self, frames: bytes) -> None:
        self._clock.advance(ms=1)
        super().deliver(frames)


def test_large_deliveries_take_no_more_than_their_share_of_a_turn() -> None:
    rig = Rig()
    rig.channel()
    rig.publish(*[b"x" * 60_000] * 100)
    consumer = SlowConsumer(rig, rdy=1000)
    turns = 0
    while len(consumer.received) < 100:
        made = len(consumer.deliveries)
        rig.run_due()
        turns += 1
        assert 1 <= len(consumer.deliveries) - made <= 3
    assert turns > 5


def test_consumers_that_leave_do_not_make_the_lines_grow() -> None:
    rig = Rig()
    staying = rig.consumer(rdy=1)
    before = count_subscribers()
    for _ in range(200):
        rig.consumer(rdy=1).leave()
    assert count_subscribers() - before <= 3
    rig.publish(b"a")
    assert staying.new_bodies() == [b"a"]


def count_subscribers() -> int:
    gc.collect()
    return sum(isinstance(each, Subscriber) for each in gc.get_objects())
