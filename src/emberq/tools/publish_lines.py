"""Publishing a stream of bodies: in batches as large as they come, at a given rate, each confirmed.

Empty bodies are skipped, because NSQ has no empty messages. A body counts when nsqd has confirmed it; the first failure
ends it all, and the counts then say how far it got. Deferred messages have no command for many at once, so they are
sent one by one, a batch of them under way at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from emberq.client import Producer
from emberq.tools.paced import paced
from emberq.tools.throttle import Throttle


class LinePublisher:
    """Publishes to one topic. `on_confirmed(count)` hears of each step."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        batch_size: int,
        throttle: Throttle | None = None,
        delay_s: float | None = None,
        on_confirmed: Callable[[int], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._batch_size = batch_size
        self._throttle = throttle
        self._delay_s = delay_s
        self._on_confirmed = on_confirmed
        self.confirmed_count = 0
        self.empty_count = 0

    async def publish(self, groups: AsyncIterator[Sequence[bytes]]) -> None:
        """Publish everything, in order."""
        async for group in groups:
            bodies = [body for body in group if body]
            self.empty_count += len(group) - len(bodies)
            async for batch in paced(bodies, throttle=self._throttle, max_size=self._batch_size):
                await self._publish_batch(batch)

    async def _publish_batch(self, batch: Sequence[bytes]) -> None:
        if self._delay_s is None:
            await self._producer.publish_many(self._topic, batch)
            self._confirmed(len(batch))
            return
        sending = [self._producer.publish_deferred(self._topic, body, delay_s=self._delay_s) for body in batch]
        failures = [each for each in await asyncio.gather(*sending, return_exceptions=True) if each is not None]
        self._confirmed(len(batch) - len(failures))
        if failures:
            raise failures[0]

    def _confirmed(self, count: int) -> None:
        self.confirmed_count += count
        self._on_confirmed(count)
