"""Cyclic garbage and freed memory go away by themselves in a daemon, without the collector's pauses."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.base.daemon import MAX_SHARE, YOUNG_OBJECTS, YOUNG_SWEEPS, Sweeper, tame_collector
from emberq.base.timers import Timers


class Knot:
    """An object that holds itself."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.fixture(autouse=True)
def _tame() -> Iterator[None]:
    thresholds = gc.get_threshold()
    tame_collector()
    Knot.alive = 0
    yield
    gc.set_threshold(*thresholds)


@pytest.fixture
def generations() -> Iterator[list[int]]:
    """Which generation each sweep looked at."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


class Minutes:
    """A sweeper whose pauses and memory the test decides."""

    def __init__(self, *, blocks: int = 1000) -> None:
        self.clock, self.timers = ManualClock(), Timers()
        self.blocks = blocks
        self.pause_ms = 0
        self.sweeps = 0
        self.sweeper = Sweeper(timers=self.timers, clock=self.clock, blocks_in_use=lambda: self.blocks)
        self.sweeper.start()

    def pass_by(self, count: int = 1) -> int:
        """Let minutes pass; how many of them had a full sweep."""
        sweeps = 0

        def note(phase: str, info: dict[str, Any]) -> None:
            nonlocal sweeps
            if phase == "start" and info["generation"] == 2:
                sweeps += 1
                self.clock.advance(ms=self.pause_ms)

        gc.callbacks.append(note)
        try:
            for _ in range(count):
                self.clock.advance(seconds=60)
                self.timers.run_due(self.clock.monotonic_ns())
        finally:
            gc.callbacks.remove(note)
        return sweeps


def test_cycles_made_at_a_steady_rate_do_not_accumulate_beside_a_large_backlog(generations: list[int]) -> None:
    backlog = [[number] for number in range(100_000)]
    most = 0
    for _ in range(100_000):
        Knot()
        most = max(most, Knot.alive)
    assert most <= 2 * YOUNG_OBJECTS
    assert set(generations) == {0, 1}, "everything is never looked at in one go"
    assert len(backlog) == 100_000


def test_the_collector_looks_at_a_bounded_number_of_objects_at_a_time_while_a_backlog_grows() -> None:
    most = {0: 0, 1: 0}

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked_at = sum(len(gc.get_objects(younger)) for younger in range(info["generation"] + 1))
            most[info["generation"]] = max(most[info["generation"]], looked_at)

    gc.callbacks.append(note)
    backlog = [[number] for number in range(20 * YOUNG_OBJECTS)]
    gc.callbacks.remove(note)
    assert 0 < most[0] <= 2 * YOUNG_OBJECTS
    assert 0 < most[1] <= 2 * YOUNG_OBJECTS * (YOUNG_SWEEPS + 1)
    assert len(backlog) == 20 * YOUNG_OBJECTS


def test_a_cycle_that_grew_old_is_swept_within_a_minute_when_that_is_cheap() -> None:
    minutes = Minutes()
    knot = Knot()
    gone = weakref.ref(knot)
    gc.collect(1)
    del knot
    gc.collect(1)
    assert gone() is not None
    assert minutes.pass_by() == 1
    assert gone() is None


def test_a_full_sweep_takes_a_small_share_of_the_time() -> None:
    minutes = Minutes()
    minutes.pause_ms = 60
    assert minutes.pass_by() == 1
    assert minutes.pass_by(60 * MAX_SHARE // 60_000 - 1) == 0
    assert minutes.pass_by() == 1
    minutes.pause_ms = 1
    assert minutes.pass_by(60 * MAX_SHARE // 60_000) == 1
    assert minutes.pass_by(3) == 3, "the backlog is gone"


def test_a_full_sweep_is_put_off_when_the_backlog_has_grown_too_large_for_it() -> None:
    minutes = Minutes()
    minutes.pause_ms = 10
    assert minutes.pass_by() == 1
    minutes.blocks = 1500
    assert minutes.pass_by() == 0
    minutes.blocks = 900
    assert minutes.pass_by() == 1


def test_a_full_sweep_comes_when_memory_has_doubled_however_long_it_takes() -> None:
    minutes = Minutes()
    minutes.pause_ms = 1000
    assert minutes.pass_by() == 1
    minutes.blocks = 1999
    assert minutes.pass_by() == 0
    minutes.blocks = 2000
    assert minutes.pass_by() == 1
    assert minutes.pass_by() == 0


def test_a_sweeper_that_was_stopped_sweeps_no_more() -> None:
    minutes = Minutes()
    minutes.sweeper.stop()
    assert minutes.pass_by() == 0


FREED_BETWEEN_OTHERS = """
import gc, zlib
from emberq.base.clock import ManualClock
from emberq.base.daemon import Sweeper
from emberq.base.metrics import read_resident
from emberq.base.timers import Timers

clock, timers = ManualClock(), Timers()
sweeper = Sweeper(timers=timers, clock=clock)
sweeper.start()
before = read_resident().own_bytes
kept = []
for _ in range(20):
    connections = [(zlib.compressobj(), zlib.decompressobj()) for _ in range(200)]
    kept.append(bytes(2000))
    del connections
freed = read_resident().own_bytes
clock.advance(seconds=60)
for _ in range(100):
    timers.run_due(clock.monotonic_ns())
    clock.advance(ms=10)
print(freed - before, read_resident().own_bytes - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back when it is asked to")
def test_memory_that_was_freed_between_other_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREED_BETWEEN_OTHERS], capture_output=True, text=True, check=True)
    freed, left = map(int, done.stdout.split())
    assert freed > 10_000_000  # 17 to 21 MB, as the blocks happen to lie
    assert left < 5_000_000
