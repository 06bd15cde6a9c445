"""Lag is how much later than due the loop gets to its alarm."""

from __future__ import annotations

import pytest

from emberq.base.clock import NS_PER_MS, ManualClock
from emberq.base.daemon import INTERVAL_NS, Lag, LoopLag
from emberq.base.timers import NEVER, Timers

INTERVAL_MS = INTERVAL_NS // NS_PER_MS


class Rig:
    """A measured loop whose turns the test decides on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers()
        self.loop_lag = LoopLag(timers=self.timers, clock=self.clock)
        self.loop_lag.start()

    def turn(self, *, late_ms: int = 0) -> Lag:
        """Let the next look come so much too late."""
        self.clock.advance(ms=INTERVAL_MS + late_ms)
        self.timers.run_due(self.clock.monotonic_ns())
        return self.loop_lag.read()

    def be_punctual(self, *, seconds: int) -> Lag:
        for _ in range(seconds * 1000 // INTERVAL_MS):
            self.turn()
        return self.loop_lag.read()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_punctual_loop_has_no_lag(rig: Rig) -> None:
    assert rig.loop_lag.read() == Lag()
    assert rig.be_punctual(seconds=10) == Lag(last_ns=0, recent_max_ns=0, max_ns=0)


def test_a_stall_is_seen_by_its_length(rig: Rig) -> None:
    assert rig.turn(late_ms=40) == Lag(last_ns=40 * NS_PER_MS, recent_max_ns=40 * NS_PER_MS, max_ns=40 * NS_PER_MS)


def test_the_last_lag_is_the_last_alone(rig: Rig) -> None:
    rig.turn(late_ms=40)
    lag = rig.turn(late_ms=3)
    assert (lag.last_ns, lag.recent_max_ns) == (3 * NS_PER_MS, 40 * NS_PER_MS)


def test_the_recent_maximum_is_kept_for_half_a_minute_and_gone_after_a_whole_one(rig: Rig) -> None:
    rig.be_punctual(seconds=20)
    rig.turn(late_ms=500)
    assert rig.be_punctual(seconds=30).recent_max_ns == 500 * NS_PER_MS
    assert rig.be_punctual(seconds=31).recent_max_ns == 0


def test_the_maximum_is_kept_for_good(rig: Rig) -> None:
    rig.turn(late_ms=500)
    assert rig.be_punctual(seconds=300).max_ns == 500 * NS_PER_MS


def test_one_late_look_does_not_make_the_next_one_late(rig: Rig) -> None:
    rig.turn(late_ms=900)
    assert rig.turn().last_ns == 0


def test_after_the_stop_nothing_is_measured(rig: Rig) -> None:
    rig.loop_lag.stop()
    assert rig.turn(late_ms=40) == Lag()
    assert rig.timers.next_due_ns == NEVER
