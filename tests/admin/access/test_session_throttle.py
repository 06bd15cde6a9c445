"""Those who guess passwords."""

from __future__ import annotations

import pytest

from emberq.admin.access import session as module
from emberq.admin.access.session import (
    MAX_FAILURES,
    MAX_FAILURES_OF_ADDRESS,
    MAX_FAILURES_OF_NAME,
    WINDOW_NS,
    LoginThrottle,
)
from emberq.base.clock import NS_PER_SECOND, ManualClock


@pytest.fixture
def throttle(clock: ManualClock) -> LoginThrottle:
    return LoginThrottle(clock)


def test_an_address_that_failed_too_often_has_to_wait(throttle: LoginThrottle, clock: ManualClock) -> None:
    for number in range(MAX_FAILURES_OF_ADDRESS):
        assert throttle.allows(address="a", name=str(number))
        throttle.failed(address="a", name=str(number))
    assert not throttle.allows(address="a", name="new")
    assert throttle.allows(address="b", name="0")
    clock.advance(seconds=WINDOW_NS / NS_PER_SECOND + 1)
    assert throttle.allows(address="a", name="new")


def test_a_name_that_failed_too_often_from_an_address_has_to_wait(throttle: LoginThrottle) -> None:
    for _ in range(MAX_FAILURES):
        assert throttle.allows(address="a", name="ada")
        throttle.failed(address="a", name="ada")
    assert not throttle.allows(address="a", name="ada")
    assert throttle.allows(address="a", name="tom")
    assert throttle.allows(address="b", name="ada")


def test_who_was_here_before_is_not_held_up_by_others(throttle: LoginThrottle) -> None:
    throttle.succeeded(address="a", name="ada")
    for number in range(MAX_FAILURES_OF_NAME):
        throttle.failed(address="a", name=str(number))
        throttle.failed(address=str(number), name="ada")
    assert throttle.allows(address="a", name="ada")
    assert not throttle.allows(address="a", name="tom")
    assert not throttle.allows(address="new", name="ada")
    for _ in range(MAX_FAILURES):
        throttle.failed(address="a", name="ada")
    assert not throttle.allows(address="a", name="ada")


def test_a_name_can_be_guessed_from_many_addresses_only_so_often(throttle: LoginThrottle) -> None:
    for number in range(MAX_FAILURES_OF_NAME):
        assert throttle.allows(address=str(number), name="ada")
        throttle.failed(address=str(number), name="ada")
    assert not throttle.allows(address="new", name="ada")


def test_the_right_password_makes_up_for_wrong_ones(throttle: LoginThrottle) -> None:
    for _ in range(MAX_FAILURES - 1):
        throttle.failed(address="a", name="ada")
    throttle.succeeded(address="a", name="ada")
    throttle.failed(address="a", name="ada")
    assert throttle.allows(address="a", name="ada")


def test_no_more_is_remembered_than_fits(throttle: LoginThrottle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 6)
    for _ in range(MAX_FAILURES):
        throttle.failed(address="a", name="x")
    for number in range(2):
        throttle.failed(address=f"other {number}", name=f"name {number}")
    assert throttle.allows(address="a", name="x")
