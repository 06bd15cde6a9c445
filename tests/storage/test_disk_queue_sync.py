"""The sync thread: order of steps, merging of jobs, failures."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.file import Files
from emberq.base.timers import NEVER, Timers
from emberq.storage import disk_queue_files as meta_file
from emberq.storage.backend import DiskLimits
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import QueuePosition
from emberq.storage.disk_queue_sync import MAX_WAITING_FILES, TICKS_PER_TURN, QueueSyncJob, Syncer
from emberq.storage.error import SyncError
from tests.crash.simulated_files import PAGE_BYTES, ROOT, Choice, Fault, SimulatedFiles
from tests.storage.rig import Rig, batch, drain, numbered, on_disk, take

LIMITS = DiskLimits(max_bytes_per_file=140, min_record_bytes=1, sync_every=-1)


@pytest.fixture
def syncer() -> Iterator[Syncer]:
    made = Syncer(clock=ManualClock(), timers=Timers())
    yield made
    made.close()


def opened(folder: Path, syncer: Syncer, *, name: str = "q", limits: DiskLimits = LIMITS) -> DiskQueue:
    queue = DiskQueue(name, data_path=folder, limits=limits, syncer=syncer)
    queue.open()
    return queue


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_thread_does_what_the_caller_would(tmp_path: Path, syncer: Syncer) -> None:
    queue = opened(tmp_path, syncer)
    for start in range(0, 100, 10):
        queue.put(batch(*numbered(10, first=start)))
    assert drain(queue) == numbered(100)
    queue.put(batch(b"new"))
    queue.close()
    queue.sync()
    assert {path.name for path in tmp_path.iterdir()} == {"q.diskqueue.meta.dat", "q.diskqueue.000010.dat"}
    assert (tmp_path / "q.diskqueue.meta.dat").read_bytes() == b"1\n10,0\n10,7\n"


def test_an_explicit_sync_waits_for_the_thread(tmp_path: Path, syncer: Syncer) -> None:
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(3)))
    queue.sync()
    assert (tmp_path / "q.diskqueue.meta.dat").read_bytes() == b"3\n0,0\n0,42\n"


def test_data_is_synced_before_the_meta_file_and_deleted_after_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def seen_fsync(fd: int) -> None:
        name = Path(f"/proc/self/fd/{fd}").resolve().name
        steps.append("sync folder" if name == rig.folder.name else f"sync {name.split('.')[2]}")
        fsync(fd)

    def seen_rename(path: Path, target: Path) -> Path:
        steps.append(f"rename {target.name.split('.')[2]}")
        return rename(path, target)

    def seen_unlink(path: Path, missing_ok: bool = False) -> None:
        steps.append(f"delete {path.name.split('.')[2]}")
        unlink(path, missing_ok=missing_ok)

    queue = rig.queue(max_bytes_per_file=140, sync_every=-1)
    queue.put(batch(*numbered(15)))
    queue.sync()
    queue.put(batch(b"0123456789"))
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    monkeypatch.setattr(Path, "unlink", seen_unlink)
    queue.take(max_count=10, max_bytes=1000)
    assert steps == ["sync 000001", "sync meta", "rename meta", "sync folder", "delete 000000"]


class Gate:
    """Stops the sync thread at its first step until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.metas: list[bytes] = []
        real_fsync, real_save = os.fsync, meta_file.save_position

        def fsync(fd: int) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            real_fsync(fd)

        def save(path: Path, position: meta_file.QueuePosition, *, durable: bool, fs: Files) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            self.metas.append(meta_file.encode(position))
            real_save(path, position, durable=durable, fs=fs)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(meta_file, "save_position", save)


