"""The program nsq_to_file: an archiver for every topic, named or discovered.

Topics that were named are archived from the start. Without any, nsqlookupd is asked for topics, at once and then every
`--topic-refresh`, and those that match `--topic-pattern` are added as they appear; none is ever dropped.

The first file that fails ends the whole program: the other topics are brought to an orderly end, and the exit status is
1. A supervisor that starts it again gets every message that was not safe.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from emberq.base import log
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.http_query import HttpClient
from emberq.client.config import ClientConfig
from emberq.client.consumer import Consumer
from emberq.client.consumer_config import ConsumerConfig
from emberq.cluster.topology import Addresses, Topology
from emberq.cluster.upstream import ClusterError, Upstreams
from emberq.tools.client_options import client_config, consumer_config
from emberq.tools.program import ToolError, stop_logging
from emberq.tools.to_file.file_name import FileNameFormat, host_part
from emberq.tools.to_file.folder import make_folder
from emberq.tools.to_file.options import TOOL, Options
from emberq.tools.to_file.topic_archiver import TopicArchiver
from emberq.tools.to_file.topic_files import TopicFiles
from emberq.wire.name import is_valid_name

MAX_THREADS = 8
"""That work with files at the same time, for any number of topics: a disk does not get faster with more."""

logger = logging.getLogger(__name__)


async def run(options: Options, stop_asked: asyncio.Event) -> None:
    """Run nsq_to_file until the stop is asked for; ToolError if a file fails."""
    stop_logging()
    log.configure(prefix=options.log_prefix, level=options.log_threshold)
    archive = Archive(options)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, archive.reopen)
    await archive.run(stop_asked)


class Archive:
    """All archivers of the program. Owned by the event loop it runs in."""

    def __init__(self, options: Options, *, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._pattern = options.compiled_pattern()
        self._client_config: ClientConfig = client_config(options.consumer_opt, tool=TOOL)
        self._consumer_config = _consumer_config(options)
        self._archivers: dict[str, TopicArchiver] = {}

    @property
    def topics(self) -> tuple[str, ...]:
        """What is archived, in the order in which it came."""
        return tuple(self._archivers)

    def reopen(self) -> None:
        """Have every topic close its file and go on with the next."""
        for archiver in self._archivers.values():
            archiver.reopen()

    async def run(self, stop_asked: asyncio.Event) -> None:
        """Archive until the stop is asked for. ToolError if a file fails, which asks for the stop too."""
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
        client = HttpClient(
            connect_timeout_ns=self._options.http_client_connect_timeout_ns,
            request_timeout_ns=self._options.http_client_request_timeout_ns,
        )
        return Topology(Upstreams(client), Addresses(lookupds=self._options.lookupd_http_address))

    def _add(self, topic: str, group: asyncio.TaskGroup, threads: Executor, stop_asked: asyncio.Event) -> None:
        if topic not in self._archivers:
            archiver = self._archivers[topic] = self._make_archiver(topic, threads)
            group.create_task(_run(archiver, stop_asked))

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


async def _run(archiver: TopicArchiver, stop_asked: asyncio.Event) -> None:
    await archiver.run()
    if archiver.failure is not None:
        stop_asked.set()


def _consumer_config(options: Options) -> ConsumerConfig:
    config = replace(consumer_config(options.consumer_opt, max_in_flight=options.max_in_flight), auto_touch=True)
    if any(option.name == "max_attempts" for option in options.consumer_opt):
        return config
    return replace(config, max_attempts=0)  # any message can be written, so to give one up is to lose it


def _prepare_folders(options: Options) -> None:
    """Find out now, and not when the first file is complete, what is wrong with the folders."""
    output, work = Path(options.output_dir), Path(options.folder_of_open_files)
    try:
        make_folder(output)
        make_folder(work)
        is_one_filesystem = output.stat().st_dev == work.stat().st_dev
    except OSError as error:
        raise ToolError(f"{error.filename}: {error.strerror}") from error
    if not is_one_filesystem:
        raise ToolError(f"--work-dir {work} and --output-dir {output} must be on one filesystem")
