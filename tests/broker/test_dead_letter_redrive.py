"""Dead letters go back to where they came from, once, and stay if nobody knows where that is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from emberq.broker.dead_letter import REDRIVE_PORTION_COUNT, Redrive
from emberq.broker.error import ExitingError, StoreError
from emberq.broker.topic import Pending
from tests.broker.dead_letters import fail, give_up_after
from tests.broker.journal_rig import JournalRig, Outcome
from tests.broker.rig import Consumer, Rig


@pytest.fixture(params=["classic", "journaled"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with Rig() if request.param == "classic" else JournalRig(tmp_path) as rig:
        yield rig


def kill(rig: Rig, *bodies: bytes) -> None:
    """Have messages of `t` die in the channel `c`, and their letters wait in the channel `r` of `dead`."""
    rig.channel("r", topic="dead")
    consumer = rig.consumer(rdy=len(bodies))
    give_up_after(rig, 1)
    rig.publish(*bodies)
    fail(rig, consumer, times=2)
    while rig.stats().dead_letter_count < len(bodies):
        rig.run_due()
    consumer.leave()


def redrive(rig: Rig, *, to: str | None = None, max_count: int | None = None) -> tuple[int, int]:
    """How many were moved, and how many were left."""
    run = Redrive(rig.broker.publish_to, rig.channel("r", topic="dead"), to=to, max_count=max_count)
    while not run.is_done:
        outcome = Outcome(run.next_portion())
        assert outcome.is_stored, outcome.failure
    run.end()
    return run.moved_count, run.left_count


def bodies_in(rig: Rig, topic: str = "t", channel: str = "c") -> list[bytes]:
    return [message.body for message in rig.channel(channel, topic=topic).peek(10_000)]


def test_messages_go_back_to_their_origin_without_the_envelope(rig: Rig) -> None:
    kill(rig, b"1", b"\xff2")
    assert bodies_in(rig) == []
    assert redrive(rig) == (2, 0)
    assert bodies_in(rig) == [b"1", b"\xff2"]
    stats = rig.stats("r", topic="dead")
    assert (stats.depth, stats.in_flight_count, stats.redriven_count) == (0, 0, 2)


def test_they_are_tried_from_the_start_again(rig: Rig) -> None:
    kill(rig, b"1")
    redrive(rig)
    consumer = Consumer(rig.channel(), rdy=1)
    assert consumer.take_one().attempts == 1


def test_each_goes_to_its_own_origin(rig: Rig) -> None:
    kill(rig, b"1")
    other = Consumer(rig.channel(topic="other"), rdy=1)
    give_up_after(rig, 1, topic="other")
    rig.publish(b"2", topic="other")
    fail(rig, other, times=2)
    other.leave()
    kill(rig, b"3")
    assert redrive(rig) == (2 + 1, 0)
    assert bodies_in(rig) == [b"1", b"3"]
    assert bodies_in(rig, "other") == [b"2"]


def test_they_can_be_sent_somewhere_else(rig: Rig) -> None:
    kill(rig, b"1")
    rig.publish(b"bare", topic="dead")
    rig.channel(topic="else")
    assert redrive(rig, to="else") == (2, 0)
    assert bodies_in(rig, "else") == [b"1", b"bare"]
    assert bodies_in(rig) == []


def test_what_does_not_say_where_it_belongs_stays(rig: Rig) -> None:
    kill(rig, b"1")
    rig.publish(b"bare", topic="dead")
    kill(rig, b"2")
    assert redrive(rig) == (2, 1)
    assert bodies_in(rig, "dead", "r") == [b"bare"]


@pytest.mark.parametrize(("topic", "body"), [("dead", "x"), ("t", ""), ("no topic", "x")])
def test_a_letter_that_cannot_be_published_to_its_origin_stays(rig: Rig, topic: str, body: str) -> None:
    rig.channel("r", topic="dead")
    note = {"topic": topic, "channel": "c", "id": "1", "attempts": 1, "timestamp_ns": 1, "reason": "", "body": body}
    rig.publish(json.dumps({"emberq_dead_letter": 1, **note}).encode(), topic="dead")
    assert redrive(rig) == (0, 1)


def test_no_more_are_moved_than_asked_for(rig: Rig) -> None:
    kill(rig, b"1", b"2", b"3")
    assert redrive(rig, max_count=2) == (2, 0)
    assert bodies_in(rig) == [b"1", b"2"]
    assert rig.stats("r", topic="dead").depth == 1


def test_it_is_done_in_portions(rig: Rig) -> None:
    count = 2 * REDRIVE_PORTION_COUNT + 1
    kill(rig, *(b"%d" % number for number in range(count)))
    run = Redrive(rig.broker.publish_to, rig.channel("r", topic="dead"))
    run.next_portion()
    assert 0 < run.moved_count <= REDRIVE_PORTION_COUNT
    while not run.is_done:
        run.next_portion()
    run.end()
    assert sorted(map(int, bodies_in(rig))) == list(range(count))


def test_an_empty_channel_is_done_at_once(rig: Rig) -> None:
    rig.channel("r", topic="dead")
    assert redrive(rig) == (0, 0)


def test_what_a_consumer_took_is_not_waited_for(rig: Rig) -> None:
    kill(rig, b"1")
    run = Redrive(rig.broker.publish_to, rig.channel("r", topic="dead"))
    Consumer(rig.channel("r", topic="dead"), rdy=1)
    run.next_portion()
    assert (run.is_done, run.moved_count) == (True, 0)


def test_messages_that_could_not_be_published_stay(rig: Rig) -> None:
    kill(rig, b"1", b"2")
    rig.broker.gate.reason = "disk space low"
    outcome = Outcome(Redrive(rig.broker.publish_to, rig.channel("r", topic="dead")).next_portion())
    assert str(outcome.failure) == "disk space low"
    assert rig.stats("r", topic="dead").depth == 2
    rig.broker.gate.reason = None
    assert redrive(rig) == (2, 0)


def test_a_message_is_not_done_with_before_it_is_stored(tmp_path: Path) -> None:
    with JournalRig(tmp_path) as rig:
        kill(rig, b"1")
        rig.slow_disk.is_slow = True
        outcome = Outcome(Redrive(rig.broker.publish_to, rig.channel("r", topic="dead")).next_portion())
        channel = rig.journaled_channel("r", topic="dead")
        assert (outcome.is_known, channel.low_water, channel.in_flight_count) == (False, 0, 1)
        rig.slow_disk.work_off()
        assert (outcome.is_stored, channel.low_water, channel.in_flight_count) == (True, 1, 0)


def test_a_message_deferred_before_a_restart_is_not_moved_early(tmp_path: Path) -> None:
    with Rig(folder=tmp_path) as rig:
        rig.channel("r", topic="dead")
        rig.publish_deferred(b"later", delay_ms=60_000, topic="dead")
        rig.restart()
        assert redrive(rig, to="t") == (0, 0)
        assert rig.stats("r", topic="dead").deferred_count == 1


def test_messages_whose_topic_is_going_stay(rig: Rig) -> None:
    kill(rig, b"1", b"2")

    def is_going(_topic: str, _blob: bytes, _ends: Sequence[int]) -> Pending | None:
        raise ExitingError

    run = Redrive(is_going, rig.channel("r", topic="dead"), to=None, max_count=None)
    outcome = Outcome(run.next_portion())
    run.end()
    assert isinstance(outcome.failure, ExitingError)
    assert (run.moved_count, rig.stats("r", topic="dead").depth) == (0, 2)


def test_messages_that_turn_out_not_to_be_stored_stay(rig: Rig) -> None:
    kill(rig, b"1", b"2")
    pending = Pending()
    run = Redrive(lambda *_: pending, rig.channel("r", topic="dead"), to=None, max_count=None)
    outcome = Outcome(run.next_portion())
    assert not outcome.is_known
    pending.settle(StoreError("sync failed"))
    run.end()
    assert isinstance(outcome.failure, StoreError)
    assert (run.moved_count, rig.stats("r", topic="dead").depth) == (0, 2)
