"""One connection of a consumer: unanswered messages, their answers, and giving up.

**Answers.** Before an answer is sent the consumer hears of its outcome, so that a change of RDY goes out ahead of it:
nsqd may send the next message as soon as it reads the answer. When the connection ends, all its messages count as
answered: nsqd delivers them again, here or to another consumer. `ObservedSubscription` tells an observer of requeues;
consumers without an observer do not pay for it.

**What nsqd may send** is what it was asked for by RDY, and memory is bounded by that and by bytes.

    before the first RDY     not one message
    count of unanswered      OVERSHOOT times the highest RDY of this connection, and EXTRA_MESSAGES. An nsqd that sends
                             more is hostile, and the connection is given up. An honest one keeps to RDY as it knows
                             it: it may not have read yet that RDY was lowered, it may have emptied the channel, and it
                             no longer counts a message that timed out there, but has just arrived here. A message that
                             has timed out here too does not count.
    bytes of unanswered      `max_in_flight_bytes`. Nothing is wrong if there are more: the messages are large. No more
                             is read until some are answered, so nsqd has to wait.

The bytes are added up only when so much has arrived since the last time that the limit could have been reached; so this
costs nothing for each message.

**Giving up** (`DeadLetterPublisher`) on messages that came too often. First the hook `on_giving_up` hears of it, then
the body is published to the dead-letter topic of the nsqd the message came from (that one is certainly there), and only
then the message is finished. If either fails the message is requeued and comes again: it is never lost on the way. What
the hook returns means what it means for a handler (see `verdict`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from threading import get_ident
from typing import Any, TypeAlias

from emberq.base.clock import NS_PER_MS, Clock
from emberq.client.backoff import MessageOutcome
from emberq.client.config import ConsumerConfig
from emberq.client.connection import Connection
from emberq.client.error import BadReturnValueError, HandlerDeclinedError, describe_error, ends_program
from emberq.client.limit import SizeLimits
from emberq.client.message import Message, OpenedMessage, deadline_ns, id_text
from emberq.client.observer import Observation, ObservedChannel, tell
from emberq.client.rdy import Share
from emberq.client.verdict import is_end_of, settle
from emberq.wire import command
from emberq.wire.frame import MessageFields

TOUCHES_PER_TIMEOUT = 4
"""How often messages are looked through for those that need a TOUCH; a message gets one in the second half of its
time, so even when one look is missed there is another."""

OVERSHOOT = 2
EXTRA_MESSAGES = 32
"""For small RDYs: a loop that was held up finds what nsqd sent again after each timeout, all at once."""
MESSAGE_BYTES = 1024 * 1024
"""What a message may have unless nsqd is told otherwise (--max-msg-size); so much is allowed for each of RDY."""
LEAST_MAX_IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""For small RDYs: as much as one frame may have by default."""

_SUCCESS = MessageOutcome.SUCCESS
"""Looked up once: in an Enum that takes as long as a call, and it is needed for every message."""

log = logging.getLogger(__name__)


def allowed_count(highest_rdy: int) -> int:
    """How many unanswered messages an nsqd may have sent that was never asked for more than this at a time."""
    return OVERSHOOT * highest_rdy + EXTRA_MESSAGES if highest_rdy else 0


