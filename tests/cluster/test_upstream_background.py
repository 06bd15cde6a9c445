from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from emberq.cluster.upstream import Background

pytestmark = pytest.mark.loop("uvloop")


async def test_one_thing_after_the_other_is_computed_in_one_thread() -> None:
    background = Background()
    found = set(await asyncio.gather(*(background.run(threading.get_ident) for _ in range(8))))
    background.close()
    assert len(found) == 1
    assert threading.get_ident() not in found


async def test_the_loop_goes_on_meanwhile() -> None:
    background, is_set = Background(), threading.Event()
    waiting = asyncio.ensure_future(background.run(lambda: is_set.wait(10)))
    await asyncio.sleep(0)
    is_set.set()
    assert await waiting


async def test_work_is_done_by_the_loop_of_the_thread_and_may_come_back_to_it() -> None:
    background = Background()

    async def work() -> tuple[int, int]:
        return threading.get_ident(), await background.run(threading.get_ident)

    outer, inner = await background.ask(work)
    background.close()
    assert outer == inner != threading.get_ident()


class Busy:
    """A background that is in the midst of a work of five pieces: the first of them waits until it may go on."""

    def __init__(self) -> None:
        self.background = Background()
        self.done: list[str] = []
        self._has_begun, self._may_go_on = threading.Event(), threading.Event()

    def _first(self) -> None:
        self._has_begun.set()
        self._may_go_on.wait(10)
        self.done.append("a")

    async def pieces(self, name: str, *first: Callable[[], None]) -> None:
        pieces: list[Callable[[], None]] = [*first, *[partial(self.done.append, name)] * (5 - len(first))]
        await asyncio.gather(*(self.background.run(piece) for piece in pieces))

    async def order(self, meanwhile: Callable[[], Coroutine[Any, Any, None]]) -> str:
        """In which order pieces were done, with those of what was begun meanwhile."""
        work = asyncio.ensure_future(self.background.ask(lambda: self.pieces("a", self._first)))
        await asyncio.to_thread(self._has_begun.wait, 10)
        other = asyncio.ensure_future(meanwhile())
        await asyncio.sleep(0)
        self._may_go_on.set()
        await asyncio.gather(work, other)
        self.background.close()
        return "".join(self.done)


async def test_what_others_want_goes_ahead_of_what_waits_for_its_turn() -> None:
    busy = Busy()
    order = await busy.order(lambda: busy.background.run(lambda: busy.done.append("X")))
    assert sorted(order) == [*"Xaaaaa"]
    assert order.index("X") < 3


async def test_works_take_turns() -> None:
    busy = Busy()
    order = await busy.order(lambda: busy.background.ask(lambda: busy.pieces("b")))
    assert sorted(order) == [*"aaaaabbbbb"]
    assert order.index("b") < order.rindex("a") < order.rindex("b")


async def test_what_is_not_done_at_the_end_is_dropped() -> None:
    background = Background()
    waiting = asyncio.ensure_future(background.ask(lambda: asyncio.sleep(3600)))
    await background.run(lambda: None)
    background.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_thread_ends_when_nobody_has_it_any_more() -> None:
    forgotten = await Background().run(threading.current_thread)
    forgotten.join(10)
    assert not forgotten.is_alive()


async def test_what_is_raised_reaches_whoever_waits() -> None:
    with pytest.raises(IndexError):
        await Background().run(lambda: [][1])
