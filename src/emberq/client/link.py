"""One nsqd of a producer: its connection, its health, and batches with numbers.

**Health.** Whatever goes wrong ends the connection: nsqd closes it behind an error, and the producer closes it behind
an answer that did not come, because all later answers would have to come behind that one. So the health of an nsqd is
that of its connection:

    down       not connected; the next attempt is made after a delay that grows with the failures in a row
    on trial   connected again after a failure; gets one message at a time until it confirms one
    trusted    connected, and whatever it confirmed last came after its last failure

An nsqd that is down may have refused the client: its secret, a setting, or it is no nsqd at all. It is tried again like
any other, because an operator may mend that, but messages do not wait for it.

**Commands that nsqd may find too large** go by a connection of their own (see `limit`): nsqd closes the one by which it
got what it refuses. A connection that ended so tells nothing of nsqd's health, and the next one is made at once.

**Numbered batches**, so that none is stored twice. An idempotent producer has an id, and gives each batch for an nsqd a
number, in the order in which they are sent. nsqd takes a number that is not above the last one stored from this
producer for a batch that it has already. Hence the rules:

- A batch that was not confirmed is sent again with its number, to the same nsqd and to no other.
- When the connection is back, all batches that were not confirmed are sent again, in their order, before any new one:
  behind a later number, nsqd would drop what it never stored.
- A number is given at the moment of sending, with nothing in between that could let another batch pass.

A batch that is given up leaves a gap in the numbers, which does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

from emberq.base.task import RECONNECT_INTERVAL_S, Reminder
from emberq.client.config import ClientConfig, ReconnectDelay
from emberq.client.connection import Connection
from emberq.client.error import (
    AuthError,
    BadRequestError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    HandshakeError,
    MessageTooLargeError,
    NotExecutedError,
    NsqError,
    PublishError,
    RequestTimeoutError,
    cause_of,
)
from emberq.client.limit import INT32_BYTES, SizeLimits
from emberq.client.observer import Observer, Publication, tell

CONFIRMED = b"OK"
"""nsqd's answer to what it has stored."""

_REFUSALS = (AuthError, BadRequestError, HandshakeError)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NsqdHealth:
    """How things stand with one nsqd."""

    address: str
    is_connected: bool
    failures: int
    """In a row; 0 as soon as a message is confirmed."""
    pending_count: int
    """Messages sent to it and not confirmed yet; what was published together counts as one."""
    last_failure: BaseException | None
    timeouts: int = 0
    """Messages that it did not confirm in time, since the start."""
    late_answers: int = 0
    """Confirmations that came when the publisher had given up, by a cancelled call or by its timeout."""


