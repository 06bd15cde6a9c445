"""Keeps a producer connected to one nsqd, and knows how far that nsqd is to be trusted.

Whatever goes wrong ends the connection: nsqd closes it behind an error, and we close it behind an answer that did not
come, because all later answers would have to come behind that one. So the health of an nsqd is that of its connection:

    down       not connected; the next attempt is made after a delay that grows with the failures in a row
    on trial   connected again after a failure; gets one message at a time until it confirms one
    trusted    connected, and whatever it confirmed last came after its last failure

An nsqd that is down may have refused us: the secret, a setting, or it is no nsqd at all. It is tried again like any
other, because somebody may mend that, but there is no point in waiting for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.error import (
    AuthRefused,
    BadRequest,
    ConnectionLost,
    HandshakeFailed,
    NsqError,
    RequestTimeout,
    cause_of,
)
from emberq.client.observer import Observer, Publication, tell
from emberq.client.reminder import RECONNECT_INTERVAL_S, Reminder
from emberq.client.retry import ReconnectDelay

INT32_BYTES = 4

_REFUSALS = (AuthRefused, BadRequest, HandshakeFailed)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Health:
    """How things stand with one nsqd."""

    address: str
    is_connected: bool
    failures: int
    """In a row; 0 as soon as a message is confirmed."""
    pending_count: int
    """Messages sent to it and not confirmed yet; what was published together counts as one."""
    last_failure: BaseException | None


class Link:
    """Owned by a producer, which calls `start` once and `stop` once.

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
        self.refusal: NsqError | None = None
        """Why nsqd did not let us in, if that is how the last attempt to connect ended."""
        observer = config.observer
        self._observer = observer
        self.publish: Callable[[bytes], Coroutine[Any, Any, None]] = (
            self._publish if observer is None else partial(self._publish_observed, observer)
        )
        """Send a PUB, MPUB or DPUB and wait until it is confirmed."""

    @property
    def health(self) -> Health:
        connection = self._connection
        return Health(
            address=self.address,
            is_connected=self.is_connected,
            failures=self._failures,
            pending_count=connection.pending_count if connection is not None else 0,
            last_failure=self._last_failure,
        )

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    @property
    def is_preferable(self) -> bool:
        """Whether a message can go here at once: the link is trusted or nobody is trying it, and it is not jammed."""
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
        connection = self._connection
        if self._keeper is not None:
            self._keeper.cancel()  # first, or it would connect again
            await asyncio.wait([self._keeper])
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
            "%s %s: %s; trying again in %.1f s",
            trouble,
            self.address,
            cause_of(failure),
            delay_s,
            exc_info=None if is_expected else failure,
        )

    async def _connect_until_lost(self) -> BaseException | None:
        """Why the connection ended; raises if none came about."""
        lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def note_end(_: Connection, failure: BaseException | None) -> None:
            if not lost.done():
                lost.set_result(failure)

        self._connection = await Connection.open(self.address, self._config, on_close=note_end)
        self.refusal = None
        self._troubles.forget("cannot connect to nsqd")
        log.info("connected to nsqd %s%s", self.address, " again" if self._was_connected else "")
        self._was_connected = True
        self._on_change()
        if self._observer is not None:
            tell(self._observer.connected, self.address)
        failure = None
        try:
            failure = await lost
        finally:
            self._connection = None
            if self._observer is not None:
                tell(self._observer.disconnected, self.address, failure)
        return failure

    # Messages

    async def _publish(self, command: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise ConnectionLost(self.address, "not connected")
        if connection.is_congested:
            await connection.drain()
        try:
            await connection.submit(command)
        except RequestTimeout as failure:
            connection.abort(failure)
            raise
        self._failures = 0

    def submit(self, command: bytes) -> asyncio.Future[bytes]:
        """Send a PUB or MPUB behind all that was sent before; the confirmation to come.

        `ConnectionLost` at once if there is no connection. It does not wait for room: the caller bounds what it sends.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLost(self.address, "not connected")
        began_s = asyncio.get_running_loop().time()
        answer = connection.submit(command)
        answer.add_done_callback(partial(self._submitted, connection, command, began_s))
        return answer

    def _submitted(self, connection: Connection, command: bytes, began_s: float, answer: asyncio.Future[bytes]) -> None:
        failure = answer.exception()
        if isinstance(failure, RequestTimeout):
            connection.abort(failure)
        elif failure is None:
            self._failures = 0
        if self._observer is not None:
            publication = publication_in(command, address=self.address)
            duration_s = asyncio.get_running_loop().time() - began_s
            if failure is None:
                tell(self._observer.published, publication, duration_s=duration_s)
            elif isinstance(failure, Exception):
                tell(self._observer.publish_failed, publication, failure, duration_s=duration_s)

    async def _publish_observed(self, observer: Observer, command: bytes) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        publication = publication_in(command, address=self.address)
        try:
            await self._publish(command)
        except Exception as error:
            tell(observer.publish_failed, publication, error, duration_s=loop.time() - began_s)
            raise
        tell(observer.published, publication, duration_s=loop.time() - began_s)


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
