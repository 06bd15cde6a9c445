"""An event loop in a thread of its own, for code that blocks: what `emberq.sync` stands on.

Any thread may have work done there and waits for it. Everything that is submitted is submitted before the end is, and
the loop works in that order; so every caller gets an answer, and none waits for a loop that has gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Begins with the first `run`, and ends once, with `end` or `end_soon`."""

    def __init__(
        self,
        name: str,
        *,
        closed_error: type[Exception] = RuntimeError,
        timeout_error: type[Exception] = TimeoutError,
    ) -> None:
        """The errors are raised, with a text, where a caller cannot be served any more, or has waited long enough."""
        self._name = name
        self._closed_error = closed_error
        self._timeout_error = timeout_error
        self._guard = threading.RLock()
        """For the attributes below. Reentrant, because a signal handler may call `end` in the midst of anything."""
        self._process_id = 0
        """Where the thread is; 0 as long as there is none."""
        self._thread: threading.Thread | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop
        """There as soon as the thread is."""
        self._ending: concurrent.futures.Future[None] | None = None
        """The last thing that the loop does."""
        self._may_end = asyncio.Event()
        self.is_ended = False
        """Nothing more is taken on."""

    def run(self, make_work: Callable[[], Coroutine[Any, Any, _T]], *, timeout_s: float | None = None) -> _T:
        """What the work returns or raises; the `closed_error` if the loop has ended, or ends meanwhile."""
        self._check_process()
        with self._guard:
            if self.is_ended:
                raise self._closed_error("this client has been closed")
            future = asyncio.run_coroutine_threadsafe(self._limited(make_work(), timeout_s), self._started_loop())
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._closed_error("this client was closed meanwhile") from None
        finally:
            future.cancel()  # does nothing unless we were interrupted

    def end(self, make_last_work: Callable[[], Coroutine[Any, Any, None]], *, wait: bool = True) -> None:
        """Do this and stop. Later calls wait for the first; an interrupt cuts its work short."""
        if self._process_id not in (0, os.getpid()):
            return  # it is the parent's
        with self._guard:
            is_first = not self.is_ended
            self.is_ended = True
            if self._thread is None:
                return
            if is_first:
                self._ending = asyncio.run_coroutine_threadsafe(make_last_work(), self._asyncio_loop)
                self._ending.add_done_callback(lambda _: self._asyncio_loop.call_soon_threadsafe(self._may_end.set))
        if wait and self._ending is not None and self._thread is not threading.current_thread():
            try:
                self._ending.result()
            except concurrent.futures.CancelledError:
                pass  # by an interrupt, where somebody else waited
            finally:
                self._ending.cancel()
                self._thread.join()

    def end_soon(self) -> None:
        """Drop everything, without waiting for it: for clients that were forgotten."""
        if self._process_id == os.getpid() and not self.is_ended:
            self.is_ended = True
            self._asyncio_loop.call_soon_threadsafe(self._may_end.set)

    def _check_process(self) -> None:
        """Before the guard is touched: after a fork it may be held for ever."""
        if self._process_id not in (0, os.getpid()):
            raise RuntimeError(
                f"this client belongs to process {self._process_id} and does not survive fork: "
                "make another one in the child process"
            )
        if self._thread is threading.current_thread():
            raise RuntimeError("called in the client's own event loop, which cannot wait for itself: use emberq.client")

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._thread is None:
            self._asyncio_loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._process_id = os.getpid()
            self._thread.start()
        return self._asyncio_loop

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._asyncio_loop) as runner:
            runner.run(self._wait_for_end())

    async def _wait_for_end(self) -> None:
        await self._may_end.wait()

    async def _limited(self, work: Coroutine[Any, Any, _T], timeout_s: float | None) -> _T:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise self._timeout_error(f"not done within {timeout_s} s") from None
            raise