class Link:
    """Keeps a producer connected to one nsqd. The producer calls `start` once and `stop` once.

    `on_change` is called when an attempt to connect has ended, well or not.
    """

    def __init__(
        self,
        address: str,
        config: ClientConfig,
        *,
        reconnect_delay: ReconnectDelay,
        random: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self.address = address
        self._config = config
        self._reconnect_delay = reconnect_delay
        self._random = random
        self._on_change = on_change
        self._connection: Connection | None = None
        self._failures = 0
        self._last_failure: BaseException | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._troubles = Reminder(RECONNECT_INTERVAL_S)
        self._was_connected = False
        self._timeout_count = 0
        self._late_count = 0
        """On connections that have ended."""
        self.limits = SizeLimits(address)
        self._suspect = asyncio.Lock()
        """Held by the one suspect that is under way."""
        self._connection_of_suspect: Connection | None = None
        self._is_stopped = False
        self._is_refused_command = False
        """Whether the connection ends because nsqd refused a command, which says nothing about its health."""
        self.refusal: NsqError | None = None
        """Why nsqd refused the client, if that is how the last attempt to connect ended."""
        observer = config.observer
        self._observer = observer
        self.publish: Callable[[bytes], Coroutine[Any, Any, None]] = (
            self._publish if observer is None else partial(self._publish_observed, observer)
        )
        """Send a PUB, MPUB or DPUB and wait until it is confirmed."""

    @property
    def health(self) -> NsqdHealth:
        connection = self._connection
        return NsqdHealth(
            address=self.address,
            is_connected=self.is_connected,
            failures=self._failures,
            pending_count=connection.pending_count if connection is not None else 0,
            last_failure=self._last_failure,
            timeouts=self._timeout_count,
            late_answers=self._late_count + (connection.late_count if connection is not None else 0),
        )

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def is_preferable(self) -> bool:
        """Whether a message can go here at once: trusted, or on trial with no message under way; and not jammed."""
        connection = self._connection
        return (
            connection is not None
            and connection.is_open
            and not (self._failures and connection.pending_count)
            and not connection.is_congested
        )

    # Life

    def start(self) -> None:
        self._keeper = asyncio.get_running_loop().create_task(self._stay_connected(), name=f"nsqd {self.address}")

    async def stop(self) -> None:
        """Send what has been written and disconnect; messages that are not confirmed by then raise `ClosedError`."""
        self._is_stopped = True
        connections = (self._connection, self._connection_of_suspect)
        if self._keeper is not None:
            self._keeper.cancel()  # first, or it would connect again
            await asyncio.wait([self._keeper])
        for connection in connections:
            if connection is not None:
                await connection.close()

    async def _stay_connected(self) -> None:
        while True:
            try:
                self._last_failure = await self._connect_until_lost()
                trouble = "lost nsqd"
            except Exception as failure:  # noqa: BLE001 - whatever it is, it must not end what keeps us connected
                self._last_failure = failure
                self.refusal = failure if isinstance(failure, _REFUSALS) else None
                self._on_change()
                trouble = "cannot connect to nsqd"
            if self._is_refused_command:
                self._is_refused_command = False
                log.info("nsqd %s refused a command and closed: %s; connecting again", self.address, self._last_failure)
                continue
            self._failures += 1
            delay_s = self._reconnect_delay.after(self._failures, random=self._random)
            self._warn(trouble, delay_s)
            await asyncio.sleep(delay_s)

    def _warn(self, trouble: str, delay_s: float) -> None:
        if not self._troubles.is_due(trouble):
            return
        failure = self._last_failure
        is_expected = failure is None or isinstance(failure, NsqError | OSError)
        log.warning(
            "%s %s: %s; trying again in %.1f s, attempt %d",
            trouble,
            self.address,
            cause_of(failure),
            delay_s,
            self._failures + 1,
            exc_info=None if is_expected else failure,
        )

    async def _connect_until_lost(self) -> BaseException | None:
        """Why the connection ended; raises if none came about."""
        lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def note_end(_: Connection, failure: BaseException | None) -> None:
            if not lost.done():
                lost.set_result(failure)

        log.debug("connecting to nsqd %s, attempt %d", self.address, self._failures + 1)
        self._connection = await Connection.open(self.address, self._config, on_close=note_end)
        self.refusal = None
        answer = self._connection.answer
        self.limits.told(max_msg_size=answer.max_msg_size, max_body_size=answer.max_body_size)
        self._troubles.forget("cannot connect to nsqd")
        log.info("connected to nsqd %s%s", self.address, " again" if self._was_connected else "")
        self._was_connected = True
        self._on_change()
        if self._observer is not None:
            tell(self._observer.connected, self.address)
        connection = self._connection
        failure = None
        try:
            failure = await lost
        finally:
            self._connection = None
            self._late_count += connection.late_count
            if self._observer is not None:
                tell(self._observer.disconnected, self.address, failure)
        return failure

    # Messages

    async def _publish(self, command: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise NotExecutedError(self.address, "not connected")
        if connection.is_congested:
            await connection.drain()
        if len(command) > self.limits.harmless_bytes and self._is_suspect(command):
            await self._publish_suspect(command)
            return
        try:
            await connection.submit(command, answer=CONFIRMED)
        except NsqError as failure:
            self._not_confirmed(connection, failure)
            raise
        self._failures = 0

    def _not_confirmed(self, connection: Connection, failure: BaseException) -> None:
        if isinstance(failure, RequestTimeoutError):
            self._timeout_count += 1
            connection.abort(failure)
        elif isinstance(failure, _REFUSALS):
            self._is_refused_command = True
            self._learn(failure)

    def _learn(self, failure: BaseException) -> None:
        if isinstance(failure, MessageTooLargeError):
            self.limits.refused(failure, now_s=asyncio.get_running_loop().time())

    def _is_suspect(self, command: bytes) -> bool:
        return self.limits.is_suspect(command, now_s=asyncio.get_running_loop().time())

    async def _publish_suspect(self, command: bytes) -> None:
        """Send what nsqd may find too large, by a connection of its own."""
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                await self._suspect.acquire()
        except TimeoutError:
            raise RequestTimeoutError(f"{self.address}: other large messages were not confirmed in time") from None
        try:
            self._is_suspect(command)  # by now it may be known that it is too large
            await self._publish_alone(command)
        finally:
            self._suspect.release()

    async def _publish_alone(self, command: bytes) -> None:
        try:
            connection = await Connection.open(self.address, self._config)
        except ConnectError as failure:
            raise NotExecutedError(self.address, failure.reason) from failure
        self._connection_of_suspect = connection
        try:
            if self._is_stopped:
                raise ClosedError("the producer was closed before the message could be sent")
            await connection.request(command, answer=CONFIRMED)
            self.limits.confirmed(command)
        except NsqError as failure:
            self._timeout_count += isinstance(failure, RequestTimeoutError)
            self._learn(failure)
            if isinstance(failure, ConnectionLostError):
                failure.add_note(f"its {len(command)} bytes are more than this nsqd has confirmed at a time so far")
            raise
        finally:
            self._connection_of_suspect = None
            await connection.close()

    def submit(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a PUB or MPUB behind all that was sent before; the confirmation to come.

        `NotExecutedError` at once if there is no connection, `MessageTooLargeError` if nsqd would refuse it. It does
        not wait for room: the caller bounds what it sends.
        """
        connection = self._connection
        if connection is None:
            raise NotExecutedError(self.address, "not connected")
        if len(command) > self.limits.harmless_bytes:
            self._is_suspect(command)  # a suspect is sent all the same: numbers keep their order
        began_s = asyncio.get_running_loop().time()
        answer = connection.submit(command, answer=CONFIRMED)
        answer.add_done_callback(partial(self._submitted, connection, command, began_s))
        return answer

    def _submitted(self, connection: Connection, command: bytes, began_s: float, answer: asyncio.Future[bytes]) -> None:
        failure = answer.exception()
        if failure is None:
            self._failures = 0
        else:
            self._not_confirmed(connection, failure)
        if self._observer is not None:
            publication = self._publication_in(command)
            duration_s = asyncio.get_running_loop().time() - began_s
            if failure is None:
                tell(self._observer.published, publication, duration_s=duration_s)
            elif isinstance(failure, Exception):
                tell(self._observer.publish_failed, publication, failure, duration_s=duration_s)

    async def _publish_observed(self, observer: Observer, command: bytes) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        publication = self._publication_in(command)
        try:
            await self._publish(command)
        except Exception as error:
            tell(observer.publish_failed, publication, error, duration_s=loop.time() - began_s)
            raise
        tell(observer.published, publication, duration_s=loop.time() - began_s)

    def _publication_in(self, command: bytes) -> Publication:
        return publication_in(command, address=self.address)._replace(is_enveloped=self._config.envelope)


def publication_in(command: bytes, *, address: str) -> Publication:
    """What a command publishes:

    PUB topic            ┐      int32 size, body
    DPUB topic defer_ms  ├ \\n  int32 size, body
    MPUB topic           ┘      int32 size, int32 count, then for each message: int32 size, body

    PUB and MPUB may have a number behind the topic.
    """
    line, _, content = command.partition(b"\n")
    name, topic, *_ = line.decode().split(" ")
    body_bytes = len(content) - INT32_BYTES
    if name != "MPUB":
        return Publication(topic, address, 1, body_bytes)
    count = int.from_bytes(content[INT32_BYTES : 2 * INT32_BYTES])
    return Publication(topic, address, count, body_bytes - INT32_BYTES * (1 + count))


# Numbered batches

MAX_UNCONFIRMED = 32
"""Batches under way at a time; the others wait. Enough to keep nsqd busy, and little enough to send all of it again."""

_RETRYABLE = (ConnectionLostError, RequestTimeoutError, PublishError)


class _NumberedBatch:
    """A batch that has its number."""

    __slots__ = ("attempts", "command", "confirmed", "failure")

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.attempts = 0
        self.failure: NsqError | None = None
        """How the last attempt ended."""


class NumberedPublisher:
    """Sends numbered batches to one nsqd. Owned by a producer, which tells it when the link has changed."""

    def __init__(self, link: Link, *, max_attempts: int) -> None:
        self._link = link
        self._max_attempts = max_attempts
        self._next_number = 0
        self._unconfirmed: dict[int, _NumberedBatch] = {}
        """In the order of their numbers."""
        self._room = asyncio.Semaphore(MAX_UNCONFIRMED)

    async def publish(self, encode: Callable[[int], bytes], *, deadline_s: float) -> None:
        """Send what `encode` makes of its number, and return when it is confirmed; a failure at the deadline if not."""
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._room.acquire()
        except TimeoutError:
            raise self._late() from None
        try:
            await self._publish(encode, deadline_s)
        finally:
            self._room.release()

    async def _publish(self, encode: Callable[[int], bytes], deadline_s: float) -> None:
        number = self._next_number
        self._next_number += 1
        batch = self._unconfirmed[number] = _NumberedBatch(encode(number))
        if self._link.is_connected:
            self._send(batch)
        try:
            async with asyncio.timeout_at(deadline_s):
                await batch.confirmed
        except NsqError:
            raise  # some of these are TimeoutErrors, too
        except TimeoutError:
            raise self._given_up(batch) from None
        finally:
            del self._unconfirmed[number]

    def _late(self) -> RequestTimeoutError:
        return RequestTimeoutError(f"{self._link.address}: not confirmed in the time for a message")

    def _given_up(self, batch: _NumberedBatch) -> NsqError:
        failure = batch.failure or self._late()
        failure.add_note(f"given up after attempt {batch.attempts}")
        return failure

    def link_changed(self) -> None:
        """An attempt to connect has ended."""
        refusal = self._link.refusal
        for batch in list(self._unconfirmed.values()):
            if self._link.is_connected:
                self._send(batch)
            elif refusal is not None:
                _fail(batch, copy(refusal))  # a copy for each: a traceback grows where it is raised

    def close(self) -> None:
        """Nothing is sent again."""
        for batch in self._unconfirmed.values():
            _fail(batch, ClosedError("the producer was closed before the message was confirmed"))

    def _send(self, batch: _NumberedBatch) -> None:
        batch.attempts += 1
        try:
            answer = self._link.submit(batch.command)
        except NsqError as failure:
            self._failed(batch, failure)
        else:
            answer.add_done_callback(partial(self._answered, batch))

    def _answered(self, batch: _NumberedBatch, answer: asyncio.Future[bytes]) -> None:
        failure = answer.exception()
        if failure is None:
            if not batch.confirmed.done():
                batch.confirmed.set_result(None)
        elif isinstance(failure, NsqError):
            self._failed(batch, failure)

    def _failed(self, batch: _NumberedBatch, failure: NsqError) -> None:
        """Any failure ends the connection; when there is another, the batch is sent again, if it may be."""
        batch.failure = failure
        if isinstance(failure, NotExecutedError):
            batch.attempts -= 1  # nsqd never saw it; its time bounds how often that may happen
        if not isinstance(failure, _RETRYABLE):
            _fail(batch, failure)
        elif batch.attempts >= self._max_attempts:
            _fail(batch, self._given_up(batch))


def _fail(batch: _NumberedBatch, failure: NsqError) -> None:
    if not batch.confirmed.done():
        batch.confirmed.set_exception(failure)
