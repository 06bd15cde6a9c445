"""The loops of asynchronous tests, and the watch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from tests.support.loop import MovableLoop, advance, standing_still, watched_loop


def watch(test: Callable[[], Awaitable[None]], *, has_failed: bool = False) -> None:
    async def watched() -> None:
        async with watched_loop(has_failed=lambda: has_failed, timeout_s=0):
            await test()

    asyncio.run(watched())


FORGOTTEN: list[asyncio.Task[bool]] = []


async def leave_a_task() -> None:
    FORGOTTEN.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))
    await asyncio.sleep(0)


def test_a_task_that_is_left_fails_a_test() -> None:
    with pytest.raises(AssertionError, match="forgotten"):
        watch(leave_a_task)


def test_an_exception_that_is_not_handled_fails_a_test() -> None:
    async def fail_in_a_callback() -> None:
        asyncio.get_running_loop().call_soon(partial(int, "x"))
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="invalid literal"):
        watch(fail_in_a_callback)


def test_of_a_test_that_failed_it_is_shown_what_still_waits(capsys: pytest.CaptureFixture[str]) -> None:
    watch(leave_a_task, has_failed=True)
    assert "name='forgotten'" in capsys.readouterr().out


async def test_time_can_be_moved_and_stopped() -> None:
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(asyncio.sleep(3600))
    await asyncio.sleep(0)
    with standing_still():
        before_s = loop.time()
        advance(3599)
        assert loop.time() == before_s + 3599
    advance(1)
    await waiting


@pytest.mark.loop("movable", "uvloop")
async def test_a_mark_names_the_loops_of_a_test(request: pytest.FixtureRequest) -> None:
    kind = uvloop.Loop if "uvloop" in request.node.name else MovableLoop
    assert isinstance(asyncio.get_running_loop(), kind)
