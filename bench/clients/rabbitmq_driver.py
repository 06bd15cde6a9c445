"""RabbitMQ by aio-pika: publications with confirms are awaited, a function is called with each message.

An acknowledgement is sent and not waited for, as with NSQ's FIN.
"""

from __future__ import annotations

import asyncio

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from bench.clients.asyncio_load import AsyncioLoad
from bench.clients.job import Durability
from bench.clients.quota import Quota


class RabbitmqLoad(AsyncioLoad):
    """One connection, one channel, one queue: a quorum queue where messages are to be on the disk."""

    async def work(self, quota: Quota) -> None:
        connection = await aio_pika.connect("amqp://guest:guest@{}:{}/".format(*self.job.address))
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            if self.job.way.is_consuming:
                await self._consume(channel, quota)
            else:
                await self._publish(channel, quota)

    async def _publish(self, channel: AbstractChannel, quota: Quota) -> None:
        topic, is_durable = self.job.topic, self.job.durability is not Durability.MEMORY
        kind = {"x-queue-type": "quorum" if is_durable else "classic"}
        await channel.declare_queue(topic, durable=is_durable, arguments=kind)
        mode = aio_pika.DeliveryMode.PERSISTENT if is_durable else aio_pika.DeliveryMode.NOT_PERSISTENT
        exchange = channel.default_exchange

        async def publish() -> None:
            await exchange.publish(aio_pika.Message(next(self.bodies), delivery_mode=mode), routing_key=topic)

        quota.begin()
        await self.publish_again_and_again(publish, quota)

    async def _consume(self, channel: AbstractChannel, quota: Quota) -> None:
        async def handle(message: AbstractIncomingMessage) -> None:
            quota.add(len(message.body))
            await message.ack()

        await channel.set_qos(prefetch_count=self.job.width)
        queue = await channel.get_queue(self.job.topic)
        quota.begin()
        await queue.consume(handle)
        await asyncio.Event().wait()
