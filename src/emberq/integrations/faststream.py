"""NSQ for FastStream: handlers whose arguments are validated and injected (`pip install emberq[faststream]`).

    from emberq.integrations.faststream import NsqBroker

    broker = NsqBroker("127.0.0.1:4150")
    app = broker.application()                # a FastStream

    @broker.subscriber("orders", "billing")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

    asyncio.run(app.run())

The body of a message is decoded as FastStream does it: by the header `content-type` if there is one (see
`ClientConfig.envelope`), else as JSON, else it stays bytes. What the handler asks for, it gets from FastStream:
`Depends`, `Context`, `Header("traceparent")`. `Context("message")` is the `emberq.client.Message`. Hooks and the
lifespan of the application are FastStream's, too. A handler that is a plain function runs in a thread.

A handler that returns has finished its message, after what it returned was published. If it raises, or the body is not
what it asks for, the message comes again, as often as its `ConsumerConfig` says.

FastStream has no public interface for brokers that are not its own: its base classes are internal, and change with
its versions. So this is an adapter with the methods that an application of FastStream 0.7 calls. It has no AsyncAPI
documents, no middlewares of FastStream, no test broker (use the pytest fixture `nsq`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from faststream import ContextRepo, FastStream, apply_types
from faststream.message import decode_message, encode_message

from emberq.client import ClientConfig, Consumer, ConsumerConfig, Message, Producer
from emberq.client.address import Addresses

__all__ = ["NsqBroker"]

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


@dataclass(slots=True)
class _Subscriber:
    """A handler, and what it is called for."""

    topic: str
    channel: str
    handler: Callable[..., Any]
    config: ConsumerConfig | None


class _Incoming:
    """A message as FastStream decodes it."""

    def __init__(self, message: Message) -> None:
        self.body = message.body
        self.content_type = message.headers.get("content-type")


class NsqBroker:
    """What a `FastStream` application starts and stops: a producer, and a consumer for each subscriber.

    Messages are published to the nsqds at `addresses`. They are consumed from these, and from those that the
    nsqlookupds know.
    """

    def __init__(
        self, addresses: Addresses, *, lookupd_addresses: Addresses = (), config: ClientConfig | None = None
    ) -> None:
        self._addresses = addresses
        self._lookupd_addresses = lookupd_addresses
        self._config = config or ClientConfig()
        self._producer: Producer | None = None
        """From start to stop."""
        self._subscribers: list[_Subscriber] = []
        self._publishers: dict[Callable[..., Any], list[str]] = {}
        self._context = ContextRepo()
        self._injection: dict[str, Any] = {}
        self._running = AsyncExitStack()

    # What a service declares

    def application(self, **options: Any) -> FastStream:
        """FastStream's application for this broker; the options are FastStream's."""
        return FastStream(cast(Any, self), **options)  # it wants its own class, and calls what is defined below

    def subscriber(
        self, topic: str, channel: str, *, config: ConsumerConfig | None = None
    ) -> Callable[[_Handler], _Handler]:
        """Have the messages of a channel handled by the function below."""

        def declare(handler: _Handler) -> _Handler:
            self._subscribers.append(_Subscriber(topic, channel, handler, config))
            return handler

        return declare

    def publisher(self, topic: str) -> Callable[[_Handler], _Handler]:
        """Publish what the function below returns, unless it is None."""

        def declare(handler: _Handler) -> _Handler:
            self._publishers.setdefault(handler, []).append(topic)
            return handler

        return declare

    async def publish(self, message: object, topic: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish bytes, a text, or what can be written as JSON; returns when nsqd has confirmed it."""
        if self._producer is None:
            raise RuntimeError("the broker has not been started, so nothing can be published")
        body, content_type = encode_message(message, self._injection.get("serializer_cls"))
        if self._config.envelope and content_type is not None:
            headers = {"content-type": content_type, **(headers or {})}
        await self._producer.publish(topic, body, headers=headers)

    # What the application calls

    def _update_fd_config(self, config: Any) -> None:
        """Take over the application's context and its way to inject."""
        self._context = config.context
        self._injection = {
            "dependency_provider": config.provider,
            "serializer_cls": config._serializer,
        }

    async def start(self) -> None:
        """Connect, and begin to consume."""
        async with AsyncExitStack() as starting:
            self._producer = await starting.enter_async_context(Producer(self._addresses, self._config))
            for subscriber in self._subscribers:
                await starting.enter_async_context(self._make_consumer(subscriber))
            self._running = starting.pop_all()

    async def stop(self, *_raised: object) -> None:
        """Wait for handlers that are running, and disconnect."""
        await self._running.aclose()
        self._producer = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.stop()

    def _make_consumer(self, subscriber: _Subscriber) -> Consumer:
        topics = self._publishers.get(subscriber.handler, [])
        is_coroutine_function = inspect.iscoroutinefunction(subscriber.handler)
        call = apply_types(subscriber.handler, context__=self._context, **self._injection)

        async def handle(message: Message) -> None:
            with self._context.scope("message", message):
                body = decode_message(_Incoming(message))  # type: ignore[arg-type]
                result = await call(body) if is_coroutine_function else await asyncio.to_thread(call, body)
            if result is not None:
                for topic in topics:
                    await self.publish(result, topic)

        return Consumer(
            subscriber.topic,
            subscriber.channel,
            handle,
            nsqd_addresses=self._addresses,
            lookupd_addresses=self._lookupd_addresses,
            config=subscriber.config,
            client_config=self._config,
        )
