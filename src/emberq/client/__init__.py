"""The client of NSQ for asyncio, on the plain event loop or on uvloop.

    from emberq import Consumer, Message, Producer

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")

    async def handle(message: Message) -> None: ...

    async with Consumer("orders", "billing", handle, lookupd_addresses=["127.0.0.1:4161"]) as consumer:
        await consumer.wait_stopped()

Public is what `__all__` lists; the modules behind it are internal, `opentelemetry` and `prometheus` aside.

error            what can go wrong, as a tree
config           everything that can be set: ClientConfig, ConsumerConfig, RetryPolicy, ReconnectDelay
address          how addresses of nsqds and nsqlookupds are written
argument         types and values of arguments, checked where users give them
message          a message, a batch of them, a copy for another process
observer         watching a client at work
opentelemetry    spans and metrics (extra `otel`)
prometheus       metrics (extra `prometheus`)
stream           from a socket to a stream that takes commands: TLS, compression, handshake
connection       questions and answers on one connection
limit            how large a message nsqd takes: told, learned, proven
producer         publishing, failover, retries
link             one nsqd of a producer: its connection, its health, numbered batches
consumer         the messages of one channel, from all nsqds
subscription     one connection of a consumer: unanswered messages, their answers, giving up
discovery        finding nsqds and staying connected to them
rdy              sharing out RDY
backoff          slowing down and coming back
handler          from the inbox to the handler
verdict          what the value that a handler returned means
worker           where handlers run: event loop, thread, process
worker_process   the process of a handler
"""

import warnings
from typing import TYPE_CHECKING

from emberq.client.backoff import BackoffStrategy
from emberq.client.config import ClientConfig, ConsumerConfig, HandlersIn, ReconnectDelay, RetryPolicy
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer, ConsumerStatistics
from emberq.client.error import (
    AuthError,
    BadRequestError,
    BadReturnValueError,
    ClosedError,
    ConnectError,
    ConnectionLostError,
    HandlerDeclinedError,
    HandlerTimeoutError,
    HandshakeError,
    MessageTooLargeError,
    NotExecutedError,
    NotInFlightError,
    NsqError,
    PublishError,
    RemoteError,
    RequestTimeoutError,
    ServerError,
    WorkerCrashedError,
)
from emberq.client.link import NsqdHealth
from emberq.client.message import Message, MessageBatch, MessageSnapshot
from emberq.client.observer import ObservedChannel, Observer, Publication
from emberq.client.producer import Producer

__all__ = [
    "AuthError",
    "BackoffStrategy",
    "BadRequestError",
    "BadReturnValueError",
    "ClientConfig",
    "ClosedError",
    "ConnectError",
    "Connection",
    "ConnectionLostError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "HandlerDeclinedError",
    "HandlerTimeoutError",
    "HandlersIn",
    "HandshakeError",
    "Message",
    "MessageBatch",
    "MessageSnapshot",
    "MessageTooLargeError",
    "NotExecutedError",
    "NotInFlightError",
    "NsqError",
    "NsqdHealth",
    "ObservedChannel",
    "Observer",
    "Producer",
    "Publication",
    "PublishError",
    "ReconnectDelay",
    "RemoteError",
    "RequestTimeoutError",
    "RetryPolicy",
    "ServerError",
    "WorkerCrashedError",
]

_RENAMED = {
    "AuthRefused": "AuthError",
    "BadRequest": "BadRequestError",
    "BadReturnValue": "BadReturnValueError",
    "ConnectionFailed": "ConnectError",
    "ConnectionLost": "ConnectionLostError",
    "HandlerDeclined": "HandlerDeclinedError",
    "HandlerTimeout": "HandlerTimeoutError",
    "HandshakeFailed": "HandshakeError",
    "NotInFlight": "NotInFlightError",
    "PublishRefused": "PublishError",
    "RemoteFailure": "RemoteError",
    "RequestTimeout": "RequestTimeoutError",
    "WorkerCrashed": "WorkerCrashedError",
}
"""Names that the guide taught before, and what they are called now."""

if not TYPE_CHECKING:  # a type checker should complain about the old names, and would not if it saw this

    def __getattr__(name):
        """The class that an old name stands for, with a DeprecationWarning."""
        if name not in _RENAMED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warnings.warn(f"{__name__}.{name} is now called {_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]
