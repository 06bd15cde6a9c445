"""Messages that were tried often enough go to the dead-letter topic: once, with a note, and never lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emberq.broker.dead_letter import BUSY_COUNT, RETRY_NS, Redrive
from emberq.broker.error import ClassicDeadLetterTopicError
from emberq.broker.store import SyncMode
from emberq.broker.topic import PublishGate
from tests.broker.dead_letters import dead_bodies, fail, give_up_after, letters
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Rig

RETRY_MS = RETRY_NS // 1_000_000


@pytest.fixture(params=["classic", "journaled"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """Both kinds of topics; what a user sees is the same."""
    with Rig() if request.param == "classic" else JournalRig(tmp_path) as rig:
        yield rig


def test_a_message_is_delivered_as_often_as_allowed_and_then_given_up(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 3)
    rig.publish(b"poison")
    fail(rig, consumer, times=10)
    assert [message.attempts for message in consumer.received] == [1, 2, 3]
    assert dead_bodies(rig) == ["poison"]
    stats = rig.stats()
    assert (stats.depth, stats.in_flight_count, stats.deferred_count, stats.dead_letter_count) == (0, 0, 0, 1)


def test_a_letter_tells_where_the_message_came_from(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 2)
    rig.publish(b"poison")
    fail(rig, consumer, times=3)
    (letter,) = letters(rig)
    message = consumer.received[0]
    assert letter == {
        "emberq_dead_letter": 1,
        "topic": "t",
        "channel": "c",
        "id": message.id.decode(),
        "attempts": 2,
        "timestamp_ns": message.timestamp_ns,
        "reason": "not finished in 2 attempts",
        "body": "poison",
    }


def test_a_message_that_times_out_too_often_is_given_up(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1, msg_timeout_ms=1000)
    give_up_after(rig, 2)
    rig.publish(b"poison")
    for _ in range(4):
        rig.advance(ms=1000)
    rig.run_due()
    assert len(consumer.received) == 2
    assert dead_bodies(rig) == ["poison"]


def test_a_message_put_off_by_its_consumer_is_given_up_when_it_is_due(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    consumer.requeue(consumer.take_one(), delay_ms=5000)
    rig.advance(ms=4999)
    assert rig.stats().deferred_count == 1
    rig.advance(ms=1)
    rig.run_due()
    assert dead_bodies(rig) == ["poison"]


def test_others_are_delivered_meanwhile(rig: Rig) -> None:
    consumer = rig.consumer(rdy=10)
    give_up_after(rig, 1)
    rig.publish(b"1", b"poison", b"3")
    for message in consumer.take_new():
        if message.body == b"poison":
            consumer.requeue(message)
        else:
            consumer.finish(message)
    rig.publish(b"4")
    rig.run_due()
    assert consumer.new_bodies() == [b"4"]
    assert dead_bodies(rig) == ["poison"]


def test_only_the_channel_with_the_policy_gives_up(rig: Rig) -> None:
    strict, patient = rig.consumer(rdy=1), Consumer(rig.channel("patient"), rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    fail(rig, strict, times=5)
    fail(rig, patient, times=5)
    assert len(strict.received) == 1
    assert len(patient.received) == 6
    assert len(letters(rig)) == 1


def test_without_a_policy_messages_are_tried_without_end(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 2)
    rig.broker.set_policy(rig.channel(), None)
    rig.publish(b"x")
    fail(rig, consumer, times=20)
    assert len(consumer.received) == 21
    assert rig.broker.find_topic("dead") is None


def test_a_policy_holds_for_what_was_tried_before_it(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    rig.publish(b"poison")
    fail(rig, consumer, times=5)
    give_up_after(rig, 3)
    fail(rig, consumer, times=1)
    rig.run_due()
    assert len(consumer.received) == 6
    assert dead_bodies(rig) == ["poison"]


def test_a_policy_outlives_a_restart_and_so_do_the_attempts(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 3)
    rig.publish(b"poison")
    fail(rig, consumer, times=2)
    consumer.leave()
    rig.restart()
    consumer = rig.consumer(rdy=1)
    rig.run_due()
    assert rig.stats().policy is not None
    fail(rig, consumer, times=1)
    rig.run_due()
    assert dead_bodies(rig) == ["poison"]


def test_a_channel_that_is_paused_gives_nothing_up(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    rig.channel().pause()
    fail(rig, consumer, times=2)
    assert rig.broker.find_topic("dead") is None
    rig.channel().unpause()
    rig.run_due()
    assert dead_bodies(rig) == ["poison"]


@pytest.mark.parametrize("reason", ["disk space low"])
def test_what_cannot_be_published_is_kept_and_tried_again(rig: Rig, reason: str) -> None:
    consumer = rig.consumer(rdy=10)
    give_up_after(rig, 1)
    rig.publish(b"poison", b"fine")
    gate: PublishGate = rig.broker.gate
    gate.reason = reason
    poison, fine = consumer.take_new()
    consumer.finish(fine)
    consumer.requeue(poison)
    rig.run_due()
    assert (rig.stats().deferred_count, rig.stats().dead_letter_count) == (1, 0)
    gate.reason = None
    rig.advance(ms=RETRY_MS)
    rig.run_due()
    assert dead_bodies(rig) == ["poison"]
    assert len(consumer.received) == 2
    assert rig.stats().deferred_count == 0


def test_while_dead_letters_are_refused_nothing_more_is_tried(rig: Rig) -> None:
    consumer = rig.consumer(rdy=10)
    give_up_after(rig, 1)
    rig.publish(b"1", b"2")
    first, second = consumer.take_new()
    rig.broker.gate.reason = "full"
    consumer.requeue(first)
    rig.run_due()
    rig.broker.gate.reason = None
    consumer.requeue(second)
    rig.run_due()
    assert rig.broker.topic("dead").message_count == 0
    rig.advance(ms=RETRY_MS)
    rig.run_due()
    assert dead_bodies(rig) == ["1", "2"]


def test_a_backlog_passes_in_portions_and_in_whole(rig: Rig) -> None:
    count = 3 * BUSY_COUNT + 7
    consumer = rig.consumer(rdy=count)
    rig.publish(*(b"%d" % number for number in range(count)))
    for message in consumer.take_new():
        consumer.requeue(message)
    consumer.ready(0)
    consumer.take_new()
    rig.broker.set_policy(rig.channel(), None)
    give_up_after(rig, 1)
    rig.advance(ms=60_000)  # what was delivered a second time
    consumer.ready(10)
    turns = 0
    while rig.stats().dead_letter_count < count:
        rig.run_due()
        turns += 1
        assert turns < 1000
    assert turns > 3
    assert sorted(map(int, dead_bodies(rig))) == list(range(count))
    assert consumer.new_bodies() == []


def test_emptying_the_channel_drops_what_is_on_its_way(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    consumer.requeue(consumer.take_one())
    rig.channel().empty()
    rig.run_due()
    assert rig.broker.find_topic("dead") is None
    rig.publish(b"next")
    assert consumer.new_bodies() == [b"next"]


@pytest.mark.parametrize("end", [lambda rig: rig.topic().delete_channel("c"), lambda rig: rig.broker.delete_topic("t")])
def test_deleting_the_channel_or_topic_drops_what_is_on_its_way(rig: Rig, end: Callable[[Rig], None]) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    consumer.requeue(consumer.take_one())
    end(rig)
    rig.run_due()
    assert rig.broker.find_topic("dead") is None


def test_what_is_on_its_way_at_a_restart_dies_afterwards(rig: Rig) -> None:
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    consumer.requeue(consumer.take_one())
    assert rig.stats().in_flight_count == 1
    consumer.leave()
    rig.restart()
    consumer = rig.consumer(rdy=1)
    rig.run_due()
    assert consumer.received == []
    assert dead_bodies(rig) == ["poison"]


def test_a_body_too_big_for_an_envelope_goes_as_it_is(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    body = b"x" * (1024 * 1024)
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(body)
    fail(rig, consumer, times=2)
    assert [message.body for message in rig.channel("reader", topic="dead").peek(2)] == [body]
    assert "too big for an envelope" in caplog.text


def test_an_ephemeral_channel_gives_up_too(rig: Rig) -> None:
    consumer = Consumer(rig.channel("c#ephemeral"), rdy=1)
    give_up_after(rig, 1, channel="c#ephemeral")
    rig.publish(b"poison")
    fail(rig, consumer, times=2)
    assert dead_bodies(rig) == ["poison"]


def test_a_full_disk_keeps_what_did_not_fit() -> None:
    with Rig(mem_queue_size=1) as rig:
        consumer = rig.consumer(rdy=10)
        give_up_after(rig, 1)
        rig.publish(b"1", b"2", b"3")
        rig.topic("dead")
        rig.disk.room["dead"] = 1
        for message in consumer.take_new():
            consumer.requeue(message)
        for _ in range(3):
            rig.run_due()
        assert rig.stats().dead_letter_count == 2
        assert rig.stats().deferred_count == 1
        del rig.disk.room["dead"]
        rig.advance(ms=RETRY_MS)
        rig.run_due()
        assert sorted(dead_bodies(rig)) == ["1", "2", "3"]


def test_a_full_disk_is_not_given_twice_what_it_took_among_large_messages() -> None:
    with Rig(mem_queue_size=1) as rig:
        bodies = [b"a" * 20_000, b"b" * 300_000, b"c" * 300_000, b"d" * 20_000]
        consumer = rig.consumer(rdy=10)
        give_up_after(rig, 1)
        rig.publish(*bodies)
        rig.topic("dead")
        rig.disk.room["dead"] = 1
        for message in consumer.take_new():
            consumer.requeue(message)
        for _ in range(4):
            rig.run_due()
        assert rig.stats().dead_letter_count == 2
        del rig.disk.room["dead"]
        rig.advance(ms=RETRY_MS)
        for _ in range(4):
            rig.run_due()
        assert sorted(dead_bodies(rig)) == sorted(body.decode() for body in bodies)


# On its way to a disk that takes its time.


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[JournalRig]:
    with JournalRig(tmp_path) as rig:
        yield rig


def dying(rig: JournalRig) -> Consumer:
    """A message is on its way to the dead-letter topic, whose disk is slow."""
    consumer = rig.consumer(rdy=1)
    give_up_after(rig, 1)
    rig.publish(b"poison")
    rig.topic("dead")
    rig.slow_disk.is_slow = True
    consumer.requeue(consumer.take_one())
    rig.run_due()
    return consumer


def test_a_message_is_not_done_with_before_its_letter_is_stored(slow: JournalRig) -> None:
    dying(slow)
    channel = slow.journaled_channel()
    assert (channel.low_water, channel.in_flight_count) == (0, 1)
    slow.slow_disk.work_off()
    assert (channel.low_water, channel.in_flight_count) == (1, 0)
    assert dead_bodies(slow) == ["poison"]


def test_a_crash_before_the_letter_is_stored_loses_nothing(slow: JournalRig) -> None:
    dying(slow)
    slow.crash()
    consumer = slow.consumer(rdy=1)
    fail(slow, consumer, times=3)
    assert set(dead_bodies(slow)) == {"poison"}


def test_a_seek_meanwhile_is_not_undone_by_the_letter(slow: JournalRig) -> None:
    consumer = dying(slow)
    slow.journaled_channel().seek(0)
    slow.slow_disk.work_off()
    slow.advance(ms=0)
    assert consumer.new_bodies() == [b"poison"]


# A letter is as durable as the message was.


@pytest.mark.parametrize("sync", [SyncMode.INTERVAL, SyncMode.NEVER])
def test_a_message_is_done_with_when_no_power_failure_can_take_its_letter(tmp_path: Path, sync: SyncMode) -> None:
    with JournalRig(tmp_path, sync=sync) as rig:
        dying(rig)
        channel, dead = rig.journaled_channel(), rig.journaled_topic("dead")
        assert (channel.low_water, channel.in_flight_count) == (0, 1)
        assert (dead.stored_offset, dead.journal.durable_offset) == (1, 0)
        rig.slow_disk.work_off()
        assert (channel.low_water, channel.in_flight_count) == (1, 0)
        assert dead.journal.durable_offset == 1
        assert dead_bodies(rig) == ["poison"]


@pytest.mark.parametrize("sync", [SyncMode.INTERVAL, SyncMode.NEVER])
def test_a_redriven_letter_stays_until_no_power_failure_can_take_its_message(tmp_path: Path, sync: SyncMode) -> None:
    with JournalRig(tmp_path, sync=sync) as rig:
        reader = rig.journaled_channel("reader", topic="dead")
        dying(rig)
        rig.slow_disk.work_off()
        redrive = Redrive(rig.broker.publish_to, reader)
        redrive.next_portion()
        assert (reader.low_water, redrive.moved_count) == (0, 0)
        rig.slow_disk.work_off()
        assert (reader.low_water, redrive.moved_count) == (1, 1)


def only_t(name: str) -> bool:
    return name == "t"


def test_the_dead_letter_topic_of_a_journaled_topic_is_journaled_and_survives_a_dead_process(tmp_path: Path) -> None:
    with JournalRig(tmp_path, is_wanted=only_t) as rig:
        consumer = rig.consumer(rdy=1)
        give_up_after(rig, 1)
        rig.publish(b"poison")
        fail(rig, consumer, times=2)
        rig.advance(ms=2000)
        rig.crash()
        assert rig.stats().depth == 0
        assert dead_bodies(rig) == ["poison"]


def test_the_dead_letters_of_dead_letters_of_a_journaled_topic_are_journaled_too(tmp_path: Path) -> None:
    with JournalRig(tmp_path, is_wanted=only_t) as rig:
        give_up_after(rig, 1, topic="dead", dead="deader")
        rig.broker.delete_topic("dead")  # with its policy
        give_up_after(rig, 1)
        give_up_after(rig, 1, topic="dead", dead="deader")
        assert rig.topic("deader").is_journaled


def test_a_journaled_topic_is_refused_a_dead_letter_topic_that_is_not_journaled(tmp_path: Path) -> None:
    with JournalRig(tmp_path, is_wanted=only_t) as rig:
        rig.topic("dead")
        with pytest.raises(ClassicDeadLetterTopicError, match="its dead letters would come to dead, which is not"):
            give_up_after(rig, 1)
        assert rig.stats().policy is None
        give_up_after(rig, 1, topic="classic")
        rig.broker.delete_topic("dead")
        give_up_after(rig, 1)


def test_a_dead_letter_topic_becomes_journaled_with_its_topic(tmp_path: Path) -> None:
    with JournalRig(tmp_path, is_wanted=lambda _name: False) as rig:
        consumer = rig.consumer(rdy=1)
        give_up_after(rig, 1)
        rig.publish(b"poison")
        fail(rig, consumer, times=2)
        assert not rig.topic("dead").is_journaled
        rig.restart_with(only_t)
        assert rig.topic("dead").is_journaled
        assert dead_bodies(rig) == ["poison"]