def test_jobs_that_wait_become_one(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer, limits=DiskLimits(min_record_bytes=1, sync_every=0))
    queue.put(batch(b"abc"))
    assert gate.reached.wait(10)
    for _ in range(50):
        queue.put(batch(b"abc"))
    gate.opened.set()
    queue.close()
    queue.sync()
    assert gate.metas[0] == b"1\n0,0\n0,7\n"
    assert gate.metas[-1] == b"51\n0,0\n0,357\n"
    assert len(gate.metas) <= 3


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_job_takes_over_all_of_a_newer_one_and_one_descriptor_of_each_file(tmp_path: Path) -> None:
    kept, spare, other = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("a", "a", "b"))
    job = QueueSyncJob(position=QueuePosition(depth=5), open_files={1: kept}, finished={0})
    newer = QueueSyncJob(
        position=QueuePosition(depth=7), open_files={1: spare, 2: other}, finished={3}, folder_changed=True
    )
    job.absorb(newer)
    assert (job.position, job.open_files) == (QueuePosition(depth=7), {1: kept, 2: other})
    assert job.finished == {0, 3}
    assert job.folder_changed
    assert newer.open_files == {}
    assert [is_open(fd) for fd in (kept, spare, other)] == [True, False, True]
    job.absorb(QueueSyncJob())
    assert job.folder_changed
    job.close_files()
    assert job.open_files == {}
    assert [is_open(fd) for fd in (kept, other)] == [False, False]


def test_the_owner_goes_on_while_the_disk_is_slow(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(35)))
    assert gate.reached.wait(10)
    assert drain(queue) == numbered(35)
    queue.put(batch(b"new"))
    assert (tmp_path / "q.diskqueue.000000.dat").exists(), "no meta file is in place that does not name it"
    gate.opened.set()
    queue.close()
    queue.sync()
    assert not (tmp_path / "q.diskqueue.000000.dat").exists()


def test_a_writer_that_rolls_too_fast_waits_for_the_disk(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    most_files = 3 * MAX_WAITING_FILES
    writer = threading.Thread(target=queue.put, args=(batch(*numbered(10 * most_files)),))
    writer.start()
    assert gate.reached.wait(10)
    writer.join(0.1)
    assert writer.is_alive()
    assert len(list(tmp_path.glob("*.dat"))) <= 2 * MAX_WAITING_FILES + 1, "in the job that runs and the one that waits"
    gate.opened.set()
    writer.join(10)
    assert not writer.is_alive()
    queue.close()
    queue.sync()
    assert len(list(tmp_path.glob("*.0*.dat"))) == most_files


def test_emptying_removes_the_files_in_the_thread(tmp_path: Path, syncer: Syncer) -> None:
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(35)))
    take(queue, count=20)
    queue.empty()
    queue.sync()
    assert list(tmp_path.iterdir()) == []
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]
    queue.close()


def test_emptying_does_not_wait_for_a_slow_disk(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    queue.put(batch(b"abc"))
    assert gate.reached.wait(10)
    queue.empty()
    assert queue.depth == 0
    assert take(queue) == []
    gate.opened.set()
    queue.sync()
    assert list(tmp_path.iterdir()) == []
    queue.close()


def test_what_is_put_after_emptying_stays_while_the_old_files_go(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(35)))
    assert gate.reached.wait(10)
    queue.empty()
    queue.put(batch(b"new"))
    gate.opened.set()
    queue.sync()
    assert {path.name for path in tmp_path.iterdir()} == {"q.diskqueue.meta.dat", "q.diskqueue.000004.dat"}
    assert drain(queue) == [b"new"]
    queue.close()


def test_removing_overtakes_the_syncs_of_other_queues(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    spilled = [opened(tmp_path, syncer, name=f"q{number}") for number in range(20)]
    for queue in spilled:
        queue.put(batch(b"abc"))
    assert gate.reached.wait(10)
    metas_when_removed: list[int] = []
    spilled[10].delete()
    spilled[11].empty()
    syncer.run(lambda: metas_when_removed.append(len(gate.metas)), urgent=True)
    gate.opened.set()
    for queue in spilled:
        queue.close()
        queue.sync()
    assert metas_when_removed == [1], "only the job that ran had written its meta file"
    assert not list(tmp_path.glob("q10.*"))
    assert not list(tmp_path.glob("q11.*.0*"))


@pytest.mark.parametrize("sync_first", [True, False])
def test_a_queue_opened_while_the_files_of_a_deleted_one_go_is_empty_and_keeps_its_own(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, sync_first: bool
) -> None:
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(35)))
    if sync_first:
        queue.sync()
    gate = Gate(monkeypatch)
    other = opened(tmp_path, syncer, name="other")
    other.put(batch(b"abc"))
    assert gate.reached.wait(10)
    queue.delete()
    successor = opened(tmp_path, syncer)
    assert successor.depth == 0
    successor.put(batch(b"new"))
    gate.opened.set()
    successor.close()
    successor.sync()
    assert {path.name for path in tmp_path.glob("q.*")} == {"q.diskqueue.meta.dat", "q.diskqueue.000004.dat"}
    assert drain(opened(tmp_path, syncer)) == [b"new"]
    other.close()
    assert syncer.unsettled.keys() <= {tmp_path / "other.diskqueue.meta.dat", tmp_path / "q.diskqueue.meta.dat"}
    syncer.close()
    assert syncer.unsettled == {}


