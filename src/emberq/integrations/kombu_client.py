"""The NSQ client of one Kombu connection: a producer and any number of subscriptions, in a thread of their own.

Kombu calls from threads that block, Celery's worker from an event loop of its own that is not asyncio's. Between them
and the asyncio client stand

    LoopThread      runs the client. Heartbeats are answered and messages touched there, however long a task takes.
    arrivals        a line of messages that have come, taken by the thread that calls Kombu
    fileno          a socket that is readable when messages have come, for Celery's event loop to watch

**Names.** Kombu's queues and exchanges may be called anything; NSQ's topics and channels have 64 characters of a small
alphabet. A name that does not fit is cut, and gets a part of its SHA-256 so that two of them stay two.

**Fork.** Threads are not copied by a fork, so a client belongs to the process that made it. A child that finds one of
its parent's makes another (see `celery.NsqTransport.nsq`), and leaves the sockets of its parent alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from emberq import __version__
from emberq.base.clock import NS_PER_SECOND
from emberq.base.task import LoopThread
from emberq.base.tls import client_context
from emberq.client import (
    BadRequestError,
    ClientConfig,
    ClosedError,
    Consumer,
    ConsumerConfig,
    Message,
    Producer,
    RequestTimeoutError,
    RetryPolicy,
)
from emberq.http.client import HttpClient, UnexpectedStatusError
from emberq.wire.parameter import EPHEMERAL_SUFFIX, is_valid_name

MAX_NAME_LENGTH = 64
"""Of a topic or a channel, the suffix of an ephemeral one included."""

DIGEST_LENGTH = 8
"""Of a name that was cut: enough for the queues of any cluster to stay apart."""

DRAIN_TIMEOUT_S = 1.0
"""For nsqd to take the last answers. What a worker leaves undone has been given back by then."""

DEFAULT_PORT = 4150

DEFAULT_CONNECT_TIMEOUT_S = 5.0
"""Kombu's own, for a connection that was told None."""

HTTP_TIMEOUT_S = 10
"""For an answer of nsqd's HTTP API, which is asked by commands such as `celery purge`."""


def nsq_name(name: str, *, ephemeral: bool = False) -> str:
    """The name of a topic or a channel for what Kombu calls `name`."""
    suffix = EPHEMERAL_SUFFIX if ephemeral and not name.endswith(EPHEMERAL_SUFFIX) else ""
    if is_valid_name(name + suffix):
        return name + suffix
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_LENGTH]
    kept = re.sub(r"[^.a-zA-Z0-9_-]", "-", name)[: MAX_NAME_LENGTH - len(suffix) - len(digest) - 1]
    return f"{kept}.{digest}{suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What a broker URL, `broker_use_ssl` and `broker_transport_options` come to."""

    nsqd_addresses: Sequence[str]
    """Published to, and consumed from."""
    lookupd_addresses: Sequence[str] = ()
    """They tell which other nsqds have a queue, to consume from them too."""
    nsqd_http_addresses: Sequence[str] = ()
    """Where queues can be counted, purged and deleted, which NSQ's own protocol cannot."""
    client: ClientConfig = field(default_factory=ClientConfig)
    connect_timeout_s: float = 5.0
    publish_timeout_s: float = 10.0
    max_deferral_s: float = 3600.0
    """nsqd's --max-req-timeout. A longer delay is made of several."""

    @property
    def consumer(self) -> ConsumerConfig:
        """How subscriptions behave: Celery decides about failures, so there is no backoff and no giving up.

        Messages are touched while they are unanswered, because a task may take longer than nsqd's --msg-timeout.
        """
        return ConsumerConfig(
            max_in_flight=0,
            max_attempts=0,
            max_backoff_s=0,
            max_requeue_delay_s=self.max_deferral_s,
            auto_touch=True,
            drain_timeout_s=DRAIN_TIMEOUT_S,
        )


def broker_settings(connection: Any) -> BrokerSettings:
    """The settings for a `kombu.Connection`."""
    options: Mapping[str, Any] = connection.transport_options
    secret = options.get("auth_secret", connection.password or "")
    client = ClientConfig(
        tls=_tls_context(connection.ssl),
        auth_secret=secret.encode() if isinstance(secret, str) else secret,
        msg_timeout_ms=options.get("msg_timeout_ms", 0),
        user_agent=f"emberq-celery/{__version__}",
        **options.get("client_config", {}),
    )
    return BrokerSettings(
        nsqd_addresses=_nsqd_addresses(connection),
        lookupd_addresses=_as_list(options.get("lookupd_addresses", ())),
        nsqd_http_addresses=_as_list(options.get("nsqd_http_addresses", ())),
        client=client,
        connect_timeout_s=connection.connect_timeout or DEFAULT_CONNECT_TIMEOUT_S,
        publish_timeout_s=options.get("publish_timeout_s", 10.0),
        max_deferral_s=options.get("max_deferral_s", 3600.0),
    )


