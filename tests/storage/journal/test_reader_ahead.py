"""Reading ahead: what another thread brings into memory for channels that lag, and what it hands over."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from emberq.base.file import OS_FILES, SYNCS, OsFiles, PatientFiles
from emberq.storage.error import JournalColdError
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import LARGE_BATCH_BYTES, MAX_BROUGHT, MAX_LOADED_BYTES
from tests.storage.journal.rig import MANY, JournalRig, OtherThread, bodies_of, flip, open_files


class Replay:
    """Reads a journal as a channel does, and waits as it does."""

    def __init__(self, journal: Journal, other_thread: OtherThread) -> None:
        self._journal = journal
        self._other_thread = other_thread
        self.bodies: list[bytes] = []
        self.offset = 0
        self.wait_count = 0
        self.told_count = 0

    def _told(self) -> None:
        self.told_count += 1

    def step(self, *, max_bytes: int = 500) -> bool:
        """Read once; whether there was something."""
        try:
            chunk = self._journal.read(self.offset, max_bytes=max_bytes, told=self._told)
        except JournalColdError:
            self.wait_count += 1
            return False
        self.bodies += bodies_of(chunk.batches)
        self.offset = chunk.next_offset
        return True

    def run(self) -> None:
        """To the end."""
        while self.offset < self._journal.next_offset:
            if not self.step():
                self._other_thread.run()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in memory."""
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: False)


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("segment_bytes", [1500, 1 << 20])
def test_a_channel_gets_all_if_nothing_ever_is_in_memory(
    journals: JournalRig, other_thread: OtherThread, segment_bytes: int
) -> None:
    journal = journals.open(segment_bytes=segment_bytes, workers=other_thread.workers)
    published = journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    for _ in range(3):
        assert not replay.step()
    assert len(other_thread.waiting) == 1
    other_thread.run()
    assert replay.told_count == 1  # although it came three times
    replay.run()
    assert replay.bodies == published
    assert replay.told_count > 5


def test_what_is_in_memory_is_read_at_once(journals: JournalRig, other_thread: OtherThread) -> None:
    journal = journals.open(segment_bytes=1500, workers=other_thread.workers)
    published = journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    replay.run()
    assert replay.bodies == published
    assert replay.wait_count == 0
    assert replay.told_count == 0


def test_a_part_whose_middle_is_not_in_memory_is_brought_before_it_is_read(other_thread: OtherThread) -> None:
    """On a disk: temporary files of tests may be kept in memory, and /var/tmp must outlive a reboot."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        journals = JournalRig(Path(folder) / "topic")
        journal = journals.open(segment_bytes=1 << 30, workers=other_thread.workers)
        published = [bytes([number]) * 100_000 for number in range(40)]
        for body in published:
            journals.append(journal, body)
        journal.sync()
        if not is_let_go(journal.segments[0].path, size=2 << 20, position=1 << 20):
            pytest.skip("this file system keeps its files in memory, or does not tell")
        replay = Replay(journal, other_thread)
        assert not replay.step(max_bytes=4 << 20)
        assert not replay.step(max_bytes=4 << 20)  # to ask for it brings nothing
        other_thread.run()
        assert replay.step(max_bytes=4 << 20)
        assert replay.bodies == published[: len(replay.bodies)]
        assert replay.told_count == 1
        journals.close()


def is_let_go(path: Path, *, size: int, position: int) -> bool:
    """Ask the system to let go of a part of a file; whether it has. It may not do so at once."""
    with path.open("rb") as file:
        for _ in range(100):
            os.posix_fadvise(file.fileno(), position, size, os.POSIX_FADV_DONTNEED)
            if not OS_FILES.is_in_memory(file.fileno(), size, position):
                return True
    return False


def test_without_another_thread_what_is_not_in_memory_is_read_at_once(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(workers=Workers())
    published = journals.fill(journal, batches=3)
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: False)
    replay = Replay(journal, other_thread)
    assert replay.step(max_bytes=MANY)
    assert replay.bodies == published
    assert replay.told_count == 0


def test_what_follows_and_is_not_in_memory_is_read_ahead(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journals.open(segment_bytes=1500, workers=other_thread.workers)
    published = journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    is_first = iter([True])
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda *_: next(is_first, False))
    while replay.offset < journal.next_offset:
        assert replay.step()
        assert len(other_thread.waiting) == (replay.offset < journal.next_offset)
        other_thread.run()
    assert replay.bodies == published
    assert replay.wait_count == 0


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The positions that another thread has brought into memory; nothing is there at first."""
    there: set[int] = set()
    monkeypatch.setattr(OsFiles, "is_in_memory", lambda _, __, size, position: {position, position + size - 1} <= there)
    read = PatientFiles.read

    def bring(files: PatientFiles, fd: int, size: int, position: int) -> bytes:
        there.update(range(position, position + size))
        return read(files, fd, size, position)

    monkeypatch.setattr(PatientFiles, "read", bring)
    return there


