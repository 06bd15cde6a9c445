"""A job on asyncio's event loop, by whichever library."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import uvloop

from bench.clients.job import Job, Way
from bench.clients.quota import Quota
from bench.crew import Tally


class AsyncioLoad(ABC):
    """What is left to the drivers is `work`: to connect and go on for ever, telling `quota` of what is done."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.bodies = job.bodies_by_turns()

    @abstractmethod
    async def work(self, quota: Quota) -> None: ...

    def run(self) -> Tally:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._work_until_over())

    async def _work_until_over(self) -> Tally:
        over = asyncio.Event()
        quota = Quota(self.job.messages, on_over=over.set)
        asyncio.get_running_loop().call_later(self.job.seconds, quota.end)
        working = asyncio.create_task(self.work(quota))
        watching = asyncio.create_task(over.wait())
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not watching.done():
            await working  # it ended before its time, which is an error, and says which
        working.cancel()
        await asyncio.wait([working])
        return self.job.tally(quota)

    async def publish_again_and_again(self, publish: Callable[[], Awaitable[object]], quota: Quota) -> None:
        """`publish` sends one publication of the job, and returns when it has been confirmed."""
        if self.job.way is Way.PUBLISH_AT_ONCE:
            await self._publish_at_once(publish, quota)
        else:
            await asyncio.gather(*(self._publish_one_by_one(publish, quota) for _ in range(self.job.width)))

    async def _publish_one_by_one(self, publish: Callable[[], Awaitable[object]], quota: Quota) -> None:
        while True:
            await publish()
            self.job.published(quota)

    async def _publish_at_once(self, publish: Callable[[], Awaitable[object]], quota: Quota) -> None:
        while True:
            await asyncio.gather(*(publish() for _ in range(self.job.width)))
            for _ in range(self.job.width):
                self.job.published(quota)
