"""emberq, in all the ways that it offers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.clients.asyncio_load import AsyncioLoad
from bench.clients.job import Way
from bench.clients.quota import Quota
from emberq.client import Consumer, ConsumerConfig, Message, Producer


class EmberqLoad(AsyncioLoad):
    """One Consumer or one Producer."""

    async def work(self, quota: Quota) -> None:
        if self.job.way is Way.BATCHES:
            await self._take_batches(quota)
        elif self.job.way is Way.HANDLER:
            await self._handle(quota)
        elif self.job.way is Way.ITERATION:
            await self._iterate(quota)
        else:
            await self._publish(quota)

    async def _take_batches(self, quota: Quota) -> None:
        async with self._consumer() as consumer:
            async for batch in consumer.batches():
                quota.add(sum(map(len, batch.bodies)), len(batch))
                batch.finish()

    async def _handle(self, quota: Quota) -> None:
        async def handle(message: Message) -> None:
            quota.add(len(message.body))

        async with self._consumer(handle) as consumer:
            await consumer.wait_stopped()

    async def _iterate(self, quota: Quota) -> None:
        async with self._consumer() as consumer:
            async for message in consumer:
                quota.add(len(message.body))
                message.finish()

    async def _publish(self, quota: Quota) -> None:
        job = self.job
        async with Producer(job.nsqd) as producer:
            if job.way is Way.PUBLISH_MANY:
                await self.publish_again_and_again(lambda: producer.publish_many(job.topic, job.bodies), quota)
            else:
                await self.publish_again_and_again(lambda: producer.publish(job.topic, next(self.bodies)), quota)

    def _consumer(self, handler: Callable[[Message], Awaitable[None]] | None = None) -> Consumer:
        job = self.job
        config = ConsumerConfig(max_in_flight=job.width)
        return Consumer(job.topic, job.channel, handler, nsqd_addresses=[job.nsqd], config=config)
