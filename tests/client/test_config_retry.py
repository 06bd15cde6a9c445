"""How long to wait before the next attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from emberq.client.config import ReconnectDelay, RetryPolicy


def test_the_delay_doubles_up_to_its_limit() -> None:
    delay = ReconnectDelay(first_s=0.1, max_s=1.0)
    assert [delay.after(failures, random=lambda: 0.0) for failures in (1, 2, 3, 4, 5)] == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_jitter_takes_off_up_to_half() -> None:
    delay = ReconnectDelay(first_s=2.0, max_s=60.0)
    assert delay.after(1, random=lambda: 1.0) == 1.0
    assert delay.after(1, random=lambda: 0.5) == 1.5


def test_failures_without_number_do_not_overflow() -> None:
    assert ReconnectDelay(max_s=15.0).after(1_000_000, random=lambda: 0.0) == 15.0


def test_delays_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="first_s"):
        ReconnectDelay(first_s=0)
    with pytest.raises(ValueError, match="max_s"):
        ReconnectDelay(first_s=2, max_s=1)


def test_a_policy_has_at_least_one_attempt_and_some_time() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ValueError, match="timeout_s"):
        RetryPolicy(timeout_s=0)


def test_a_setting_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="max_attempts is '3'; it must be an int"):
        RetryPolicy(max_attempts="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_s is a timedelta; it must be a number"):
        ReconnectDelay(max_s=timedelta(seconds=1))  # type: ignore[arg-type]
