"""Waiting, in the event loop, for what happens by itself but is not announced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.waiting import PATIENCE_S

POLL_INTERVAL_S = 0.002


async def eventually(
    condition: Callable[[], bool], *, timeout_s: float = PATIENCE_S, show: Callable[[], object] | None = None
) -> None:
    """Ask again and again until the condition holds; `show` gives what a failure should tell."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, f"did not come true: {show() if show else condition}"
        await asyncio.sleep(POLL_INTERVAL_S)