def _nsqd_addresses(connection: Any) -> list[str]:
    """Those of all URLs: nsqds take turns and stand in for each other, so none is kept for the case of a failure."""
    if not connection.alt:
        return [_address(connection.hostname, connection.port)]
    places = [urlsplit(url if "://" in url else f"nsq://{url}") for url in connection.alt]
    return [_address(place.hostname, place.port) for place in places]


def _address(host: str | None, port: int | None) -> str:
    host = host or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"


def _as_list(addresses: str | Iterable[str]) -> list[str]:
    return [addresses] if isinstance(addresses, str) else list(addresses)


def _tls_context(use_ssl: Any) -> ssl.SSLContext | None:
    """From Celery's `broker_use_ssl`, whose keys are those of `ssl.wrap_socket`."""
    if not use_ssl or isinstance(use_ssl, ssl.SSLContext):
        return use_ssl or None
    files = use_ssl if isinstance(use_ssl, Mapping) else {}
    return client_context(
        ca_file=files.get("ca_certs"),
        cert_file=files.get("certfile"),
        key_file=files.get("keyfile"),
        verify=files.get("cert_reqs", ssl.CERT_REQUIRED) != ssl.CERT_NONE,
    )


class QueueSubscription:
    """One channel that a Kombu queue is read from. It begins paused: the channel exists, and keeps what comes.

    Its consumer belongs to the client's thread; `client` asks it there.
    """

    def __init__(self, queue: str, topic: str, consumer: Consumer, *, is_broadcast: bool) -> None:
        self.queue = queue
        self.topic = topic
        self.is_broadcast = is_broadcast
        """Whether it hears an exchange, and not the topic of its own queue."""
        self.consumer = consumer
        self.since_s = time.time()
        self.reading: asyncio.Task[None] | None = None
        self.max_in_flight = 0
        """What the consumer was told last."""


class Arrival(NamedTuple):
    """A message, and where it came from."""

    subscription: QueueSubscription
    message: Message


