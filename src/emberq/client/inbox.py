"""Where a consumer's messages wait to be handled.

Any number of tasks may take from an inbox. Its length is bounded by max_in_flight: nsqd sends no more until some are
answered.

Waking a task costs far more than handing over a message, so only one is woken when messages arrive. If it leaves some
behind, the next is woken one turn of the loop later, and so on: a task that never has to wait empties the inbox alone,
while tasks that do wait have all the company they need.

A message that can no longer be answered is dropped here, because nsqd brings it again anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from emberq.base.clock import Clock
from emberq.base.waiting_line import WaitingLine
from emberq.client.message import Batch, Message, unanswered


class Inbox:
    """The queue between the connections of a consumer and whoever handles the messages."""

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
        """Nothing more will come: who waits is told, what is here can still be taken."""
        self._is_closed = True
        while self._waiting:
            self._waiting.call_one()

    def take_all(self) -> list[Message]:
        """Everything, for somebody who does not handle it."""
        taken = list(self._messages)
        self._messages.clear()
        return taken

    async def get(self) -> Message | None:
        """The next message; None when the inbox is closed and empty."""
        while (message := self.get_nowait(self._clock.monotonic_ns())) is None and not self._is_closed:
            await self._waiting.wait()
        return message

    def get_nowait(self, now_ns: int) -> Message | None:
        """The next message if there is one. Who takes many need not look at the clock for each."""
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

    async def get_batch(self, *, max_size: int, max_wait_s: float) -> Batch:
        """What is there, at least one and up to `max_size`. For a full one it waits up to `max_wait_s` longer.

        Empty when the inbox is closed and empty.
        """
        batch = Batch()
        while not batch and not (self._is_closed and not self._messages):
            if not self._messages:
                await self._waiting.wait()
            self._fill(batch, max_size)
        if batch and len(batch) < max_size and max_wait_s > 0:
            await self._wait_for_more(batch, max_size=max_size, max_wait_s=max_wait_s)
        if self._waiting and self._messages:
            self._call_company()
        return batch

    async def _wait_for_more(self, batch: Batch, *, max_size: int, max_wait_s: float) -> None:
        try:
            async with asyncio.timeout(max_wait_s):
                while len(batch) < max_size and not self._is_closed:
                    await self._waiting.wait()
                    self._fill(batch, max_size)
        except TimeoutError:
            pass  # a batch that is not full is still a batch
        except asyncio.CancelledError:
            self._messages.extendleft(reversed(batch))  # nobody will get to see it, so somebody else must
            self._waiting.call_one()
            raise

    def _fill(self, batch: Batch, max_size: int) -> None:
        now_ns = self._clock.monotonic_ns()
        messages = self._messages
        while messages and len(batch) < max_size:
            taken = [messages.popleft() for _ in range(min(len(messages), max_size - len(batch)))]
            for message in taken:
                if message.deadline_ns <= now_ns:
                    message.abandon()
            batch += unanswered(taken)

    def _call_company(self) -> None:
        if not self._is_wake_due:
            self._is_wake_due = True
            asyncio.get_running_loop().call_soon(self._company)

    def _company(self) -> None:
        self._is_wake_due = False
        if self._messages:
            self._waiting.call_one()
