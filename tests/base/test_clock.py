"""A manual clock moves when told; the system clock tells the machine's time."""

from __future__ import annotations

import time

import pytest

from emberq.base.clock import Clock, ManualClock, SystemClock


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(wall_ns=5_000, monotonic_ns=7_000)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (5_000, 7_000)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (5_000, 7_000)


def test_advancing_moves_both_kinds_of_time() -> None:
    clock = ManualClock(wall_ns=0, monotonic_ns=10)
    clock.advance(ms=1.5, seconds=2)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (2_001_500_000, 2_001_500_010)


def test_the_wall_clock_may_jump_while_monotonic_time_does_not() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=10)
    clock.set_wall(500)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (500, 10)


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="time moves forward"):
        ManualClock().advance(ms=-1)


def test_the_system_clock_tells_the_machines_time() -> None:
    clock: Clock = SystemClock()
    before = (time.time_ns(), time.monotonic_ns())
    told = (clock.wall_ns(), clock.monotonic_ns())
    after = (time.time_ns(), time.monotonic_ns())
    assert before[0] <= told[0] <= after[0]
    assert before[1] <= told[1] <= after[1]
