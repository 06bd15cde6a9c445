"""A rate is kept, and so is the right to catch up for a second."""

from __future__ import annotations

from emberq.base.clock import ManualClock
from emberq.base.task import RateLimiter


def test_the_first_message_goes_at_once_and_the_next_in_its_time() -> None:
    clock = ManualClock()
    throttle = RateLimiter(10, clock=clock)
    assert throttle.take(5) == 1
    assert throttle.take(4) == 0
    assert throttle.wait_s == 0.1
    clock.advance(ms=100)
    assert throttle.take(4) == 1


def test_a_pause_earns_at_most_a_second() -> None:
    clock = ManualClock()
    throttle = RateLimiter(10, clock=clock)
    clock.advance(seconds=60)
    assert throttle.take(100) == 10
    assert throttle.take(100) == 0


def test_over_time_the_rate_is_exact() -> None:
    clock = ManualClock()
    throttle = RateLimiter(1000, clock=clock)
    throttle.take(1)
    granted = 0
    for _ in range(300):
        clock.advance(ms=10)
        granted += throttle.take(1_000_000)
    assert 2_999 <= granted <= 3_000


def test_tokens_not_taken_stay() -> None:
    clock = ManualClock()
    throttle = RateLimiter(10, clock=clock)
    clock.advance(ms=400)
    assert throttle.take(2) == 2
    assert throttle.take(5) == 3
