"""The event loops that asynchronous tests run on, and the watch that is kept over each of them.

Time runs by itself on a `MovableLoop`, but `advance` lets it jump, so that no test waits for a timeout; within
`standing_still` it does nothing else, for a test in which a second more or less matters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvloop

from tests.support.waiting import PATIENCE_S, until


class MovableLoop(asyncio.SelectorEventLoop):
    """The plain event loop, with time that can be moved."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._stopped_at_s: float | None = None
        super().__init__()

    def time(self) -> float:
        return super().time() + self._ahead_s if self._stopped_at_s is None else self._stopped_at_s

    def advance(self, seconds: float) -> None:
        if self._stopped_at_s is None:
            self._ahead_s += seconds
        else:
            self._stopped_at_s += seconds

    def stop_clock(self) -> None:
        """At a moment that a float holds exactly, so that six steps of ten seconds are a minute, and not just short."""
        self._stopped_at_s = math.ceil(self.time() * 1024) / 1024

    def restart_clock(self) -> None:
        """Go on from where it stands."""
        assert self._stopped_at_s is not None
        self._ahead_s = self._stopped_at_s - super().time()
        self._stopped_at_s = None


def advance(seconds: float) -> None:
    """Move the time of the running loop."""
    _running_loop().advance(seconds)


@contextmanager
def standing_still() -> Iterator[None]:
    """Within, the time of the running loop moves only when it is told to. Nothing can be waited for there but turns."""
    loop = _running_loop()
    loop.stop_clock()
    try:
        yield
    finally:
        loop.restart_clock()


def _running_loop() -> MovableLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableLoop)
    return loop


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"movable": MovableLoop, "uvloop": uvloop.new_event_loop}
"""What `@pytest.mark.loop` may name: the first is the default, the second is what the daemons run on."""


@asynccontextmanager
async def watched_loop(
    *, has_failed: Callable[[], bool], timeout_s: float = PATIENCE_S
) -> AsyncIterator[list[dict[str, Any]]]:
    """A test that passed must leave no task behind, and no exception unhandled. Of one that failed, show what waits.

    Gives what went unhandled; a test that expects it takes it out.
    """
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    yield unhandled
    if has_failed():
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.print_stack()
        return
    await until(lambda: len(asyncio.all_tasks()) == 1, timeout_s=timeout_s, show=asyncio.all_tasks)
    assert not unhandled
