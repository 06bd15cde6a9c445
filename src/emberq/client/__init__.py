"""The client of NSQ for asyncio, on the plain event loop or on uvloop.

    from emberq.client import Consumer, Message, Producer

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"...")

    async def handle(message: Message) -> None: ...

    async with Consumer("orders", "billing", handle, lookupd_addresses=["127.0.0.1:4161"]) as consumer:
        await consumer.wait_stopped()

`producer` and `consumer` hold the manual of each, `config` what can be set, `error` all that can go wrong. Below them
lies `connection`, for those who want to send commands themselves.
"""

from emberq.client.backoff import BackoffStrategy
from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer, ConsumerStatistics
from emberq.client.consumer_config import ConsumerConfig
from emberq.client.error import (
    AuthRefused,
    BadRequest,
    ClosedError,
    ConnectionFailed,
    ConnectionLost,
    NotInFlight,
    NsqError,
    PublishRefused,
    RequestTimeout,
    ServerError,
)
from emberq.client.link import Health
from emberq.client.message import Batch, Message
from emberq.client.producer import Producer
from emberq.client.retry import ReconnectDelay, RetryPolicy

__all__ = [
    "AuthRefused",
    "BackoffStrategy",
    "BadRequest",
    "Batch",
    "ClientConfig",
    "ClosedError",
    "Connection",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerConfig",
    "ConsumerStatistics",
    "Health",
    "Message",
    "NotInFlight",
    "NsqError",
    "Producer",
    "PublishRefused",
    "ReconnectDelay",
    "RequestTimeout",
    "RetryPolicy",
    "ServerError",
]
