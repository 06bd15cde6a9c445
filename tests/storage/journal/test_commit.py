"""Group commit, with an executor and an event loop that are moved by hand."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from emberq.base.file import OsFiles
from emberq.storage.error import JournalSyncError, JournalWriteError
from emberq.storage.journal.commit import GroupCommit, Workers
from emberq.storage.journal.journal import Journal
from tests.storage.journal.rig import JournalRig, open_files


class ManualExecutor:
    """Keeps work until somebody lets it run."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def start(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def run(self) -> None:
        self.waiting.popleft()()


class Bench:
    """A journal with a commit that is moved by hand, and what its waiters were told."""

    def __init__(self, journals: JournalRig, **config: int) -> None:
        self.journals = journals
        self.journal: Journal = journals.open(**config)  # type: ignore[arg-type]
        self.thread = ManualExecutor()
        self.loop = ManualExecutor()
        self.workers = Workers(start=self.thread.start, hand_back=self.loop.start)
        self.commit = GroupCommit(self.journal, workers=self.workers)
        self.told: list[tuple[str, JournalSyncError | None]] = []

    def publish(self, name: str) -> None:
        stored = self.journals.append(self.journal, name.encode())
        self.commit.when_synced(stored.next_offset, lambda error: self.told.append((name, error)))

    def sync(self) -> None:
        """Let the sync that has begun run and come back."""
        self.thread.run()
        self.loop.run()


@pytest.fixture
def bench(journals: JournalRig) -> Bench:
    return Bench(journals)


def test_one_sync_covers_all_that_was_appended_before_it_began(bench: Bench) -> None:
    bench.publish("a")
    bench.publish("b")
    bench.publish("c")
    assert len(bench.thread.waiting) == 1
    assert bench.told == []
    bench.sync()
    assert bench.told == [("a", None)]
    assert bench.journal.synced_offset == 1
    bench.sync()
    assert bench.told == [("a", None), ("b", None), ("c", None)]
    assert bench.journal.synced_offset == 3
    assert not bench.thread.waiting
    assert bench.commit.is_idle


def test_what_comes_while_a_sync_runs_is_not_covered_by_it(bench: Bench) -> None:
    bench.publish("a")
    bench.thread.run()
    bench.publish("b")
    bench.loop.run()
    assert bench.told == [("a", None)]
    assert not bench.commit.is_idle
    bench.sync()
    assert bench.told == [("a", None), ("b", None)]


def test_the_next_sync_begins_before_those_are_told_whose_wait_is_over(bench: Bench) -> None:
    seen: list[int] = []
    stored = bench.journals.append(bench.journal, b"a")
    bench.commit.when_synced(stored.next_offset, lambda error: seen.append(len(bench.thread.waiting)))
    bench.publish("b")
    bench.sync()
    assert seen == [1]


def test_a_sync_is_awaited_until_all_publishers_have_been_told(bench: Bench) -> None:
    awaited = bench.workers.awaited_syncs
    bench.publish("a")
    awaited.when_none(lambda: bench.told.append(("replay", None)))
    bench.publish("b")
    bench.sync()
    assert awaited.are_any
    bench.sync()
    assert not awaited.are_any
    assert bench.told == [("a", None), ("b", None), ("replay", None)]
    bench.publish("c")
    bench.sync()
    assert bench.told[3:] == [("c", None)]


def test_a_sync_that_no_publisher_waits_for_is_not_awaited(bench: Bench) -> None:
    bench.journals.append(bench.journal, b"a")
    bench.commit.request()
    assert not bench.workers.awaited_syncs.are_any
    bench.publish("b")
    assert bench.workers.awaited_syncs.are_any
    bench.sync()
    bench.sync()
    assert not bench.workers.awaited_syncs.are_any


def test_a_publisher_who_publishes_when_told_is_waited_for_too(bench: Bench) -> None:
    stored = bench.journals.append(bench.journal, b"a")
    bench.commit.when_synced(stored.next_offset, lambda _: bench.publish("b"))
    bench.sync()
    assert bench.workers.awaited_syncs.are_any
    bench.sync()
    assert not bench.workers.awaited_syncs.are_any


def test_what_is_synced_already_is_told_at_once(bench: Bench) -> None:
    bench.publish("a")
    bench.sync()
    bench.commit.when_synced(1, lambda error: bench.told.append(("again", error)))
    assert bench.told == [("a", None), ("again", None)]
    assert bench.commit.is_idle


def test_a_sync_can_be_asked_for_by_nobody_in_particular(bench: Bench) -> None:
    bench.commit.request()
    assert not bench.thread.waiting
    bench.journals.append(bench.journal, b"a")
    bench.commit.request()
    bench.commit.request()
    bench.sync()
    assert bench.journal.synced_offset == 1
    assert bench.commit.is_idle


