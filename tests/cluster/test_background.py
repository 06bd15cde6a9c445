from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from emberq.cluster.background import Background
from tests.base.running import run


def test_one_thing_after_the_other_is_computed_in_one_thread() -> None:
    async def threads() -> set[int]:
        background = Background()
        found = set(await asyncio.gather(*(background.run(threading.get_ident) for _ in range(8))))
        background.close()
        return found

    found = run(threads())
    assert len(found) == 1
    assert threading.get_ident() not in found


def test_the_loop_goes_on_meanwhile() -> None:
    async def wait_for_the_loop() -> bool:
        background, is_set = Background(), threading.Event()
        waiting = asyncio.ensure_future(background.run(lambda: is_set.wait(10)))
        await asyncio.sleep(0)
        is_set.set()
        return await waiting

    assert run(wait_for_the_loop())


def test_work_is_done_by_the_loop_of_the_thread_and_may_come_back_to_it() -> None:
    async def ask() -> tuple[int, int]:
        background = Background()

        async def work() -> tuple[int, int]:
            return threading.get_ident(), await background.run(threading.get_ident)

        found = await background.ask(work)
        background.close()
        return found

    outer, inner = run(ask())
    assert outer == inner != threading.get_ident()


def test_what_others_want_goes_ahead_of_what_waits_for_its_turn() -> None:
    async def order() -> list[str]:
        background, done = Background(), list[str]()
        has_begun, may_go_on = threading.Event(), threading.Event()

        def first() -> None:
            has_begun.set()
            may_go_on.wait(10)
            done.append("first piece")

        async def work() -> None:
            pieces: list[Callable[[], None]] = [
                first,
                *(partial(done.append, f"piece {number}") for number in range(2, 5)),
            ]
            await asyncio.gather(*(background.run(piece) for piece in pieces))

        working = asyncio.ensure_future(background.ask(work))
        await asyncio.to_thread(has_begun.wait, 10)
        page = asyncio.ensure_future(background.run(lambda: done.append("page")))
        await asyncio.sleep(0)
        may_go_on.set()
        await asyncio.gather(working, page)
        background.close()
        return done

    assert run(order()).index("page") < 3


def test_what_is_not_done_at_the_end_is_dropped() -> None:
    async def close_meanwhile() -> None:
        background = Background()
        waiting = asyncio.ensure_future(background.ask(lambda: asyncio.sleep(3600)))
        await background.run(lambda: None)
        background.close()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        run(close_meanwhile())


def test_the_thread_ends_when_nobody_has_it_any_more() -> None:
    async def thread() -> threading.Thread:
        return await Background().run(threading.current_thread)

    forgotten = run(thread())
    forgotten.join(10)
    assert not forgotten.is_alive()


def test_what_is_raised_reaches_whoever_waits() -> None:
    async def fail() -> None:
        await Background().run(lambda: [][1])

    with pytest.raises(IndexError):
        run(fail())
