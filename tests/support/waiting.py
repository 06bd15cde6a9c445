"""Waiting for what happens by itself but is not announced: a closed socket being noticed, a file being written.

Never a substitute for moving a clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

POLL_INTERVAL_S = 0.002
PATIENCE_S = 30.0
"""How long what must happen may take on a machine busy with other tests. Only a test that fails waits it out."""


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S, interval_s: float = POLL_INTERVAL_S
) -> None:
    """Ask again and again, at short intervals, until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(interval_s)


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    timeout_s: float = PATIENCE_S,
    show: Callable[[], object] | None = None,
) -> None:
    """The same in an event loop, in which others go on meanwhile; `show` gives what a failure should tell.

    The patience is real time: tests move the time of their loop.
    """
    deadline = time.monotonic() + timeout_s
    while not (await answer if isinstance(answer := condition(), Awaitable) else answer):
        assert time.monotonic() < deadline, f"did not come true: {show() if show else condition}"
        await asyncio.sleep(POLL_INTERVAL_S)


async def turns(count: int = 20) -> None:
    """Let everything pass that is on its way, in so many turns of the loop; for tests of what does not happen."""
    for _ in range(count):
        await asyncio.sleep(0)