def test_what_was_asked_for_while_a_sync_ran_is_synced_after_it(bench: Bench) -> None:
    bench.journals.append(bench.journal, b"a")
    bench.commit.request()
    bench.journals.append(bench.journal, b"b")
    bench.commit.request()
    bench.sync()
    assert bench.journal.synced_offset == 1
    bench.sync()
    assert bench.journal.synced_offset == 2
    assert bench.commit.is_idle


def test_an_offset_that_is_not_given_yet_is_waited_for(bench: Bench) -> None:
    bench.commit.when_synced(2, lambda error: bench.told.append(("early", error)))
    assert not bench.commit.is_idle
    bench.publish("a")
    bench.publish("b")
    bench.sync()
    assert bench.told == [("a", None)]
    bench.sync()
    assert bench.told == [("a", None), ("early", None), ("b", None)]


def test_closing_does_not_wait_for_a_thread_to_come_to_the_sync(bench: Bench) -> None:
    bench.publish("a")
    bench.publish("b")
    bench.journal.close()
    assert bench.journal.synced_offset == 2
    bench.sync()
    assert bench.told == [("a", None), ("b", None)]
    assert bench.commit.is_idle


def test_those_who_wait_for_a_deleted_journal_are_told(bench: Bench) -> None:
    bench.publish("a")
    bench.publish("b")
    bench.journal.delete()
    bench.sync()
    assert [(name, error is None) for name, error in bench.told] == [("a", True), ("b", False)]


def test_two_syncs_of_a_journal_do_not_run_at_a_time(bench: Bench) -> None:
    bench.publish("a")
    with pytest.raises(RuntimeError, match="running"):
        bench.journal.begin_sync()


def test_a_failed_sync_is_told_to_all_and_is_final(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish("a")
    bench.sync()
    bench.publish("b")
    bench.publish("c")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        bench.sync()
    failure = bench.journal.failure
    assert failure is not None
    assert bench.told == [("a", None), ("b", failure), ("c", failure)]
    assert not bench.thread.waiting
    assert bench.journal.synced_offset == 1
    with pytest.raises(JournalWriteError):
        bench.publish("d")
    bench.commit.when_synced(3, lambda error: bench.told.append(("late", error)))
    assert bench.told[-1] == ("late", failure)


def test_a_defect_in_a_sync_is_not_taken_for_success(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish("a")

    def surprises(fd: int) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(os, "fdatasync", surprises)
    with pytest.raises(RuntimeError):
        bench.thread.run()
    bench.loop.run()
    assert bench.journal.synced_offset == 0
    assert [name for name, error in bench.told if error is not None] == ["a"]


def test_a_sync_covers_segments_that_were_sealed_meanwhile_and_the_folder(
    journals: JournalRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(journals, segment_bytes=200)
    synced: list[str] = []
    fdatasync = os.fdatasync

    def watched(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}")[-5:])  # noqa: PTH115 - of a descriptor
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    folders: list[object] = []
    monkeypatch.setattr(OsFiles, "sync_folder", lambda _, path: folders.append(path))
    bench.publish("a")
    for name in "bcd":
        bench.publish(name * 100)
    bench.sync()
    bench.sync()
    assert synced == ["0.log", "0.log", "1.log", "2.log", "3.log"]
    assert folders == [journals.folder]
    assert [name[0] for name, error in bench.told if error is None] == ["a", "b", "c", "d"]
    assert open_files(journals.folder) == 4


def test_being_out_of_descriptors_syncs_in_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "dup", exhausted)
    bench.publish("a")
    assert bench.told == [("a", None)]
    assert bench.commit.is_idle


def test_a_real_thread_does_the_same(journals: JournalRig) -> None:
    journal = journals.open()
    handed_back: SimpleQueue[Callable[[], None]] = SimpleQueue()
    told: list[int] = []
    threads: set[int] = set()
    with ThreadPoolExecutor(1) as pool:

        def noted(work: Callable[[], None]) -> None:
            threads.add(threading.get_ident())
            work()

        def start(work: Callable[[], None]) -> None:
            pool.submit(noted, work)

        commit = GroupCommit(journal, workers=Workers(start=start, hand_back=handed_back.put))
        for number in range(200):
            stored = journals.append(journal, b"%d" % number)
            commit.when_synced(stored.next_offset, lambda error, number=number: told.append(number))  # type: ignore[misc]
        while len(told) < 200:
            handed_back.get(timeout=10)()
    assert told == list(range(200))
    assert journal.synced_offset == 200
    assert threading.get_ident() not in threads
