"""What a journaled topic does about files that a power failure cut, and about files that are old."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import OsFiles
from emberq.broker.store import SyncMode
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, numbered


def drained(rig: JournalRig, channel: str = "c") -> list[bytes]:
    """What a channel has to give, in order; it is finished."""
    consumer = Consumer(rig.channel(channel), rdy=1000)
    messages = consumer.take_new()
    consumer.finish(*messages)
    consumer.leave()
    return [message.body for message in messages]


# Power failures.


def cut(rig: JournalRig, *, to_bytes: int) -> None:
    os.truncate(rig.last_segment(), to_bytes)


def test_offsets_that_were_seen_before_a_power_failure_are_not_given_again(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, sync=SyncMode.INTERVAL)
    ahead, behind = Consumer(rig.channel("ahead"), rdy=100), Consumer(rig.channel("behind"), rdy=100)
    rig.publish(*numbered(3))
    size_bytes = rig.last_segment().stat().st_size
    rig.publish(*numbered(4, first=3))
    ahead.finish(*ahead.take_new())
    behind.finish(*behind.take_new()[:1])
    rig.advance(ms=1000)
    rig.crash(before_start=lambda: cut(rig, to_bytes=size_bytes))
    assert (rig.stats("ahead").depth, rig.stats("behind").depth) == (0, 2)
    rig.publish(b"new")
    consumer = Consumer(rig.channel("ahead"), rdy=10)
    new = consumer.take_one()
    assert (new.body, int(new.id, 16)) == (b"new", 7)
    assert drained(rig, "behind") == [*numbered(2, first=1), b"new"]
    rig.crash()
    assert drained(rig, "behind") == [*numbered(2, first=1), b"new"], "nothing of it was saved"


def damage_the_end(rig: JournalRig) -> None:
    content = bytearray(rig.last_segment().read_bytes())
    content[-20] ^= 1
    rig.last_segment().write_bytes(content)


def test_offsets_that_are_skipped_after_damage_are_no_backlog(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path)
    rig.channel()
    rig.publish(b"a")
    rig.publish(b"lost")
    rig.crash(before_start=lambda: damage_the_end(rig))
    assert rig.stats().depth == 1
    rig.publish(b"new")
    assert rig.stats().depth == 2
    rig.advance(ms=1000)
    rig.crash()
    assert rig.stats().depth == 2, "the cursor was saved"
    consumer = Consumer(rig.channel(), rdy=10)
    first, second = consumer.take_new()
    assert (first.body, int(first.id, 16), second.body) == (b"a", 0, b"new")
    assert int(second.id, 16) > 1, "the offset of the lost message is given to no other"


def test_a_mark_behind_the_end_that_a_power_failure_left_hides_nothing(tmp_path: Path) -> None:
    rig = JournalRig(tmp_path, sync=SyncMode.INTERVAL)
    rig.channel("e#ephemeral")
    rig.publish(b"a")
    size_bytes = rig.last_segment().stat().st_size
    rig.publish(b"lost", b"lost")
    rig.topic().pause()
    rig.publish(b"lost")
    rig.crash(before_start=lambda: cut(rig, to_bytes=size_bytes))
    rig.publish(b"kept")
    rig.crash()
    rig.topic().unpause()
    assert drained(rig) == [b"kept"]


# Retention.


@pytest.fixture
def short_memory(tmp_path: Path) -> JournalRig:
    """Keeps what channels are past for a minute, in small segments."""
    return JournalRig(tmp_path, segment_bytes=400, retention_ns=60 * NS_PER_SECOND)


def publish_slowly(rig: JournalRig, count: int) -> None:
    for body in numbered(count):
        rig.publish(body * 10)
        rig.advance(ms=1000)


def test_what_all_channels_have_passed_goes_when_it_is_old(short_memory: JournalRig) -> None:
    rig = short_memory
    rig.channel()
    publish_slowly(rig, 30)
    assert rig.journaled_topic().journal.first_offset == 0
    drained(rig)
    rig.advance(ms=70_000)
    assert rig.journaled_topic().journal.first_offset == 30


def test_a_channel_that_lags_keeps_what_it_has_still_to_deliver(short_memory: JournalRig) -> None:
    rig = short_memory
    rig.channel("fast")
    rig.channel("slow")
    publish_slowly(rig, 30)
    drained(rig, "fast")
    for _ in range(10):
        rig.advance(ms=60_000)
    assert drained(rig, "slow") == [body * 10 for body in numbered(30)]
    rig.advance(ms=10_000)
    assert rig.journaled_topic().journal.first_offset == 30


def test_what_waits_in_the_topic_is_kept(short_memory: JournalRig) -> None:
    rig = short_memory
    publish_slowly(rig, 30)
    for _ in range(10):
        rig.advance(ms=60_000)
    assert len(drained(rig)) == 30


def test_one_unfinished_message_keeps_its_segment_alone(short_memory: JournalRig) -> None:
    rig = short_memory
    consumer = rig.consumer(rdy=100, msg_timeout_ms=600_000)
    publish_slowly(rig, 30)
    messages = consumer.take_new()
    consumer.finish(*messages[:20], *messages[21:])
    rig.advance(ms=120_000)
    journal = rig.journaled_topic().journal
    assert 0 < journal.first_offset <= 20
    rig.crash()
    assert drained(rig) == [messages[20].body]


def test_an_index_that_cannot_be_written_is_ill_health_because_old_messages_stay(
    short_memory: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_files: OsFiles, source: Path, target: Path) -> None:
        if target.suffix == ".idx":
            raise OSError(errno.EDQUOT, "disk quota exceeded")
        source.rename(target)

    rig = short_memory
    rig.channel()
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "rename", fails)
        publish_slowly(rig, 30)
        drained(rig)
        rig.advance(ms=70_000)
        assert ".idx: disk quota exceeded" in str(rig.broker.health)
        assert rig.journaled_topic().journal.first_offset == 0
    rig.advance(ms=10_000)
    assert rig.journaled_topic().journal.first_offset == 30


# A limit that no channel holds up.


def overfull(folder: Path, *, mem_queue_size: int = 0) -> JournalRig:
    """Keeps at most 5000 bytes, in files of 1000 bytes."""
    return JournalRig(folder, segment_bytes=1000, max_bytes=5000, mem_queue_size=mem_queue_size)


def trim(rig: JournalRig) -> None:
    rig.advance(ms=10_000)


def test_a_forgotten_channel_does_not_keep_a_journal_from_its_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = overfull(tmp_path)
    rig.channel("forgotten")
    rig.channel("late")
    for number in range(100):
        rig.publish(b"%0200d" % number)
    assert rig.journaled_topic().journal.total_bytes > 20_000
    trim(rig)
    journal = rig.journaled_topic().journal
    first = journal.first_offset
    assert journal.total_bytes <= 5000
    assert first > 50
    assert (rig.stats("forgotten").depth, rig.stats("late").depth) == (100 - first, 100 - first)
    assert f"removed {first} messages before channel forgotten had read them" in caplog.text
    stats = rig.topic_stats().journal
    assert stats is not None
    assert (stats.overtaken_count, stats.lag) == (2 * first, 100 - first)
    rig.crash()
    assert [int(body) for body in drained(rig, "late")] == list(range(first, 100))
    assert rig.stats("late").depth == 0


def test_what_is_in_flight_or_in_memory_is_delivered_all_the_same(tmp_path: Path) -> None:
    rig = overfull(tmp_path, mem_queue_size=10)
    consumer = Consumer(rig.channel(), rdy=2)
    for number in range(100):
        rig.publish(b"%0200d" % number)
    trim(rig)
    first = rig.journaled_topic().journal.first_offset
    held = consumer.take_new()
    assert [int(message.body) for message in held] == [0, 1]
    consumer.finish(held[0])
    consumer.requeue(held[1])
    consumer.ready(1000)
    bodies = [int(message.body) for message in consumer.take_new()]
    in_memory = [body for body in bodies if body < first]
    assert sorted(in_memory) == list(range(1, 12)), "the memory queue, and what was requeued"
    assert [body for body in bodies if body >= first] == list(range(first, 100))


def test_messages_that_wait_to_be_tried_again_go_too(tmp_path: Path) -> None:
    rig = overfull(tmp_path)
    consumer = Consumer(rig.channel(), rdy=100)
    for number in range(100):
        rig.publish(b"%0200d" % number)
    for message in consumer.take_new():
        consumer.requeue(message)
    consumer.ready(0)
    while rest := consumer.take_new():
        for message in rest:
            consumer.requeue(message)
    trim(rig)
    first = rig.journaled_topic().journal.first_offset
    assert 50 < first < 100
    consumer.ready(1000)
    assert sorted(int(message.body) for message in consumer.take_new()) == list(range(first, 100))


@pytest.mark.parametrize("is_paused", [False, True])
def test_what_the_topic_has_not_let_through_goes_too(tmp_path: Path, is_paused: bool) -> None:
    rig = overfull(tmp_path)
    if is_paused:
        rig.channel()
        rig.topic().pause()
    for number in range(100):
        rig.publish(b"%0200d" % number)
    trim(rig)
    first = rig.journaled_topic().journal.first_offset
    assert rig.journaled_topic().journal.total_bytes <= 5000
    assert rig.topic().depth == 100 - first
    rig.topic().unpause()
    assert [int(body) for body in drained(rig)] == list(range(first, 100))


def test_a_journal_within_its_limit_keeps_what_channels_have_to_read(tmp_path: Path) -> None:
    rig = overfull(tmp_path)
    rig.channel()
    for number in range(15):
        rig.publish(b"%0200d" % number)
    trim(rig)
    assert rig.journaled_topic().journal.first_offset == 0
    assert len(drained(rig)) == 15
