"""nsq_to_file: an archiver for every topic, which finishes messages when they are synced.

**One topic** (`TopicArchiver`). A message is written when it comes, and finished once it is synced: nsqd forgets only
what is on the disk. Syncs are expensive, so one serves many messages. One is due

    - when nsqd will not send much more before some messages are finished, or as many are waiting as may be in flight;
    - at every tick of the clock, `--sync-interval` apart;
    - when a file ends: by rotation, by SIGHUP, or because the program ends.

However long that takes, the messages are kept from timing out. Disks may block, so all work with files is done in a
thread, one piece at a time; meanwhile the next messages arrive.

If a file fails, nothing more is written and nothing more is finished: every message that is not synced goes back to
nsqd. After a crash nsqd delivers the messages again that were not finished. So the files of a channel may hold a
message twice but never miss one.

**All topics** (`Archive`). Topics that were named are archived from the start. Without any, nsqlookupd is asked for
topics, at once and then every `--topic-refresh`. Those that match `--topic-pattern` are added as they appear; none is
ever dropped. The first file that fails ends the whole program: the other topics are brought to an orderly end, and the
exit status is 1. A supervisor that starts it again gets every message that was not synced.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from emberq.base import log
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.file import make_folder
from emberq.base.program import HANG_UP_SIGNALS, ToolError, on_signal, run_tool, stop_logging
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.discovery import secret_for_lookupd
from emberq.client.error import NsqError
from emberq.client.message import MessageBatch
from emberq.cluster.cluster import Cluster
from emberq.cluster.topology import ClusterAddresses, Topology
from emberq.cluster.upstream import ClusterError
from emberq.tools.client_flags import client_config, consumer_config
from emberq.tools.nsq_to_file.files import OutputError, TopicFiles
from emberq.tools.nsq_to_file.options import SETTINGS, TOOL, FileNameFormat, ToFileOptions, host_part
from emberq.wire.parameter import is_valid_name

GIVING_BACK_TIMEOUT_S = 2.0
"""How long giving back unwritten messages may take. Those not given back are delivered again when they time out."""

logger = logging.getLogger(__name__)

T = TypeVar("T")


# One topic.


class TopicArchiver:
    """Writes the messages of one topic. Owned by the event loop it runs in; it alone uses `files`."""

    def __init__(
        self, consumer: Consumer, files: TopicFiles, *, sync_interval_s: float, threads: Executor, label: str
    ) -> None:
        self._consumer = consumer
        self._files = files
        self._sync_interval_s = sync_interval_s
        self._threads = threads
        self._label = label
        """The start of its log lines."""
        self._unsynced = MessageBatch()
        """Messages that are written and not finished; not many more than may be in flight."""
        self._disk = asyncio.Lock()
        """Held by the task that works with the files."""
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
                    ticking.cancel()  # it is not at work with the files now; later it would open another
                    await self._commit(self._files.close)
        except* OutputError:
            pass  # kept in `failure`
        finally:
            await self._consumer.stop(drain_timeout_s=None if self.failure is None else GIVING_BACK_TIMEOUT_S)

    async def stop(self) -> None:
        """Take no more messages. Returns when those that came are synced and finished."""
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

    # While the disk is held.

    async def _store(self, batch: MessageBatch) -> None:
        self._unsynced.extend(batch)
        is_sync_due = self._consumer.is_starved or len(self._unsynced) >= self._consumer.max_in_flight
        if await self._in_thread(partial(self._files.append, batch.bodies, sync=is_sync_due)):
            self._finish_synced()

    async def _commit(self, work: Callable[[], None]) -> None:
        """Run work that syncs everything written, then finish the messages."""
        await self._in_thread(work)
        self._finish_synced()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self.failure is not None:
            raise self.failure
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OutputError as failure:
            self.failure = failure
            self._consumer.set_max_in_flight(0)  # first, or nsqd would deliver them here again
            self._unsynced.requeue(0, backoff=False)
            raise

    def _finish_synced(self) -> None:
        synced, self._unsynced = self._unsynced, MessageBatch()
        if synced:
            logger.debug("%s synced %d messages to disk", self._label, len(synced))
            synced.finish()


# All topics.

MAX_THREADS = 8
"""Threads that work with files, for any number of topics: a disk does not get faster with more."""


async def run(options: ToFileOptions, stop_asked: asyncio.Event) -> None:
    """Run nsq_to_file until the stop is asked for; ToolError if a file fails."""
    stop_logging()
    log.configure(prefix=options.log_prefix, level=options.log_threshold)
    archive = Archive(options)
    for number in HANG_UP_SIGNALS:
        on_signal(number, archive.reopen)
    await archive.run(stop_asked)


class Archive:
    """All archivers of the program. Owned by the event loop it runs in."""

    def __init__(self, options: ToFileOptions, *, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._pattern = options.compiled_pattern()
        self._client_config: ClientConfig = client_config(
            options.consumer_opt, tool=TOOL, secret_file=options.auth_secret_file
        )
        self._consumer_config = _consumer_config(options)
        self._archivers: dict[str, TopicArchiver] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are archived, in the order in which they were added."""
        return tuple(self._archivers)

    def reopen(self) -> None:
        """Have every topic close its file and go on with the next."""
        for archiver in self._archivers.values():
            archiver.reopen()

    async def run(self, stop_asked: asyncio.Event) -> None:
        """Archive until the stop is asked for, or a file fails: then ToolError."""
        _prepare_folders(self._options)
        with ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=TOOL) as threads:
            async with asyncio.TaskGroup() as group:
                adding = group.create_task(self._add_topics(group, threads, stop_asked))
                await stop_asked.wait()
                adding.cancel()
                for archiver in self._archivers.values():
                    group.create_task(archiver.stop())
        for archiver in self._archivers.values():
            if archiver.failure is not None:
                raise ToolError(str(archiver.failure)) from archiver.failure

    # Topics

    async def _add_topics(self, group: asyncio.TaskGroup, threads: Executor, stop_asked: asyncio.Event) -> None:
        for topic in self._named_topics():
            self._add(topic, group, threads, stop_asked)
        if self._options.topic:
            return
        topology = self._make_topology()
        while True:
            for topic in await self._discover(topology):
                self._add(topic, group, threads, stop_asked)
            await asyncio.sleep(self._options.topic_refresh_ns / NS_PER_SECOND)

    def _named_topics(self) -> list[str]:
        wanted = []
        for topic in self._options.topic:
            if self._pattern.is_found_in(topic):
                wanted.append(topic)
            else:
                logger.warning("skipping topic %s (doesn't match pattern %s)", topic, self._options.topic_pattern)
        return wanted

    async def _discover(self, topology: Topology) -> list[str]:
        try:
            found = await topology.topics()
        except ClusterError as error:
            logger.error("could not retrieve topic list: %s", error)  # noqa: TRY400 - the text says it all
            return []
        for warning in found.warnings:
            logger.warning("could not retrieve topic list: %s", warning)
        return [topic for topic in found.value if is_valid_name(topic) and self._pattern.is_found_in(topic)]

    def _make_topology(self) -> Topology:
        return Cluster(
            ClusterAddresses(lookupds=self._options.lookupd_http_address),
            connect_timeout_ns=self._options.http_client_connect_timeout_ns,
            request_timeout_ns=self._options.http_client_request_timeout_ns,
            tls=self._client_config.tls,
            lookupd_secret=secret_for_lookupd(self._consumer_config, self._client_config),
        ).topology

    def _add(self, topic: str, group: asyncio.TaskGroup, threads: Executor, stop_asked: asyncio.Event) -> None:
        if topic not in self._archivers:
            archiver = self._archivers[topic] = self._make_archiver(topic, threads)
            group.create_task(_run_archiver(archiver, stop_asked))

    # Parts

    def _make_archiver(self, topic: str, threads: Executor) -> TopicArchiver:
        options = self._options
        label = f"[{topic}/{options.channel}]"
        names = FileNameFormat(
            options.template,
            datetime_format=options.datetime_format,
            topic=topic,
            host=host_part(options.host_identifier),
            pid=os.getpid(),
        )
        return TopicArchiver(
            Consumer(
                topic,
                options.channel,
                nsqd_addresses=options.nsqd_tcp_address,
                lookupd_addresses=options.lookupd_http_address,
                config=self._consumer_config,
                client_config=self._client_config,
                clock=self._clock,
            ),
            TopicFiles(names, options, clock=self._clock, label=label),
            sync_interval_s=options.sync_interval_ns / NS_PER_SECOND,
            threads=threads,
            label=label,
        )


