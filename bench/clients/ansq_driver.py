"""ansq: messages are iterated over, and publications are awaited.

Its Reader has one message in flight for each connection and cannot be told otherwise, so its connection is used here,
which can.
"""

from __future__ import annotations

import ansq
from ansq.tcp.connection import open_connection

from bench.clients.asyncio_load import AsyncioLoad
from bench.clients.job import Way
from bench.clients.quota import Quota
from bench.failure import ServerRefused


class AnsqLoad(AsyncioLoad):
    """One connection that is subscribed, or one Writer."""

    async def work(self, quota: Quota) -> None:
        if self.job.way.is_consuming:
            await self._iterate(quota)
        else:
            await self._publish(quota)

    async def _iterate(self, quota: Quota) -> None:
        job = self.job
        connection = await open_connection(*job.address)
        try:
            await connection.subscribe(job.topic, job.channel, job.width)
            async for message in connection.messages():
                quota.add(len(message.body))
                await message.fin()
        finally:
            await connection.close()

    async def _publish(self, quota: Quota) -> None:
        job = self.job
        writer = await ansq.create_writer(nsqd_tcp_addresses=[job.nsqd])

        async def publish() -> None:
            if job.way is Way.PUBLISH_MANY:
                answer = await writer.mpub(job.topic, *job.bodies)
            else:
                answer = await writer.pub(job.topic, next(self.bodies))
            if not getattr(answer, "is_ok", False):
                raise ServerRefused(f"ansq was answered {answer!r}")

        try:
            await self.publish_again_and_again(publish, quota)
        finally:
            await writer.close()
