"""A consumer: the messages of one channel, from all nsqds that have its topic.

With a handler: a coroutine function, or a plain one, which then runs in a thread or a process (see `worker`):

    async def handle(message: Message) -> None:
        await store(message.body)             # returns: finished; raises, or returns False: requeued, with backoff

    consumer = Consumer("orders", "billing", handle, lookupd_addresses=["127.0.0.1:4161"])
    async with consumer:
        await consumer.wait_stopped()

Without one, your own loop takes the messages and answers them:

    async with Consumer("orders", "billing", nsqd_addresses=["127.0.0.1:4150"]) as consumer:
        async for message in consumer:
            await store(message.body)
            message.finish()

or many at a time, which is the fastest way of all:

        async for batch in consumer.batches(max_size=1000):
            await store_all(batch.bodies)
            batch.finish()

Work that keeps a CPU busy goes to processes, and must not hang there for ever:

    def resize(message: MessageSnapshot) -> None: ...

    config = ConsumerConfig(handlers_in=HandlersIn.PROCESSES, handler_timeout_s=300, auto_touch=True)
    consumer = Consumer("images", "resize", resize, lookupd_addresses=["127.0.0.1:4161"], config=config)

What happens by itself: nsqds are discovered and lost ones are connected to again; `max_in_flight` is shared out among
them (see `rdy`); failures slow the consumer down (see `backoff`); messages that came too often are given up. Delivery
is at least once: after a lost connection or a timeout a message comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.task import RECONNECT_INTERVAL_S, Reminder
from emberq.client.address import Addresses, address_list, nsqd_address
from emberq.client.argument import (
    check_callable,
    check_instance,
    check_int,
    check_name,
    check_plain_function,
    delay_in_seconds,
)
from emberq.client.backoff import Backoff, BackoffAction, MessageOutcome
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.connection import Connection
from emberq.client.discovery import MAX_LOOKUP_BYTES, Connector, Discovery, secret_for_lookupd
from emberq.client.error import ClosedError, ConnectError, cause_of, server_error
from emberq.client.handler import HandlerPool, Inbox, RetryDelay
from emberq.client.message import Message, MessageBatch
from emberq.client.observer import Observation, ObservedChannel, tell
from emberq.client.rdy import RdyChange, RdyTable, Share
from emberq.client.subscription import DeadLetterPublisher, ObservedSubscription, OnGivingUp, Subscription
from emberq.client.worker import Handler, default_concurrency, make_slots
from emberq.http.client import HttpClient
from emberq.wire import command
from emberq.wire.frame import MessageFields


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """What a consumer tells about itself, at one moment."""

    addresses: tuple[str, ...]
    """The nsqds that are connected."""
    in_flight: int
    """Messages that are not answered yet."""
    received: int
    """Messages since the start."""
    given_up: int
    """Messages that came too often."""
    backoff_level: int
    """0 while handlers succeed."""
    late_answers: int = 0
    """Answers that nsqd did not take, because the message had timed out there and is delivered again."""
    timed_out: int = 0
    """Messages that were not handed out, because their time was over while they waited for it."""


STARVED_FRACTION = 0.85
"""A connection with this much of its RDY in flight could use more."""

CONNECT_PATIENCE_S = 30.0
"""How long `wait_until_connected` waits: as long as a producer tries to publish a message."""

_SUCCESS = MessageOutcome.SUCCESS
"""Looked up once: in an Enum that takes as long as a call, and it is needed for every message."""

log = logging.getLogger(__name__)


class Consumer:
    """Gives the messages of one channel to a handler, or to a loop over it: `async for message in consumer`.

    Use it as `async with`, or `start` and `stop` it. It belongs to the event loop it was started in.

    Give `nsqd_addresses`, `lookupd_addresses`, or both. `retry_delay_s(message, error)` decides how long a message
    stays away after its handler failed. `on_giving_up(message)` hears of messages that came too often, and may return
    what a handler may.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd_addresses: Addresses = (),
        lookupd_addresses: Addresses = (),
        config: ConsumerConfig | None = None,
        client_config: ClientConfig | None = None,
        on_giving_up: OnGivingUp | None = None,
        retry_delay_s: RetryDelay | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_name("topic", topic)
        check_name("channel", channel)
        check_instance("config", config, ConsumerConfig, hint="; connections are set up by client_config")
        check_instance("client_config", client_config, ClientConfig)
        self._source = ObservedChannel(topic, channel)
        self._config = config = config or ConsumerConfig()
        self._client_config = client_config or ClientConfig()
        self._observer = self._client_config.observer
        self._observation = Observation(self._observer, self._source) if self._observer is not None else None
        self._giving_up = DeadLetterPublisher(
            on_giving_up,
            source=self._source,
            dead_letter_topic=config.dead_letter_topic,
            observation=self._observation,
        )
        self._clock = clock = clock or SystemClock()
        self._max_in_flight = config.max_in_flight
        self._backoff = Backoff(
            unit_s=config.backoff_unit_s, max_pause_s=config.max_backoff_s, strategy=config.backoff_strategy
        )
        self._table = RdyTable(
            config.max_in_flight,
            clock=clock,
            idle_ns=round(config.low_rdy_idle_timeout_s * NS_PER_SECOND),
            turn_ns=round(config.low_rdy_timeout_s * NS_PER_SECOND),
        )
        if retry_delay_s is not None:
            check_plain_function("retry_delay_s", retry_delay_s, arguments=("message", "error"))
        if on_giving_up is not None:
            check_callable("on_giving_up", on_giving_up)
        self._inbox = Inbox(clock)
        self._pool = None if handler is None else self._make_pool(handler, retry_delay_s)
        self._connector = Connector(
            self._connect,
            direct_addresses=map(nsqd_address, address_list("nsqd_addresses", nsqd_addresses)),
            discovery=self._make_discovery(lookupd_addresses),
            max_delay_s=config.max_reconnect_delay_s,
            source=str(self._source),
        )
        self._subscriptions: dict[Connection, Subscription] = {}
        self._by_share: dict[Share, Subscription] = {}
        self._upkeep: list[asyncio.Task[None]] = []
        """Connecting and redistributing, from `start` to `stop`."""
        self._resume_timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._received_count = 0
        self._late_answer_count = 0
        self._late_answers = Reminder(RECONNECT_INTERVAL_S)
        """By the address of the nsqd."""
        self._timed_out_count = 0
        """By connections that have ended."""
        self._connection_waiters: list[asyncio.Future[None]] = []
        """Calls of `wait_until_connected`."""

    def __repr__(self) -> str:
        return f"<Consumer {self._source.topic}/{self._source.channel}, {len(self._subscriptions)} connections>"

    # Starting and stopping

    async def start(self) -> None:
        """Connect to what can be reached now; the rest is tried again in the background."""
        if self._is_started:
            raise RuntimeError("a consumer is started once")
        self._is_started = True
        if self._pool is not None:
            self._pool.start()
        try:
            await self._connector.connect_all()
        except BaseException:
            await self.stop(drain_timeout_s=0)
            raise
        if not self._is_stopping:
            self._upkeep = [asyncio.create_task(self._connector.run()), asyncio.create_task(self._redistribute())]

    async def stop(self, *, drain_timeout_s: float | None = None) -> None:
        """Take no more messages, wait for those that are being handled, and disconnect.

        What `async for` has not yielded yet goes back to nsqd at once. After `drain_timeout_s` handlers that still run
        are cancelled, and what is not answered by then goes back too, to be delivered again without delay. A consumer
        cannot be started again.

        A handler cannot wait for its own end: there it is `asyncio.create_task(consumer.stop())`.
        """
        if self._pool is not None and self._pool.is_running_this_task:
            raise RuntimeError("a handler cannot wait for its own end; call stop in a task of its own")
        if self._is_stopping:
            await self._stopped.wait()
            return
        self._is_stopping = True
        for waiter in self._connection_waiters:
            if not waiter.done():
                waiter.set_exception(ClosedError("the consumer was stopped before any nsqd was connected to"))
        try:
            await self._wind_up(self._config.drain_timeout_s if drain_timeout_s is None else drain_timeout_s)
        finally:
            self._stopped.set()

    async def wait_until_connected(self, *, timeout_s: float = CONNECT_PATIENCE_S) -> None:
        """Return as soon as messages can come from any nsqd; `ConnectError` if from none within `timeout_s`."""
        self._check_started()
        if self._subscriptions:
            return
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection_waiters.append(connected)
        try:
            async with asyncio.timeout(timeout_s):
                await connected
        except TimeoutError:
            raise ConnectError(str(self._source), f"no nsqd was connected to within {timeout_s} s") from None
        finally:
            self._connection_waiters.remove(connected)

    async def wait_stopped(self) -> None:
        """Wait until `stop` has been called and is done."""
        if not (self._is_started or self._is_stopping):
            raise RuntimeError("this consumer has not been started, so it never stops: use it in `async with`")
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error in the block its messages will not be answered, so it does not wait for that."""
        await self.stop(drain_timeout_s=0 if error is not None else None)

    async def _wind_up(self, drain_timeout_s: float) -> None:
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        if self._pool is None:
            for subscription in self._subscriptions.values():
                subscription.send_rdy(0)  # or nsqd would send us again what we give back
            self._inbox.close()
            _give_back(self._inbox.take_all())
        try:
            async with asyncio.timeout(drain_timeout_s):
                finishing = [each.finish_up() for each in self._subscriptions.values()]
                await asyncio.gather(*finishing, return_exceptions=True)
        except TimeoutError:
            if unanswered := self.statistics().in_flight:
                log.warning("%r stopped with %d messages unanswered", self, unanswered)
        finally:
            self._inbox.close()
            if self._pool is not None:
                await self._pool.stop()
            await self._giving_up.stop()
            for subscription in self._subscriptions.values():
                subscription.give_back()
            await asyncio.gather(*(connection.close() for connection in list(self._subscriptions)))

    # Taking messages

    def __aiter__(self) -> AsyncIterator[Message]:
        self._check_no_handler()
        return self

    async def __anext__(self) -> Message:
        if not self._is_started:
            self._check_started()
        message = self._inbox.get_nowait(self._clock.monotonic_ns()) or await self._inbox.get()
        if message is None:
            raise StopAsyncIteration
        return message

    def batches(self, *, max_size: int = 1000, max_wait_s: float = 0.0) -> AsyncIterator[MessageBatch]:
        """Whatever has arrived, up to `max_size`. `max_wait_s` is how long to wait for a batch to become full.

        A batch is never larger than `max_in_flight`.
        """
        self._check_no_handler()
        check_int("max_size", max_size, at_least=1)
        return self._batches(max_size=max_size, max_wait_s=delay_in_seconds("max_wait_s", max_wait_s))

    async def _batches(self, *, max_size: int, max_wait_s: float) -> AsyncIterator[MessageBatch]:
        self._check_started()
        while batch := await self._inbox.get_batch(max_size=max_size, max_wait_s=max_wait_s):
            yield batch

    def _check_started(self) -> None:
        if not self._is_started:
            raise RuntimeError("this consumer has not been started, so no message comes: use it in `async with`")

    def _check_no_handler(self) -> None:
        if self._pool is not None:
            raise RuntimeError("the messages of this consumer go to its handler")

    # Flow control

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered at a time."""
        return self._max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Ask for more or fewer messages from now on; 0 pauses."""
        check_int("max_in_flight", count, at_least=0)
        self._max_in_flight = count
        self._apply_allowance()

    @property
    def is_starved(self) -> bool:
        """Whether a connection has nearly as many messages in flight as it may: time to answer some."""
        return any(
            each.in_flight and len(each.in_flight) >= int(STARVED_FRACTION * each.share.rdy)
            for each in self._subscriptions.values()
        )

    def statistics(self) -> ConsumerStatistics:
        """A snapshot."""
        return ConsumerStatistics(
            addresses=tuple(each.address for each in self._subscriptions.values()),
            in_flight=sum(len(each.in_flight) for each in self._subscriptions.values()),
            received=self._received_count,
            given_up=self._giving_up.count,
            backoff_level=self._backoff.level,
            late_answers=self._late_answer_count,
            timed_out=self._timed_out_count + sum(each.timed_out_count for each in self._subscriptions.values()),
        )

    def _on_outcome(self, outcome: MessageOutcome) -> None:
        if self._is_stopping or (self._backoff.level == 0 and outcome is _SUCCESS):
            return
        decision = self._backoff.record(outcome)
        if decision.action is BackoffAction.NOTHING:
            return
        self._apply_allowance()
        if self._observer is not None:
            tell(self._observer.backoff_changed, self._source, level=self._backoff.level, pause_s=decision.pause_s)
        if decision.action is BackoffAction.PAUSE:
            log.info("%s backs off for %.3f s, level %d", self._source, decision.pause_s, self._backoff.level)
            self._resume_timer = asyncio.get_running_loop().call_later(decision.pause_s, self._resume)
        elif self._backoff.level == 0:
            log.info("%s is back at full speed: handlers succeed again", self._source)

    def _resume(self) -> None:
        self._backoff.resume()
        self._apply_allowance()

    def _apply_allowance(self) -> None:
        self._send(self._table.set_limit(self._backoff.allowance(self._max_in_flight)))

    def _send(self, changes: list[RdyChange]) -> None:
        if self._is_stopping:
            return  # nsqd wants no RDY after CLS
        for share, rdy in changes:
            self._by_share[share].send_rdy(rdy)

    async def _redistribute(self) -> None:
        while True:
            await asyncio.sleep(self._config.rdy_redistribute_interval_s)
            self._send(self._table.tick())

    # Connections

    async def _connect(self, address: str) -> None:
        log.debug("connecting to nsqd %s, %s", address, self._source)
        connection = await Connection.open(
            address,
            self._client_config,
            on_messages=self._on_messages,
            on_error=self._on_error,
            on_close=self._on_close,
        )
        try:
            subscribing = command.sub(topic=self._source.topic, channel=self._source.channel)
            await connection.request(subscribing, answer=b"OK")
        except BaseException:
            await connection.close()
            raise
        connection.check_open()  # it may have ended between the answer and now
        if self._is_stopping:  # by another task, which did not wait for `start`
            await connection.close()
            raise ClosedError("the consumer was stopped while it subscribed")
        self._join(connection)

    def _join(self, connection: Connection) -> None:
        share, changes = self._table.join(cap=connection.answer.max_rdy_count)
        subscription = self._make_subscription(connection, share)
        self._subscriptions[connection] = self._by_share[share] = subscription
        self._send(changes)
        log.info("connected to nsqd %s, %s", connection.address, self._source)
        for waiter in self._connection_waiters:
            if not waiter.done():
                waiter.set_result(None)
        if self._observer is not None:
            tell(self._observer.connected, connection.address)

    def _on_close(self, connection: Connection, failure: BaseException | None) -> None:
        subscription = self._subscriptions.pop(connection, None)
        if subscription is None:
            return
        del self._by_share[subscription.share]
        unanswered_count = len(subscription.in_flight)
        self._timed_out_count += subscription.timed_out_count
        subscription.ended()
        self._send(self._table.leave(subscription.share))
        if self._observer is not None:
            tell(self._observer.disconnected, connection.address, failure)
        if not self._is_stopping:
            delay_s = self._connector.lost(connection.address)
            log.warning(
                "lost nsqd %s, %s: %s; %d messages were unanswered; trying again in %.1f s",
                connection.address,
                self._source,
                cause_of(failure),
                unanswered_count,
                delay_s,
            )

    def _on_error(self, connection: Connection, error: bytes) -> None:
        """A FIN, REQ or TOUCH came too late."""
        self._late_answer_count += 1
        if self._observer is not None:
            tell(self._observer.answered_late, self._source, connection.address)
        if self._late_answers.is_due(connection.address):
            log.warning(
                "nsqd %s, %s: %s; %d answers have come too late so far, and such messages are delivered again: "
                "ask for more time (msg_timeout_ms), touch them (auto_touch), or lower max_in_flight",
                connection.address,
                self._source,
                server_error(error),
                self._late_answer_count,
            )

    def _on_messages(self, connection: Connection, received: list[MessageFields]) -> None:
        subscription = self._subscriptions.get(connection)
        if subscription is None:
            connection.refuse("a message before any was asked for")
            return
        messages = subscription.receive(received)
        if not messages:
            return
        self._received_count += len(messages)
        if self._observer is not None:
            tell(self._observer.received, messages, self._source)
        limit = self._config.max_attempts
        if limit and max([message.attempts for message in messages]) > limit:
            self._giving_up.begin([message for message in messages if message.attempts > limit], connection)
            messages = [message for message in messages if message.attempts <= limit]
        if self._is_stopping and self._pool is None:
            _give_back(messages)
        else:
            self._inbox.put(messages)

    # Parts

    def _make_pool(self, handler: Handler, retry_delay_s: RetryDelay | None) -> HandlerPool:
        config = self._config
        count = config.concurrency or default_concurrency(
            handler, config.handlers_in, max_in_flight=config.max_in_flight
        )
        return HandlerPool(
            make_slots(handler, config.handlers_in, count=count, timeout_s=config.handler_timeout_s or None),
            self._inbox,
            clock=self._clock,
            retry_delay_s=retry_delay_s,
            observation=self._observation,
        )

    def _make_subscription(self, connection: Connection, share: Share) -> Subscription:
        make: Callable[..., Subscription] = Subscription
        if self._observation is not None:
            make = partial(ObservedSubscription, observation=self._observation)
        return make(
            connection,
            share,
            config=self._config,
            clock=self._clock,
            on_outcome=self._on_outcome,
            opens_envelopes=self._client_config.envelope,
        )

    def _make_discovery(self, lookupd_addresses: Addresses) -> Discovery | None:
        addresses = address_list("lookupd_addresses", lookupd_addresses)
        if not addresses:
            return None
        timeout_ns = round(self._config.lookupd_timeout_s * NS_PER_SECOND)
        return Discovery(
            addresses,
            self._source.topic,
            client=HttpClient(
                connect_timeout_ns=timeout_ns,
                request_timeout_ns=timeout_ns,
                tls=self._client_config.tls,
                max_body_bytes=MAX_LOOKUP_BYTES,
            ),
            interval_s=self._config.lookupd_poll_interval_s,
            jitter=self._config.lookupd_poll_jitter,
            secret=secret_for_lookupd(self._config, self._client_config),
        )


def _give_back(messages: Iterable[Message]) -> None:
    for message in messages:
        message.requeue(0, backoff=False)
