"""A journaled topic: what waits in it, what its channels get, and what is left of both after a stop or a crash."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.file import OsFiles
from emberq.broker.error import ExitingError, GateClosedError, StoreError
from emberq.broker.store import SyncMode
from emberq.storage.error import StorageError
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, numbered
from tests.storage.journal.rig import open_files

Ending = Callable[[JournalRig], None]
over_any_ending = pytest.mark.parametrize("end", [JournalRig.restart, JournalRig.crash], ids=["restart", "crash"])


@pytest.fixture
def rig(tmp_path: Path) -> JournalRig:
    return JournalRig(tmp_path)


def drained(rig: JournalRig, channel: str = "c") -> list[bytes]:
    """What a channel has to give, in order; it is finished."""
    consumer = Consumer(rig.channel(channel), rdy=1000)
    messages = consumer.take_new()
    consumer.finish(*messages)
    consumer.leave()
    return [message.body for message in messages]


def fails(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Which channel gets what.


@over_any_ending
def test_the_first_channel_gets_what_was_published_before_it(rig: JournalRig, end: Ending) -> None:
    rig.publish(b"a", b"b")
    end(rig)
    rig.publish(b"c")
    assert rig.topic_stats().depth == 3
    assert drained(rig, "first") == [b"a", b"b", b"c"]
    assert drained(rig, "second") == []
    assert rig.topic_stats().depth == 0


@over_any_ending
def test_a_channel_that_is_made_later_gets_what_comes_after_it(rig: JournalRig, end: Ending) -> None:
    rig.channel("first")
    rig.publish(b"a")
    rig.channel("second")
    rig.publish(b"b")
    end(rig)
    rig.channel("third")
    rig.publish(b"c")
    assert drained(rig, "first") == [b"a", b"b", b"c"]
    assert drained(rig, "second") == [b"b", b"c"]
    assert drained(rig, "third") == [b"c"]


@over_any_ending
def test_what_is_published_to_a_paused_topic_waits_for_the_end_of_the_pause(rig: JournalRig, end: Ending) -> None:
    rig.channel()
    rig.publish(b"before")
    rig.topic().pause()
    rig.publish(b"meanwhile")
    end(rig)
    assert (rig.topic_stats().depth, rig.stats().depth) == (1, 1)
    rig.publish(b"after the end")
    rig.channel("new")
    rig.topic().unpause()
    assert drained(rig) == [b"before", b"meanwhile", b"after the end"]
    assert drained(rig, "new") == [b"meanwhile", b"after the end"]


@over_any_ending
def test_a_pause_that_is_over_leaves_no_trace(rig: JournalRig, end: Ending) -> None:
    rig.channel()
    rig.topic().pause()
    rig.publish(b"meanwhile")
    rig.topic().unpause()
    rig.publish(b"after")
    rig.broker.metadata("test")
    end(rig)
    rig.channel("new")
    assert rig.topic_stats().depth == 0
    assert drained(rig) == [b"meanwhile", b"after"]
    assert drained(rig, "new") == []


@over_any_ending
def test_what_was_emptied_does_not_come_back(rig: JournalRig, end: Ending) -> None:
    rig.channel()
    rig.topic().pause()
    rig.publish(b"dropped")
    rig.topic().empty()
    rig.publish(b"kept")
    end(rig)
    assert rig.topic_stats().depth == 1
    rig.topic().unpause()
    assert drained(rig) == [b"kept"]


@over_any_ending
def test_a_topic_without_channels_can_be_emptied(rig: JournalRig, end: Ending) -> None:
    rig.publish(b"dropped")
    rig.topic().empty()
    end(rig)
    assert rig.topic_stats().depth == 0
    rig.publish(b"kept")
    end(rig)
    assert drained(rig) == [b"kept"]


@over_any_ending
def test_after_the_last_channel_messages_wait_for_the_next(rig: JournalRig, end: Ending) -> None:
    rig.channel()
    rig.publish(b"dropped")
    rig.topic().delete_channel("c")
    rig.publish(b"kept")
    end(rig)
    assert rig.topic().channels == {}
    assert drained(rig, "next") == [b"kept"]


@over_any_ending
def test_what_only_ephemeral_channels_had_is_gone_with_them(rig: JournalRig, end: Ending) -> None:
    rig.channel("e#ephemeral")
    rig.publish(*numbered(5))
    end(rig)
    assert rig.topic_stats().depth == 0
    assert drained(rig, "next") == []


@over_any_ending
def test_a_restart_counts_nothing_as_published(rig: JournalRig, end: Ending) -> None:
    rig.channel()
    rig.publish(*numbered(5))
    end(rig)
    assert (rig.topic_stats().message_count, rig.stats().message_count, rig.stats().depth) == (0, 0, 5)


def test_held_messages_are_for_all_channels_that_become_known(rig: JournalRig) -> None:
    rig.topic().hold()
    rig.channel("one")
    rig.publish(b"a")
    rig.channel("two")
    rig.topic().release()
    assert (drained(rig, "one"), drained(rig, "two")) == ([b"a"], [b"a"])


def test_channels_that_metadata_does_not_know_are_found_by_their_cursors(rig: JournalRig) -> None:
    """A crash may come between the making of a channel and the next write of nsqd.dat."""
    rig.channel()
    rig.publish(b"a")
    rig._start()
    rig.broker.load(type(rig.broker.metadata("test"))(topics=(), version="test"))
    assert rig.broker.names() == (("t", ("c",)),)
    assert drained(rig) == [b"a"]


# Ephemeral channels of a journaled topic.


def test_an_ephemeral_channel_gets_what_waited(rig: JournalRig) -> None:
    rig.publish(*numbered(5))
    assert drained(rig, "e#ephemeral") == numbered(5)


def test_an_ephemeral_channel_is_not_given_more_than_it_keeps(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=3)
    rig.publish(*numbered(10))
    assert drained(rig, "e#ephemeral") == numbered(3)


def test_a_channel_reads_what_is_too_many_bytes_for_memory_from_the_journal(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, mem_queue_bytes=1000)
    channel = rig.channel("c")
    bodies = [bytes([letter]) * 400 for letter in b"abcde"]
    for body in bodies:
        rig.publish(body)
    stats = channel.stats()
    assert (stats.depth, stats.backend_depth) == (5, 3)
    assert drained(rig, "c") == bodies
    rig.publish(b"f" * 1000)
    assert channel.stats().backend_depth == 0


def test_a_channel_gets_what_another_thread_has_to_read_when_it_has_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=0)
    rig.channel("c")
    rig.publish(*numbered(3))
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: False)
    rig.slow_reading.is_slow = True
    consumer = Consumer(rig.channel("c"), rdy=10)
    rig.advance(ms=100)
    assert consumer.new_bodies() == []
    rig.slow_reading.work_off()
    assert consumer.new_bodies() == numbered(3)


def test_messages_to_be_tried_again_are_waited_for_by_another_thread_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=0)
    for body in numbered(5):
        rig.publish(body)
    consumer = Consumer(rig.channel("c"), rdy=10)
    for message in consumer.take_new():
        consumer.requeue(message, delay_ms=100)
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: False)
    rig.slow_reading.is_slow = True
    rig.advance(ms=200)
    assert consumer.new_bodies() == []
    rig.slow_reading.work_off()
    assert sorted(consumer.new_bodies()) == numbered(5)


def test_a_channel_reads_for_a_moment_and_then_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=0, segment_bytes=1 << 30)
    rig.channel("c")
    bodies = [b"%06d" % number * 20_000 for number in range(20)]
    for body in bodies:
        rig.publish(body)

    def is_read_slowly(*_: object) -> bool:
        rig.clock.advance(ms=1)
        return True

    monkeypatch.setattr(OsFiles, "is_in_memory", is_read_slowly)
    consumer = Consumer(rig.channel("c"), rdy=100)
    turns: list[list[bytes]] = []
    while sum(map(len, turns)) < len(bodies):
        turns.append(consumer.new_bodies())
        rig.advance(ms=0)
    assert [body for turn in turns for body in turn] == bodies
    assert len(turns[0]) <= 3


def lagging_consumer(rig: JournalRig, bodies: list[bytes]) -> Consumer:
    """Of a channel that has to read them, while a publisher of another topic waits for the disk."""
    rig.channel("c")
    for body in bodies:
        rig.publish(body)
    rig.topic("other")
    rig.slow_disk.is_slow = True
    rig.publish(b"waits", topic="other")
    return Consumer(rig.channel("c"), rdy=100)


def test_a_channel_that_lags_goes_on_when_publishers_have_been_told_of_their_sync(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=0)
    consumer = lagging_consumer(rig, numbered(3))
    rig.advance(ms=1)
    assert consumer.new_bodies() == []
    rig.slow_disk.work_off()
    rig.advance(ms=0)
    assert consumer.new_bodies() == numbered(3)


def test_a_channel_that_lags_gets_short_turns_though_publishers_always_wait(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, mem_queue_size=0)
    bodies = [b"%06d" % number * 5000 for number in range(60)]
    consumer = lagging_consumer(rig, bodies)
    turns: list[list[bytes]] = []
    for _ in range(200):
        rig.advance(ms=1)
        turns.append(consumer.new_bodies())
    assert [body for turn in turns for body in turn] == bodies
    assert turns[0] == []
    assert {len(turn) for turn in turns if turn and turn[-1] < bodies[45]} == {2}


def test_a_channel_that_keeps_up_gives_way_to_nobody(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path)
    consumer = lagging_consumer(rig, numbered(3))
    assert consumer.new_bodies() == numbered(3)


def test_deferred_messages_that_waited_are_due_when_they_were_to_be(rig: JournalRig) -> None:
    rig.publish_deferred(b"later", delay_ms=1000)
    rig.publish(b"now")
    rig.advance(ms=400)
    consumer = Consumer(rig.channel("e#ephemeral"), rdy=10)
    assert consumer.new_bodies() == [b"now"]
    rig.advance(ms=599)
    assert consumer.new_bodies() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"later"]


def test_a_deferred_message_whose_time_has_come_counts_as_one_that_waits(rig: JournalRig) -> None:
    rig.publish_deferred(b"due", delay_ms=1000)
    rig.advance(ms=1000)
    stats = rig.channel("e#ephemeral").stats()
    assert (stats.depth, stats.message_count, stats.deferred_count) == (1, 1, 0)


@pytest.mark.parametrize("delay_ms", [0, 100])
def test_a_message_that_an_ephemeral_channel_requeues_keeps_its_body(rig: JournalRig, delay_ms: int) -> None:
    consumer = Consumer(rig.channel("e#ephemeral"), rdy=10)
    rig.publish(b"one", b"two")
    first, second = consumer.take_new()
    consumer.requeue(first, delay_ms=delay_ms)
    rig.advance(ms=delay_ms)
    again = consumer.take_one()
    assert (again.body, again.id, again.attempts) == (b"one", first.id, 2)
    assert consumer.finish(again, second) == []


# Storing.


def test_no_publisher_is_told_before_the_disk_has_it(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=10)
    rig.slow_disk.is_slow = True
    outcome = rig.send(b"a")
    assert not outcome.is_known
    assert (rig.topic_stats().message_count, consumer.new_bodies()) == (0, [])
    rig.slow_disk.work_off()
    assert outcome.is_stored
    assert (rig.topic_stats().message_count, consumer.new_bodies()) == (1, [b"a"])


def test_publishes_during_a_sync_share_the_next(rig: JournalRig) -> None:
    rig.channel()
    rig.slow_disk.is_slow = True
    outcomes = [rig.send(body) for body in numbered(5)]
    rig.slow_disk.work_off(1)
    assert [outcome.is_stored for outcome in outcomes] == [True, False, False, False, False]
    rig.slow_disk.work_off(1)
    assert all(outcome.is_stored for outcome in outcomes)


def test_a_channel_that_is_made_during_a_sync_gets_what_is_being_synced(rig: JournalRig) -> None:
    rig.channel("old")
    rig.slow_disk.is_slow = True
    rig.send(b"a")
    rig.channel("new")
    rig.slow_disk.work_off()
    assert (drained(rig, "old"), drained(rig, "new")) == ([b"a"], [b"a"])


def test_a_topic_that_is_paused_during_a_sync_keeps_what_is_being_synced(rig: JournalRig) -> None:
    rig.channel()
    rig.slow_disk.is_slow = True
    outcome = rig.send(b"a")
    rig.topic().pause()
    rig.slow_disk.work_off()
    assert outcome.is_stored
    rig.crash()
    assert (rig.topic_stats().depth, rig.stats().depth) == (1, 0)
    rig.topic().unpause()
    assert drained(rig) == [b"a"]


@pytest.mark.parametrize("sync", [SyncMode.INTERVAL, SyncMode.NEVER])
def test_without_waiting_for_the_disk_a_publish_is_stored_at_once(tmp_path: Path, sync: SyncMode) -> None:
    rig = JournalRig(tmp_path, sync=sync)
    consumer = rig.consumer(rdy=10)
    rig.slow_disk.is_slow = True
    assert rig.send(b"a").is_stored
    assert consumer.new_bodies() == [b"a"]
    rig.crash()
    assert drained(rig) == [b"a"]


def test_at_intervals_the_disk_gets_it(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, sync=SyncMode.INTERVAL)
    rig.channel()
    rig.publish(b"a")
    journal = rig.journaled_topic().journal
    assert journal.synced_offset == 0
    rig.advance(ms=rig.settings.sync_interval_ns / 1_000_000 - 1)
    assert journal.synced_offset == 0
    rig.advance(ms=1)
    assert journal.synced_offset == 1


def test_a_topic_that_cannot_note_where_its_channels_stop_takes_nothing(
    rig: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark a crash would make the next run believe that nothing waits."""
    rig.topic()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(StoreError, match=r"topic\.mark: no space left on device"):
            rig.publish(b"refused")
    rig.publish(b"kept")
    rig.crash()
    assert drained(rig) == [b"kept"]


