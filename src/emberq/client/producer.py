"""A producer: publishing, with confirmation, failover and retries.

    async with Producer(["10.0.0.1:4150", "10.0.0.2:4150"]) as producer:
        await producer.publish("clicks", b"...")
        await producer.publish_many("clicks", [b"...", b"..."])
        await producer.publish_deferred("reminders", b"...", delay_s=60)

Each call returns when an nsqd has confirmed the message, and raises if none did. A thousand calls may be under way at
a time, from any number of tasks: they share a connection per nsqd, on which messages are sent one behind the other
without waiting and are confirmed in the order in which they were sent.

Several nsqds take turns. One that fails gets nothing until it is back (see `emberq.client.link`), and what it had not
confirmed is sent to another: at once if one is connected, else as soon as one is. So every message is published at
least once, and perhaps twice if nsqd stored it but could not say so. `RetryPolicy` says when to give up; the exception
is then that of the last attempt.

    Producer("10.0.0.1:4150", idempotent=True)

numbers what it publishes, and an emberq nsqd does not store twice, in a journaled topic, what it is sent twice: whether
the connection broke, nsqd was restarted, or an answer was late. What is not confirmed is then sent again to the nsqd
that may have it, and not to another; if that one does not come back in time, the failure is raised. A caller that then
publishes the message anew, there or elsewhere, may publish it twice. Not so protected are deferred messages, and
topics that are not journaled, which have no memory of what they got. An nsqd that does not know numbers, as NSQ's own,
is refused.

What raises at once, because no nsqd would judge otherwise: `BadRequestError` and `AuthError`, `HandshakeError` if that
is how all nsqds answer, and `ValueError` or `TypeError` for what can be seen to be wrong before it is sent. A message
that is too large is a `MessageTooLargeError`; it is not sent where nsqd's limit is known, and harms no other message
where it is not (see `emberq.client.limit`). What nsqd certainly did not execute is sent again without counting as an
attempt.

Closing, which `async with` does, refuses new messages, waits for those under way, and disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random as random_numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Self

from emberq.base.task import RECONNECT_INTERVAL_S, Reminder
from emberq.client.address import Addresses, address_list, nsqd_address
from emberq.client.argument import check_instance, check_int, check_name, delay_in_seconds, describe
from emberq.client.config import ClientConfig, ReconnectDelay, RetryPolicy
from emberq.client.error import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NotExecutedError,
    NsqError,
    PublishError,
    RequestTimeoutError,
)
from emberq.client.limit import UNSUSPECTED_BYTES
from emberq.client.link import Link, NsqdHealth, NumberedPublisher, publication_in
from emberq.client.observer import ask_for_headers
from emberq.wire import command, envelope
from emberq.wire.parameter import PRODUCER_ID_BYTES

DEFAULT_MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Below the 5 MiB that nsqd accepts in one command, unless it was told otherwise."""
CLOSE_TIMEOUT_S = 10.0
MESSAGE_SIZE_BYTES = 4
"""What a message in a batch takes up besides its body."""
COUNT_BYTES = 4
"""What a batch takes up besides its messages."""

log = logging.getLogger(__name__)

_EMPTY_BODY = "a message must not be empty"
_RETRYABLE = (ConnectionLostError, RequestTimeoutError, PublishError)


