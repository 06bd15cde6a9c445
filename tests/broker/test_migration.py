"""Topics that were not journaled and now are."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.broker.error import StoreError
from emberq.broker.migration import MAX_PORTION_COUNT
from emberq.storage.journal.journal import Journal
from tests.broker.journal_rig import JournalRig
from tests.broker.rig import Consumer, Message, numbered
from tests.storage.journal.rig import open_files


def none_wanted(_topic: str) -> bool:
    return False


def all_wanted(_topic: str) -> bool:
    return True


@pytest.fixture
def rig(tmp_path: Path) -> JournalRig:
    """A broker with classic topics, to be restarted with journaled ones."""
    return JournalRig(tmp_path, is_wanted=none_wanted, mem_queue_size=3)


def drain(rig: JournalRig, channel: str = "c") -> list[Message]:
    """Everything a channel has to give, finished."""
    consumer = Consumer(rig.channel(channel), rdy=1000)
    came: list[Message] = []
    while new := consumer.take_new():
        came += new
        consumer.finish(*new)
    consumer.leave()
    return came


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


def queue_files(rig: JournalRig) -> list[str]:
    return [path.name for path in rig.folder.iterdir() if ".diskqueue." in path.name]


def test_the_backlog_of_a_channel_goes_to_that_channel_alone(rig: JournalRig) -> None:
    rig.channel("a")
    rig.publish(*numbered(10))
    rig.channel("b")
    rig.publish(*numbered(5, first=10))
    rig.restart_with(all_wanted)
    assert (rig.stats("a").depth, rig.stats("b").depth) == (15, 5)
    assert bodies(drain(rig, "a")) == numbered(15)
    assert bodies(drain(rig, "b")) == numbered(5, first=10)
    assert queue_files(rig) == []


def test_what_waited_in_the_topic_is_for_the_first_channel(rig: JournalRig) -> None:
    rig.publish(*numbered(7))
    rig.restart_with(all_wanted)
    assert rig.topic().depth == 7
    assert bodies(drain(rig)) == numbered(7)
    assert bodies(drain(rig, "later")) == []


def test_what_waited_in_a_paused_topic_is_for_all_its_channels(rig: JournalRig) -> None:
    rig.channel("a")
    rig.channel("b")
    rig.publish(b"before")
    rig.topic().pause()
    rig.publish(b"meanwhile")
    rig.restart_with(all_wanted)
    assert (rig.topic().depth, rig.stats("a").depth) == (1, 1)
    rig.topic().unpause()
    for channel in ("a", "b"):
        assert bodies(drain(rig, channel)) == [b"before", b"meanwhile"]


def test_a_channel_that_was_empty_gets_nothing_of_the_others(rig: JournalRig) -> None:
    rig.channel("empty")
    rig.channel("full")
    rig.publish(*numbered(10))
    drain(rig, "empty")
    rig.restart_with(all_wanted)
    rig.publish(b"new")
    assert bodies(drain(rig, "empty")) == [b"new"]
    assert bodies(drain(rig, "full")) == [*numbered(10), b"new"]


def test_publish_times_and_attempts_are_kept(rig: JournalRig) -> None:
    consumer = Consumer(rig.channel(), rdy=1)
    rig.publish(b"early")
    published_ns = rig.clock.wall_ns()
    rig.advance(ms=5000)
    rig.publish(b"late")
    consumer.ready(0)
    consumer.requeue(consumer.take_one())
    rig.restart_with(all_wanted)
    came = {message.body: message for message in drain(rig)}
    assert came[b"early"].timestamp_ns == published_ns
    assert came[b"late"].timestamp_ns == published_ns + 5000 * NS_PER_MS
    assert (came[b"early"].attempts, came[b"late"].attempts) == (2, 1)


def test_due_times_are_kept(rig: JournalRig) -> None:
    rig.channel()
    rig.publish_deferred(b"deferred", delay_ms=10_000)
    rig.publish(b"at once")
    rig.restart_with(all_wanted)
    assert queue_files(rig) == []
    consumer = Consumer(rig.channel(), rdy=10)
    assert consumer.new_bodies() == [b"at once"]
    rig.advance(ms=8_999)
    assert consumer.new_bodies() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"deferred"]


def test_the_delay_of_a_message_that_waited_in_the_topic_begins_with_the_move(rig: JournalRig) -> None:
    rig.publish_deferred(b"deferred", delay_ms=10_000)
    rig.restart_with(all_wanted)
    assert queue_files(rig) == []
    consumer = Consumer(rig.channel(), rdy=10)
    rig.advance(ms=9_999)
    assert consumer.new_bodies() == []
    rig.advance(ms=1)
    assert consumer.new_bodies() == [b"deferred"]


def test_the_move_is_logged(rig: JournalRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.channel("b")
    rig.publish(*numbered(1))
    rig.channel("c")
    rig.publish(*numbered(4))
    rig.topic().pause()
    rig.publish(*numbered(2))
    rig.restart_with(all_wanted)
    for count, queue in ((5, "t:b"), (4, "t:c"), (2, "t")):
        assert f"TOPIC(t): moved {count} messages of the disk queue {queue} to the journal" in caplog.text


def test_a_queue_that_holds_less_than_it_says_leaves_a_hole_and_no_message_is_missed(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(6))
    rig.broker.close()
    (meta,) = rig.folder.glob("t:c.diskqueue.meta.dat")
    meta.write_text(meta.read_text().replace("6\n", "9\n", 1))
    rig.restart_with(all_wanted)
    assert rig.stats().depth == 6
    assert bodies(drain(rig)) == numbered(6)
    assert rig.stats().depth == 0
    rig.publish(b"new")
    assert bodies(drain(rig)) == [b"new"]


def test_a_large_backlog_is_moved_in_portions(rig: JournalRig) -> None:
    rig.channel("a")
    rig.channel("b")
    total = MAX_PORTION_COUNT + 5
    for first in range(0, total, 1000):
        rig.publish(*numbered(min(1000, total - first), first=first))
    rig.restart_with(all_wanted)
    assert bodies(drain(rig, "a")) == numbered(total)
    assert rig.stats("b").depth == total


def test_a_queue_that_go_wrote_meanwhile_joins_the_journal(rig: JournalRig) -> None:
    """The Go nsqd knows nothing of journals: it makes disk queues beside them."""
    rig.restart_with(all_wanted)
    rig.channel()
    rig.publish(b"ours")
    (rig.folder / "go").mkdir()
    with JournalRig(rig.folder / "go", is_wanted=none_wanted) as go:
        go.channel()
        go.publish(b"theirs")
    for path in (rig.folder / "go").iterdir():
        path.rename(rig.folder / path.name)
    rig.restart()
    assert bodies(drain(rig)) == [b"ours", b"theirs"]


def test_a_topic_that_was_deleted_and_made_again_remembers_nothing(rig: JournalRig) -> None:
    rig.channel()
    rig.publish(*numbered(4))
    rig.restart_with(all_wanted)
    rig.broker.delete_topic("t")
    rig.publish(b"new")
    assert rig.journaled_topic().saved_channel_names() == []
    assert bodies(drain(rig)) == [b"new"]


class _Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["append", "sync"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_crash_in_the_middle_costs_duplicates_at_most(
    rig: JournalRig, monkeypatch: pytest.MonkeyPatch, moment: str, after: int
) -> None:
    rig.channel("a")
    rig.channel("b")
    rig.publish(*numbered(4))
    rig.topic().pause()
    rig.publish(*numbered(3, first=4))
    calls = 0
    original = getattr(Journal, moment)

    def ends_the_process(journal: Journal, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == after + 1:
            raise _Crash
        return original(journal, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, moment, ends_the_process)
        with pytest.raises(_Crash):
            rig.restart_with(all_wanted)
    rig.crash()
    rig.publish(b"new")
    for channel in ("a", "b"):
        came = bodies(drain(rig, channel))
        assert set(came) == {*numbered(7), b"new"}
        assert len(came) <= 8 + 7
    assert queue_files(rig) == []


def test_a_full_disk_leaves_the_queues_for_the_next_start(rig: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.channel("a")
    rig.channel("b")
    rig.publish(*numbered(6))

    def no_space(_fd: int, _parts: object, _position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", no_space)
        rig.restart_with(all_wanted)
        with pytest.raises(StoreError, match=r"the journal of t: .* no space left"):
            rig.publish(b"more")
    assert open_files(rig.folder) == 0
    assert rig.broker.awaits_room
    rig.broker.reopen_journals()
    assert not rig.broker.awaits_room
    for channel in ("a", "b"):
        assert bodies(drain(rig, channel)) == numbered(6)


def test_a_sync_that_fails_puts_the_topic_into_quarantine_and_leaves_the_queues(
    rig: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.channel("a")
    rig.publish(*numbered(6))

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        rig.restart_with(all_wanted)
    assert list(rig.broker.journal_problems) == ["t"]
    with pytest.raises(StoreError, match=r"the journal of t: it cannot be opened: .*input/output error"):
        rig.publish(b"more")
    rig.crash()
    assert not rig.broker.journal_problems
    assert set(bodies(drain(rig, "a"))) == set(numbered(6))