class Subscription:
    """Owned by the consumer's event loop. `finish`, `requeue` and `touch` may be called from any thread."""

    def __init__(
        self,
        connection: Connection,
        share: Share,
        *,
        config: ConsumerConfig,
        clock: Clock,
        on_outcome: Callable[[MessageOutcome], None],
        opens_envelopes: bool = False,
    ) -> None:
        self.connection = connection
        self.share = share
        self.address = connection.address
        self.msg_timeout_ms = connection.answer.msg_timeout_ms
        self._make_message = OpenedMessage if opens_envelopes else Message
        self.in_flight: set[Message] = set()
        self._config = config
        self._clock = clock
        self._on_outcome = on_outcome
        self._loop = asyncio.get_running_loop()
        self._thread_id = get_ident()
        self._finished: list[Message] = []
        """In this turn of the loop; their FINs leave at its end, together."""
        self._is_empty: asyncio.Future[None] | None = None
        """There while `finish_up` waits for the last answer."""
        self._highest_rdy = 0
        self._allowed_count = 0
        self._measured_at_bytes = connection.received_bytes
        """How much had arrived when the bytes in flight were last added up."""
        self._room_bytes = 0
        """How much more could arrive then."""
        self._is_reading_paused = False
        self.timed_out_count = 0
        """Messages whose time was over before they were taken from the inbox."""
        self._is_closing = False
        """Whether nsqd was told CLS."""
        self._touch_timer: asyncio.TimerHandle | None = None
        if config.auto_touch:
            self._schedule_touches()

    def receive(self, received: list[MessageFields]) -> list[Message]:
        """The messages for the fields that arrived; they are in flight from now on. None if nsqd may not send them."""
        now_ns = self._clock.monotonic_ns()
        if len(self.in_flight) + len(received) > self._allowed_count and self._is_too_many(len(received), now_ns):
            count = len(self.in_flight) + len(received)
            self.connection.refuse(f"{count} messages are unanswered, and no RDY was above {self._highest_rdy}")
            return []
        due_ns = deadline_ns(now_ns=now_ns, msg_timeout_ms=self.msg_timeout_ms)
        make_message = self._make_message
        messages = [make_message(each, self, due_ns) for each in received]
        self.in_flight.update(messages)
        self.share.received(len(messages), now_ns=now_ns)
        if self.connection.received_bytes - self._measured_at_bytes > self._room_bytes:
            self._measure()
        return messages

    def send_rdy(self, count: int) -> None:
        if self.connection.is_open:
            self._highest_rdy = max(self._highest_rdy, count)
            self._allowed_count = allowed_count(self._highest_rdy)
            self.connection.send(command.rdy(count))

    # What nsqd may send

    def _is_too_many(self, arrived_count: int, now_ns: int) -> bool:
        live = sum(1 for message in self.in_flight if message.deadline_ns > now_ns)
        return live + arrived_count > self._allowed_count

    @property
    def _max_in_flight_bytes(self) -> int:
        return self._config.max_in_flight_bytes or max(LEAST_MAX_IN_FLIGHT_BYTES, self._highest_rdy * MESSAGE_BYTES)

    def _measure(self) -> None:
        """Add up the bytes in flight, and read on or not."""
        self._measured_at_bytes = self.connection.received_bytes
        self._room_bytes = self._max_in_flight_bytes - sum(len(message.body) for message in self.in_flight)
        if self._room_bytes < 0 and not self._is_reading_paused and self.connection.is_open:
            log.warning(
                "nsqd %s has to wait: %d unanswered messages are more than %d bytes (max_in_flight_bytes)",
                self.address,
                len(self.in_flight),
                self._max_in_flight_bytes,
            )
            self._is_reading_paused = True
            self.connection.pause_reading()
        elif self._room_bytes >= 0 and self._is_reading_paused:
            self._is_reading_paused = False
            self.connection.resume_reading()

    # Answers

    def finish(self, messages: list[Message]) -> None:
        if get_ident() != self._thread_id:  # not by way of _in_loop: this is done for every message
            self._loop.call_soon_threadsafe(self.finish, messages)
            return
        self.in_flight.difference_update(messages)
        if self.connection.is_open:
            self._on_outcome(_SUCCESS)
            if not self._finished:
                self._loop.call_soon(self._send_fins)
            self._finished += messages

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        self._in_loop(lambda: self._requeue(message, delay_s=delay_s, backoff=backoff))

    def touch(self, message: Message) -> None:
        self._in_loop(lambda: self._touch([message]))

    def abandon(self, message: Message) -> None:
        self._in_loop(lambda: self._abandon(message))

    def _abandon(self, message: Message) -> None:
        self.timed_out_count += 1
        self._forget(message)

    def _in_loop(self, action: Callable[[], None]) -> None:
        if get_ident() == self._thread_id:
            action()
        else:
            self._loop.call_soon_threadsafe(action)

    def _send_fins(self) -> None:
        if self._finished and self.connection.is_open:
            self.connection.send(command.fin([message.id for message in self._finished]))
        self._finished.clear()
        self._tell_of_room()

    def _requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        if self.connection.is_open:
            self._send_fins()  # answers leave in the order in which they were given
            self._on_outcome(MessageOutcome.FAILURE if backoff else MessageOutcome.CONTINUE)
            if delay_s is None:
                delay_s = self._config.default_requeue_delay_s * message.attempts
            delay_s = min(max(delay_s, 0.0), self._config.max_requeue_delay_s)
            self.connection.send(command.req(message.id, timeout_ms=int(delay_s * 1000)))
        self._forget(message)

    def _touch(self, messages: Iterable[Message]) -> None:
        due_ns = deadline_ns(now_ns=self._clock.monotonic_ns(), msg_timeout_ms=self.msg_timeout_ms)
        for message in messages:
            if self.connection.is_open and not self.connection.is_congested and not message.is_answered:
                self.connection.send(command.touch(message.id))
                message.deadline_ns = due_ns

    def _schedule_touches(self) -> None:
        delay_s = self.msg_timeout_ms / 1000 / TOUCHES_PER_TIMEOUT
        self._touch_timer = self._loop.call_later(delay_s, self._touch_those_that_need_it)

    def _touch_those_that_need_it(self) -> None:
        soon_ns = self._clock.monotonic_ns() + self.msg_timeout_ms * NS_PER_MS // 2
        self._touch([message for message in self.in_flight if message.deadline_ns < soon_ns])
        self._schedule_touches()

    # The end

    def _forget(self, message: Message) -> None:
        self.in_flight.discard(message)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        if self._is_reading_paused:
            self._measure()
        self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        if self._is_empty is not None and not self.in_flight and not self._is_empty.done():
            self._is_empty.set_result(None)

    async def finish_up(self) -> None:
        """Ask nsqd for nothing more, and wait until every message is answered."""
        self._is_closing = True
        await self.connection.request(command.CLS, answer=b"CLOSE_WAIT")
        if self.in_flight:
            self._is_empty = self._loop.create_future()
            await self._is_empty

    def give_back(self) -> None:
        """Requeue what is not answered, now that it will not be: otherwise nsqd waits for each to time out."""
        if self.in_flight and not self._is_closing:
            self.send_rdy(0)  # or nsqd would send here again what is given back; behind CLS it sends nothing
        for message in list(self.in_flight):
            message.requeue(0, backoff=False)

    def ended(self) -> None:
        """The connection is gone."""
        if self._touch_timer is not None:
            self._touch_timer.cancel()
        for message in self.in_flight:
            message.is_answered = True
        self.in_flight.clear()
        self._tell_if_empty()


