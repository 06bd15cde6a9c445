"""A failed write does not make nsqd unhealthy for good: when it is quiet, the disk is tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from emberq.base.clock import ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.nsqd.health import PROBE_NAME, WriteProbe, try_to_write


class Rig:
    """A probe of a real folder, with a worker that works only when the test lets it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting_work: list[Callable[[], None]] = []
        self.success_count = 0
        self.clock = ManualClock()
        self.timers = Timers()
        self.probe = WriteProbe(
            folder, clock=self.clock, timers=self.timers, run=self.waiting_work.append, on_success=self._on_success
        )

    def _on_success(self) -> None:
        self.success_count += 1

    def advance(self, *, seconds: int) -> None:
        for _ in range(seconds * 10):
            self.clock.advance(ms=100)
            self.timers.run_due(self.clock.monotonic_ns())

    def work(self) -> None:
        """Let the worker do what it was given."""
        while self.waiting_work:
            self.waiting_work.pop(0)()

    def break_disk(self) -> None:
        (self.folder / PROBE_NAME).mkdir()

    def mend_disk(self) -> None:
        (self.folder / PROBE_NAME).rmdir()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_nothing_is_tried_while_writing_works(rig: Rig) -> None:
    rig.probe.write_succeeded()
    rig.advance(seconds=60)
    assert rig.waiting_work == []
    assert rig.timers.next_due_ns == NEVER


def test_a_disk_that_works_again_is_found_out_within_seconds_of_the_failure(rig: Rig) -> None:
    rig.probe.write_failed()
    rig.advance(seconds=5)
    rig.work()
    rig.advance(seconds=1)
    assert rig.success_count == 1
    rig.advance(seconds=60)
    assert rig.waiting_work == []


def test_the_probe_leaves_nothing_behind(rig: Rig) -> None:
    rig.probe.write_failed()
    rig.advance(seconds=5)
    rig.work()
    assert list(rig.folder.iterdir()) == []


def test_the_disk_is_not_touched_by_the_thread_of_the_loop(rig: Rig) -> None:
    rig.break_disk()  # would fail if it were
    rig.probe.write_failed()
    rig.advance(seconds=5)
    assert len(rig.waiting_work) == 1


def test_a_disk_that_still_fails_is_tried_again_until_it_works(rig: Rig) -> None:
    rig.break_disk()
    rig.probe.write_failed()
    for _ in range(3):
        rig.advance(seconds=6)
        rig.work()
    assert rig.success_count == 0
    rig.mend_disk()
    rig.advance(seconds=6)
    rig.work()
    rig.advance(seconds=1)
    assert rig.success_count == 1


def test_a_try_that_hangs_is_waited_for_and_not_repeated(rig: Rig) -> None:
    rig.probe.write_failed()
    rig.advance(seconds=300)
    assert len(rig.waiting_work) == 1
    assert rig.success_count == 0
    rig.work()
    rig.advance(seconds=1)
    assert rig.success_count == 1


def test_while_writes_go_on_failing_the_probe_keeps_out_of_it(rig: Rig) -> None:
    for _ in range(30):
        rig.probe.write_failed()
        rig.advance(seconds=4)
    assert rig.waiting_work == []


def test_a_try_that_was_overtaken_by_a_failure_does_not_count(rig: Rig) -> None:
    rig.probe.write_failed()
    rig.advance(seconds=5)
    rig.work()
    rig.probe.write_failed()
    rig.advance(seconds=4)
    assert rig.success_count == 0


@pytest.mark.parametrize("end", [WriteProbe.write_succeeded, WriteProbe.stop])
def test_a_write_that_succeeds_or_the_stop_ends_the_probing(rig: Rig, end: Callable[[WriteProbe], None]) -> None:
    rig.probe.write_failed()
    rig.advance(seconds=5)
    rig.work()
    end(rig.probe)
    rig.advance(seconds=60)
    assert rig.success_count == 0
    assert rig.waiting_work == []


def test_what_an_earlier_run_left_is_no_hindrance(tmp_path: Path) -> None:
    path = tmp_path / PROBE_NAME
    path.write_bytes(b"left over")
    try_to_write(path)
    assert not path.exists()


def test_trying_a_folder_that_is_gone_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        try_to_write(tmp_path / "gone" / PROBE_NAME)