class QueueClient:
    """Publishes, subscribes and keeps what arrives. All methods may be called from any thread of its process."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self._process_id = os.getpid()
        self._loop = LoopThread("emberq-kombu", closed_error=ClosedError, timeout_error=RequestTimeoutError)
        retry = RetryPolicy(timeout_s=settings.publish_timeout_s)
        self._producer = Producer(settings.nsqd_addresses, settings.client, retry=retry)
        self._subscriptions: set[QueueSubscription] = set()
        self._stopping: set[asyncio.Task[None]] = set()
        """Kept here, or they might be collected before they are done."""
        self._arrived: deque[Arrival] = deque()
        self._readable, self._waker = socket.socketpair()
        self._readable.setblocking(False)
        self._waker.setblocking(False)
        self._is_awake = False
        """Whether a byte is on its way that has not been read."""

    @property
    def is_of_this_process(self) -> bool:
        return self._process_id == os.getpid()

    # Publishing

    def connect(self) -> None:
        """Return when any nsqd is connected; ConnectError, or RequestTimeoutError after the time for connecting."""
        self._loop.run(self._producer.wait_until_connected, timeout_s=self.settings.connect_timeout_s)

    def publish(self, topic: str, body: bytes, *, delay_s: float = 0.0) -> None:
        """Publish a message, to be delivered after a delay if nsqd takes it; returns when it is confirmed."""
        if delay_s > 0:
            delay_s = min(delay_s, self.settings.max_deferral_s)
            try:
                self._loop.run(lambda: self._producer.publish_deferred(topic, body, delay_s=delay_s))
            except BadRequestError:  # nsqd's --max-req-timeout is shorter: the worker defers what comes too early
                pass
            else:
                return
        self._loop.run(lambda: self._producer.publish(topic, body))

    # Subscribing

    def subscribe(self, queue: str, *, topic: str, channel: str, is_broadcast: bool = False) -> QueueSubscription:
        """Return when the channel is there, on every nsqd that can be reached. Nothing comes before it is asked for."""

        async def start() -> QueueSubscription:
            consumer = Consumer(
                topic,
                channel,
                nsqd_addresses=self.settings.nsqd_addresses,
                lookupd_addresses=self.settings.lookupd_addresses,
                config=self.settings.consumer,
                client_config=self.settings.client,
            )
            subscription = QueueSubscription(queue, topic, consumer, is_broadcast=is_broadcast)
            await consumer.start()
            subscription.reading = asyncio.create_task(self._read(subscription))
            self._subscriptions.add(subscription)
            return subscription

        return self._loop.run(start)

    def set_max_in_flight(self, subscription: QueueSubscription, count: int) -> None:
        """How many messages of a subscription may be unanswered; 0 pauses it.

        That of a parent process is left alone: to tell its consumer would be to write to the parent's connection.
        """
        if subscription not in self._subscriptions or count == subscription.max_in_flight:
            return
        subscription.max_in_flight = count

        async def change() -> None:
            subscription.consumer.set_max_in_flight(count)

        self._loop.run(change)

    def unsubscribe(self, subscription: QueueSubscription) -> None:
        """Give back what is unanswered, and disconnect, in the background."""

        async def begin() -> None:
            task = asyncio.create_task(self._stop(subscription))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

        if self.is_of_this_process and not self._loop.is_ended:
            self._loop.run(begin)

    async def _read(self, subscription: QueueSubscription) -> None:
        async for batch in subscription.consumer.batches():
            self._arrived.extend(Arrival(subscription, message) for message in batch)
            self._wake()

    async def _stop(self, subscription: QueueSubscription) -> None:
        self._subscriptions.discard(subscription)
        subscription.consumer.set_max_in_flight(0)  # or what goes back would come here again
        for arrival in list(self._arrived):
            if arrival.subscription is subscription:
                arrival.message.requeue(0, backoff=False)
        await subscription.consumer.stop()
        if subscription.reading is not None:
            await subscription.reading

    # What has arrived

    def fileno(self) -> int:
        """Readable when something has arrived that was not there at the last `take`."""
        return self._readable.fileno()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            with suppress(OSError):  # closed meanwhile
                self._waker.send(b"\0")

    def take(self) -> Arrival | None:
        """The next message that can still be answered, if one has arrived."""
        with suppress(BlockingIOError):
            self._readable.recv(1)
        self._is_awake = False  # ahead of the look: what comes now wakes again
        while self._arrived:
            arrival = self._arrived.popleft()
            if not arrival.message.is_answered:  # its connection is gone, and it comes again
                if self._arrived:
                    self._wake()
                return arrival
        return None

    def wait(self, timeout_s: float | None) -> bool:
        """Whether something has arrived, or does in time."""
        if self._arrived:
            return True
        with selectors.DefaultSelector() as selector:  # and not `select`, which knows the first 1024 files alone
            selector.register(self._readable, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    # Queues, by nsqd's HTTP API

    def depth(self, topic: str) -> int:
        """How many messages wait in a topic and its channels, on all nsqds whose HTTP address is known."""

        async def count() -> int:
            documents = [
                await self._http().get_json(f"{url}/stats?format=json&topic={quote(topic)}") for url in self._urls
            ]
            topics = [each for document in documents for each in document["topics"] or []]
            return sum(each["depth"] + sum(channel["depth"] for channel in each["channels"] or []) for each in topics)

        return self._loop.run(count)

    def empty(self, topic: str, *, channel: str) -> None:
        """Throw away what waits in a topic and one of its channels."""
        name = f"topic={quote(topic)}"
        self._post(f"/topic/empty?{name}", f"/channel/empty?{name}&channel={quote(channel)}")

    def delete(self, topic: str) -> None:
        """Delete a topic with its channels."""
        self._post(f"/topic/delete?topic={quote(topic)}")

    @property
    def _urls(self) -> list[str]:
        return [f"http://{address}" for address in self.settings.nsqd_http_addresses]

    def _http(self) -> HttpClient:
        timeout_ns = HTTP_TIMEOUT_S * NS_PER_SECOND
        return HttpClient(connect_timeout_ns=timeout_ns, request_timeout_ns=timeout_ns, tls=self.settings.client.tls)

    def _post(self, *paths: str) -> None:
        async def post() -> None:
            for url in self._urls:
                for path in paths:
                    await self._post_if_there(url + path)

        self._loop.run(post)

    async def _post_if_there(self, url: str) -> None:
        try:
            await self._http().post(url)
        except UnexpectedStatusError as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:  # this nsqd does not have the topic, or not the channel
                raise

    # The end

    def close(self) -> None:
        """Give back what is unanswered, and disconnect. Does nothing in a child of the process that it belongs to."""
        if self.is_of_this_process:
            self._loop.end(self._wind_up)
        self._readable.close()
        self._waker.close()

    async def _wind_up(self) -> None:
        await asyncio.gather(*self._stopping, *(self._stop(each) for each in list(self._subscriptions)))
        await self._producer.close()