async def _run_archiver(archiver: TopicArchiver, stop_asked: asyncio.Event) -> None:
    await archiver.run()
    if archiver.failure is not None:
        stop_asked.set()


def _consumer_config(options: ToFileOptions) -> ConsumerConfig:
    config = consumer_config(
        options.consumer_opt,
        max_in_flight=options.max_in_flight,
        lookupd_secret_file=options.lookupd_secret_file,
    )
    config = replace(config, auto_touch=True)
    if any(option.name == "max_attempts" for option in options.consumer_opt):
        return config
    return replace(config, max_attempts=0)  # any message can be written, and giving one up would lose it


def _prepare_folders(options: ToFileOptions) -> None:
    """Make the folders and check them now, not when the first file is complete."""
    output, work = Path(options.output_dir), Path(options.folder_of_open_files)
    try:
        make_folder(output)
        make_folder(work)
        is_one_filesystem = output.stat().st_dev == work.stat().st_dev
    except OSError as error:
        raise ToolError(f"{error.filename}: {error.strerror}") from error
    if not is_one_filesystem:
        raise ToolError(f"--work-dir {work} and --output-dir {output} must be on one filesystem")


def main(argv: Sequence[str] | None = None) -> int:
    """Write topics to files until told to stop; the exit status."""
    return run_tool(SETTINGS, ToFileOptions, run, argv, takes_arguments=False, failures=(NsqError,))