def test_a_queue_opened_after_a_deleted_one_whose_files_could_not_be_removed_is_empty(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue()
    queue.put(batch(b"old"))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", full_disk)
        queue.delete()
    successor = rig.queue()
    assert drain(successor) == []
    successor.put(batch(b"new"))
    assert rig.names() == {"q.diskqueue.meta.dat", "q.diskqueue.000001.dat"}


def test_a_queue_opened_while_one_of_its_name_is_being_closed_finds_everything(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(3)))
    assert gate.reached.wait(10)
    queue.put(batch(*numbered(3, first=3)))
    queue.close()
    found: list[bytes] = []
    opening = threading.Thread(target=lambda: found.extend(drain(opened(tmp_path, syncer))))
    opening.start()
    gate.opened.set()
    opening.join(10)
    assert found == numbered(6)


def count_fsyncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fsyncs: list[int] = []
    monkeypatch.setattr(os, "fsync", fsyncs.append)
    return fsyncs


def test_closing_queues_that_were_not_used_needs_no_fsync(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = rig.queue("synced")
    synced.put(batch(b"abc"))
    synced.sync()
    queues = [rig.queue(f"q{number}") for number in range(10)]
    fsyncs = count_fsyncs(monkeypatch)
    for queue in [synced, *queues]:
        queue.close()
    assert fsyncs == []
    assert len(list(rig.folder.glob("q*.meta.dat"))) == 10


def test_emptying_a_queue_that_was_not_used_touches_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.queue()
    monkeypatch.setattr(rig.syncer, "run", full_disk)
    queue.empty()
    queue.delete()


def test_the_sync_timeout_of_many_queues_takes_many_turns_of_the_loop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_fsyncs(monkeypatch)
    queues = [rig.queue(f"q{number}") for number in range(2 * TICKS_PER_TURN + 1)]
    for queue in queues:
        queue.put(batch(b"abc"))
        queue.put(batch(b"def"))
    rig.clock.advance(ms=2000)
    turns = []
    for _ in range(3):
        rig.timers.run_due(rig.clock.monotonic_ns())
        turns.append(sum(path.read_bytes().startswith(b"2") for path in rig.folder.glob("*.meta.dat")))
    assert turns == [TICKS_PER_TURN, 2 * TICKS_PER_TURN, 2 * TICKS_PER_TURN + 1]
    rig.advance(ms=2000)
    rig.advance(ms=0)
    rig.advance(ms=0)
    assert rig.timers.next_due_ns == NEVER


def test_a_failed_sync_is_logged_shown_and_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rig.queue(max_bytes_per_file=140)
    queue.put(batch(*numbered(15)))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full_disk)
        assert len(drain(queue)) == 15
        assert "failed to sync - [Errno 28] No space left on device" in caplog.text
        assert rig.syncer.last_error == "[Errno 28] No space left on device"
        assert rig.data(0).exists(), "the meta file that names it could not be replaced"
        with pytest.raises(SyncError, match="No space left"):
            queue.sync()
    rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"0\n1,70\n1,70\n"
    assert not rig.data(0).exists()
    rig.advance(ms=2000)
    assert rig.timers.next_due_ns == NEVER


def test_a_sync_that_failed_in_the_last_tick_is_tried_again_in_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue()
    queue.put(batch(*numbered(2)))
    queue.sync()
    queue.put(batch(*numbered(1)))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full_disk)
        rig.advance(ms=2000)
        rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"2\n0,0\n0,28\n"
    rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"3\n0,0\n0,42\n"