def test_a_full_disk_refuses_a_publish_and_is_forgiven(rig: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = rig.consumer(rdy=10)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fails)
        with pytest.raises(StoreError, match="no space left on device"):
            rig.publish(b"refused")
    assert "no space left on device" in str(rig.broker.health)
    rig.publish(b"taken")
    assert rig.broker.health is None
    assert consumer.new_bodies() == [b"taken"]


def test_a_closed_gate_refuses_publishes(rig: JournalRig) -> None:
    rig.broker.gate.reason = "the disk is nearly full"
    with pytest.raises(GateClosedError):
        rig.publish(b"a")
    with pytest.raises(GateClosedError):
        rig.publish_deferred(b"a", delay_ms=1)


def test_a_topic_that_is_closed_takes_nothing(rig: JournalRig) -> None:
    topic = rig.topic()
    rig.broker.close()
    with pytest.raises(ExitingError):
        topic.publish(b"\0\0\0\1a", (5,))


# Deleting.


def test_a_deleted_topic_leaves_nothing(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(5))
    rig.broker.delete_topic("t")
    rig.save_metadata()
    assert list(rig.folder.iterdir()) == []
    rig.publish(b"new")
    assert drained(rig) == [b"new"]


def test_a_topic_can_be_deleted_during_a_sync_and_a_save(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=10)
    rig.publish(b"a")
    consumer.finish(consumer.take_one())
    rig.slow_disk.is_slow = True
    outcomes = [rig.send(b"b"), rig.send(b"c")]
    rig.advance(ms=1000)
    rig.broker.delete_topic("t")
    rig.slow_disk.work_off()
    assert all(outcome.is_known for outcome in outcomes)
    rig.save_metadata()
    assert list(rig.folder.iterdir()) == []
    assert rig.broker.health is None


