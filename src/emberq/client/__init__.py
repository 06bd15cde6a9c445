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
from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer
from emberq.client.consumer_config import ConsumerConfig, HandlersIn
from emberq.client.error import (
    AuthRefused,
    BadRequest,
    BadReturnValue,
    ClosedError,
    ConnectionFailed,
    ConnectionLost,
    HandlerDeclined,
    HandlerTimeout,
    HandshakeFailed,
    NotInFlight,
    NsqError,
    PublishRefused,
    RemoteFailure,
    RequestTimeout,
    ServerError,
    WorkerCrashed,
)
from emberq.client.link import Health
from emberq.client.message import Batch, Message
from emberq.client.observer import Observer, Publication, Source
from emberq.client.producer import Producer
from emberq.client.retry import ReconnectDelay, RetryPolicy
from emberq.client.snapshot import MessageSnapshot
from emberq.client.statistics import ConsumerStatistics

__all__ = [
    "AuthRefused",
    "BackoffStrategy",
    "BadRequest",
    "BadReturnValue",
    "Batch",
    "ClientConfig",
    "ClosedError",
    "Connection",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "HandlerDeclined",
    "HandlerTimeout",
    "HandlersIn",
    "HandshakeFailed",
    "Health",
    "Message",
    "MessageSnapshot",
    "NotInFlight",
    "NsqError",
    "Observer",
    "Producer",
    "Publication",
    "PublishRefused",
    "ReconnectDelay",
    "RemoteFailure",
    "RequestTimeout",
    "RetryPolicy",
    "ServerError",
    "Source",
    "WorkerCrashed",
]
