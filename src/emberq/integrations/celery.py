"""NSQ as a broker of Celery, and of everything else that uses Kombu (`pip install emberq[celery]`).

    import emberq.integrations.celery                         # makes nsq:// known

    app = Celery("shop", broker="nsq://10.0.0.1:4150")
    app = Celery("shop", broker="nsq://:secret@10.0.0.1:4150;nsq://:secret@10.0.0.2:4150")

The password of the URL is nsqd's AUTH secret. `broker_use_ssl` is True, or a dict with `ca_certs`, `certfile`,
`keyfile` and `cert_reqs`. `broker_transport_options` may have

    channel                 the NSQ channel that workers read a queue by: "celery"
    queue_name_prefix       put before the names of topics: "shop." keeps two applications apart
    lookupd_addresses       nsqlookupds, to read a queue from nsqds that are not in the URL as well
    nsqd_http_addresses     for `celery purge` and the sizes of queues, which need nsqd's HTTP API
    msg_timeout_ms          when a task of a worker that is gone comes again; nsqd's --msg-timeout unless set
    max_deferral_s          nsqd's --max-req-timeout, 3600
    publish_timeout_s       for publishing, other attempts and other nsqds included: 10
    client_config           a dict of further settings of `emberq.client.ClientConfig`, {"snappy": True} for one

What becomes of Kombu's things:

    queue                   a topic of its name, with one channel that all workers share
    message                 Kombu's JSON
    ack, reject             FIN; a reject that requeues is REQ
    prefetch count          RDY, so other workers get what this one has no room for
    eta, countdown          the message waits in nsqd (DPUB), and if nsqd's limit is shorter, again (REQ)
    unacknowledged          touched, up to nsqd's --max-msg-timeout
    queue of one process    an ephemeral channel of a topic for its exchange: remote control, its answers, events
    priority                none

**Two kinds of queues.** A durable queue has a topic, to which publishers write. They know by its declaration that it is
bound to an exchange, as with all of Kombu's virtual transports; Celery declares the queues of `task_queues` in every
process. A transient queue (`auto_delete`, `exclusive`, not `durable`) belongs to one process, and others do not know
of it. So a message for an exchange to which this process knows no durable queue goes to a topic that belongs to the
exchange, and each transient queue has a channel there, and picks what its bindings ask for. Like such queues,
these topics and channels are in memory alone: they are ephemeral. What was published before the queue was there is
not for it.

A queue whose name is a UUID is transient for every process: so Celery calls the queue of a client's results (`rpc://`).
"""

from __future__ import annotations

import logging
import re
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from emberq import __version__
from emberq.client import ClosedError, ConnectError, ConnectionLostError, Message, RequestTimeoutError
from emberq.integrations.kombu_client import (
    DEFAULT_PORT,
    Arrival,
    QueueClient,
    QueueSubscription,
    broker_settings,
    nsq_name,
)

__all__ = ["NsqTransport"]

DEFAULT_CHANNEL = "celery"

UNLIMITED_PREFETCH = 1000
"""For a prefetch count of 0. nsqd's --max-rdy-count is 2500, and a message more or less does not matter any more."""

BROADCAST_IN_FLIGHT = 100
"""Of a queue whose messages are not acknowledged; each is finished as soon as it is taken."""

EARLY_S = 1.0
"""A task that comes so much too early goes back to nsqd. For less the worker waits, as it does without nsqd's help."""

CLOCK_TOLERANCE_S = 1.0
"""By how much nsqd's clock may be behind this one before what it has just received looks old."""

GET_TIMEOUT_S = 1.0
"""For `basic_get`. nsqd sends when it can, and never says that a channel is empty."""

