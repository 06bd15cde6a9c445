"""Cyclic garbage goes away by itself in a daemon, without the collector's pauses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from emberq.base.clock import ManualClock
from emberq.base.daemon import MAX_SWEPT_OBJECTS, Sweeper
from emberq.base.timers import Timers


class Knot:
    """An object that holds itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_cycle_is_swept_within_a_minute() -> None:
    clock, timers = ManualClock(), Timers()
    Sweeper(timers=timers, clock=clock).start()
    knot = weakref.ref(Knot())
    clock.advance(seconds=60)
    timers.run_due(clock.monotonic_ns())
    assert knot() is None


def test_a_large_backlog_is_left_alone() -> None:
    backlog = [[n] for n in range(MAX_SWEPT_OBJECTS)]
    clock, timers = ManualClock(), Timers()
    Sweeper(timers=timers, clock=clock).start()
    knot = weakref.ref(Knot())
    clock.advance(seconds=60)
    timers.run_due(clock.monotonic_ns())
    assert knot() is not None
    assert len(backlog) == MAX_SWEPT_OBJECTS


def test_sweeping_goes_on_once_the_backlog_is_gone() -> None:
    clock, timers = ManualClock(), Timers()
    Sweeper(timers=timers, clock=clock).start()
    backlog = [[n] for n in range(MAX_SWEPT_OBJECTS + 1000)]
    knot = weakref.ref(Knot())
    clock.advance(seconds=60)
    timers.run_due(clock.monotonic_ns())
    assert knot() is not None
    backlog.clear()
    clock.advance(seconds=60)
    timers.run_due(clock.monotonic_ns())
    assert knot() is None
