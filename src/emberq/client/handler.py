"""Running the handler of a consumer: coroutine functions in the event loop, plain functions in threads.

- A handler that returns has done its work: the message is finished. One that raises has not: the message is requeued
  and the consumer backs off. A handler that answered the message itself is left alone.
- Plain functions run in threads of their own, so one that blocks holds up neither heartbeats nor other handlers.
- A coroutine function that never really waits would keep the event loop for as long as there are messages; after
  SLICE_NS the loop gets its turn.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from emberq.base.clock import NS_PER_MS, Clock
from emberq.client.inbox import Inbox
from emberq.client.message import Message

MAX_COROUTINES = 1000
MAX_THREADS = 32
"""Of one consumer that does not say otherwise. Threads cost memory; coroutines cost little, but each has a message."""

SLICE_NS = 10 * NS_PER_MS
"""Long enough that the turns of the loop cost nothing, short enough that nobody notices."""

Handler: TypeAlias = Callable[[Message], Any]
"""A coroutine function or a plain function of a message. What it returns is ignored."""
RetryDelay: TypeAlias = Callable[[Message, BaseException], float]
"""How many seconds a message stays away after its handler raised."""

log = logging.getLogger(__name__)


def is_coroutine_function(handler: Handler) -> bool:
    """Also for objects that can be called."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


class HandlerPool:
    """The tasks, and the threads if need be, that handle the messages of one consumer."""

    def __init__(
        self,
        handler: Handler,
        inbox: Inbox,
        *,
        concurrency: int,
        clock: Clock,
        retry_delay_s: RetryDelay | None = None,
    ) -> None:
        self._handler = handler
        self._inbox = inbox
        self._concurrency = concurrency
        self._clock = clock
        self._retry_delay_s = retry_delay_s
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to take messages from the inbox."""
        handle: Callable[[Message], Awaitable[Any]] = self._handler
        if not is_coroutine_function(self._handler):
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="emberq-handler")
            handle = self._in_thread
        self._tasks = [asyncio.create_task(self._work(handle)) for _ in range(self._concurrency)]

    @property
    def is_running_this_task(self) -> bool:
        """Whether it is a handler that asks."""
        return asyncio.current_task() in self._tasks

    async def stop(self) -> None:
        """Cancel the handlers that are still running. A plain function cannot be cancelled; its answer is ignored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self, handle: Callable[[Message], Awaitable[Any]]) -> None:
        slice_end_ns = self._clock.monotonic_ns() + SLICE_NS
        while (message := await self._inbox.get()) is not None:
            try:
                await handle(message)
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                self._failed(message, error)  # what the handler awaited was cancelled, not the handler
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the handler's; the next message is due
                self._failed(message, error)
            else:
                message.finish()
            if self._clock.monotonic_ns() > slice_end_ns:
                await asyncio.sleep(0)
                slice_end_ns = self._clock.monotonic_ns() + SLICE_NS

    async def _in_thread(self, message: Message) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, message)

    def _failed(self, message: Message, error: BaseException) -> None:
        log.warning("the handler failed on message %s", message.id.decode(), exc_info=error)
        message.requeue(self._delay_s(message, error))

    def _delay_s(self, message: Message, error: BaseException) -> float | None:
        if self._retry_delay_s is None:
            return None
        try:
            return self._retry_delay_s(message, error)
        except Exception:
            log.exception("the retry policy failed on message %s; the default delay is used", message.id.decode())
            return None


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def default_concurrency(handler: Handler, *, max_in_flight: int) -> int:
    """How many messages are handled at the same time unless the user says so."""
    return max(1, min(max_in_flight, MAX_COROUTINES if is_coroutine_function(handler) else MAX_THREADS))
