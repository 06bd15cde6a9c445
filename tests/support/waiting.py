"""Waiting for what happens by itself but is not announced: a closed socket being noticed, a file being written.

Never a substitute for moving a clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FIRST_POLL_S = 0.002
LATEST_BY = 0.1
"""What was waited for is noticed so much too late, at most, as a share of the time that it took. The question may be a
request to a daemon: asked all the time, it would keep a machine that is late already from its work."""
PATIENCE_S = 30.0
"""How long what must happen may take on a machine busy with other tests. Only a test that fails waits it out."""


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S, interval_s: float = FIRST_POLL_S
) -> None:
    """Ask again and again, at first at short intervals, until the condition holds."""
    began_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, "the condition did not come true"
        time.sleep(max(interval_s, waited_s * LATEST_BY))


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    timeout_s: float = PATIENCE_S,
    show: Callable[[], object] | None = None,
) -> None:
    """The same in an event loop, in which others go on meanwhile; `show` gives what a failure should tell.

    The patience is real time: tests move the time of their loop.
    """
    began_s = time.monotonic()
    while not (await answer if isinstance(answer := condition(), Awaitable) else answer):
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"did not come true: {show() if show else condition}"
        await asyncio.sleep(max(FIRST_POLL_S, waited_s * LATEST_BY))


async def turns(count: int = 20) -> None:
    """Let everything pass that is on its way, in so many turns of the loop; for tests of what does not happen."""
    for _ in range(count):
        await asyncio.sleep(0)
