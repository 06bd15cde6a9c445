"""From one topic to its files.

A message is written when it comes, and finished once it is synced: nsqd forgets only what is on the disk. Syncs are
dear, so one serves many messages. One is due

    - when nsqd will not send much more before some messages are finished, or as many are waiting as may be in flight;
    - at every tick of the clock, `--sync-interval` apart;
    - when a file ends: by rotation, by SIGHUP, or because the program does.

However long that takes, the messages are kept from timing out. Disks may block, so all work with files is done in a
thread, one piece of work at a time; meanwhile the next messages arrive.

If a file fails, nothing more is written and nothing more is finished: all that is not safe goes back to nsqd. After a
crash nsqd misses the answers and brings the messages again by itself. So the files of a channel may hold a message
twice but never miss one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from emberq.client.consumer import Consumer
from emberq.client.message import Batch
from emberq.tools.to_file.topic_files import OutputError, TopicFiles

GIVING_BACK_TIMEOUT_S = 2.0
"""For nsqd to take back what could not be written. If it does not, it brings the messages again when they time out."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


class TopicArchiver:
    """Owned by the event loop it runs in; `files` belong to it alone."""

    def __init__(
        self, consumer: Consumer, files: TopicFiles, *, sync_interval_s: float, threads: Executor, label: str
    ) -> None:
        self._consumer = consumer
        self._files = files
        self._sync_interval_s = sync_interval_s
        self._threads = threads
        self._label = label
        """Begins the log lines."""
        self._unsynced = Batch()
        """Messages that are written and not finished; not many more than may be in flight."""
        self._disk = asyncio.Lock()
        """Held by whoever works with the files."""
        self._reopen_asked = asyncio.Event()
        self.failure: OutputError | None = None
        """Why nothing is written any more."""

    async def run(self) -> None:
        """Write messages until `stop` is called, or until a file fails: then `failure` is set."""
        await self._consumer.start()
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                await self._receive()
                async with self._disk:
                    ticking.cancel()  # now that it cannot be at work with the files; it would open another
                    await self._commit(self._files.close)
        except* OutputError:
            pass  # it is kept in `failure`
        finally:
            await self._consumer.stop(drain_timeout_s=None if self.failure is None else GIVING_BACK_TIMEOUT_S)

    async def stop(self) -> None:
        """Take no more messages; return when those that came are synced and finished."""
        await self._consumer.stop()

    def reopen(self) -> None:
        """Close the file soon and go on with the next."""
        self._reopen_asked.set()

    async def _receive(self) -> None:
        async for batch in self._consumer.batches(max_size=max(self._consumer.max_in_flight, 1)):
            async with self._disk:
                await self._store(batch)

    async def _tick(self) -> None:
        while True:
            work = self._files.reopen if await self._is_reopen_asked_before_tick() else self._files.tick
            async with self._disk:
                await self._commit(work)

    async def _is_reopen_asked_before_tick(self) -> bool:
        try:
            async with asyncio.timeout(self._sync_interval_s):
                await self._reopen_asked.wait()
        except TimeoutError:
            return False
        self._reopen_asked.clear()
        return True

    # With the disk held

    async def _store(self, batch: Batch) -> None:
        self._unsynced.extend(batch)
        is_sync_due = self._consumer.is_starved or len(self._unsynced) >= self._consumer.max_in_flight
        if await self._in_thread(partial(self._files.append, batch.bodies, sync=is_sync_due)):
            self._finish_synced()

    async def _commit(self, work: Callable[[], None]) -> None:
        """Do something that ends with all that was written being synced."""
        await self._in_thread(work)
        self._finish_synced()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self.failure is not None:
            raise self.failure
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OutputError as failure:
            self.failure = failure
            self._consumer.set_max_in_flight(0)  # first, or nsqd would bring them here again
            self._unsynced.requeue(0, backoff=False)
            raise

    def _finish_synced(self) -> None:
        synced, self._unsynced = self._unsynced, Batch()
        if synced:
            logger.debug("%s synced %d messages to disk", self._label, len(synced))
            synced.finish()
