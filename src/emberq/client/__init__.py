"""The client of NSQ for asyncio, on the plain event loop or on uvloop.

    from emberq.client import Consumer, Message, Producer

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")

    async def handle(message: Message) -> None: ...

    async with Consumer("orders", "billing", handle, lookupd_addresses=["127.0.0.1:4161"]) as consumer:
        await consumer.wait_stopped()

`producer` and `consumer` hold the manual of each, `config` and `consumer_config` what can be set, `error` all that can
go wrong, `observer` how to watch it (`opentelemetry` does). Below them lies `connection`, for those who want to send
commands themselves.
"""

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