class Producer:
    """Publishes to one or several nsqds. Belongs to one event loop; connects at the first use or in `start`.

    `addresses` are those at which nsqds speak TCP: `host:port`, or paths of Unix sockets; one, or a list of them.
    `max_pending` is how many publications may be under way at a time; a call beyond that waits until one has ended. 0:
    any number, and then the memory that they take is for the caller to bound. `random` returns numbers from 0 to 1.
    """

    def __init__(
        self,
        addresses: Addresses,
        config: ClientConfig | None = None,
        *,
        retry: RetryPolicy | None = None,
        reconnect_delay: ReconnectDelay | None = None,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        max_pending: int = 0,
        idempotent: bool = False,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        nsqds = list(dict.fromkeys(map(nsqd_address, address_list("addresses", addresses))))
        if not nsqds:
            raise ValueError("a producer needs the address of at least one nsqd")
        check_instance("config", config, ClientConfig, hint="; several addresses go into a list")
        check_instance("retry", retry, RetryPolicy)
        check_instance("reconnect_delay", reconnect_delay, ReconnectDelay)
        check_int("max_batch_bytes", max_batch_bytes, at_least=1)
        check_int("max_pending", max_pending, at_least=0)
        config = config or ClientConfig()
        if idempotent:
            config = replace(config, producer_id=os.urandom(PRODUCER_ID_BYTES))
        self._is_enveloping = config.envelope
        self._observer = config.observer
        self._retry = retry or RetryPolicy()
        self._max_batch_bytes = max_batch_bytes
        self._links = [
            Link(
                address,
                config,
                reconnect_delay=reconnect_delay or ReconnectDelay(),
                random=random,
                on_change=partial(self._link_changed, address),
            )
            for address in nsqds
        ]
        self._lanes: dict[str, NumberedPublisher] = {}
        """How numbered batches go to the nsqd at each address; empty if they are not numbered."""
        if idempotent:
            self._lanes = {
                link.address: NumberedPublisher(link, max_attempts=self._retry.max_attempts) for link in self._links
            }
        self._turn = 0
        """Whose turn it is among the links."""
        self._waiting: list[asyncio.Future[None]] = []
        """Messages that wait for any nsqd to be connected, or for all of them to refuse that."""
        self._under_way_count = 0
        self._room = asyncio.Semaphore(max_pending)
        """Lets so many be under way; first come, first served."""
        self._publish = self._publish_in_turn if max_pending else self._publish_at_once
        self._failovers = Reminder(RECONNECT_INTERVAL_S)
        """Messages that were sent again, by the address they were sent to."""
        self._flushed: asyncio.Future[None] | None = None
        """Set while `close` waits for the messages under way."""
        self._is_started = False
        self._is_closing = False
        """No more messages are taken."""
        self._is_closed = False
        """None are sent again either."""

    def __repr__(self) -> str:
        addresses = ", ".join(link.address for link in self._links)
        return f"<Producer {addresses}, {self._under_way_count} messages under way>"

    # Publishing

    async def publish(self, topic: str, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish one message. It may have headers if producer and consumers use envelopes (`ClientConfig`)."""
        check_name("topic", topic)
        body = _checked_body(body)
        if self._is_enveloping or headers is not None:  # asked here, too: a call for each message would cost
            body = self._sealed(topic, body, headers)
        if self._lanes:
            await self._publish(lambda number: command.pub(topic, body, sequence=number))
        else:
            await self._publish(command.pub(topic, body))

    async def publish_many(
        self, topic: str, bodies: Iterable[bytes], *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish messages together, which is much faster than one by one.

        nsqd takes either all or none of up to `max_batch_bytes`, or of less if it has told a lower limit. More than
        that is split, and sent part by part; if a part fails, those before it have been published and those behind it
        have not. If a message is known to be too large for nsqd, none is sent. Headers are for each of them.
        """
        check_name("topic", topic)
        bodies = _checked_bodies(bodies)
        if self._is_enveloping or headers is not None:
            bodies = [self._sealed(topic, body, headers) for body in bodies]
        size_bytes = MESSAGE_SIZE_BYTES * len(bodies) + sum(map(len, bodies))
        max_bytes = self._max_batch_bytes
        if size_bytes > UNSUSPECTED_BYTES:
            max_bytes = await self._batch_limit(bodies, size_bytes)
        for batch in _batches(bodies, size_bytes, max_bytes=max_bytes):
            if self._lanes:
                await self._publish(partial(_numbered_mpub, topic, batch))
            else:
                await self._publish(command.mpub(topic, batch))

    async def publish_deferred(
        self, topic: str, body: bytes, *, delay_s: float | timedelta, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message that consumers get only after a delay, which nsqd limits (to an hour, by default)."""
        check_name("topic", topic)
        defer_ms = round(delay_in_seconds("delay_s", delay_s) * 1000)
        body = self._sealed(topic, _checked_body(body), headers)
        await self._publish(command.dpub(topic, body, defer_ms=defer_ms))

    def _sealed(self, topic: str, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        """What nsqd gets: the body in its envelope, with the observer's headers and the caller's, or as it is."""
        if not self._is_enveloping:
            if headers is not None:
                raise ValueError(
                    "a message has headers only in an envelope: ClientConfig(envelope=True), on both sides"
                )
            return body
        added = {} if self._observer is None else ask_for_headers(self._observer, topic)
        return envelope.encode({**added, **(headers or {})}, body)

    async def _publish_in_turn(self, publication: bytes | Callable[[int], bytes]) -> None:
        """Publish when fewer than `max_pending` are under way."""
        async with self._room:
            await self._publish_at_once(publication)

    async def _publish_at_once(self, publication: bytes | Callable[[int], bytes]) -> None:
        """Publish a command, or what a function makes of its number."""
        self._begin()
        try:
            deadline_s = asyncio.get_running_loop().time() + self._retry.timeout_s
            if not isinstance(publication, bytes):
                await self._publish_numbered(publication, deadline_s=deadline_s)
                return
            link = self._preferable_link()
            if link is None:
                await self._publish_patiently(publication, attempts=0, failure=None, deadline_s=deadline_s)
                return
            # The usual case goes without an alarm of its own: the connection watches over the time of its requests.
            try:
                await link.publish(publication)
            except _RETRYABLE as failure:
                attempts = 0 if isinstance(failure, NotExecutedError) else 1
                await self._publish_patiently(publication, attempts=attempts, failure=failure, deadline_s=deadline_s)
        finally:
            self._end()

    def _begin(self) -> None:
        """One more is under way; `_end` must follow."""
        if self._is_closing:
            raise ClosedError("the producer has been closed")
        if not self._is_started:
            self.start()
        self._under_way_count += 1

    def _end(self) -> None:
        self._under_way_count -= 1
        if self._flushed is not None and not self._under_way_count and not self._flushed.done():
            self._flushed.set_result(None)

    async def _batch_limit(self, bodies: Sequence[bytes], size_bytes: int) -> int:
        """How many bytes may go into one MPUB; `MessageTooLargeError` if a message is too large for any nsqd's limit.

        Limits are known once an nsqd is connected, so this waits for one.
        """
        self._begin()
        try:
            await self._link_until(asyncio.get_running_loop().time() + self._retry.timeout_s)
        finally:
            self._end()
        max_bytes = self._max_batch_bytes
        for link in self._links:
            limits = link.limits
            if (
                0 < limits.max_message_bytes < size_bytes
                and (largest := max(map(len, bodies))) > limits.max_message_bytes
            ):
                raise limits.too_large(largest, limits.max_message_bytes)
            if limits.max_body_bytes:
                max_bytes = min(max_bytes, limits.max_body_bytes - COUNT_BYTES)
        return max_bytes

    async def _publish_numbered(self, encode: Callable[[int], bytes], *, deadline_s: float) -> None:
        """Once it has begun with an nsqd, a numbered batch stays with it."""
        link = await self._link_until(deadline_s)
        await self._lanes[link.address].publish(encode, deadline_s=deadline_s)

    async def _publish_patiently(
        self, publication: bytes, *, attempts: int, failure: NsqError | None, deadline_s: float
    ) -> None:
        """Try until it is confirmed, the attempts are used up, or time is."""
        try:
            async with asyncio.timeout_at(deadline_s):
                while attempts < self._retry.max_attempts:
                    link = await self._wait_for_link()
                    attempts += 1
                    if failure is not None:
                        self._tell_of_failover(publication, failure, link, attempt=attempts)
                    try:
                        await link.publish(publication)
                    except NotExecutedError as error:
                        failure = error
                        attempts -= 1  # nsqd never saw it; time bounds how often that may happen
                    except _RETRYABLE as error:
                        failure = error
                    else:
                        return
        except TimeoutError:
            pass  # what the last attempt raised says more
        raise self._given_up(failure, attempts=attempts)

    def _tell_of_failover(self, publication: bytes, failure: NsqError, link: Link, *, attempt: int) -> None:
        """Log that a message is sent again; of many, because of the same nsqd, only the first in a while."""
        if self._failovers.is_due(link.address):
            topic = publication_in(publication, address=link.address).topic
            log.info(
                "a message for topic %s was not confirmed: %s; sent again to nsqd %s, attempt %d of %d",
                topic,
                failure,
                link.address,
                attempt,
                self._retry.max_attempts,
            )

    def _given_up(self, failure: NsqError | None, *, attempts: int) -> NsqError:
        """What to raise for a message that was not confirmed; `failure` is that of the last attempt."""
        if failure is None:
            return self._unreachable()
        failure.add_note(f"given up after attempt {attempts}")
        return failure

    # Choosing an nsqd

    def _next_link(self) -> Link | None:
        """The next in turn that can take a message at once; failing that, any that is connected."""
        return self._preferable_link() or next((link for link in self._links if link.is_connected), None)

    def _preferable_link(self) -> Link | None:
        """The next in turn that can take a message at once."""
        links = self._links
        for _ in links:
            self._turn = (self._turn + 1) % len(links)
            link = links[self._turn]
            if link.is_preferable:
                return link
        return None

    async def _link_until(self, deadline_s: float) -> Link:
        """What `_wait_for_link` returns; why no nsqd could be reached if it does not return in time."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._wait_for_link()
        except TimeoutError:
            failure = self._unreachable()
        raise failure  # here, where it keeps the cause that it has

    async def _wait_for_link(self) -> Link:
        while True:
            if self._is_closed:
                raise ClosedError("the producer was closed before the message could be sent")
            link = self._next_link()
            if link is not None:
                return link
            self._check_not_refused()
            connected = asyncio.get_running_loop().create_future()
            self._waiting.append(connected)
            await connected

    def _check_not_refused(self) -> None:
        """There is nothing to wait for when every nsqd has refused to let us in."""
        refusals = [link.refusal for link in self._links if link.refusal is not None]
        if len(refusals) == len(self._links):
            raise copy(refusals[0]) from refusals[0]  # a copy for each: a traceback grows where it is raised

    def _link_changed(self, address: str) -> None:
        if self._lanes:
            self._lanes[address].link_changed()  # what is sent again goes before what waits
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connected in waiting:
            if not connected.done():
                connected.set_result(None)

    def _unreachable(self) -> NsqError:
        """Why nothing could be sent in all the time there was."""
        seconds = self._retry.timeout_s
        if any(link.is_connected for link in self._links):
            return RequestTimeoutError(f"no nsqd took the message within {seconds} s")
        addresses = ", ".join(link.address for link in self._links)
        failed = ConnectError(addresses, f"no nsqd could be reached within {seconds} s")
        failed.__cause__ = next((link.health.last_failure for link in self._links if link.health.last_failure), None)
        return failed

    # Life

    def health(self) -> tuple[NsqdHealth, ...]:
        """How things stand with each nsqd, in the order of their addresses."""
        return tuple(link.health for link in self._links)

    async def wait_until_connected(self) -> None:
        """Return as soon as any nsqd is connected; `ConnectError` if none is within the time for a message."""
        self.start()
        await self._link_until(asyncio.get_running_loop().time() + self._retry.timeout_s)

    def start(self) -> None:
        """Begin to connect to all nsqds, in the background."""
        if not self._is_started:
            self._is_started = True
            for link in self._links:
                link.start()

    async def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Take no more messages, wait until those under way are confirmed or have failed, and disconnect.

        What is not confirmed within `timeout_s` raises `ClosedError` where it was published.
        """
        self._is_closing = True
        if self._under_way_count and self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        if self._flushed is not None:
            await asyncio.wait([self._flushed], timeout=timeout_s)
        self._is_closed = True
        self._wake_waiting()
        for lane in self._lanes.values():
            lane.close()
        await asyncio.gather(*(link.stop() for link in self._links))

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _checked_body(body: bytes) -> bytes:
    if type(body) is not bytes:
        body = _as_bytes("the body", body)
    if not body:
        raise ValueError(_EMPTY_BODY)
    return body


def _checked_bodies(bodies: Iterable[bytes]) -> Sequence[bytes]:
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Iterable):
        raise TypeError(f"bodies is {describe(bodies)}; it must be a list of bytes, and one message goes to publish")
    if not isinstance(bodies, list | tuple):
        bodies = list(bodies)
    if not set(map(type, bodies)) <= {bytes}:
        bodies = [_as_bytes(f"body {index}", body) for index, body in enumerate(bodies)]
    if not all(bodies):
        raise ValueError(_EMPTY_BODY)
    return bodies


def _as_bytes(name: str, body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    encode = "encode it: .encode()" if isinstance(body, str) else "encode it, with json.dumps(...).encode() for example"
    raise TypeError(f"{name} is {describe(body)}, but a message is bytes; {encode}")


def _numbered_mpub(topic: str, bodies: Sequence[bytes], number: int) -> bytes:
    return command.mpub(topic, bodies, sequence=number)


def _batches(bodies: Sequence[bytes], size_bytes: int, *, max_bytes: int) -> Iterator[Sequence[bytes]]:
    """The bodies, of `size_bytes` in all, in as few parts as fit; one that does not fit is a part of its own."""
    if bodies and size_bytes <= max_bytes:
        yield bodies  # the usual case, without a look at each
        return
    start = size = 0
    for index, body in enumerate(bodies):
        body_bytes = MESSAGE_SIZE_BYTES + len(body)
        if size and size + body_bytes > max_bytes:
            yield bodies[start:index]
            start, size = index, 0
        size += body_bytes
    if start < len(bodies):
        yield bodies[start:]
