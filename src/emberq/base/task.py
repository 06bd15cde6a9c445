"""A loop in a thread, a line of tasks, a rate limit.

Tasks that wait to be called, first come first served.

No call is lost: who is cancelled before the call is passed over, and who is cancelled after it, before it could do
anything about it, calls the next instead.

An event loop in a thread of its own, for code that blocks: what `emberq.sync` stands on.

Any thread may have work done there and waits for it. Everything that is submitted is submitted before the end is, and
the loop works in that order; so every caller gets an answer, and none waits for a loop that has gone.

Holds a flow of messages down to a rate, with a bucket of tokens.

A message takes a token. Tokens come at the rate, evenly, and at most a second's worth is kept: whoever was slow may
catch up for that long, no more.

How often a trouble that lasts is worth a line in the log: at once, and then once in a while.

Retries come several times a second at first, and go on for days if need be.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import Any, TypeVar

from emberq.base.clock import NS_PER_SECOND, Clock


class WaitingLine(deque[asyncio.Future[None]]):
    """Owned by whoever has something to wait for. As a deque it is true while somebody waits, at no cost."""

    async def wait(self) -> None:
        """Until called."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self.remove(waiter)
            else:
                self.call_one()  # the call was for us, but we cannot answer it
            raise

    def call_one(self) -> None:
        """Call the one that has waited longest, if there is any."""
        while self:
            waiter = self.popleft()
            if not waiter.done():  # else it is cancelled, and its task only does not know yet
                waiter.set_result(None)
                return


_T = TypeVar("_T")


class LoopThread:
    """Begins with the first `run`, and ends once, with `end` or `end_soon`."""

    def __init__(
        self,
        name: str,
        *,
        closed_error: type[Exception] = RuntimeError,
        timeout_error: type[Exception] = TimeoutError,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """The errors are raised, with a text, where a caller cannot be served any more, or has waited long enough."""
        self._name = name
        self._new_loop = new_loop
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
            self._asyncio_loop = self._new_loop()
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


class RateLimiter:
    """A rate in messages a second, which must be above zero."""

    def __init__(self, rate: int, *, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = 1.0
        self._filled_at_ns = clock.monotonic_ns()

    def take(self, wanted: int) -> int:
        """How many of `wanted` messages may go now."""
        now_ns = self._clock.monotonic_ns()
        earned = (now_ns - self._filled_at_ns) / NS_PER_SECOND * self._rate
        self._filled_at_ns = now_ns
        self._tokens = min(self._tokens + earned, float(self._rate))
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    @property
    def wait_s(self) -> float:
        """How long after the last `take` there will be a token."""
        return max(0.0, (1.0 - self._tokens) / self._rate)


RECONNECT_INTERVAL_S = 60.0
"""Between two lines about an nsqd or nsqlookupd that cannot be reached: a trouble that an operator should look at."""
WAITING_INTERVAL_S = 600.0
"""Between two lines about a topic that no nsqd has yet: it may simply be early."""


class Reminder:
    """Used within an event loop, whose time it takes."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._told_s: dict[str, float] = {}
        """When each trouble was told last."""

    def is_due(self, trouble: str) -> bool:
        """Whether to tell of it now; if so, it is taken as told."""
        now_s = asyncio.get_running_loop().time()
        told_s = self._told_s.get(trouble)
        if told_s is not None and now_s - told_s < self._interval_s:
            return False
        self._told_s[trouble] = now_s
        return True

    def forget(self, trouble: str) -> bool:
        """It is over; whether it had been told."""
        return self._told_s.pop(trouble, None) is not None

    def keep(self, troubles: Collection[str]) -> None:
        """Forget all others."""
        self._told_s = {trouble: told_s for trouble, told_s in self._told_s.items() if trouble in troubles}
