"""Backoff as a pure state machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.client.backoff import Backoff, BackoffAction, BackoffStrategy, MessageOutcome, exponential_s

SUCCESS, FAILURE, CONTINUE = MessageOutcome.SUCCESS, MessageOutcome.FAILURE, MessageOutcome.CONTINUE


outcomes = st.lists(st.sampled_from(MessageOutcome), max_size=60)
units_s = st.floats(min_value=0.001, max_value=10)
limits_s = st.floats(min_value=0.001, max_value=300)


def after(*happened: MessageOutcome, max_pause_s: float = 120.0) -> Backoff:
    """Backoff after these outcomes, each of a message that came when the pause before it was over."""
    backoff = Backoff(max_pause_s=max_pause_s)
    for outcome in happened:
        backoff.resume()
        backoff.record(outcome)
    return backoff


@pytest.mark.conformance(264)
@pytest.mark.parametrize(("attempt", "pause_s"), [(0, 1), (1, 2), (3, 8), (5, 32)])
def test_the_exponential_pause_doubles_with_each_attempt(attempt: int, pause_s: float) -> None:
    assert exponential_s(attempt, unit_s=1.0) == pause_s


def test_success_without_a_failure_before_it_changes_nothing() -> None:
    backoff = Backoff()
    assert backoff.record(SUCCESS).action is BackoffAction.NOTHING
    assert backoff.allowance(5) == 5


def test_a_failure_stops_everything_until_the_pause_is_over() -> None:
    backoff = Backoff()
    decision = backoff.record(FAILURE)
    assert (decision.action, decision.pause_s) == (BackoffAction.PAUSE, 2.0)
    assert backoff.allowance(5) == 0


def test_after_a_pause_one_message_is_asked_for() -> None:
    backoff = after(FAILURE)
    backoff.resume()
    assert backoff.allowance(5) == 1
    assert backoff.allowance(0) == 0


def test_outcomes_during_a_pause_are_ignored() -> None:
    backoff = Backoff()
    backoff.record(FAILURE)
    for outcome in MessageOutcome:
        assert backoff.record(outcome).action is BackoffAction.NOTHING
    assert backoff.level == 1


def test_the_success_that_ends_backoff_says_so() -> None:
    backoff = after(FAILURE)
    backoff.resume()
    assert backoff.record(SUCCESS).action is BackoffAction.LEAVE
    assert backoff.allowance(5) == 5


def test_a_success_on_a_higher_level_pauses_again_for_less_time() -> None:
    backoff = after(FAILURE, FAILURE)
    backoff.resume()
    assert backoff.record(SUCCESS).pause_s == 2.0


def test_continue_keeps_the_level_and_pauses_again() -> None:
    backoff = after(FAILURE)
    backoff.resume()
    assert backoff.record(CONTINUE).action is BackoffAction.PAUSE
    assert backoff.level == 1


def test_continue_outside_backoff_changes_nothing() -> None:
    assert Backoff().record(CONTINUE).action is BackoffAction.NOTHING


def test_a_longest_pause_of_zero_switches_backoff_off() -> None:
    backoff = Backoff(max_pause_s=0)
    assert backoff.record(FAILURE).action is BackoffAction.NOTHING
    assert backoff.allowance(5) == 5


def test_a_unit_longer_than_the_longest_pause_still_pauses() -> None:
    assert Backoff(unit_s=10, max_pause_s=3).record(FAILURE).pause_s == 3


@pytest.mark.parametrize(("max_pause_s", "level", "pause_s"), [(8.0, 3, 8.0), (7.9, 2, 4.0)])
def test_the_level_rises_as_long_as_its_pause_is_allowed(max_pause_s: float, level: int, pause_s: float) -> None:
    backoff = after(*[FAILURE] * 10, max_pause_s=max_pause_s)
    assert backoff.level == level
    backoff.resume()
    assert backoff.record(FAILURE).pause_s == pause_s


def test_full_jitter_takes_a_fraction_of_the_exponential_pause() -> None:
    backoff = Backoff(strategy=BackoffStrategy.FULL_JITTER, random_fraction=lambda: 0.25)
    assert backoff.record(FAILURE).pause_s == 0.5


def test_its_state_is_shown() -> None:
    backoff = Backoff()
    backoff.record(FAILURE)
    assert repr(backoff) == "<Backoff level=1 paused>"
    backoff.resume()
    assert repr(backoff) == "<Backoff level=1>"


@given(happened=outcomes, unit_s=units_s, max_pause_s=limits_s, strategy=st.sampled_from(BackoffStrategy))
def test_no_pause_is_longer_than_allowed(
    happened: list[MessageOutcome], unit_s: float, max_pause_s: float, strategy: BackoffStrategy
) -> None:
    backoff = Backoff(unit_s=unit_s, max_pause_s=max_pause_s, strategy=strategy)
    for outcome in happened:
        assert 0 <= backoff.record(outcome).pause_s <= max_pause_s
        backoff.resume()


@given(happened=outcomes, unit_s=units_s, max_pause_s=limits_s)
def test_successes_always_lead_out_of_backoff(
    happened: list[MessageOutcome], unit_s: float, max_pause_s: float
) -> None:
    backoff = Backoff(unit_s=unit_s, max_pause_s=max_pause_s)
    for outcome in happened:
        backoff.record(outcome)
        backoff.resume()
    for _ in range(backoff.level):
        backoff.record(SUCCESS)
        backoff.resume()
    assert backoff.level == 0
    assert backoff.allowance(7) == 7


@given(happened=outcomes)
def test_an_allowance_never_exceeds_max_in_flight(happened: list[MessageOutcome]) -> None:
    backoff = Backoff()
    for index, outcome in enumerate(happened):
        backoff.record(outcome)
        if index % 2:
            backoff.resume()
        assert backoff.allowance(0) == 0
        assert 0 <= backoff.allowance(3) <= 3