def test_the_other_thread_is_two_reads_ahead(
    journals: JournalRig, other_thread: OtherThread, in_memory: set[int]
) -> None:
    journal = journals.open(workers=other_thread.workers)
    journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    assert not replay.step()
    other_thread.run()
    assert replay.step()
    other_thread.run()
    first = len(in_memory)
    assert replay.step()
    assert replay.step()  # the thread has come to nothing in between
    other_thread.run()
    assert len(in_memory) > first
    assert replay.wait_count == 1


def test_a_batch_that_is_larger_than_a_read_is_brought_into_memory_as_a_whole(
    journals: JournalRig, other_thread: OtherThread, in_memory: set[int]
) -> None:
    """What the loop reads, it reads from memory: also the end of a large batch."""
    journal = journals.open(workers=other_thread.workers)
    published = [bytes([number]) * 10_000 for number in range(50)]
    journals.append(journal, *published)
    replay = Replay(journal, other_thread)
    assert not replay.step()
    other_thread.run()
    assert not replay.step()
    assert replay.bodies == []
    other_thread.run()
    assert len(in_memory) > 500_000
    assert replay.step()
    assert replay.bodies == published
    assert replay.told_count == 2


@pytest.mark.usefixtures("cold")
def test_messages_that_come_meanwhile_are_read_too(journals: JournalRig, other_thread: OtherThread) -> None:
    journal = journals.open(segment_bytes=1500, workers=other_thread.workers)
    published = journals.fill(journal, batches=20, count=3)
    replay = Replay(journal, other_thread)
    for _ in range(10):
        replay.run()
        published += journals.fill(journal, batches=2, count=3)
    replay.run()
    assert replay.bodies == published


@pytest.mark.usefixtures("cold")
def test_offsets_that_the_journal_passed_over_are_no_damage_to_who_reads_ahead(
    journals: JournalRig, other_thread: OtherThread, caplog: pytest.LogCaptureFixture
) -> None:
    journal = journals.open(segment_bytes=1500, workers=other_thread.workers)
    published: list[bytes] = []
    for jump in range(6):
        published += journals.fill(journal, batches=3, count=3)
        journal.skip_to(1000 * (jump + 1))
    replay = Replay(journal, other_thread)
    replay.run()
    assert replay.bodies == published
    assert journal.gaps == []
    assert caplog.text == ""


