"""A thread with an event loop of its own, for what takes long: so that the event loop that serves never waits for it.

Python runs one thread at a time. A thread that reckons gives way to one that waits after some milliseconds, unless it
is inside a single long call, such as the reading of a large JSON text. From this follows how to use it:

- There is one such thread and no more. Whoever waits then waits for one turn, not for a turn of each.
- Whoever asks many daemons for large answers asks from here (`ask`). To receive an answer takes several calls of the
  event loop; if that were the loop that serves, each call would wait for a turn while the answer before is reckoned
  with, and all who want to be served would wait for all of them.
- What is handed over comes in pieces, like the answers of many nsqds, of which each takes some ten milliseconds.
  Between two pieces the loop here goes round once, so that answers are received in time.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class Background:
    """The thread begins when it is first needed. It ends with `close`, or when nobody has this any more."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end = asyncio.Event()

    async def run(self, compute: Callable[[], T]) -> T:
        """What `compute` returns or raises.

        What the work here has to compute is computed one thing after the other, and works take turns. What others want
        computed goes ahead of all that waits for its turn: it may be a page, and what waits many large answers.
        """
        loop = self._started_loop()
        if asyncio.get_running_loop() is not loop:
            return await self._handed_over(loop, _computed(compute))
        async with _turn.get():
            result = compute()
            await asyncio.sleep(0)
        return result

    async def ask(self, make_work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the work returns or raises, done by the event loop of the thread; that may call this, too."""
        loop = self._started_loop()
        if asyncio.get_running_loop() is not loop:
            return await self._handed_over(loop, _in_turn(make_work))
        return await make_work()

    async def _handed_over(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def close(self) -> None:
        """Drop what is not done yet."""
        if self._thread is not None:
            self._let_go()
            self._thread.join()

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(self._loop, self._end), name="background", daemon=True)
            self._thread.start()
            self._let_go = weakref.finalize(self, self._loop.call_soon_threadsafe, self._end.set)
        return self._loop


_turn: ContextVar[asyncio.Lock] = ContextVar("_turn")
"""Of the work that is done: all that it computes shares it."""


async def _in_turn(make_work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    _turn.set(asyncio.Lock())
    return await make_work()


async def _computed(compute: Callable[[], T]) -> T:
    return compute()


def _serve(loop: asyncio.AbstractEventLoop, end: asyncio.Event) -> None:
    """Not a method: the thread must not keep its owner alive."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(_wait_for(end))


async def _wait_for(end: asyncio.Event) -> None:
    await end.wait()
