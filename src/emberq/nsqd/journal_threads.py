"""The threads in which journals are synced and cursors written, so that the event loop does not wait for the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

MAX_THREADS = 4
"""A journal has one sync at a time; so many journals are synced at once. More would only wait for the same disk."""

_log = logging.getLogger(__name__)


class JournalThreads:
    """Owned by the daemon. Without a loop, and after `close`, work is done where it is asked for."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """From here on, work in threads and hand results back to this loop."""
        self._loop = loop
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="emberq-journal")

    def start(self, work: Callable[[], None]) -> None:
        """Do it in another thread."""
        if self._pool is None:
            work()
        else:
            self._pool.submit(work).add_done_callback(_report_defect)

    def hand_back(self, work: Callable[[], None]) -> None:
        """Do it in the loop's thread; may be called from any."""
        if self._loop is None:
            work()
        else:
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Return when all work has been done."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self._loop = None


def _report_defect(future: Future[None]) -> None:
    defect = future.exception()
    if defect is not None:
        _log.error("a journal thread failed: %r", defect, exc_info=defect)
