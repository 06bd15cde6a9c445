"""pynsq: a plain function for each message, and a callback for each publication.

It runs on tornado, whose loop is asyncio's. A handler may be a coroutine function as well, but that is slower. Nothing
in it waits for a publication: each callback sends the next, which is all that "many at a time" can mean here.
"""

from __future__ import annotations

import asyncio

import nsq

from bench.clients.asyncio_load import AsyncioLoad
from bench.clients.job import Way
from bench.clients.quota import Quota
from bench.failure import ServerRefused

_LOOK_EVERY_S = 0.001


class PynsqLoad(AsyncioLoad):
    """One Reader or one Writer."""

    async def work(self, quota: Quota) -> None:
        if self.job.way.is_consuming:
            await self._consume(quota)
        else:
            await self._publish(quota)

    async def _consume(self, quota: Quota) -> None:
        def handle(message: nsq.Message) -> bool:
            quota.add(len(message.body))
            return True

        job = self.job
        reader = nsq.Reader(
            job.topic, job.channel, message_handler=handle, nsqd_tcp_addresses=[job.nsqd], max_in_flight=job.width
        )
        try:
            await asyncio.Event().wait()
        finally:
            reader.close()

    async def _publish(self, quota: Quota) -> None:
        job, bodies = self.job, list(self.job.bodies)  # it takes no other sequence
        writer = nsq.Writer([job.nsqd])
        while not writer.conns:
            await asyncio.sleep(_LOOK_EVERY_S)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def publish() -> None:
            if job.way is Way.PUBLISH_MANY:
                writer.mpub(job.topic, bodies, callback=confirmed)
            else:
                writer.pub(job.topic, next(self.bodies), callback=confirmed)

        def confirmed(_: object, answer: object) -> None:
            if answer == b"OK":
                job.published(quota)
                if not quota.is_over:
                    publish()
            elif not refused.done():
                refused.set_exception(ServerRefused(f"pynsq was answered {answer!r}"))

        for _ in range(job.width):
            publish()
        await refused
