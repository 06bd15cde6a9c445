"""Which segments go, which never do, and when their files do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.base.file import OsFiles
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.journal import MAX_UNSAVED
from emberq.storage.journal.retention import MAX_REMOVED
from tests.storage.journal.rig import MANY, START_NS, JournalRig, producer, read_all


def test_nothing_goes_that_a_channel_has_still_to_read(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    published = journals.fill(journal, batches=20)
    journal.sync()
    second = journal.segments[1].base_offset
    assert journal.trim(before_offset=second - 1, now_ns=START_NS) == 0
    freed = journal.trim(before_offset=second, now_ns=START_NS)
    assert freed > 0
    assert journal.first_offset == second
    assert read_all(journal, offset=second) == (published[second:], [])


def test_nothing_goes_that_is_not_synced(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    journals.fill(journal, batches=20, synced=False)
    assert journal.trim(before_offset=60, now_ns=START_NS) == 0


def test_the_oldest_segments_go_until_the_size_is_right(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=1500)
    journals.fill(journal, batches=30)
    journal.sync()
    before = journal.total_bytes
    freed = journal.trim(before_offset=90, now_ns=START_NS)
    assert before - freed == journal.total_bytes <= 1500
    assert journal.total_bytes + 500 > 1500
    assert journals.segments() == [info.path for info in journal.segments]
    assert {path.stem for path in journals.folder.glob("*.idx")} <= {path.stem for path in journals.segments()}


def test_segments_go_when_their_newest_message_is_too_old(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_ns=10 * NS_PER_SECOND)
    journals.fill(journal, batches=20)
    journal.sync()
    assert journal.trim(before_offset=60, now_ns=START_NS + 5 * NS_PER_SECOND) == 0
    again = journals.open(segment_bytes=500, retention_ns=10 * NS_PER_SECOND)
    again.trim(before_offset=60, now_ns=START_NS + 20 * NS_PER_SECOND)
    # The message with offset 30 was published after 10 seconds: it is kept, and whatever shares its segment.
    assert again.segments[0].base_offset <= 30 < again.segments[0].next_offset


def test_a_journal_in_which_everything_is_too_old_becomes_empty_and_goes_on(journals: JournalRig) -> None:
    journal = journals.open(retention_ns=10 * NS_PER_SECOND)
    journals.fill(journal, batches=3)
    journal.sync()
    assert journal.trim(before_offset=8, now_ns=START_NS + 100 * NS_PER_SECOND) == 0
    assert journal.trim(before_offset=9, now_ns=START_NS + 100 * NS_PER_SECOND) > 0
    assert journal.first_offset == journal.next_offset == 9
    assert journal.trim(before_offset=9, now_ns=START_NS + 900 * NS_PER_SECOND) == 0
    for opened in (journal, journals.open()):
        assert opened.read(9, max_bytes=MANY) == ([], 9, [])
        assert opened.next_offset == 9
    assert journals.append(opened, b"x").base_offset == 9


def test_without_limits_everything_stays(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500)
    journals.fill(journal, batches=20)
    journal.sync()
    assert journal.trim(before_offset=60, now_ns=1 << 62) == 0


def test_the_producers_of_removed_segments_are_remembered(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    journals.append(journal, b"a", by=producer(b"p", 4))
    journals.fill(journal, batches=20)
    journal.sync()
    journal.trim(before_offset=61, now_ns=START_NS)
    assert journal.first_offset > 0
    assert journals.append(journals.open(segment_bytes=500), b"a", by=producer(b"p", 4)).is_repeated


def test_files_that_cannot_be_removed_stay_part_of_the_journal(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    published = journals.fill(journal, batches=20)
    journal.sync()

    def refuses(path: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as stubborn:
        stubborn.setattr(os, "unlink", refuses)
        assert journal.trim(before_offset=60, now_ns=START_NS) == 0
    assert read_all(journal) == (published, [])


def test_a_journal_that_takes_nothing_more_is_not_rolled(journals: JournalRig) -> None:
    journal = journals.open(retention_ns=1)
    journals.append(journal, b"a")
    journal.close()
    assert journal.trim(before_offset=1, now_ns=1 << 62) == 0
    assert journals.segments() == [journals.segment(0)]


def test_what_tells_of_removed_segments_is_on_the_disk_before_they_go(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=1000)
    journals.fill(journal, batches=20)
    journal.sync()
    steps: list[str] = []
    fsync, unlink = os.fsync, Path.unlink

    def seen_fsync(fd: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{fd}').resolve().name}")
        fsync(fd)

    def seen_unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append(f"delete {path.name}")
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "unlink", seen_unlink)
    journal.trim(before_offset=60, now_ns=START_NS)
    index = journals.index(journal.segments[-1].base_offset).name
    assert steps[:3] == [f"sync {index}", f"sync {journals.folder.name}", f"delete {journals.index().name}"]


def test_a_segment_that_is_gone_already_does_not_keep_the_others(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=1000)
    journals.fill(journal, batches=20)
    journal.sync()
    journals.segment().unlink()
    journals.index().unlink()
    journal.trim(before_offset=60, now_ns=START_NS)
    assert journal.total_bytes <= 1000


def refuse_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    rename = OsFiles.rename

    def fails(files: OsFiles, source: Path, target: Path) -> None:
        if target.suffix == ".idx":
            raise OSError(errno.EDQUOT, "disk quota exceeded")
        rename(files, source, target)

    monkeypatch.setattr(OsFiles, "rename", fails)


def test_an_index_that_could_not_be_written_is_written_later_and_old_segments_go_then(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    with monkeypatch.context() as broken:
        refuse_indexes(broken)
        journals.fill(journal, batches=20)
        journal.sync()
        assert "disk quota exceeded" in str(journal.summary_failure)
        assert journal.trim(before_offset=60, now_ns=START_NS) == 0
    assert journal.trim(before_offset=60, now_ns=START_NS) > 0
    assert journal.summary_failure is None
    assert len(journal.segments) == 1


def test_an_index_that_could_not_be_written_at_the_start_is_written_before_old_segments_go(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    for sequence in range(20):
        journals.append(journal, b"x" * 60, by=producer(b"p", sequence))
    journal.sync()
    for path in journals.folder.glob("*.idx"):
        path.unlink()
    with monkeypatch.context() as broken:
        refuse_indexes(broken)
        again = journals.open(segment_bytes=500, retention_bytes=0)
    assert again.trim(before_offset=20, now_ns=START_NS) > 0
    after = journals.open(segment_bytes=500).producer_state(producer(b"p", 0).producer_id)
    assert after is not None
    assert after.sequence == 19


def test_contents_of_indexes_that_cannot_be_written_do_not_pile_up(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=500)
    with monkeypatch.context() as broken:
        refuse_indexes(broken)
        journals.fill(journal, batches=250)
    journals.fill(journal, batches=1)
    assert 0 < len(list(journals.folder.glob("*.idx"))) <= MAX_UNSAVED < len(journal.segments)


# In another thread.


class Steps:
    """The work of the other thread and what it hands back, each done when the test says so."""

    def __init__(self) -> None:
        self.work: list[Work] = []
        self.workers = Workers(start_removing=self.work.append, hand_back=self.work.append)

    def next(self) -> None:
        self.work.pop(0)()


def test_segments_go_at_once_and_their_files_when_another_thread_has_synced(journals: JournalRig) -> None:
    steps = Steps()
    journal = journals.open(segment_bytes=500, retention_bytes=0, workers=steps.workers)
    published = journals.fill(journal, batches=20)
    journal.sync()
    files = journals.segments()
    assert journal.trim(before_offset=60, now_ns=START_NS) > 0
    first = journal.first_offset
    assert first > 0
    assert read_all(journal, offset=first) == (published[first:], [])
    steps.next()  # the other thread syncs
    assert journals.segments() == files
    assert journal.trim(before_offset=60, now_ns=START_NS) == 0
    steps.next()  # the names are deleted
    assert journals.segments() == [info.path for info in journal.segments]
    steps.next()  # the room is given back
    steps.next()
    assert steps.work == []


def test_segments_come_back_if_the_other_thread_cannot_sync(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    journal = journals.open(segment_bytes=500, retention_bytes=0, workers=steps.workers)
    published = journals.fill(journal, batches=20)
    journal.sync()
    journal.trim(before_offset=60, now_ns=START_NS)
    more = journals.fill(journal, batches=5)
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "sync_folder", _fails)
        steps.next()
    while steps.work:
        steps.next()
    assert journal.first_offset == 0
    assert read_all(journal) == (published + more, [])
    assert journal.trim(before_offset=60, now_ns=START_NS) > 0


def _fails(_files: OsFiles, _path: Path) -> None:
    raise OSError(errno.EIO, "input/output error")


def test_nothing_is_deleted_once_the_journal_is_closed_or_another_has_its_name(journals: JournalRig) -> None:
    steps = Steps()
    journal = journals.open(segment_bytes=500, retention_bytes=0, workers=steps.workers)
    journals.fill(journal, batches=20)
    journal.sync()
    journal.trim(before_offset=60, now_ns=START_NS)
    steps.next()
    journal.delete()
    another = journals.open(segment_bytes=500)
    published = journals.fill(another, batches=20)
    while steps.work:
        steps.next()
    assert read_all(another) == (published, [])


def test_so_many_segments_go_at_a_time_that_descriptors_are_left_for_others(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=500, retention_bytes=0)
    journals.fill(journal, batches=(MAX_REMOVED + 2) * 10)
    journal.sync()
    count, end = len(journal.segments), journal.next_offset
    assert count > MAX_REMOVED + 1
    journal.trim(before_offset=end, now_ns=START_NS)
    assert len(journal.segments) == count - MAX_REMOVED
    while len(journal.segments) > 1:
        assert journal.trim(before_offset=end, now_ns=START_NS) > 0
