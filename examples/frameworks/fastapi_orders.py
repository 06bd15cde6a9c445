"""A FastAPI service that takes orders, publishes them, and bills them in the same process.

    NSQD=127.0.0.1:4150 uvicorn fastapi_orders:app

The producer and the consumer live as long as the application: its lifespan connects them before the first request and
lets what they have begun come to its end after the last. Each worker process of the server has its own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from emberq import Consumer, Message, NsqError, Producer, RetryPolicy

NSQD = os.environ.get("NSQD", "127.0.0.1:4150")
SOON = RetryPolicy(timeout_s=5)  # a request should not wait longer for nsqd


class Order(BaseModel):
    """What a customer sends."""

    id: int
    prices: list[int]


bills: dict[int, int] = {}


async def bill(message: Message) -> None:
    """Whatever this raises brings the order back later; so does a body that is no order."""
    order = Order.model_validate_json(message.body)
    bills[order.id] = sum(order.prices)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect, serve, disconnect: consumers wait for their handlers, the producer for its confirmations."""
    async with Producer(NSQD, retry=SOON) as producer, Consumer("orders", "billing", bill, nsqd_addresses=[NSQD]):
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> dict[str, int]:
    """The answer comes when nsqd has confirmed the order."""
    producer: Producer = request.app.state.producer
    try:
        await producer.publish("orders", order.model_dump_json().encode())
    except NsqError as failure:
        raise HTTPException(503, "the order could not be stored, try again") from failure
    return {"accepted": order.id}


@app.get("/bills/{order_id}")
async def amount(order_id: int) -> dict[str, int]:
    """404 until the order has been billed."""
    if order_id not in bills:
        raise HTTPException(404)
    return {"amount": bills[order_id]}