MAX_WARNINGS = 100
"""Of messages that may reach no worker, for each connection. A program that makes up routing keys has read enough."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

log = logging.getLogger(__name__)


def seconds_until_eta(payload: Mapping[str, Any]) -> float:
    """How long a task has to wait; 0 if not at all, or if only Celery can tell, because the time has no zone."""
    eta = (payload["headers"] or {}).get("eta")
    try:
        moment = datetime.fromisoformat(eta) if isinstance(eta, str) else None
    except ValueError:
        return 0.0
    if moment is None or moment.tzinfo is None:
        return 0.0
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)


def _payload_of(message: Message) -> dict[str, Any]:
    """What Kombu put into a message. Of another's bytes Celery says that it does not know them, and drops them."""
    match _json_of(message.body):
        case {"body": _, "headers": {}, "properties": {"delivery_info": {} as delivery_info}} as payload:
            delivery_info["redelivered"] = message.attempts > 1
            return dict(payload)
    return {
        "body": b64encode(message.body).decode(),
        "content-type": "application/data",
        "content-encoding": "binary",
        "headers": {},
        "properties": {"body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": ""}},
    }


def _json_of(body: bytes) -> Any:
    try:
        return loads(body)
    except (ValueError, RecursionError):
        return None


class NsqQoS(virtual.QoS):
    """The messages that Kombu has and has not acknowledged. Tasks are acknowledged by any thread."""

    def __init__(self, channel: NsqChannel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._held: dict[Any, Arrival] = {}
        """By delivery tag."""

    def hold(self, delivery_tag: Any, arrival: Arrival) -> None:
        self._held[delivery_tag] = arrival

    def held_by(self, subscription: QueueSubscription) -> int:
        return sum(1 for each in list(self._held.values()) if each.subscription is subscription)

    @property
    def held_count(self) -> int:
        return len(self._held)

    def ack(self, delivery_tag: Any) -> None:
        """It is done: FIN."""
        arrival = self._held.pop(delivery_tag, None)
        if arrival is not None:
            arrival.message.finish()
        super().ack(delivery_tag)
        self.channel.share_prefetch()

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Bring it again, or drop it."""
        if not requeue:
            self.ack(delivery_tag)
            return
        arrival = self._held.pop(delivery_tag, None)
        if arrival is not None:
            arrival.message.requeue(0, backoff=False)
        super().ack(delivery_tag)
        self.channel.share_prefetch()

    def restore_unacked(self) -> list[Any]:
        """Give back what the worker leaves undone, so that others get it at once and not after its timeout."""
        self._flush()
        while self._held:
            _, arrival = self._held.popitem()
            arrival.message.requeue(0, backoff=False)
        self._delivered.clear()
        return []


class NsqChannel(virtual.Channel):
    """A channel in the sense of Kombu: what is declared, consumed and acknowledged by one user of a connection."""

    QoS = NsqQoS
    from_transport_options = (*virtual.Channel.from_transport_options, "channel", "queue_name_prefix")

    channel = DEFAULT_CHANNEL
    """The channel in the sense of NSQ, the same for all queues."""
    queue_name_prefix = ""

    connection: NsqTransport

    def __init__(self, connection: NsqTransport, **options: Any) -> None:
        self._unacknowledged_queues: set[str] = set()
        """Consumed without acknowledgement."""
        self._listening: dict[str, list[QueueSubscription]] = {}
        """By queue."""
        super().__init__(connection, **options)

    # Topics

    def topic_of_queue(self, queue: str) -> str:
        return nsq_name(self.queue_name_prefix + queue, ephemeral=_is_uuid(queue))

    def topic_of_exchange(self, exchange: str) -> str:
        return nsq_name(self.queue_name_prefix + exchange, ephemeral=True)

    def _is_transient(self, queue: str) -> bool:
        return queue in self.connection.transient_queues or _is_uuid(queue)

    # Publishing

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        """Publish to the topics of the queues that the exchange leads to, or to the topic of the exchange."""
        self._inplace_augment_message(message, exchange, routing_key)
        body = dumps(message).encode()
        for topic in self._topics_for(exchange, routing_key):
            self.connection.nsq.publish(topic, body, delay_s=seconds_until_eta(message))

    def _topics_for(self, exchange: str, routing_key: str) -> list[str]:
        if not exchange:
            return [self.topic_of_queue(routing_key)]
        queues = [queue for queue in self._lookup(exchange, routing_key) if not self._is_transient(queue)]
        if queues:
            return [self.topic_of_queue(queue) for queue in queues]
        self.connection.warn_if_lost(exchange, routing_key)
        return [self.topic_of_exchange(exchange)]

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.connection.nsq.publish(self.topic_of_queue(queue), dumps(message).encode())

    # Declaring

    def _new_queue(
        self, queue: str, durable: bool = True, auto_delete: bool = False, exclusive: bool = False, **_: Any
    ) -> None:
        if auto_delete or exclusive or not durable:
            self.connection.transient_queues.add(queue)
        if _is_uuid(queue):
            self._listen_to_own_topic(queue)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Bind a queue. A transient one hears the exchange from now on: answers may come before it is consumed."""
        super().queue_bind(queue, exchange, routing_key, arguments, **options)
        if exchange and self._is_transient(queue):
            self._listen_to_exchange(queue, exchange)

    def _listen_to_exchange(self, queue: str, exchange: str) -> None:
        channel = nsq_name(queue, ephemeral=True)
        self._listen(queue, topic=self.topic_of_exchange(exchange), channel=channel, is_broadcast=True)

    def _listen_to_own_topic(self, queue: str) -> None:
        channel = nsq_name(self.channel, ephemeral=_is_uuid(queue))
        self._listen(queue, topic=self.topic_of_queue(queue), channel=channel, is_broadcast=False)

    def _listen(self, queue: str, *, topic: str, channel: str, is_broadcast: bool) -> None:
        subscriptions = self._listening.setdefault(queue, [])
        if topic not in [each.topic for each in subscriptions]:
            subscriptions.append(
                self.connection.nsq.subscribe(queue, topic=topic, channel=channel, is_broadcast=is_broadcast)
            )

    def _delete(self, queue: str, *_args: Any, **_options: Any) -> None:
        self._stop_listening(queue)
        if not self._is_transient(queue):
            self._check_http("deleted")
            self.connection.nsq.delete(self.topic_of_queue(queue))
        self.connection.transient_queues.discard(queue)

    def _stop_listening(self, queue: str) -> None:
        for subscription in self._listening.pop(queue, []):
            self.connection.unsubscribe(subscription)

    def _size(self, queue: str) -> int:
        """0, too, if it cannot be told."""
        nsq = self.connection.nsq
        return nsq.depth(self.topic_of_queue(queue)) if nsq.settings.nsqd_http_addresses else 0

    def _purge(self, queue: str) -> int:
        self._check_http("purged")
        size = self._size(queue)
        self.connection.nsq.empty(self.topic_of_queue(queue), channel=nsq_name(self.channel))
        return size

    def _check_http(self, wish: str) -> None:
        if not self.connection.nsq.settings.nsqd_http_addresses:
            raise ValueError(
                f"a queue is {wish} by nsqd's HTTP API: set nsqd_http_addresses in broker_transport_options"
            )

    # Consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> None:
        """Have messages delivered to `callback`."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self.connection.consuming_channels[queue] = self
        if no_ack:
            self._unacknowledged_queues.add(queue)
        else:
            self._unacknowledged_queues.discard(queue)
        if not self._listening.get(queue):
            self._listen_to_own_topic(queue)
        self.share_prefetch()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ask for no more. Connections stay: tasks that are running will be acknowledged by them."""
        queue = self._tag_to_queue.get(consumer_tag, "")
        super().basic_cancel(consumer_tag)
        for subscription in self._listening.get(queue, []):
            self._ask_for(subscription, 0)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Change how many messages may be unacknowledged."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.share_prefetch()

    @property
    def prefetch_limit(self) -> int:
        return self.qos.prefetch_count or UNLIMITED_PREFETCH

    def share_prefetch(self) -> None:
        """Tell subscriptions how many messages they may have unanswered.

        One that is alone has all of them, for good. Several have what is free, each, besides what they have: then the
        one that has messages gets them all. What comes too much, because several had some, is given back.
        """
        if self.closed:
            return
        counted = []
        for queue in list(self._active_queues):
            for subscription in self._listening.get(queue, []):
                if queue in self._unacknowledged_queues:
                    self._ask_for(subscription, BROADCAST_IN_FLIGHT)
                else:
                    counted.append(subscription)
        if len(counted) == 1:
            self._ask_for(counted[0], self.prefetch_limit)
            return
        free = max(self.prefetch_limit - self.qos.held_count, 0)
        for subscription in counted:
            self._ask_for(subscription, self.qos.held_by(subscription) + free)

    def _ask_for(self, subscription: QueueSubscription, count: int) -> None:
        self.connection.nsq.set_max_in_flight(subscription, count)

    def deliver(self, arrival: Arrival) -> bool:
        """Give a message to its consumer. False if there is none, or it is not for now, or not for this queue."""
        subscription, message = arrival
        queue = subscription.queue
        callback = self.connection.callback_of(queue)
        is_acknowledged = queue not in self._unacknowledged_queues
        is_too_much = is_acknowledged and self.qos.held_count >= self.prefetch_limit and len(self._active_queues) > 1
        if callback is None or is_too_much:
            message.requeue(0, backoff=False)
            return False
        payload = _payload_of(message)
        if subscription.is_broadcast and not self._is_wanted(subscription, message, payload):
            message.finish()
            return False
        wait_s = seconds_until_eta(payload)
        if wait_s > EARLY_S:
            message.requeue(wait_s, backoff=False)
            return False
        delivery_tag = payload["properties"]["delivery_tag"] = self.connection.next_delivery_tag()
        if is_acknowledged:
            self.qos.hold(delivery_tag, arrival)
            self.share_prefetch()
        else:
            message.finish()
        callback(payload)
        return True

    def _is_wanted(self, subscription: QueueSubscription, message: Message, payload: dict[str, Any]) -> bool:
        """Whether a message of an exchange is for a queue: by its age, and by the queue's bindings."""
        if message.timestamp_ns / 1e9 < subscription.since_s - CLOCK_TOLERANCE_S:
            return False
        target = payload["properties"]["delivery_info"]
        return subscription.queue in self._lookup(target.get("exchange"), target.get("routing_key", ""))

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message of a queue; None if none comes within a moment. Consuming is the better way with NSQ."""
        if queue in self._active_queues:
            raise RuntimeError(f"queue {queue!r} is being consumed by this channel, which gets its messages")
        got: list[Any] = []
        prefetch_count, self.qos.prefetch_count = self.qos.prefetch_count, self.qos.held_count + 1
        self.basic_consume(queue, no_ack, got.append, consumer_tag := f"get.{queue}")
        try:
            with suppress(TimeoutError):
                while not got:
                    self.connection.drain_events(self.connection, timeout=GET_TIMEOUT_S)
        finally:
            self.basic_cancel(consumer_tag)
            self.qos.prefetch_count = prefetch_count
        return got[0] if got else None

    # The end

    def close(self) -> None:
        """Give back what is not acknowledged, and stop listening."""
        transport = self.connection
        super().close()
        if transport is not None:
            for subscription in chain.from_iterable(self._listening.values()):
                transport.unsubscribe(subscription)
        self._listening.clear()


def _is_uuid(name: str) -> bool:
    return _UUID.fullmatch(name) is not None


class NsqTransport(virtual.Transport):
    """Kombu's transport for `nsq://`: one connection, in the sense of Kombu, to all nsqds of its URLs."""

    Channel = NsqChannel
    default_port = DEFAULT_PORT
    driver_type = "nsq"
    driver_name = "emberq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ConnectError,
        ConnectionLostError,
        ClosedError,
        RequestTimeoutError,
        OSError,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.transient_queues: set[str] = set()
        """Declared by this process, for itself."""
        self.consuming_channels: dict[str, NsqChannel] = {}
        """By queue."""
        self._warned_of: set[tuple[str, str]] = set()
        """Exchanges and routing keys."""
        self._nsq: QueueClient | None = None
        self._hub: Any = None
        """Celery's event loop, if it waits for us."""
        self._delivery_tags = count(1)

    def driver_version(self) -> str:
        return __version__

    @property
    def nsq(self) -> QueueClient:
        """The client of this process: after a fork it is a new one."""
        if self._nsq is None or not self._nsq.is_of_this_process:
            self._nsq = QueueClient(broker_settings(self.client))
        return self._nsq

    def unsubscribe(self, subscription: QueueSubscription) -> None:
        if self._nsq is not None:
            self._nsq.unsubscribe(subscription)

    def warn_if_lost(self, exchange: str, routing_key: str) -> None:
        """Say once that a message may reach no worker.

        What has no durable queue is usual for an exchange that is broadcast by, and for one that is not durable.
        """
        declared = self.state.exchanges.get(exchange, {})
        is_usual = declared.get("type", "direct") != "direct" or not declared.get("durable", True)
        if is_usual or (exchange, routing_key) in self._warned_of or len(self._warned_of) >= MAX_WARNINGS:
            return
        self._warned_of.add((exchange, routing_key))
        log.warning(
            "no durable queue is known to be bound to exchange %r by %r: its messages reach only queues that are "
            "transient and consumed now. Declare the queue in this process too (task_queues)",
            exchange,
            routing_key,
        )

    def callback_of(self, queue: str) -> Any:
        return self._callbacks.get(queue)

    def next_delivery_tag(self) -> int:
        """Another for each delivery: the same message may be delivered twice."""
        return next(self._delivery_tags)

    # Connecting

    def establish_connection(self) -> NsqTransport:
        """Return when any nsqd is connected. From then on lost nsqds are connected to again without Kombu's help."""
        try:
            self.nsq.connect()
        except BaseException:
            self._close_client()
            raise
        super().establish_connection()
        return self

    def close_connection(self, connection: NsqTransport) -> None:
        super().close_connection(connection)
        self._close_client()

    def _close_client(self) -> None:
        nsq, self._nsq = self._nsq, None
        if nsq is None:
            return
        if self._hub is not None and nsq.is_of_this_process:  # a child shares the hub's epoll with its parent
            self._hub.remove(nsq.fileno())
        self._hub = None
        nsq.close()

    # Events

    def register_with_event_loop(self, connection: NsqTransport, loop: Any) -> None:  # noqa: ARG002 - it is this one
        """Let Celery's event loop deliver messages when some have come."""
        self._hub = loop
        loop.add_reader(self.nsq.fileno(), self._deliver_arrived)
        loop.call_soon(self._deliver_arrived)  # what came before

    def _deliver_arrived(self) -> None:
        nsq = self.nsq
        while (arrival := nsq.take()) is not None:
            self._deliver_arrival(arrival)

    def drain_events(self, connection: NsqTransport, timeout: float | None = None) -> None:  # noqa: ARG002 - likewise
        """Deliver one message; TimeoutError if none comes in time."""
        nsq = self.nsq
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            while (arrival := nsq.take()) is not None:
                if self._deliver_arrival(arrival):
                    return
            remaining_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            if not nsq.wait(remaining_s):
                raise TimeoutError  # which Kombu knows as socket.timeout

    def _deliver_arrival(self, arrival: Arrival) -> bool:
        channel = self.consuming_channels.get(arrival.subscription.queue)
        if channel is None or channel.closed:
            arrival.message.requeue(0, backoff=False)
            return False
        return channel.deliver(arrival)


TRANSPORT_ALIASES["nsq"] = f"{__name__}:NsqTransport"
