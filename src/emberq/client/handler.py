"""From the connections of a consumer to its handler: the inbox, and the tasks that empty it.

**Inbox.** Any number of tasks may take from it. Its length is bounded by max_in_flight: nsqd sends no more until some
messages are answered. Waking a task costs far more than handing over a message, so only one is woken when messages
arrive. If it leaves some behind, the next is woken one turn of the loop later, and so on: a task that never has to wait
empties the inbox alone, while tasks that do wait are joined by others. A message that can no longer be answered is
dropped here, because nsqd brings it again anyway.

**Handlers.** Each task calls the handler for one message after the other; where it runs, and what happens when it takes
too long, is told in `worker`.

- A handler that returns has done its work: the message is finished. A handler has failed when it raises, returns False
  or a value that means nothing (see `verdict`), takes too long, or takes its process with it: then the message is
  requeued and the consumer backs off. A handler that answered the message itself is left alone.
- Nothing that a handler, a retry policy or an observer does ends a task: the next message is due.
- A coroutine function that never really waits would keep the event loop for as long as there are messages; after
  SLICE_NS the loop gets its turn.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeAlias

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.task import WaitingLine
from emberq.client.argument import delay_in_seconds
from emberq.client.error import BadReturnValueError, HandlerDeclinedError, HandlerTimeoutError, ends_program
from emberq.client.message import Message, MessageBatch, id_text, unanswered
from emberq.client.observer import Observation, tell
from emberq.client.verdict import is_end_of, settle
from emberq.client.worker import HandlerRunner

# The inbox


class Inbox:
    """The queue between the connections of a consumer and the tasks that take its messages."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: deque[Message] = deque()
        self._waiting = WaitingLine()
        self._is_wake_due = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)
        self._waiting.call_one()

    def close(self) -> None:
        """Nothing more will come: tasks that wait are told so; what is here can still be taken."""
        self._is_closed = True
        while self._waiting:
            self._waiting.call_one()

    def take_all(self) -> list[Message]:
        """All messages, to be given back instead of handled."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    async def get(self) -> Message | None:
        """The next message; None when the inbox is closed and empty."""
        while (message := self.get_nowait(self._clock.monotonic_ns())) is None and not self._is_closed:
            await self._waiting.wait()
        return message

    def get_nowait(self, now_ns: int) -> Message | None:
        """The next message if there is one. A caller that takes many need not read the clock for each."""
        messages = self._messages
        while messages:
            message = messages.popleft()
            if message.deadline_ns <= now_ns:
                message.abandon()
            if not message.is_answered:
                if self._waiting and messages:
                    self._call_company()
                return message
        return None

    async def get_batch(self, *, max_size: int, max_wait_s: float) -> MessageBatch:
        """What is there, at least one and up to `max_size`. For a full one it waits up to `max_wait_s` longer.

        Empty when the inbox is closed and empty.
        """
        batch = MessageBatch()
        while not batch and not (self._is_closed and not self._messages):
            if not self._messages:
                await self._waiting.wait()
            self._fill(batch, max_size)
        if batch and len(batch) < max_size and max_wait_s > 0:
            await self._wait_for_more(batch, max_size=max_size, max_wait_s=max_wait_s)
        if self._waiting and self._messages:
            self._call_company()
        return batch

    async def _wait_for_more(self, batch: MessageBatch, *, max_size: int, max_wait_s: float) -> None:
        try:
            async with asyncio.timeout(max_wait_s):
                while len(batch) < max_size and not self._is_closed:
                    await self._waiting.wait()
                    self._fill(batch, max_size)
        except TimeoutError:
            pass  # a batch that is not full is still a batch
        except asyncio.CancelledError:
            self._messages.extendleft(reversed(batch))  # the caller is gone, so another task gets it
            self._waiting.call_one()
            raise

    def _fill(self, batch: MessageBatch, max_size: int) -> None:
        now_ns = self._clock.monotonic_ns()
        messages = self._messages
        while messages and (room := max_size - len(batch)) > 0:
            if len(messages) <= room:  # the usual case, without a look at each
                taken = list(messages)
                messages.clear()
            else:
                taken = [messages.popleft() for _ in range(room)]
            if min([message.deadline_ns for message in taken]) <= now_ns:
                _abandon_overdue(taken, now_ns)
            batch += unanswered(taken)

    def _call_company(self) -> None:
        if not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._company)

    def _company(self) -> None:
        self._is_wake_due = False
        if self._messages:
            self._waiting.call_one()


def _abandon_overdue(messages: list[Message], now_ns: int) -> None:
    for message in messages:
        if message.deadline_ns <= now_ns:
            message.abandon()


# The tasks that call the handler

SLICE_NS = 10 * NS_PER_MS
"""Long enough that the turns of the loop cost nothing, short enough that other tasks hardly wait."""

RetryDelay: TypeAlias = Callable[[Message, BaseException], float | timedelta | None]
"""How long a message stays away after its handler failed: seconds, a `timedelta`, or None for the default delay."""

_Run: TypeAlias = Callable[[Message], Awaitable[Any]]

log = logging.getLogger(__name__)


class HandlerPool:
    """The tasks that handle the messages of one consumer, one for each slot."""

    def __init__(
        self,
        slots: Sequence[HandlerRunner],
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
        self._tasks = [asyncio.create_task(self._keep_working(slot)) for slot in self._slots]

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

    async def _keep_working(self, slot: HandlerRunner) -> None:
        """What goes wrong beside the handler (a log that cannot be written, say) costs a message its answer at most.
        Then it comes again, and the slot goes on."""
        while True:
            try:
                await self._work(slot)
            except Exception as error:  # noqa: BLE001 - told where the event loop tells such things
                problem = {"message": "a message may have been left unanswered", "exception": error}
                asyncio.get_running_loop().call_exception_handler(problem)
            else:
                return

    async def _work(self, slot: HandlerRunner) -> None:
        run = slot.run
        if self._observation is not None:
            run = functools.partial(self._run_observed, run, self._observation)
        inbox, clock = self._inbox, self._clock
        now_ns = clock.monotonic_ns()
        slice_end_ns = now_ns + SLICE_NS
        task = asyncio.current_task()
        while (message := inbox.get_nowait(now_ns) or await inbox.get()) is not None:
            try:
                returned = await run(message)
                if returned is not None:
                    await settle(message, returned)
            except BaseException as error:
                if is_end_of(task, error):
                    raise
                self._failed(message, error)
                if ends_program(error):
                    raise
                if isinstance(error, HandlerTimeoutError):
                    await slot.recover()
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
        task = asyncio.current_task()
        try:
            await _run_within(observer.handling(message, source), run, message)
        except BaseException as error:
            if not is_end_of(task, error):
                tell(observer.failed, message, source, error, duration_s=self._seconds_since(began_ns))
            raise
        tell(observer.handled, message, source, duration_s=self._seconds_since(began_ns))

    def _seconds_since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / NS_PER_SECOND

    def _failed(self, message: Message, error: BaseException) -> None:
        message_id = id_text(message.id)
        message.requeue(self._delay_s(message, error))
        if isinstance(error, HandlerDeclinedError):
            log.warning("the handler returned False for message %s, which will come again", message_id)
        elif isinstance(error, BadReturnValueError):
            log.error("message %s will come again: %s", message_id, error)
        else:
            log.warning("the handler failed on message %s", message_id, exc_info=error)

    def _delay_s(self, message: Message, error: BaseException) -> float | None:
        if self._retry_delay_s is None:
            return None
        try:
            delay = self._retry_delay_s(message, error)
            return None if delay is None else delay_in_seconds("retry_delay_s", delay)
        except BaseException as failure:
            if ends_program(failure):
                raise
            log.exception("the retry policy failed on message %s; the default delay is used", id_text(message.id))
            return None


async def _run_within(context: AbstractContextManager[object], run: _Run, message: Message) -> None:
    """Handle a message within a context, which may swallow what the handler raises; we raise it all the same."""
    failure: BaseException | None = None
    with context:
        try:
            await settle(message, await run(message))
        except BaseException as error:
            failure = error
            raise
    if failure is not None:
        raise failure