class ObservedSubscription(Subscription):
    """A subscription that tells an observer of its requeues."""

    def __init__(self, *args: Any, observation: Observation, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observation = observation

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        super().requeue(message, delay_s=delay_s, backoff=backoff)
        observer, source = self._observation
        tell(observer.requeued, message, source)


# Giving up

OnGivingUp: TypeAlias = Callable[[Message], Awaitable[bool | None] | bool | None]
"""Called with a message that came too often, before it is finished. It may answer the message itself."""


class DeadLetterPublisher:
    """Gives up messages in the background, each in a task: there are no more of them than messages in flight."""

    def __init__(
        self,
        hook: OnGivingUp | None,
        *,
        source: ObservedChannel,
        dead_letter_topic: str,
        observation: Observation | None = None,
    ) -> None:
        self._hook = hook
        self._source = source
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
        """Cancel what is not done yet; those messages come again."""
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
            log.warning(
                "gave up message %s of %s from nsqd %s after %d attempts%s",
                id_text(message.id),
                self._source,
                message.address,
                message.attempts - 1,
                f"; it is in topic {self._dead_letter_topic}" if self._dead_letter_topic else "",
            )
            self.count += 1
            message.finish()
            if self._observation is not None:
                observer, source = self._observation
                tell(observer.gave_up, message, source)

    async def _tell(self, message: Message, connection: Connection) -> None:
        if self._hook is not None:
            await settle(message, self._hook(message), function="on_giving_up")
        if self._dead_letter_topic and not message.is_answered:
            limit_bytes = connection.answer.max_msg_size
            body = message.as_published
            if 0 < limit_bytes < len(body):  # nsqd takes less than when it stored the message
                raise SizeLimits(connection.address).too_large(len(body), limit_bytes)
            await connection.request(command.pub(self._dead_letter_topic, body), answer=b"OK")


def _log_failure(message: Message, error: BaseException) -> None:
    is_told_by_text = isinstance(error, HandlerDeclinedError | BadReturnValueError)
    log.error(
        "message %s could not be given up and will come again: %s",
        id_text(message.id),
        describe_error(error),
        exc_info=None if is_told_by_text else error,
    )
