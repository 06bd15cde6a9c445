"""A FastStream application with NSQ: handlers get what they ask for, and what they return is published."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from faststream import Context, Depends, Header
from pydantic import BaseModel

from emberq.client import ClientConfig, ConsumerConfig, Message, Producer
from emberq.embedded import Embedded
from emberq.integrations.faststream import NsqBroker
from tests.support.waiting import until

AT_ONCE = ConsumerConfig(max_attempts=2, dead_letter_topic="dead", max_backoff_s=0, default_requeue_delay_s=0)


class Order(BaseModel):
    id: int
    prices: list[int]


class Bill(BaseModel):
    order: int
    amount: int


@pytest.fixture
async def nsq() -> AsyncIterator[Embedded]:
    async with Embedded() as running:
        yield running


async def publish(nsq: Embedded, topic: str, body: bytes) -> None:
    async with Producer(nsq.nsqd_tcp_addresses) as producer:
        await producer.publish(topic, body)


async def test_a_handler_gets_its_model_and_its_result_is_published(nsq: Embedded) -> None:
    broker = NsqBroker(nsq.nsqd_tcp_addresses)
    bills: list[Bill] = []

    @broker.subscriber("orders", "billing")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill:
        return Bill(order=order.id, amount=sum(order.prices))

    @broker.subscriber("bills", "sending")
    async def send(bill: Bill) -> None:
        bills.append(bill)

    async with broker.application():
        await publish(nsq, "orders", b'{"id": "7", "prices": [2, 3]}')
        await until(lambda: bills == [Bill(order=7, amount=5)])


async def test_dependencies_and_context_are_injected(nsq: Embedded) -> None:
    config = ClientConfig(envelope=True)
    broker = NsqBroker(nsq.nsqd_tcp_addresses, config=config)
    app = broker.application()
    seen: list[Any] = []

    def twice(number: int) -> int:
        return 2 * number

    @broker.subscriber("numbers", "reading")
    def read(
        number: int,
        doubled: Annotated[int, Depends(twice)],
        message: Annotated[Message, Context("message")],
        tenant: Annotated[str, Header("tenant")],
        shop: Annotated[str, Context("shop")],
    ) -> None:
        seen.extend([number, doubled, message.attempts, tenant, shop])

    app.context.set_global("shop", "corner")
    async with app:
        await broker.publish(21, "numbers", headers={"tenant": "acme"})
        await until(lambda: seen == [21, 42, 1, "acme", "corner"])


async def test_a_body_that_does_not_fit_comes_again_until_it_is_given_up(nsq: Embedded) -> None:
    broker = NsqBroker(nsq.nsqd_tcp_addresses)
    dead: list[Any] = []

    @broker.subscriber("orders", "billing", config=AT_ONCE)
    async def bill(order: Order) -> None:
        raise AssertionError(order)

    @broker.subscriber("dead", "reading")
    async def bury(body: Any) -> None:
        dead.append(body)

    async with broker.application():
        await publish(nsq, "orders", json.dumps({"id": "none"}).encode())
        await until(lambda: dead == [{"id": "none"}])


async def test_the_application_runs_with_its_hooks_and_stops(nsq: Embedded) -> None:
    broker = NsqBroker(nsq.nsqd_tcp_addresses)
    app = broker.application()
    happened: list[str] = []

    @app.on_startup
    def begin() -> None:
        happened.append("startup")

    @app.after_shutdown
    def end() -> None:
        happened.append("shutdown")

    @broker.subscriber("texts", "reading")
    async def read(text: str) -> None:
        happened.append(text)
        app.exit()

    await publish(nsq, "texts", b"hello, no JSON")
    async with asyncio.timeout(30):
        await app.run()
    assert happened == ["startup", "hello, no JSON", "shutdown"]
