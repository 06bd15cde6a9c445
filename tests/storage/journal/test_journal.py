"""Appending, rolling, repeated batches, full disks, and the life of descriptors."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from emberq.storage.error import JournalOpenError, JournalSyncError, JournalWriteError
from emberq.storage.journal.journal import REMOVED_SUFFIX, Stored
from emberq.wire.journal_batch import Bodies
from tests.storage.journal.rig import START_NS, JournalRig, open_files, producer, read_all


def test_a_new_journal_is_empty_and_has_a_name(journals: JournalRig) -> None:
    journal = journals.open()
    assert (journal.first_offset, journal.next_offset, journal.synced_offset) == (0, 0, 0)
    assert journal.created == "2023-11-14T22:13:20Z"
    assert journals.names() == {"journal.json", "00000000000000000000.log"}
    assert read_all(journal) == ([], [])


def test_offsets_are_consecutive_and_survive_reopening(journals: JournalRig) -> None:
    journal = journals.open()
    assert journals.append(journal, b"a", b"b") == Stored(0, 2, is_repeated=False)
    assert journals.append(journal, b"c") == Stored(2, 3, is_repeated=False)
    uuid = journal.uuid
    journal.close()
    again = journals.open()
    assert again.uuid == uuid
    assert again.next_offset == again.synced_offset == 3
    assert journals.append(again, b"d").base_offset == 3
    assert read_all(again) == ([b"a", b"b", b"c", b"d"], [])


def test_a_segment_is_sealed_before_a_batch_that_would_make_it_too_long(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    published = journals.fill(journal, batches=20)
    assert len(journals.segments()) > 3
    assert all(path.stat().st_size <= 1000 for path in journals.segments())
    infos = journal.segments
    assert [info.path for info in infos] == journals.segments()
    assert [info.next_offset for info in infos[:-1]] == [info.base_offset for info in infos[1:]]
    assert journal.total_bytes == sum(path.stat().st_size for path in journals.segments())
    assert read_all(journal) == (published, [])


def test_a_batch_that_fills_a_segment_exactly_still_belongs_to_it(journals: JournalRig) -> None:
    journals.fill(journals.open(), batches=3)
    exact_bytes = journals.segment().stat().st_size
    for path in journals.folder.iterdir():
        path.unlink()
    journal = journals.open(segment_bytes=exact_bytes)
    journals.fill(journal, batches=4)
    assert journals.segment().stat().st_size == exact_bytes
    assert [info.base_offset for info in journal.segments] == [0, 9]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.append(journal, b"small")
    journals.append(journal, b"x" * 5000)
    journals.append(journal, b"small again")
    assert [info.base_offset for info in journal.segments] == [0, 1, 2]
    assert read_all(journal, max_bytes=10) == ([b"small", b"x" * 5000, b"small again"], [])


def test_a_repeated_batch_is_stored_once(journals: JournalRig) -> None:
    journal = journals.open()
    assert journals.append(journal, b"a", b"b", by=producer(b"p", 1)) == Stored(0, 2, is_repeated=False)
    assert journals.append(journal, b"a", b"b", by=producer(b"p", 1)) == Stored(0, 2, is_repeated=True)
    assert journals.append(journal, b"c", by=producer(b"q", 1)) == Stored(2, 3, is_repeated=False)
    assert journals.append(journal, b"d", by=producer(b"p", 5)) == Stored(3, 4, is_repeated=False)
    assert journals.append(journal, b"a", b"b", by=producer(b"p", 1)) == Stored(3, 4, is_repeated=True)
    assert read_all(journal)[0] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lose_indexes", [True, False])
def test_a_repeated_batch_is_recognised_after_a_restart(journals: JournalRig, clean: bool, lose_indexes: bool) -> None:
    journal = journals.open(segment_bytes=1000)
    journals.append(journal, b"a", by=producer(b"p", 1))
    journals.fill(journal, batches=20)
    journals.append(journal, b"b", by=producer(b"q", 7))
    if clean:
        journal.close()
    if lose_indexes:
        for path in journals.folder.glob("*.idx"):
            path.unlink()
    again = journals.open(segment_bytes=1000)
    assert journals.append(again, b"a", by=producer(b"p", 1)).is_repeated
    assert journals.append(again, b"b", by=producer(b"q", 7)).is_repeated
    assert not journals.append(again, b"c", by=producer(b"q", 8)).is_repeated
    state = again.producer_state(producer(b"q", 8).producer_id)
    assert state is not None
    assert (state.sequence, state.base_offset, state.message_count) == (8, 62, 1)
    assert again.producer_state(producer(b"r", 1).producer_id) is None


def test_the_producers_that_were_silent_longest_are_forgotten_also_after_a_restart(journals: JournalRig) -> None:
    journal = journals.open(max_producers=2)
    for name in (b"p", b"q", b"p", b"r"):
        journals.append(journal, name, by=producer(name, journal.next_offset))
    again = journals.open(max_producers=2)
    for opened in (journal, again):
        known = [opened.producer_state(producer(name, 0).producer_id) is not None for name in (b"p", b"q", b"r")]
        assert known == [True, False, True]


def test_skipped_offsets_are_never_given(journals: JournalRig) -> None:
    journal = journals.open()
    journals.append(journal, b"a")
    journal.skip_to(10)
    journal.skip_to(5)
    journal.skip_to(10)
    assert len(journals.segments()) == 2
    assert journals.append(journal, b"b").base_offset == 10
    for opened in (journal, journals.open()):
        bodies, gaps = read_all(opened)
        assert bodies == [b"a", b"b"]
        assert [(gap.first_offset, gap.next_offset) for gap in gaps] == [(1, 10)]


def test_a_closed_journal_takes_nothing(journals: JournalRig) -> None:
    journal = journals.open()
    journal.close()
    journal.close()
    with pytest.raises(JournalWriteError, match="closed"):
        journals.append(journal, b"late")


def test_a_deleted_journal_gives_its_name_free_and_leaves_a_folder_to_remove(journals: JournalRig) -> None:
    journal = journals.open()
    journals.append(journal, b"a")
    removed = journal.delete()
    assert removed.is_dir()
    assert (removed.parent, removed.suffix) == (journals.folder.parent, REMOVED_SUFFIX)
    with pytest.raises(JournalWriteError, match="closed"):
        journals.append(journal, b"late")
    assert not journals.folder.exists()
    assert open_files(journals.folder) == 0
    other = journals.open()
    assert other.uuid != journal.uuid
    assert other.next_offset == 0


# -- disks that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrives", [0, 1, 64, 100])
def test_a_full_disk_leaves_nothing_half_written(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch, arrives: int
) -> None:
    journal = journals.open()
    journals.append(journal, b"before")
    before = journals.segment().read_bytes()
    pwrite = os.pwrite

    def takes_a_part(fd: int, parts: list[bytes], position: int) -> int:
        if not arrives:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, b"".join(parts)[:arrives], position)

    def is_full(fd: int, content: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", takes_a_part)
        full.setattr(os, "pwrite", is_full)
        with pytest.raises(JournalWriteError, match="no space left on device"):
            journals.append(journal, b"refused" * 10)
    assert journals.segment().read_bytes() == before
    assert journal.next_offset == 1
    assert read_all(journal) == ([b"before"], [])
    assert journals.append(journal, b"after").base_offset == 1
    assert read_all(journals.open()) == ([b"before", b"after"], [])


def test_what_could_not_be_cut_back_is_cut_before_the_next_append(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open()
    pwrite = os.pwrite

    def takes_a_part(fd: int, parts: list[bytes], position: int) -> int:
        pwrite(fd, b"".join(parts)[:-8], position)
        raise OSError(errno.EIO, "Input/output error")

    def fails(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", fails)
        with broken.context() as torn:
            torn.setattr(os, "pwritev", takes_a_part)
            with pytest.raises(JournalWriteError):
                journals.append(journal, b"torn" * 100)
        with pytest.raises(JournalWriteError):
            journals.append(journal, b"refused")
    journals.append(journal, b"short")
    assert journals.segment().stat().st_size == journal.total_bytes
    assert read_all(journals.open()) == ([b"short"], [])


def test_a_write_that_the_system_takes_in_two_parts_is_completed(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open()
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, position: pwrite(fd, b"".join(parts)[:70], position))
    journals.append(journal, b"whole" * 50)
    assert read_all(journals.open()) == ([b"whole" * 50], [])


def test_a_segment_that_cannot_be_created_refuses_the_batch_only(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=200)
    journals.append(journal, b"a" * 100)
    names = journals.names()

    def is_full(fd: int, content: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", is_full)
        with pytest.raises(JournalWriteError, match="create"):
            journals.append(journal, b"b" * 100)
    assert journals.names() == names
    journals.append(journal, b"c" * 100)
    assert read_all(journal) == ([b"a" * 100, b"c" * 100], [])


FILL_UNTIL_REFUSED = """
import resource, sys
from pathlib import Path
from emberq.base.clock import SystemClock
from emberq.wire.journal_batch import Bodies
from emberq.storage.journal.segment import JournalConfig
from emberq.storage.error import JournalWriteError
from emberq.storage.journal.journal import Journal