@pytest.mark.usefixtures("cold")
def test_what_another_thread_cannot_read_is_met_by_the_channel(
    journals: JournalRig, other_thread: OtherThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    journal = journals.open(workers=other_thread.workers)
    published = journals.fill(journal, batches=3)
    monkeypatch.setattr(PatientFiles, "read", fail)
    replay = Replay(journal, other_thread)
    assert not replay.step()
    other_thread.run()
    assert replay.told_count == 1
    assert replay.step(max_bytes=MANY)
    assert replay.bodies == published


@pytest.mark.usefixtures("cold")
def test_what_was_read_ahead_for_a_journal_that_is_closed_is_dropped(
    journals: JournalRig, other_thread: OtherThread
) -> None:
    journal = journals.open(workers=other_thread.workers)
    journals.fill(journal, batches=3)
    replay = Replay(journal, other_thread)
    assert not replay.step()
    journal.close()
    other_thread.run()
    assert replay.told_count == 0
    assert open_files(journals.folder) == 0


@pytest.mark.usefixtures("cold")
def test_what_is_read_ahead_for_channels_that_went_elsewhere_is_not_kept_for_ever(
    journals: JournalRig, other_thread: OtherThread
) -> None:
    journal = journals.open(workers=other_thread.workers)
    journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    for offset in range(0, 180, 3):
        replay.offset = offset
        replay.step()
        other_thread.run()
    assert journal._ahead is not None
    assert len(journal._ahead._brought) <= MAX_BROUGHT


# -- what is handed over ---------------------------------------------------------------------------------------------


@pytest.fixture
def hurry() -> Iterator[None]:
    """Publishers wait for a sync."""
    SYNCS.begin()
    yield
    SYNCS.end()


@pytest.fixture
def reads_of_the_channel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is read in the journal's own thread."""
    sizes: list[int] = []
    read = OsFiles.read

    def noted(files: OsFiles, fd: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return read(files, fd, size, position)

    monkeypatch.setattr(OsFiles, "read", noted)
    monkeypatch.setattr(PatientFiles, "read", read)
    return sizes


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("body_bytes", [100, LARGE_BATCH_BYTES, 5 * LARGE_BATCH_BYTES])
def test_what_follows_is_handed_over_and_not_read_again(
    journals: JournalRig, other_thread: OtherThread, reads_of_the_channel: list[int], body_bytes: int
) -> None:
    journal = journals.open(segment_bytes=20 * LARGE_BATCH_BYTES, workers=other_thread.workers)
    published = [bytes([number]) * body_bytes for number in range(40)]
    for body in published:
        journals.append(journal, body)
    replay = Replay(journal, other_thread)
    assert replay.step(max_bytes=2 * LARGE_BATCH_BYTES)
    reads_of_the_channel.clear()
    while replay.offset < journal.next_offset:
        other_thread.run()
        assert replay.step(max_bytes=2 * LARGE_BATCH_BYTES)
    assert replay.bodies == published
    assert reads_of_the_channel == []
    assert replay.wait_count == 0


@pytest.mark.usefixtures("hurry")
def test_what_is_being_read_is_waited_for(journals: JournalRig, other_thread: OtherThread) -> None:
    journal = journals.open(workers=other_thread.workers)
    published = journals.fill(journal, batches=60, count=3)
    replay = Replay(journal, other_thread)
    assert replay.step()
    assert not replay.step()
    other_thread.run()
    assert replay.told_count == 1
    replay.run()
    assert replay.bodies == published


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("body_bytes", [100, LARGE_BATCH_BYTES])
def test_damage_in_what_is_handed_over_is_found(
    journals: JournalRig, other_thread: OtherThread, body_bytes: int
) -> None:
    journal = journals.open(segment_bytes=1 << 30, workers=other_thread.workers)
    published = [bytes([number]) * body_bytes for number in range(20)]
    for body in published:
        journals.append(journal, body)
    replay = Replay(journal, other_thread)
    path = journal.segments[0].path
    flip(path, path.read_bytes().index(published[7]) + 50)
    replay.run()
    assert replay.bodies == published[:7] + published[8:]


@pytest.mark.usefixtures("hurry")
def test_a_batch_that_is_too_large_to_be_handed_over_is_read_when_it_is_in_memory(
    journals: JournalRig, other_thread: OtherThread
) -> None:
    journal = journals.open(segment_bytes=1 << 30, workers=other_thread.workers)
    published = [b"small", b"x" * (2 * MAX_LOADED_BYTES), b"last"]
    for body in published:
        journals.append(journal, body)
    replay = Replay(journal, other_thread)
    replay.run()
    assert replay.bodies == published


@pytest.mark.usefixtures("hurry")
def test_messages_that_come_behind_what_was_handed_over_are_read_too(
    journals: JournalRig, other_thread: OtherThread
) -> None:
    """The part that was handed over ended where the journal ended then."""
    journal = journals.open(segment_bytes=1 << 30, workers=other_thread.workers)
    published = journals.fill(journal, batches=10, count=3)
    replay = Replay(journal, other_thread)
    assert replay.step()
    other_thread.run()
    published += journals.fill(journal, batches=30, count=3)
    replay.run()
    assert replay.bodies == published
