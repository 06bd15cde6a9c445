"""Publishing stops before the disk is full, and goes on by itself when there is room."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.nsqd.health import DiskSpace, FileSystemFacts, measure

MARK_BYTES = 64 * 1024 * 1024
PATH = Path("/data")
REFUSAL = "less than 67108864 bytes free in /data (--min-free-bytes)"


@dataclass
class Facts:
    """A file system of 1 TB in blocks of one byte."""

    f_bavail: int
    f_frsize: int = 1
    f_blocks: int = 10**12


class Rig:
    """A watched disk whose free space the test sets."""

    def __init__(self, *, free_bytes: int, min_free_bytes: int = MARK_BYTES) -> None:
        self.free_bytes = free_bytes
        self.failure: OSError | None = None
        self.look_count = 0
        self.heard: list[str | None] = []
        self.clock = ManualClock()
        self.timers = Timers()
        self.watch = DiskSpace(
            PATH,
            min_free_bytes=min_free_bytes,
            clock=self.clock,
            timers=self.timers,
            on_change=self.heard.append,
            statvfs=self._statvfs,
        )
        self.watch.start()

    def _statvfs(self, path: Path) -> FileSystemFacts:
        assert path == PATH
        self.look_count += 1
        if self.failure is not None:
            raise self.failure
        return Facts(self.free_bytes)

    def after(self, *, ms: int, free_bytes: int | None = None) -> str | None:
        """The problem some time later, with so much free from now on."""
        if free_bytes is not None:
            self.free_bytes = free_bytes
        for _ in range(ms // 10):
            self.clock.advance(ms=10)
            self.timers.run_due(self.clock.monotonic_ns())
        return self.watch.problem


def test_a_disk_with_room_is_no_problem() -> None:
    rig = Rig(free_bytes=MARK_BYTES)
    assert rig.watch.problem is None
    assert rig.heard == []


def test_a_disk_below_the_mark_is_a_problem_from_the_start() -> None:
    rig = Rig(free_bytes=MARK_BYTES - 1)
    assert rig.watch.problem == REFUSAL
    assert rig.heard == [REFUSAL]


def test_a_disk_that_falls_below_the_mark_is_noticed_within_a_second() -> None:
    rig = Rig(free_bytes=10**12)
    assert rig.after(ms=1000, free_bytes=MARK_BYTES - 1) == REFUSAL


def test_near_the_mark_it_is_noticed_within_ten_milliseconds() -> None:
    rig = Rig(free_bytes=MARK_BYTES + 1)
    assert rig.after(ms=10, free_bytes=MARK_BYTES - 1) == REFUSAL


def test_a_fast_writer_cannot_get_far_below_the_mark_unseen() -> None:
    rig = Rig(free_bytes=5_000_000_000)
    while rig.watch.problem is None:
        rig.after(ms=10, free_bytes=rig.free_bytes - 10_000_000)  # a gigabyte a second
    assert MARK_BYTES - 20_000_000 <= rig.free_bytes < MARK_BYTES


def test_far_from_the_mark_one_look_a_second_is_enough() -> None:
    rig = Rig(free_bytes=10**12)
    rig.after(ms=60_000)
    assert rig.look_count == 61


def test_the_problem_ends_a_quarter_above_the_mark() -> None:
    rig = Rig(free_bytes=0)
    assert rig.after(ms=1000, free_bytes=MARK_BYTES * 5 // 4 - 1) == REFUSAL
    assert rig.after(ms=1000, free_bytes=MARK_BYTES * 5 // 4) is None
    assert rig.heard == [REFUSAL, None]


def test_free_space_that_hovers_at_the_mark_does_not_flap() -> None:
    rig = Rig(free_bytes=MARK_BYTES)
    for step in range(20):
        rig.after(ms=100, free_bytes=MARK_BYTES - 1 + step % 2 * 4096)
    assert rig.heard == [REFUSAL]


def test_a_disk_that_cannot_be_asked_is_a_problem_until_it_can() -> None:
    rig = Rig(free_bytes=10**12)
    rig.failure = OSError(errno.EIO, os.strerror(errno.EIO))
    assert rig.after(ms=1000) == "cannot tell the free space of /data: Input/output error"
    rig.failure = None
    assert rig.after(ms=1000) is None
    assert len(rig.heard) == 2


def test_without_a_mark_nobody_looks() -> None:
    rig = Rig(free_bytes=0, min_free_bytes=0)
    assert rig.watch.problem is None
    assert rig.look_count == 0
    assert rig.timers.next_due_ns == NEVER


def test_after_the_stop_nobody_looks() -> None:
    rig = Rig(free_bytes=10**12)
    rig.watch.stop()
    rig.after(ms=5000, free_bytes=0)
    assert rig.watch.problem is None
    assert rig.look_count == 1


def test_a_stuck_problem_is_looked_at_often_enough_to_end_soon() -> None:
    rig = Rig(free_bytes=0)
    start_ns = rig.clock.monotonic_ns()
    assert rig.after(ms=100, free_bytes=10**12) is None
    assert rig.clock.monotonic_ns() - start_ns == 100 * NS_PER_MS


def test_the_real_file_system_is_asked_by_default(tmp_path: Path) -> None:
    changes: list[str | None] = []
    watch = DiskSpace(tmp_path, min_free_bytes=1 << 60, clock=ManualClock(), timers=Timers(), on_change=changes.append)
    watch.start()
    assert watch.problem == f"less than {1 << 60} bytes free in {tmp_path} (--min-free-bytes)"


def test_measuring_adds_up_the_files_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(b"x" * 1000)
    (tmp_path / "nsqd.dat").write_bytes(b"y" * 24)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nsqd.dat")
    usage = measure(tmp_path)
    facts = os.statvfs(tmp_path)
    assert usage.data_bytes == 1024
    assert usage.total_bytes == facts.f_blocks * facts.f_frsize
    assert 0 < usage.free_bytes <= usage.total_bytes


def test_measuring_counts_what_is_free_for_a_process_without_privileges(tmp_path: Path) -> None:
    usage = measure(tmp_path, statvfs=lambda _path: Facts(f_bavail=3, f_frsize=4096, f_blocks=10))
    assert (usage.free_bytes, usage.total_bytes) == (3 * 4096, 10 * 4096)


def test_measuring_a_folder_that_is_gone_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        measure(tmp_path / "gone")
