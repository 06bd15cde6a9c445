"""Tasks, loops and threads: an event loop, a line of waiting tasks, an event loop in a thread, a rate limit, reminders.

`new_event_loop`: the fastest event loop that this platform has.

`WaitingLine`: tasks that wait to be called, first come first served. No call is lost. A task that is cancelled before
its call is passed over; one that is cancelled after it, before it could act on it, calls the next instead.

`LoopThread`: an event loop in a thread of its own, for code that blocks; `emberq.sync` stands on it. Any thread may
have work done there and waits for it. All work is submitted before the end is, and the loop works in that order; so
every caller gets an answer, and none waits for a loop that has gone.

`RateLimiter`: holds a flow of messages down to a rate, with a bucket of tokens. A message takes a token. Tokens come at
the rate, evenly, and at most a second's worth is kept: so long a slow sender may catch up, no more.

`Reminder`: how often a trouble that lasts is logged: at once, and then once in a while. Retries come several times a
second at first, and may go on for days.
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


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one, which is everywhere but on Windows; else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    found: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return found


class WaitingLine(deque[asyncio.Future[None]]):
    """Waiting tasks. Owned by the object they wait for. As a deque it is true while a task waits, at no cost."""

    async def wait(self) -> None:
        """Return when called."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self.remove(waiter)
            else:
                self.call_one()  # the call was for this task, which cannot act on it
            raise

    def call_one(self) -> None:
        """Call the one that has waited longest, if there is any."""
        while self:
            waiter = self.popleft()
            if not waiter.done():  # else it is cancelled, and its task does not know yet
                waiter.set_result(None)
                return


_T = TypeVar("_T")


async def _nothing() -> None:
    pass


class LoopThread:
    """An event loop in a thread: `run` is for callers that block, `ask` for those that await in a loop of their own.

    It begins with the first of these, and ends once, with `end` or `end_soon`.
    """

    def __init__(
        self,
        name: str,
        *,
        closed_error: type[Exception] = RuntimeError,
        timeout_error: type[Exception] = TimeoutError,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """`closed_error` is raised when the loop has ended, `timeout_error` when work takes longer than allowed."""
        self._name = name
        self._new_loop = new_loop
        self._closed_error = closed_error
        self._timeout_error = timeout_error
        self._guard = threading.RLock()
        """For the attributes below. Reentrant, because a signal handler may call `end` in the midst of anything."""
        self._process_id = 0
        """The process that has the thread; 0 as long as there is none."""
        self._thread: threading.Thread | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop
        """Set together with the thread, as is the task below."""
        self._ending: asyncio.Task[None]
        """Waits for the end and does the last work; the loop stops when it is done."""
        self._make_last_work: Callable[[], Coroutine[Any, Any, None]] = _nothing
        self._may_end = asyncio.Event()
        self._has_ended = threading.Event()
        self.is_ended = False
        """Whether no more work is taken."""

    def run(self, make_work: Callable[[], Coroutine[Any, Any, _T]], *, timeout_s: float | None = None) -> _T:
        """What the work returns or raises; the `closed_error` if the loop has ended, or ends meanwhile."""
        if self.is_current:
            raise RuntimeError("called in the client's own event loop, which cannot wait for itself: use emberq.client")
        future = self._submit(lambda: self._limited(make_work(), timeout_s))
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._closed_error("this client was closed meanwhile") from None
        finally:
            future.cancel()  # does nothing unless we were interrupted

    async def ask(self, make_work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """What the work returns or raises; the `closed_error` if the loop has ended, cancelled if it ends meanwhile.

        The work may call this, too: then it is awaited where it is.
        """
        if self.is_current:
            return await make_work()
        return await asyncio.wrap_future(self._submit(make_work))

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread."""
        return self._thread is threading.current_thread()

    def end(self, make_last_work: Callable[[], Coroutine[Any, Any, None]] = _nothing, *, wait: bool = True) -> None:
        """Do this and stop, and drop what is not done by then.

        Later calls wait for the first; an interrupt cuts its work short.
        """
        if self._process_id not in (0, os.getpid()):
            return  # it is the parent's
        with self._guard:
            if not self.is_ended:
                self._make_last_work = make_last_work
                self.is_ended = True
            if self._thread is None:
                return
        if not wait or self.is_current:
            self._call_soon(self._may_end.set)
            return
        try:
            self._call_soon(self._may_end.set)
            self._has_ended.wait()  # not join: Python 3.11 takes a thread for ended when its join is interrupted
        except BaseException:  # an interrupt
            self._call_soon(self._ending.cancel)
            self._has_ended.wait()
            raise
        finally:
            self._thread.join()
        if not self._ending.cancelled():  # by an interrupt, in another thread that waited
            self._ending.result()

    def _call_soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
            self._asyncio_loop.call_soon_threadsafe(call)

    def end_soon(self) -> None:
        """Drop everything, without waiting for it: for clients that were never closed."""
        if self._process_id == os.getpid() and not self.is_ended:
            self.is_ended = True
            self._call_soon(self._may_end.set)

    def _check_process(self) -> None:
        """Called before the guard is taken: after a fork it may be held for ever."""
        if self._process_id not in (0, os.getpid()):
            raise RuntimeError(
                f"this client belongs to process {self._process_id} and does not survive fork: "
                "make another one in the child process"
            )

    def _submit(self, make_work: Callable[[], Coroutine[Any, Any, _T]]) -> concurrent.futures.Future[_T]:
        self._check_process()
        with self._guard:
            if self.is_ended:
                raise self._closed_error("this client has been closed")
            return asyncio.run_coroutine_threadsafe(make_work(), self._started_loop())

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._thread is None:
            self._asyncio_loop = self._new_loop()
            self._ending = self._asyncio_loop.create_task(self._do_last_work())
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._process_id = os.getpid()
            self._thread.start()
        return self._asyncio_loop

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._asyncio_loop) as runner:
                runner.run(self._wait_for_end())
        finally:
            self._has_ended.set()

    async def _wait_for_end(self) -> None:
        await asyncio.wait([self._ending])

    async def _do_last_work(self) -> None:
        await self._may_end.wait()
        await self._make_last_work()

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
"""Between two log lines about an nsqd or nsqlookupd that cannot be reached, which an operator should look at."""
WAITING_INTERVAL_S = 600.0
"""Between two log lines about a topic that no nsqd has yet, which may be no trouble at all."""


class Reminder:
    """Tells whether a trouble is to be logged again. Used within an event loop, by whose clock it goes."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._told_s: dict[str, float] = {}
        """When each trouble was logged last."""

    def is_due(self, trouble: str) -> bool:
        """Whether to log the trouble now; if so, it counts as logged."""
        now_s = asyncio.get_running_loop().time()
        told_s = self._told_s.get(trouble)
        if told_s is not None and now_s - told_s < self._interval_s:
            return False
        self._told_s[trouble] = now_s
        return True

    def forget(self, trouble: str) -> bool:
        """The trouble is over; whether it had been logged."""
        return self._told_s.pop(trouble, None) is not None

    def keep(self, troubles: Collection[str]) -> None:
        """Forget all troubles but these."""
        self._told_s = {trouble: told_s for trouble, told_s in self._told_s.items() if trouble in troubles}