journal = Journal.open(Path(sys.argv[1]), JournalConfig(), clock=SystemClock())
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 20_000))
try:
    while True:
        journal.append(Bodies.of([b"x" * 999]), timestamp_ns=1)
except JournalWriteError as error:
    refused_at, size = journal.next_offset, journal.total_bytes
    assert Path(journal.segments[-1].path).stat().st_size == size, "something was left half-written"
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
assert journal.append(Bodies.of([b"after"]), timestamp_ns=1).base_offset == refused_at
journal.close()
print(refused_at)
"""


def test_a_file_size_limit_of_the_real_system_is_survived(journals: JournalRig) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    run = subprocess.run(
        [sys.executable, "-c", FILL_UNTIL_REFUSED, str(journals.folder)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    bodies, gaps = read_all(journals.open())
    assert bodies == [b"x" * 999] * int(run.stdout) + [b"after"]
    assert not gaps


def test_after_a_failed_sync_the_journal_takes_no_more_until_it_is_opened_again(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open()
    journals.append(journal, b"a")
    journal.sync()
    journals.append(journal, b"b")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        with pytest.raises(JournalSyncError, match="input/output error"):
            journal.sync()
    assert journal.synced_offset == 1
    with pytest.raises(JournalWriteError, match="failed sync"):
        journals.append(journal, b"c")
    with pytest.raises(JournalSyncError):
        journal.sync()
    assert read_all(journal) == ([b"a", b"b"], [])
    with pytest.raises(JournalSyncError):
        journal.close()
    assert journals.append(journals.open(), b"c").base_offset == 2


def test_a_writer_far_ahead_of_the_disk_waits_for_it(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open(segment_bytes=200)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for _ in range(20):
        journals.append(journal, b"x" * 100)
    assert len(synced) >= 12
    assert open_files(journals.folder) < 20
    assert journal.synced_offset == 0


def test_a_writer_that_waits_for_the_disk_in_vain_stores_no_more(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=200)
    failed_at: list[int] = []

    def fails(fd: int) -> None:
        failed_at.append(journal.next_offset)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(JournalWriteError, match="failed sync"):
        journals.fill(journal, batches=20, count=1, size=100, synced=False)
    assert failed_at == [journal.next_offset]
    assert len(journals.segments()) == journal.next_offset


def test_being_out_of_descriptors_does_not_fail_a_sync(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open()
    journals.append(journal, b"a")

    def exhausted(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", exhausted)
    assert journal.begin_sync() is None
    assert journal.synced_offset == 1
    assert journal.failure is None


def test_being_out_of_descriptors_while_rolling_refuses_the_batch_only(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=200)
    journals.append(journal, b"a" * 100)
    names = journals.names()

    def exhausted(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as out:
        out.setattr(os, "dup", exhausted)
        with pytest.raises(JournalWriteError, match="too many open files"):
            journals.append(journal, b"b" * 100)
    assert journals.names() == names
    journals.append(journal, b"c" * 100)
    assert read_all(journals.open()) == ([b"a" * 100, b"c" * 100], [])


def test_without_fsync_appended_counts_as_synced(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open(fsync=False)

    def must_not(fd: int) -> None:
        raise AssertionError("nobody asked for it")

    with monkeypatch.context() as watched:
        watched.setattr(os, "fdatasync", must_not)
        journals.fill(journal, batches=10, synced=False)
        assert journal.synced_offset == journal.next_offset == 30
        assert journal.begin_sync() is None


def test_without_fsync_only_sealed_segments_are_synced(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journals.open(fsync=False, segment_bytes=300)
    journals.fill(journal, batches=5, synced=False)
    synced: list[str] = []
    fdatasync = os.fdatasync

    def watched(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").resolve().name)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert journal.has_unsynced_segments
    job = journal.begin_sync()
    assert job is not None
    job.run()
    journal.finish_sync(job)
    assert synced == [segment.path.name for segment in journal.segments[:-1]]
    assert not journal.has_unsynced_segments


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalOpenError, match="no such file"):
        JournalRig(tmp_path / "missing" / "topic").open()


def test_a_first_segment_that_cannot_be_made_is_an_error(journals: JournalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    journals.open().delete()
    pwrite = os.pwrite

    def full_for_segments(fd: int, content: bytes, position: int) -> int:
        if content[:8] == b"EMBERQJL":
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, content, position)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", full_for_segments)
        with pytest.raises(JournalOpenError, match="no space left"):
            journals.open()
    assert journals.open().next_offset == 0


def test_a_quiet_journal_holds_no_descriptors(journals: JournalRig) -> None:
    journal = journals.open(segment_bytes=1000)
    published = journals.fill(journal, batches=100)
    read_all(journal)
    assert 0 < open_files(journals.folder) <= 14
    journal.sync()
    journal.release_files()
    assert open_files(journals.folder) == 0
    published += journals.fill(journal, batches=3)
    assert read_all(journal) == (published, [])
    journal.close()
    assert open_files(journals.folder) == 0


def test_an_append_takes_items_as_a_publisher_sends_them(journals: JournalRig) -> None:
    journal = journals.open()
    items = b"\0\0\0\x02hi\0\0\0\x02ho"
    journal.append(Bodies.of_items(items, range(6, 13, 6), prefix_bytes=4), timestamp_ns=START_NS, due_ns=[0, 5])
    (batch,) = journal.read(0, max_bytes=1).batches
    assert batch.messages() == [b"hi", b"ho"]
    assert batch.due_ns is not None
    assert batch.due_ns.tolist() == [0, 5]
