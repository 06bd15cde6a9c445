"""The sync thread: order of steps, merging of jobs, failures."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.storage import disk_queue_files as meta_file
from emberq.storage.backend import DiskLimits
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import QueuePosition
from emberq.storage.disk_queue_sync import MAX_WAITING_FILES, QueueSyncJob, Syncer
from emberq.storage.error import SyncError
from tests.storage.rig import Rig, batch, drain, numbered, on_disk

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


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_thread_does_what_the_caller_would(tmp_path: Path, syncer: Syncer) -> None:
    queue = opened(tmp_path, syncer)
    for start in range(0, 100, 10):
        queue.put(batch(*numbered(10, first=start)))
    assert drain(queue) == numbered(100)
    queue.put(batch(b"new"))
    queue.close()
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
    """Stops the sync thread at its first fsync until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.metas: list[bytes] = []
        real_fsync, real_save = os.fsync, meta_file.save_position

        def fsync(fd: int) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            real_fsync(fd)

        def save(path: Path, position: meta_file.QueuePosition) -> None:
            self.metas.append(meta_file.encode(position))
            real_save(path, position)

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
    assert (job.position.depth, job.open_files, job.finished) == (7, {1: kept, 2: other}, {0, 3})
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
    assert len(list(tmp_path.glob("*.dat"))) <= MAX_WAITING_FILES + 2
    gate.opened.set()
    writer.join(10)
    assert not writer.is_alive()
    queue.close()
    assert len(list(tmp_path.glob("*.0*.dat"))) == most_files


def test_emptying_forgets_the_jobs_that_wait(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = opened(tmp_path, syncer)
    queue.put(batch(*numbered(35)))
    drain(queue)
    queue.empty()
    assert list(tmp_path.iterdir()) == []
    queue.put(batch(b"new"))
    assert drain(queue) == [b"new"]
    queue.close()


def test_emptying_waits_for_the_job_that_runs(tmp_path: Path, syncer: Syncer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    queue = opened(tmp_path, syncer)
    queue.put(batch(b"abc"))
    assert gate.reached.wait(10)
    emptying = threading.Thread(target=queue.empty)
    emptying.start()
    emptying.join(0.1)
    assert emptying.is_alive()
    gate.opened.set()
    emptying.join(10)
    assert list(tmp_path.iterdir()) == []
    queue.close()


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
    queue.put(batch(*numbered(1)))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full_disk)
        rig.advance(ms=2000)
        rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"2\n0,0\n0,28\n"
    rig.advance(ms=2000)
    assert rig.meta.read_bytes() == b"3\n0,0\n0,42\n"


def test_closing_a_queue_that_cannot_sync_raises_and_lets_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = rig.queue()
    queue.put(batch(b"abc"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full_disk)
        with pytest.raises(SyncError):
            queue.close()
    queue.close()
    assert rig.data(0).read_bytes() == on_disk(b"abc")


def test_one_alarm_serves_all_queues_with_activity(rig: Rig) -> None:
    queues = [rig.queue(name) for name in ("a", "b", "c")]
    for queue in queues[:2]:
        queue.put(batch(b"abc"))
        queue.put(batch(b"abc"))
    rig.advance(ms=1999)
    assert {path.read_bytes() for path in rig.folder.glob("*.meta.dat")} == {b"1\n0,0\n0,7\n"}
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
    assert gate.metas == [b"1\n0,0\n0,7\n"]
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
