"""Tasks that wait to be called."""

from __future__ import annotations

import asyncio

import pytest

from emberq.base.task import WaitingLine
from tests.support.waiting import turns

pytestmark = pytest.mark.loop("uvloop")


class Line:
    """A line of tasks, and which of them were called."""

    def __init__(self) -> None:
        self.waiting = WaitingLine()
        self.called: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def join(self, *names: str) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._wait(name))
        await asyncio.sleep(0)

    async def _wait(self, name: str) -> None:
        await self.waiting.wait()
        self.called.append(name)

    async def settle(self) -> None:
        """Let all hear what they are told."""
        await turns(3)

    async def leave(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert not self.waiting


async def test_the_one_that_waited_longest_is_called_first() -> None:
    line = Line()
    await line.join("a", "b", "c")
    line.waiting.call_one()
    line.waiting.call_one()
    await line.settle()
    assert line.called == ["a", "b"]
    assert len(line.waiting) == 1
    await line.leave()


async def test_a_call_when_nobody_waits_is_for_nobody() -> None:
    line = Line()
    line.waiting.call_one()
    await line.join("a")
    await line.settle()
    assert line.called == []
    await line.leave()


async def test_who_was_cancelled_waits_no_more() -> None:
    line = Line()
    await line.join("a", "b")
    line.tasks["a"].cancel()
    await line.settle()
    assert len(line.waiting) == 1
    line.waiting.call_one()
    await line.settle()
    assert line.called == ["b"]
    await line.leave()


async def test_who_is_cancelled_after_the_call_calls_the_next() -> None:
    line = Line()
    await line.join("a", "b")
    line.waiting.call_one()
    line.tasks["a"].cancel()
    await line.settle()
    assert line.called == ["b"]
    await line.leave()


async def test_who_is_cancelled_right_before_the_call_is_passed_over() -> None:
    line = Line()
    await line.join("a", "b")
    line.tasks["a"].cancel()
    line.waiting.call_one()  # in the same turn of the loop: the task has not heard of its end yet
    await line.settle()
    assert line.called == ["b"]
    assert line.tasks["a"].cancelled()
    await line.leave()