def test_closing_a_queue_that_cannot_sync_says_so_and_lets_go(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = rig.queue()
    queue.put(batch(b"abc"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full_disk)
        queue.put(batch(b"def"))
        queue.close()
        assert "failed to sync - [Errno 28] No space left on device" in caplog.text
        with pytest.raises(SyncError):
            queue.sync()
    assert rig.open_files() == 0
    assert rig.data(0).read_bytes() == on_disk(b"abc", b"def")


def test_one_alarm_serves_all_queues_with_activity(rig: Rig) -> None:
    queues = [rig.queue(name) for name in ("a", "b", "c")]
    for queue in queues[:2]:
        queue.put(batch(b"abc"))
        queue.put(batch(b"abc"))
    rig.advance(ms=1999)
    assert {path.read_bytes() for path in rig.folder.glob("*.meta.dat")} == {b"0\n0,0\n0,0\n"}
    rig.advance(ms=1)
    metas = {path.name: path.read_bytes() for path in rig.folder.glob("*.meta.dat")}
    assert metas == {"a.diskqueue.meta.dat": b"2\n0,0\n0,14\n", "b.diskqueue.meta.dat": b"2\n0,0\n0,14\n"}


def test_closing_the_syncer_waits_for_the_job_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    syncer = Syncer(clock=ManualClock(), timers=Timers())
    queue = opened(tmp_path, syncer)
    queue.put(batch(b"abc"))
    assert gate.reached.wait(10)
    closing = threading.Thread(target=syncer.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    gate.opened.set()
    closing.join(10)
    assert gate.metas == [b"0\n0,0\n0,0\n"]
    queue.close()


def test_a_queue_closed_after_its_syncer_still_reaches_the_disk(tmp_path: Path) -> None:
    syncer = Syncer(clock=ManualClock(), timers=Timers())
    queue = opened(tmp_path, syncer)
    queue.put(batch(b"abc"))
    syncer.close()
    queue.put(batch(b"def"))
    queue.close()
    assert (tmp_path / "q.diskqueue.meta.dat").read_bytes() == b"2\n0,0\n0,14\n"


def test_a_defect_in_the_thread_is_logged_and_does_not_stop_it(
    tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first_job, second_job_waits = threading.Event(), threading.Event()

    def defect(*_: object) -> None:
        first_job.set()
        assert second_job_waits.wait(10)
        raise ZeroDivisionError

    queue = opened(tmp_path, syncer, limits=DiskLimits(min_record_bytes=1, sync_every=0))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", defect)
        queue.put(batch(b"abc"))
        assert first_job.wait(10)
        queue.put(batch(b"def"))
        second_job_waits.set()
        with pytest.raises(SyncError, match="ZeroDivisionError"):
            queue.sync()
    queue.put(batch(b"ghi"))
    queue.close()
    syncer.close()
    assert "the sync thread failed: ZeroDivisionError()" in caplog.text
    assert (tmp_path / "q.diskqueue.meta.dat").read_bytes() == b"3\n0,0\n0,21\n"


@pytest.mark.parametrize("seed", range(40))
def test_what_is_put_after_a_failed_sync_is_found_though_what_was_before_it_is_lost(seed: int) -> None:
    fs = SimulatedFiles()

    def opened_on(files: SimulatedFiles) -> DiskQueue:
        syncer = Syncer(clock=ManualClock(), timers=Timers(), inline=True)
        limits = DiskLimits(max_bytes_per_file=1 << 20, min_record_bytes=1, sync_every=-1)
        queue = DiskQueue("q", data_path=ROOT, limits=limits, syncer=syncer, fs=files)
        queue.open()
        return queue

    queue = opened_on(fs)
    queue.put(batch(b"0" * PAGE_BYTES))
    fs.faults.append(Fault("sync", suffix=".dat"))
    with pytest.raises(SyncError):
        queue.sync()
    queue.put(batch(b"new"))
    queue.sync()
    left = opened_on(fs.power_cut(fs.moment, Choice(seed)))
    assert drain(left)[-1:] == [b"new"]
