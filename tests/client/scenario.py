"""Runs an asynchronous test, and makes sure that it cleans up: no task is left, no exception went unheard.

Time runs by itself, but `advance` lets it jump, so that no test waits for a timeout; within `standing_still` it does
nothing else, for a test in which a second more or less matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

POLL_INTERVAL_S = 0.002
POLL_COUNT = 15000
"""A condition that has not come true by then never will."""


class MovableLoop(asyncio.SelectorEventLoop):
    """The plain event loop, with time that can be moved."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._stopped_at_s: float | None = None
        super().__init__()

    def time(self) -> float:
        return (super().time() if self._stopped_at_s is None else self._stopped_at_s) + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds

    def stop_clock(self) -> None:
        self._stopped_at_s = super().time()

    def restart_clock(self) -> None:
        """Go on from where it stands."""
        assert self._stopped_at_s is not None
        self._ahead_s -= super().time() - self._stopped_at_s
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


def run(
    scenario: Coroutine[Any, Any, None], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] = MovableLoop
) -> None:
    """Run to the end, in a loop of its own."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_watched(scenario))


async def _watched(scenario: Coroutine[Any, Any, None]) -> None:
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    await scenario
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert not unhandled


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until the condition holds; for what happens by itself but is not announced."""
    for _ in range(POLL_COUNT):
        if condition():
            return
        await asyncio.sleep(POLL_INTERVAL_S)
    raise AssertionError("the condition did not come true")
