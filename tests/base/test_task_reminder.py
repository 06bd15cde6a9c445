"""How often a trouble that lasts is told."""

from __future__ import annotations

from emberq.base.task import Reminder
from tests.support.loop import advance, standing_still


async def test_a_trouble_is_told_at_once_and_then_once_per_interval() -> None:
    reminder = Reminder(60)
    with standing_still():
        told = []
        for _ in range(13):
            told.append(reminder.is_due("down"))
            advance(10)
    assert [index for index, is_told in enumerate(told) if is_told] == [0, 6, 12]


async def test_troubles_are_told_apart() -> None:
    reminder = Reminder(60)
    assert reminder.is_due("a")
    assert reminder.is_due("b")
    assert not reminder.is_due("a")


async def test_a_trouble_that_is_over_is_told_at_once_when_it_comes_back() -> None:
    reminder = Reminder(60)
    assert not reminder.forget("a")
    assert reminder.is_due("a")
    assert reminder.forget("a")
    assert reminder.is_due("a")
    assert reminder.is_due("b")
    reminder.keep(["b", "c"])
    assert reminder.is_due("a")
    assert not reminder.is_due("b")
