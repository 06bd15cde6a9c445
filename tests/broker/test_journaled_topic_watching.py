"""What a journaled topic and its channels offer to those who answer for them: watching, places, saving, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.broker.stats import JournalStats
from emberq.broker.store import SyncMode
from emberq.storage.error import StorageError
from tests.broker.journal_rig import JournalRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[JournalRig]:
    with JournalRig(tmp_path) as rig:
        yield rig


class Bell:
    """Counts how often it was rung."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


# Watching.


def test_a_watcher_is_told_once_when_more_is_on_the_disk(rig: JournalRig) -> None:
    bell = Bell()
    rig.slow_disk.is_slow = True
    rig.journaled_topic().watch(bell)
    rig.send(b"a")
    assert bell.count == 0
    rig.slow_disk.work_off()
    rig.slow_disk.is_slow = False
    rig.send(b"b")
    assert bell.count == 1


def test_a_watcher_that_gave_up_is_not_told(rig: JournalRig) -> None:
    bell = Bell()
    topic = rig.journaled_topic()
    topic.watch(bell)
    topic.unwatch(bell)
    topic.unwatch(bell)
    rig.send(b"a")
    assert bell.count == 0


def test_with_intervals_a_watcher_is_told_when_one_ends(tmp_path: Path) -> None:
    with JournalRig(tmp_path, sync=SyncMode.INTERVAL) as rig:
        bell = Bell()
        rig.journaled_topic().watch(bell)
        rig.send(b"a")
        assert bell.count == 0
        rig.advance(ms=rig.settings.sync_interval_ns // NS_PER_MS)
        assert (bell.count, rig.journaled_topic().journal.synced_offset) == (1, 1)


def test_watchers_are_told_when_the_topic_goes(rig: JournalRig) -> None:
    bell = Bell()
    topic = rig.journaled_topic()
    topic.watch(bell)
    assert topic.is_open
    rig.broker.delete_topic("t")
    assert (bell.count, topic.is_open) == (1, False)


# Places.


def test_only_what_counts_as_stored_has_a_place(rig: JournalRig) -> None:
    topic = rig.journaled_topic()
    rig.send(b"a")
    rig.slow_disk.is_slow = True
    rig.send(b"b")
    far_ns = rig.clock.wall_ns() + NS_PER_SECOND
    assert (topic.journal.next_offset, topic.stored_offset, topic.offset_at(far_ns)) == (2, 1, 1)
    rig.slow_disk.work_off()
    assert (topic.stored_offset, topic.offset_at(far_ns), topic.offset_at(0)) == (2, 2, 0)


# Saving.


def test_whoever_waits_for_a_save_is_told_of_one_that_has_the_present_state(rig: JournalRig) -> None:
    channel = rig.journaled_channel()
    rig.send(b"a", b"b", b"c")
    told: list[StorageError | None] = []
    rig.slow_disk.is_slow = True
    channel.seek(1)
    channel.save_soon()  # of the state before the next move
    channel.seek(2)
    channel.when_saved(told.append)
    rig.slow_disk.work_off(1)
    assert told == []
    rig.slow_disk.work_off()
    assert told == [None]
    rig.crash()
    assert rig.journaled_channel().low_water == 2


def test_a_save_that_fails_is_told(rig: JournalRig) -> None:
    channel = rig.journaled_channel()
    told: list[StorageError | None] = []
    cursors = rig.topic_folder() / "cursors"
    (cursors / "c.cursor").unlink()
    cursors.rmdir()
    channel.when_saved(told.append)
    assert isinstance(told[0], StorageError)
    cursors.mkdir()


# Statistics.


def test_the_lag_of_a_topic_is_that_of_its_slowest_channel(rig: JournalRig) -> None:
    rig.journaled_channel("slow")
    fast = rig.journaled_channel("fast")
    rig.send(b"a", b"b", b"c")
    fast.seek(2)
    assert (fast.lag, rig.journaled_channel("slow").lag) == (1, 3)
    stats = rig.journaled_topic().stats()
    size_bytes = rig.journaled_topic().journal.total_bytes
    assert stats.journal == JournalStats(first_offset=0, next_offset=3, synced_offset=3, size_bytes=size_bytes, lag=3)


def test_a_classic_topic_has_no_journal_to_tell_of(tmp_path: Path) -> None:
    with JournalRig(tmp_path, is_wanted=lambda _name: False) as rig:
        assert rig.topic("t").stats().journal is None
