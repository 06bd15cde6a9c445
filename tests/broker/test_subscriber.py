"""A consumer's connection as the broker sees it: how much it may be sent, and how near it is."""

from __future__ import annotations

from emberq.broker.subscriber import Locality
from tests.broker.rig import Rig, numbered


def test_a_new_subscriber_wants_nothing_and_has_done_nothing() -> None:
    subscriber = Rig().consumer().subscriber
    assert (subscriber.window, subscriber.ready_count, subscriber.in_flight_count) == (0, 0, 0)
    assert (subscriber.message_count, subscriber.finish_count, subscriber.requeue_count) == (0, 0, 0)
    assert not subscriber.blocked
    assert not subscriber.is_in_line
    assert subscriber.sample_rate == 0
    assert subscriber.locality == Locality.GLOBAL


def test_the_window_is_what_it_wants_less_what_it_holds() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=5)
    rig.publish(b"a", b"b")
    assert consumer.subscriber.window == 3
    consumer.ready(1)
    assert consumer.subscriber.window == -1


def test_a_blocked_subscriber_has_no_window() -> None:
    consumer = Rig().consumer(rdy=5)
    consumer.block()
    assert consumer.subscriber.window == 0
    consumer.unblock()
    assert consumer.subscriber.window == 5


def test_localities_are_numbered_from_the_nearest() -> None:
    assert [Locality.ZONE, Locality.REGION, Locality.GLOBAL] == [0, 1, 2]
    assert list(Locality) == [0, 1, 2]


def test_what_was_sent_together_is_a_run_until_it_is_answered() -> None:
    rig = Rig()
    consumer = rig.consumer(rdy=30, msg_timeout_ms=2000)
    rig.publish(*numbered(50))
    (run,) = consumer.subscriber.runs
    assert run.holder is consumer.subscriber
    assert (run.start, run.stop, run.left, run.attempts) == (0, 30, 30, 1)
    assert (run.deadline_ns - run.delivered_ns, run.delivered_ns) == (2_000_000_000, rig.clock.monotonic_ns())
    assert run.batch.ids(run.start, run.stop) == [message.id for message in consumer.received]
    consumer.channel.set_ready(consumer.subscriber, 0)
    consumer.finish(*consumer.take_new())
    assert not consumer.subscriber.runs
