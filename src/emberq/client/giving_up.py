"""What becomes of messages that came too often.

First the hook hears of it, then the body is published to the dead-letter topic, of the nsqd the message came from (that
one is certainly there), and only then the message is finished. If either fails the message is requeued and comes again:
it is never lost on the way. What the hook returns means what it means for a handler (see `verdict`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from emberq.client.connection import Connection
from emberq.client.error import BadReturnValue, HandlerDeclined, describe_error, ends_program
from emberq.client.message import Message
from emberq.client.observer import Observation, tell
from emberq.client.verdict import is_end_of, settle
from emberq.wire import command

OnGivingUp: TypeAlias = Callable[[Message], Awaitable[bool | None] | bool | None]
"""Called with a message that came too often, before it is finished. It may answer the message itself."""

log = logging.getLogger(__name__)


class GivingUp:
    """Gives up messages in the background, each in a task: there are no more of them than messages in flight."""

    def __init__(
        self,
        hook: OnGivingUp | None,
        *,
        dead_letter_topic: str,
        observation: Observation | None = None,
    ) -> None:
        self._hook = hook
        self._dead_letter_topic = dead_letter_topic
        self._observation = observation
        self._tasks: set[asyncio.Task[None]] = set()
        self.count = 0
        """Messages that were given up so far."""

    def begin(self, messages: Iterable[Message], connection: Connection) -> None:
        """Give up messages that came by `connection`."""
        for message in messages:
            task = asyncio.create_task(self._give_up(message, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Leave what is not done yet."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _give_up(self, message: Message, connection: Connection) -> None:
        task = asyncio.current_task()
        try:
            await self._tell(message, connection)
        except BaseException as error:
            if ends_program(error) or is_end_of(task, error):
                raise
            message.requeue(backoff=False)
            _log_failure(message, error)
        else:
            log.warning("gave up message %s after %d attempts", message.id.decode(), message.attempts - 1)
            self.count += 1
            message.finish()
            if self._observation is not None:
                observer, source = self._observation
                tell(observer.gave_up, message, source)

    async def _tell(self, message: Message, connection: Connection) -> None:
        if self._hook is not None:
            await settle(message, self._hook(message), function="on_giving_up")
        if self._dead_letter_topic and not message.is_answered:
            await connection.request(command.pub(self._dead_letter_topic, message.body))


def _log_failure(message: Message, error: BaseException) -> None:
    is_told_by_text = isinstance(error, HandlerDeclined | BadReturnValue)
    log.error(
        "message %s could not be given up and will come again: %s",
        message.id.decode(),
        describe_error(error),
        exc_info=None if is_told_by_text else error,
    )
