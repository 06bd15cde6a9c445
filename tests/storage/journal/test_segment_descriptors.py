"""However many journals there are, few of their files are open; and none is closed before it is synced."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable

import pytest

from emberq.base.clock import ManualClock
from emberq.storage.error import JournalSyncError, JournalWriteError
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.segment import MAX_OPEN, MIN_OPEN, DescriptorCache, JournalConfig
from emberq.wire.journal_batch import Bodies
from tests.crash.simulated_files import ROOT, Choice, Fault, SimulatedFiles
from tests.storage.journal.rig import read_all


class Folders:
    """Journals that share their descriptors."""

    def __init__(self, *, max_open: int, fsync: bool = True) -> None:
        self.fs = SimulatedFiles()
        self.descriptors = DescriptorCache(max_open=max_open)
        self._config = JournalConfig(descriptors=self.descriptors, fsync=fsync, segment_bytes=4096)

    def open(self, number: int) -> Journal:
        return Journal.open(ROOT / f"{number}.journal", self._config, clock=ManualClock(), fs=self.fs)


def append(journal: Journal, body: bytes) -> None:
    journal.append(Bodies.of([body]), timestamp_ns=1)


def test_many_journals_have_few_files_open() -> None:
    folders = Folders(max_open=4)
    journals = [folders.open(number) for number in range(50)]
    for turn in range(3):
        for journal in journals:
            append(journal, b"%d" % turn)
            journal.sync()
            assert folders.fs.open_count <= 4 + 1
    for journal in journals:
        assert read_all(journal) == ([b"0", b"1", b"2"], [])
        journal.close()
    assert folders.fs.open_count == 0


@pytest.mark.parametrize("fsync", [True, False])
def test_a_file_is_synced_before_it_is_closed(fsync: bool) -> None:
    folders = Folders(max_open=2, fsync=fsync)
    journals = [folders.open(number) for number in range(8)]
    for number, journal in enumerate(journals):
        append(journal, b"%d" % number)
        assert folders.fs.open_count <= 2 * 2
    closed = len(journals) - folders.fs.open_count
    left = Folders(max_open=2)
    left.fs = folders.fs.power_cut(folders.fs.moment, Choice(2))
    for number in range(closed):
        assert read_all(left.open(number))[0] == [b"%d" % number]


def test_a_sync_that_fails_while_others_need_the_descriptor_ends_only_its_own_journal() -> None:
    folders = Folders(max_open=1)
    failed: list[int] = []

    def noted(number: int) -> Callable[[], None]:
        return lambda: failed.append(number)

    journals = [folders.open(number) for number in range(4)]
    for number, journal in enumerate(journals):
        journal.sync()
        journal.on_failure = noted(number)
    append(journals[0], b"a")
    append(journals[1], b"b")
    folders.fs.faults.append(Fault("sync", errno.EIO, suffix=".log"))
    append(journals[2], b"c")
    assert failed == [0]
    assert "input/output error" in str(journals[0].problem)
    with pytest.raises(JournalWriteError, match="input/output error"):
        append(journals[0], b"again")
    for journal in journals[1:]:
        append(journal, b"more")
        journal.sync()
        assert journal.problem is None
    with pytest.raises(JournalSyncError):
        journals[0].close()


def test_a_sync_that_runs_in_a_thread_has_a_descriptor_of_its_own() -> None:
    folders = Folders(max_open=2)
    first, second = folders.open(0), folders.open(1)
    append(first, b"a")
    job = first.begin_sync()
    append(second, b"b")
    second.sync()
    assert job is not None
    job.run()
    first.finish_sync(job)
    assert first.synced_offset == 1
    first.close()
    second.close()
    assert (folders.fs.open_count, folders.descriptors.open_count) == (0, 0)


def test_syncs_that_wait_for_a_thread_stay_within_twice_the_bound() -> None:
    folders = Folders(max_open=1)
    journals = [folders.open(number) for number in range(6)]
    jobs = []
    for journal in journals:
        append(journal, b"x")
        jobs.append((journal, journal.begin_sync()))
        assert folders.fs.open_count <= 2
    for journal, job in jobs:
        if job is not None:
            job.run()
            journal.finish_sync(job)
        assert journal.synced_offset == 1


@pytest.mark.parametrize(
    ("limit", "max_open"),
    [(512, 128), (16, MIN_OPEN), (1 << 20, MAX_OPEN), (resource.RLIM_INFINITY, MAX_OPEN)],
)
def test_the_bound_follows_from_the_limit_of_the_process(
    limit: int, max_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert DescriptorCache.for_process().max_open == max_open
