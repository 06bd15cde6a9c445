"""Running the handler of a consumer, for one message after the other in each of its slots.

- A handler that returns has done its work: the message is finished. One that raises, takes too long or takes its
  process with it has not: the message is requeued and the consumer backs off. A handler that answered the message
  itself is left alone.
- Where handlers run, and what becomes of those that take too long, is told in `slot`.
- A coroutine function that never really waits would keep the event loop for as long as there are messages; after
  SLICE_NS the loop gets its turn.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.client.error import HandlerTimeout
from emberq.client.inbox import Inbox
from emberq.client.message import Message
from emberq.client.observer import Observation, tell
from emberq.client.slot import Slot

SLICE_NS = 10 * NS_PER_MS
"""Long enough that the turns of the loop cost nothing, short enough that nobody notices."""

RetryDelay: TypeAlias = Callable[[Message, BaseException], float]
"""How many seconds a message stays away after its handler raised."""

_Run: TypeAlias = Callable[[Message], Awaitable[Any]]

log = logging.getLogger(__name__)


class HandlerPool:
    """The tasks that handle the messages of one consumer, one for each slot."""

    def __init__(
        self,
        slots: Sequence[Slot],
        inbox: Inbox,
        *,
        clock: Clock,
        retry_delay_s: RetryDelay | None = None,
        observation: Observation | None = None,
    ) -> None:
        self._slots = slots
        self._inbox = inbox
        self._clock = clock
        self._retry_delay_s = retry_delay_s
        self._observation = observation
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to take messages from the inbox."""
        self._tasks = [asyncio.create_task(self._work(slot)) for slot in self._slots]

    @property
    def is_running_this_task(self) -> bool:
        """Whether it is a handler that asks."""
        return asyncio.current_task() in self._tasks

    async def stop(self) -> None:
        """Cancel the handlers that are still running. A thread cannot be cancelled; what it does is ignored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.close() for slot in self._slots))

    async def _work(self, slot: Slot) -> None:
        run = slot.run
        if self._observation is not None:
            run = functools.partial(self._run_observed, run, self._observation)
        inbox, clock = self._inbox, self._clock
        now_ns = clock.monotonic_ns()
        slice_end_ns = now_ns + SLICE_NS
        while (message := inbox.get_nowait(now_ns) or await inbox.get()) is not None:
            try:
                await run(message)
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                self._failed(message, error)  # what the handler awaited was cancelled, not the handler
            except HandlerTimeout as error:
                self._failed(message, error)
                await slot.recover()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the handler's; the next message is due
                self._failed(message, error)
            else:
                message.finish()
            now_ns = clock.monotonic_ns()
            if now_ns > slice_end_ns:
                await asyncio.sleep(0)
                now_ns = clock.monotonic_ns()
                slice_end_ns = now_ns + SLICE_NS

    async def _run_observed(self, run: _Run, observation: Observation, message: Message) -> None:
        observer, source = observation
        began_ns = self._clock.monotonic_ns()
        try:
            with observer.handling(message, source):
                await run(message)
        except BaseException as error:
            if not _is_being_cancelled():
                tell(observer.failed, message, source, error, duration_s=self._seconds_since(began_ns))
            raise
        tell(observer.handled, message, source, duration_s=self._seconds_since(began_ns))

    def _seconds_since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_SECOND

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
