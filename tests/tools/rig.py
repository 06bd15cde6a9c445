"""A tool that runs in the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def running(
    tool: Callable[[asyncio.Event], Coroutine[Any, Any, None]],
) -> AsyncIterator[asyncio.Task[None]]:
    """A tool at work, which is asked to stop in the end, and must."""
    stop_asked = asyncio.Event()
    task = asyncio.create_task(tool(stop_asked))
    try:
        yield task
    finally:
        stop_asked.set()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.done(), "the tool did not stop"
    task.result()
