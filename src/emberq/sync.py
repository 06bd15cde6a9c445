"""The client for code that blocks: scripts, notebooks, threads, web frameworks that are not asynchronous.

    from emberq.sync import Consumer, Producer

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"...")                    # returns when nsqd has confirmed it

    with Consumer("orders", "billing", nsqd_addresses=["127.0.0.1:4150"]) as consumer:
        for message in consumer:                              # until consumer.stop()
            store(message.body)
            message.finish()

These are `emberq.client.Producer` and `emberq.client.Consumer`, run by an event loop in a thread of their own, one for
each. What they promise (confirmation, failover, RDY, backoff, dead letters), what can be set and what they raise is
described there.

- **Threads.** Everything here may be called from any thread, by many at a time.
- **Notebooks.** It does not matter whether the calling thread has a running event loop, as it does in Jupyter. The loop
  there stands still during a call, like the cell.
- **Ctrl-C** interrupts every call and gives up what it waited for; `Consumer.run` returns, after draining.
- **Timeouts.** A call that takes `timeout_s` waits no longer than that. Publishing is limited by its `RetryPolicy` too.
- **fork** does not copy threads. What was in use before a fork belongs to the parent; in the child it raises
  `RuntimeError`, and closing it there does nothing. Make clients in the process that uses them.
- **The end.** Use `with`, or call `close` (`stop`). A client that is merely forgotten is disconnected when Python
  collects it; then its last answers to messages may be lost, and those messages come again.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from typing import Self, cast

from emberq import client
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.task import LoopThread
from emberq.client import (
    ClientConfig,
    ClosedError,
    ConsumerConfig,
    ConsumerStatistics,
    Message,
    MessageBatch,
    NsqdHealth,
    ReconnectDelay,
    RequestTimeoutError,
    RetryPolicy,
)
from emberq.client.address import Addresses, address_list
from emberq.client.argument import check_int, delay_in_seconds
from emberq.client.consumer import CONNECT_PATIENCE_S
from emberq.client.handler import RetryDelay
from emberq.client.producer import CLOSE_TIMEOUT_S, DEFAULT_MAX_BATCH_BYTES
from emberq.client.subscription import OnGivingUp
from emberq.client.worker import Handler

__all__ = ["Consumer", "Producer"]

FETCH_SIZE = 1000
"""How many messages one visit to the other thread brings at most. A visit costs far more than a message does, so it
should bring all that wait; more than max_in_flight cannot."""


class Producer:
    """Publishes, and waits until it is confirmed. Connects at the first use.

    `addresses` are those at which nsqds speak TCP; several take turns and stand in for each other. Many threads may
    share one producer, and should: their messages travel together.
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
    ) -> None:
        self._producer = client.Producer(
            addresses,
            config,
            retry=retry,
            reconnect_delay=reconnect_delay,
            max_batch_bytes=max_batch_bytes,
            max_pending=max_pending,
            idempotent=idempotent,
        )
        self._loop = LoopThread("emberq-producer", closed_error=ClosedError, timeout_error=RequestTimeoutError)
        weakref.finalize(self, self._loop.end_soon)

    def __repr__(self) -> str:
        return f"<sync {self._producer!r}>"

    def publish(
        self, topic: str, body: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> None:
        """Publish one message. `RequestTimeoutError` if it is not confirmed in time; it may be published."""
        self._loop.run(lambda: self._producer.publish(topic, body, headers=headers), timeout_s=timeout_s)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Publish messages together, which is much faster than one by one: all or, up to 4 MiB of them, none."""
        self._loop.run(lambda: self._producer.publish_many(topic, bodies, headers=headers), timeout_s=timeout_s)

    def publish_deferred(
        self,
        topic: str,
        body: bytes,
        *,
        delay_s: float | timedelta,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Publish a message that consumers get only after a delay."""
        publish = partial(self._producer.publish_deferred, topic, body, delay_s=delay_s, headers=headers)
        self._loop.run(publish, timeout_s=timeout_s)

    def wait_until_connected(self) -> None:
        """Return as soon as any nsqd is connected; `ConnectError` if none is within the time for a message."""
        self._loop.run(self._producer.wait_until_connected)

    def health(self) -> tuple[NsqdHealth, ...]:
        """How things stand with each nsqd, in the order of their addresses."""
        return self._producer.health()

    def close(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Take no more messages, wait for those that other threads are publishing, and disconnect."""
        self._loop.end(lambda: self._producer.close(timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer:
    """The messages of one channel: to take, one by one or in batches, or to have handled by a function.

    It connects when it is first asked for messages; `start` does so at once, which creates the channel. Give
    `nsqd_addresses`, `lookupd_addresses`, or both.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_addresses: Addresses = (),
        lookupd_addresses: Addresses = (),
        config: ConsumerConfig | None = None,
        client_config: ClientConfig | None = None,
        on_giving_up: OnGivingUp | None = None,
        retry_delay_s: RetryDelay | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._with_handler = partial(
            client.Consumer,
            topic,
            channel,
            nsqd_addresses=address_list("nsqd_addresses", nsqd_addresses),
            lookupd_addresses=address_list("lookupd_addresses", lookupd_addresses),
            config=config,
            client_config=client_config,
            on_giving_up=on_giving_up,
            retry_delay_s=retry_delay_s,
            clock=self._clock,
        )
        self._consumer = self._with_handler()
        self._fetched: deque[Message] = deque()
        """Messages that came from the other thread and have not been taken yet."""
        self._taken: set[Message] = set()
        """Messages that were taken; those that have been answered are thrown out from time to time."""
        self._guard = threading.RLock()
        self._is_started = False
        self._loop = LoopThread("emberq-consumer", closed_error=ClosedError, timeout_error=RequestTimeoutError)
        weakref.finalize(self, self._loop.end_soon)

    def __repr__(self) -> str:
        return f"<sync {self._consumer!r}>"

    # Taking messages

    def __iter__(self) -> Iterator[Message]:
        """Messages, as they come, until `stop`. The caller finishes or requeues each."""
        return self.messages()

    def messages(self, *, idle_timeout_s: float | None = None) -> Iterator[Message]:
        """Messages, as they come, until `stop` or until none has come for so long: for scripts that empty a channel."""
        while (message := self.get(timeout_s=idle_timeout_s)) is not None:
            yield message

    def get(self, *, timeout_s: float | None = None) -> Message | None:
        """The next message; None if none came in time, or the consumer was stopped."""
        batch = self._take(max_size=1, max_wait_s=0.0, timeout_s=timeout_s)
        return batch[0] if batch else None

    def batches(
        self, *, max_size: int = 1000, max_wait_s: float = 0.0, idle_timeout_s: float | None = None
    ) -> Iterator[MessageBatch]:
        """Whatever has arrived, up to `max_size`, with up to `max_wait_s` of patience for a full one: the fastest way.

        The loop ends at `stop`, or when nothing has come for `idle_timeout_s`.
        """
        check_int("max_size", max_size, at_least=1)
        max_wait_s = delay_in_seconds("max_wait_s", max_wait_s)
        take = partial(self._take, max_size=max_size, max_wait_s=max_wait_s, timeout_s=idle_timeout_s)
        return iter(take, MessageBatch())

    def _take(self, *, max_size: int, max_wait_s: float, timeout_s: float | None) -> MessageBatch:
        """Up to `max_size` messages; none at the end, or when none came in time."""
        self.start()
        deadline_ns = None if timeout_s is None else self._clock.monotonic_ns() + round(timeout_s * NS_PER_SECOND)
        while True:
            batch = self._pop_fetched(max_size)
            if batch or self._loop.is_ended:
                return batch
            remaining_s = None if deadline_ns is None else (deadline_ns - self._clock.monotonic_ns()) / NS_PER_SECOND
            fetch_size = max_size if max_wait_s else FETCH_SIZE
            fetch = partial(self._fetch, max_size=fetch_size, max_wait_s=max_wait_s, timeout_s=remaining_s)
            try:
                has_more = self._loop.run(fetch)
            except ClosedError:
                has_more = False
            if not has_more:
                return self._pop_fetched(max_size)

    def _pop_fetched(self, max_size: int) -> MessageBatch:
        """What can still be answered of the messages that are here already."""
        batch = MessageBatch()
        now_ns = self._clock.monotonic_ns()
        while len(batch) < max_size:
            try:
                message = self._fetched.popleft()
            except IndexError:  # and not a look at the length: other threads take from it too
                break
            if message.deadline_ns <= now_ns:
                message.abandon()
            if not message.is_answered:
                batch.append(message)
        self._remember(batch)
        return batch

    def _remember(self, batch: MessageBatch) -> None:
        with self._guard:
            self._taken.update(batch)
            if len(self._taken) > FETCH_SIZE + 2 * self.max_in_flight:  # at least half of them have been answered
                self._taken = {message for message in self._taken if not message.is_answered}

    async def _fetch(self, *, max_size: int, max_wait_s: float, timeout_s: float | None) -> bool:
        """Bring messages over; False when there are none in time, or none ever. Runs in the loop's thread.

        They are put where any thread finds them and not returned: the caller may have been interrupted.
        """
        batches = cast(
            AsyncGenerator[MessageBatch, None], self._consumer.batches(max_size=max_size, max_wait_s=max_wait_s)
        )
        try:
            async with asyncio.timeout(timeout_s), aclosing(batches):
                self._fetched.extend(batch := await anext(batches, MessageBatch()))
                return bool(batch)
        except TimeoutError:
            return False

    # Handling messages

    def run(self, handler: Handler) -> None:
        """Have every message handled by `handler`, until `stop` or Ctrl-C; returns when all that was begun is done.

        A handler that returns None or True has finished its message; if it returns False or raises, it is requeued.
        A plain function is called in threads, `ConsumerConfig.concurrency` of them: 1 if it should be called for one
        message at a time. A coroutine function runs in the consumer's own event loop.

        Ctrl-C waits for handlers that are running, as `stop` does; a second one does not.
        """
        with self._guard:
            if self._is_started:
                raise RuntimeError("this consumer has been started without a handler")
            self._consumer = self._with_handler(handler)
            self._is_started = True
        try:
            self._loop.run(self._start_and_wait)
        except KeyboardInterrupt:
            self.stop()
        except ClosedError:
            pass  # by `stop`, in another thread

    async def _start_and_wait(self) -> None:
        """Return when the consumer has stopped.

        Handlers run as soon as the first nsqd is connected to. An interrupt while others are being connected to must
        not cut the handlers off, as a start that is cancelled would; so it goes on, and `stop` ends it in order.
        """
        await asyncio.shield(self._consumer.start())
        await self._consumer.wait_stopped()

    # Life

    def start(self) -> None:
        """Connect to what can be reached now; the rest is tried again in the background. Later calls do nothing."""
        with self._guard:
            if not self._is_started:
                self._is_started = True
                self._loop.run(self._consumer.start)

    def wait_until_connected(self, *, timeout_s: float = CONNECT_PATIENCE_S) -> None:
        """Return as soon as messages can come from any nsqd; `ConnectError` if from none within `timeout_s`."""
        self.start()
        self._loop.run(lambda: self._consumer.wait_until_connected(timeout_s=timeout_s))

    def stop(self, *, drain_timeout_s: float | None = None, wait: bool = True) -> None:
        """Take no more messages, wait for those that are being handled, and disconnect: loops over messages end.

        What has not been taken goes back to nsqd at once, and what is not answered after `drain_timeout_s` (that of the
        config) goes back then. A handler, which cannot wait for its own end, says `wait=False`.
        """
        self._loop.end(lambda: self._wind_up([], drain_timeout_s=drain_timeout_s), wait=wait)

    async def _wind_up(self, unanswered: Iterable[Message], *, drain_timeout_s: float | None = None) -> None:
        self._consumer.set_max_in_flight(0)  # or what goes back would come here again
        for message in (*unanswered, *self._fetched):
            message.requeue(0, backoff=False)
        self._fetched.clear()
        await self._consumer.stop(drain_timeout_s=drain_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What has been taken and not answered goes back too: the block that would answer it is over."""
        self._loop.end(lambda: self._wind_up(self._taken))

    # Flow control

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered at a time."""
        return self._consumer.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Ask for more or fewer messages from now on; 0 pauses."""

        async def change() -> None:
            self._consumer.set_max_in_flight(count)

        self._loop.run(change)

    def statistics(self) -> ConsumerStatistics:
        """A snapshot."""

        async def look() -> ConsumerStatistics:
            return self._consumer.statistics()

        return self._loop.run(look)
