"""Redis streams by redis-py: pipelines of XADD; XREADGROUP by the thousand, whose XACK goes along with the next one.

A connection of redis-py waits for its answer before it takes the next command, so many publications are under way only
in pipelines. Each of their messages is confirmed by an answer of its own. A task that waits for an answer may not
notice that it was cancelled, so the loops look whether they are over.
"""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from bench.clients.asyncio_load import AsyncioLoad
from bench.clients.quota import Quota

_PIPELINES = 4  # while the answers to one are read, the server has another
_CONSUMER = "bench"


class RedisLoad(AsyncioLoad):
    """A stream with one consumer group, which has one consumer."""

    async def work(self, quota: Quota) -> None:
        host, port = self.job.address
        async with Redis(host=host, port=port) as client:
            if self.job.way.is_consuming:
                await self._consume(client, quota)
            else:
                await client.xgroup_create(self.job.topic, self.job.channel, id="0", mkstream=True)
                quota.begin()
                await asyncio.gather(*(self._publish(client, quota) for _ in range(_PIPELINES)))

    async def _publish(self, client: Redis, quota: Quota) -> None:
        width = self.job.width // _PIPELINES
        while not quota.is_over:
            pipeline = client.pipeline(transaction=False)
            for _ in range(width):
                pipeline.xadd(self.job.topic, {"body": next(self.bodies)})
            await pipeline.execute()
            quota.add(0, width)

    async def _consume(self, client: Redis, quota: Quota) -> None:
        job = self.job
        answered: list[bytes] = []
        answered_bytes = 0
        quota.begin()
        while not quota.is_over:
            pipeline = client.pipeline(transaction=False)
            if answered:
                pipeline.xack(job.topic, job.channel, *answered)
            pipeline.xreadgroup(job.channel, _CONSUMER, {job.topic: ">"}, count=job.width)
            found = (await pipeline.execute())[-1]
            quota.add(answered_bytes, len(answered))
            entries = found[0][1] if found else []
            answered = [entry for entry, _ in entries]
            answered_bytes = sum(len(fields[b"body"]) for _, fields in entries)
