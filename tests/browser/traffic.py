"""A shop's messages, so that screenshots have something to show: publishers whose rates rise and fall, and consumers
that keep up, more or less."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
from contextlib import AsyncExitStack
from typing import NamedTuple, Self

from emberq.client import ClientConfig, Consumer, ConsumerConfig, Message, Producer

ROUND_S = 0.1
"""How often every topic gets its share."""


class Stream(NamedTuple):
    """A topic, how much is published to it at most, and who reads it."""

    topic: str
    per_second: int
    channels: dict[str, int]
    """Consumers of each channel."""
    work_s: float = 0.002
    """How long a message takes its consumer."""


STREAMS = (
    Stream("orders.created", 300, {"billing": 3, "search": 2, "archive": 1}),
    Stream("payments.captured", 160, {"ledger": 2}),
    Stream("payments.refused", 12, {"alerts": 1}),
    Stream("emails.outgoing", 90, {"smtp": 1}, work_s=0.2),
    Stream("clicks", 420, {"analytics": 2, "archive": 0}),
    Stream("sessions.started", 60, {"analytics": 1}),
    Stream("thumbnails", 40, {"resize": 2}, work_s=0.05),
    Stream("invoices.issued", 20, {"print": 1, "archive": 1}),
)


class Traffic:
    """Publishers and consumers in a thread of their own; a context manager."""

    def __init__(self, nsqd_addresses: list[str]) -> None:
        self._addresses = nsqd_addresses
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="traffic", daemon=True)
        self._running = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *_raised: object) -> None:
        asyncio.run_coroutine_threadsafe(self._running.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        for stream in STREAMS:
            for channel, count in stream.channels.items():
                for number in range(max(count, 1)):
                    consumer = self._consumer(stream, channel, number)
                    await consumer.start()
                    self._running.push_async_callback(consumer.stop)
                    if count == 0:  # the channel is to be there, but nobody reads it
                        await consumer.stop()
        producers = [await self._running.enter_async_context(Producer(address)) for address in self._addresses]
        publishing = asyncio.create_task(_publish(producers))
        self._running.push_async_callback(_cancelled, publishing)

    def _consumer(self, stream: Stream, channel: str, number: int) -> Consumer:
        async def work(_message: Message) -> None:
            await asyncio.sleep(stream.work_s)

        name = f"{channel}-{number + 1}"
        return Consumer(
            stream.topic,
            channel,
            work,
            nsqd_addresses=self._addresses,
            config=ConsumerConfig(max_in_flight=20),
            client_config=ClientConfig(client_id=name, hostname=f"{name}.shop.example", snappy=channel == "archive"),
        )


async def _publish(producers: list[Producer]) -> None:
    number = 0
    while True:
        for index, stream in enumerate(STREAMS):
            share = 0.65 + 0.35 * math.sin(number / 9 + index * 1.7)
            count = max(1, round(stream.per_second * ROUND_S * share / len(producers)))
            for producer in producers:
                bodies = [_body(stream.topic, number, each) for each in range(count)]
                await producer.publish_many(stream.topic, bodies)
        number += 1
        await asyncio.sleep(ROUND_S)


def _body(topic: str, number: int, each: int) -> bytes:
    return json.dumps({"event": topic, "number": number * 100 + each, "total": "12.90", "currency": "EUR"}).encode()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