def test_a_channel_that_is_deleted_during_a_save_does_not_come_back(rig: JournalRig) -> None:
    consumer = rig.consumer(rdy=10)
    rig.publish(b"a")
    consumer.finish(consumer.take_one())
    rig.slow_disk.is_slow = True
    rig.advance(ms=1000)
    assert rig.slow_disk.waiting_count == 1
    rig.topic().delete_channel("c")
    rig.slow_disk.work_off()
    rig.crash()
    assert rig.topic().channels == {}


def test_a_seek_that_waits_to_be_saved_does_not_bring_a_deleted_channel_back(rig: JournalRig) -> None:
    rig.publish(b"a")
    channel = rig.journaled_channel()
    told: list[StorageError | None] = []
    rig.slow_disk.is_slow = True
    for _ in range(2):
        channel.seek(0)
        channel.when_saved(told.append)
    rig.topic().delete_channel("c")
    rig.slow_disk.work_off()
    assert ["the channel was deleted" in str(failure) for failure in told] == [True, True]
    rig.crash()
    assert rig.topic().channels == {}


def test_a_sync_that_fails_is_told_to_the_publisher_and_shown_as_ill_health(
    rig: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.topic()
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        outcome = rig.send(b"x")
    assert "no space left on device" in str(outcome.failure)
    assert "no space left on device" in rig.broker.journal_problems["t"]


def test_what_waits_in_a_journaled_topic_is_on_the_disk(rig: JournalRig) -> None:
    rig.publish(b"a", b"b")
    assert (rig.topic_stats().depth, rig.topic_stats().backend_depth) == (2, 2)


def test_a_topic_that_is_closed_has_let_go_of_its_journal(rig: JournalRig) -> None:
    rig.publish(b"a")
    assert open_files(rig.topic_folder()) > 0
    rig.broker.close()
    assert open_files(rig.topic_folder()) == 0
