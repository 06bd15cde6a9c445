"""The folder of a journaled topic: cursors that are saved in other threads, and the mark."""

from __future__ import annotations

import errno
from collections import deque
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.file import OsFiles
from emberq.storage.error import StorageError
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.folder import JournalFolder
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.journal_batch import Bodies
from tests.storage.journal.rig import flip


class Threads:
    """Work waits until the test lets it run."""

    def __init__(self) -> None:
        self.waiting: deque[Work] = deque()

    def run(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


@pytest.fixture
def threads() -> Threads:
    return Threads()


def opened(path: Path, threads: Threads) -> JournalFolder:
    workers = Workers(start=threads.waiting.append)
    return JournalFolder(path, JournalConfig(), clock=ManualClock(), workers=workers)


@pytest.fixture
def folder(tmp_path: Path, threads: Threads) -> JournalFolder:
    """A folder with ten messages."""
    folder = opened(tmp_path / "t.journal", threads)
    folder.journal.append(Bodies.of([b"%d" % number for number in range(10)]), timestamp_ns=1)
    return folder


# Cursors.


def test_a_new_cursor_is_on_the_disk_at_once(folder: JournalFolder, tmp_path: Path, threads: Threads) -> None:
    folder.cursor("c", start_offset=4)
    folder.journal.close()
    again = opened(tmp_path / "t.journal", threads)
    assert again.channel_names() == ["c"]
    assert again.cursor("c", start_offset=9).low_water == 4


def test_a_channel_may_be_called_like_a_parent_folder(folder: JournalFolder) -> None:
    for name in (".", "..", "c.cursor"):
        folder.cursor(name, start_offset=1)
    assert folder.channel_names() == [".", "..", "c.cursor"]


def test_a_cursor_is_saved_as_it_was_when_asked_for(folder: JournalFolder, threads: Threads) -> None:
    cursor = folder.cursor("c", start_offset=0)
    told: list[StorageError | None] = []
    cursor.acknowledge(0, 3)
    folder.cursor_file("c").save_soon(cursor, told.append)
    cursor.acknowledge(3, 5)
    assert told == []
    threads.run()
    assert told == [None]
    assert folder.cursor("c", start_offset=9).low_water == 3


def test_a_save_that_comes_too_late_does_not_undo_a_later_one(folder: JournalFolder, threads: Threads) -> None:
    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    cursor.acknowledge(0, 3)
    file.save_soon(cursor, lambda _failure: None)
    cursor.acknowledge(3, 5)
    file.save(cursor)
    threads.run()
    assert folder.cursor("c", start_offset=9).low_water == 5


def test_saves_that_run_in_the_wrong_order_leave_the_last_one(folder: JournalFolder, threads: Threads) -> None:
    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    cursor.acknowledge(0, 1)
    file.save_soon(cursor, lambda _failure: None)
    cursor.acknowledge(1, 2)
    file.save(cursor)
    cursor.acknowledge(2, 3)
    file.save_soon(cursor, lambda _failure: None)
    threads.waiting.reverse()
    threads.run()
    assert folder.cursor("c", start_offset=9).low_water == 3


def test_a_save_that_comes_too_late_does_not_bring_a_deleted_channel_back(
    folder: JournalFolder, threads: Threads
) -> None:
    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    file.save_soon(cursor, lambda _failure: None)
    file.remove()
    file.remove()
    threads.run()
    assert folder.channel_names() == []


def test_it_does_not_harm_a_new_channel_of_that_name_either(folder: JournalFolder, threads: Threads) -> None:
    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    file.save_soon(cursor, lambda _failure: None)
    file.remove()
    folder.cursor("c", start_offset=7)
    threads.run()
    assert folder.cursor("c", start_offset=9).low_water == 7


def test_the_caller_of_a_save_is_told_of_a_failure(folder: JournalFolder, threads: Threads, tmp_path: Path) -> None:
    cursor = folder.cursor("c", start_offset=0)
    told: list[StorageError | None] = []
    cursors = tmp_path / "t.journal" / "cursors"
    cursors.rename(tmp_path / "elsewhere")
    folder.cursor_file("c").save_soon(cursor, told.append)
    threads.run()
    (failure,) = told
    assert "c.cursor: no such file or directory" in str(failure)


def test_a_damaged_cursor_means_the_oldest_message(
    folder: JournalFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.cursor("c", start_offset=8)
    flip(tmp_path / "t.journal" / "cursors" / "c.cursor", 35)
    assert folder.cursor("c", start_offset=8).low_water == 0
    assert "the cursor of c in" in caplog.text


def test_what_a_crash_left_of_a_save_is_cleared_away(folder: JournalFolder, tmp_path: Path, threads: Threads) -> None:
    path = tmp_path / "t.journal"
    leftovers = [path / "cursors" / "c.cursor.123.tmp", path / "topic.mark.4.tmp", path / f"{0:020}.idx.5.tmp"]
    others = [path / "cursors" / "notes.tmp", path / "cursors" / "notes.5.tmp", path / "backup.tmp"]
    for file in leftovers + others:
        file.write_bytes(b"half a cur")
    folder.journal.close()
    opened(path, threads)
    assert [file.exists() for file in leftovers] == [False, False, False]
    assert [file.exists() for file in others] == [True, True, True]


def test_a_save_that_is_overtaken_by_one_that_fails_is_written(
    folder: JournalFolder, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_files: OsFiles, _source: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    told: list[StorageError | None] = []
    cursor.acknowledge(0, 1)
    file.save_soon(cursor, told.append)
    with monkeypatch.context() as broken:
        broken.setattr(OsFiles, "rename", fails)
        with pytest.raises(StorageError):
            file.save(cursor)
    threads.run()
    assert told == [None]
    assert folder.cursor("c", start_offset=9).low_water == 1


def test_a_save_fails_behind_the_removal(folder: JournalFolder, threads: Threads) -> None:
    cursor, file = folder.cursor("c", start_offset=0), folder.cursor_file("c")
    told: list[StorageError | None] = []
    file.save_soon(cursor, told.append)
    file.remove()
    threads.run()
    assert "the channel was deleted" in str(told[0])
    assert folder.channel_names() == []


def test_the_offset_that_channels_have_seen_is_the_highest_of_any(folder: JournalFolder, tmp_path: Path) -> None:
    assert folder.seen_offset() == 0
    folder.cursor("low", start_offset=2)
    high = folder.cursor("high", start_offset=3)
    high.note_attempts(6, 1)
    folder.cursor_file("high").save(high)
    folder.cursor("damaged", start_offset=9)
    flip(tmp_path / "t.journal" / "cursors" / "damaged.cursor", 35)
    assert folder.seen_offset() == 7


# Syncing.


def test_what_is_published_is_synced_in_another_thread(folder: JournalFolder, threads: Threads) -> None:
    told: list[Exception | None] = []
    folder.commit.when_synced(10, told.append)
    assert (folder.journal.synced_offset, told) == (0, [])
    threads.run()
    assert (folder.journal.synced_offset, told) == (10, [None])


# The mark.


def test_there_is_no_mark_until_it_is_saved_and_after_it_is_removed(folder: JournalFolder) -> None:
    assert folder.load_mark() is None
    folder.save_mark(6)
    assert folder.load_mark() == 6
    folder.remove_mark()
    folder.remove_mark()
    assert folder.load_mark() is None


def test_a_damaged_mark_means_that_everything_waits(folder: JournalFolder, tmp_path: Path) -> None:
    folder.save_mark(6)
    flip(tmp_path / "t.journal" / "topic.mark", 35)
    assert folder.load_mark() == 0


def test_a_mark_of_another_journal_means_nothing(folder: JournalFolder, tmp_path: Path, threads: Threads) -> None:
    other = opened(tmp_path / "u.journal", threads)
    other.save_mark(6)
    (tmp_path / "u.journal" / "topic.mark").rename(tmp_path / "t.journal" / "topic.mark")
    assert folder.load_mark() == 0


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, threads: Threads) -> None:
    (tmp_path / "t.journal").write_text("a file")
    with pytest.raises(StorageError):
        opened(tmp_path / "t.journal", threads)


def test_cursors_of_another_journal_are_not_believed(folder: JournalFolder, tmp_path: Path, threads: Threads) -> None:
    other = opened(tmp_path / "u.journal", threads)
    other.cursor_file("c").save(Cursor(other.journal.uuid, low_water=9))
    (tmp_path / "u.journal" / "cursors" / "c.cursor").rename(tmp_path / "t.journal" / "cursors" / "c.cursor")
    assert folder.cursor("c", start_offset=9).low_water == 0
