"""The nsqd daemon: what there is, and in which order it starts and stops.

Journals are synced and cursors written in threads (`JournalThreads`), so that the event loop does not wait for the
disk.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import emberq
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.daemon import LoopLag, LoopTimers, Sweeper
from emberq.base.file import lacks_room
from emberq.base.listener import Listener, ListenError
from emberq.base.memory import Reserve
from emberq.base.program import StartError
from emberq.base.timers import NEVER, Timers
from emberq.base.tls import ServerTls, TlsError, loaded_tls
from emberq.broker.broker import Broker, TopologyChange
from emberq.broker.channel import ChannelLimits
from emberq.broker.stats import ClientStats, LatencyConfig, TopicStats
from emberq.broker.store import DiskStore, JournalStore
from emberq.broker.topic import TopicConfig
from emberq.http.access import OwnSecret
from emberq.nsqd.api.routes import Web
from emberq.nsqd.auth.authorizer import AuthOptionsError, Authorizer, client_tls
from emberq.nsqd.connection import Deliveries
from emberq.nsqd.context import SessionContext
from emberq.nsqd.drain import Drain
from emberq.nsqd.gate import ConnectionGate
from emberq.nsqd.health import Health
from emberq.nsqd.lookup import LookupService, LookupTls
from emberq.nsqd.metrics import Memory, Scrape, read_topics
from emberq.nsqd.options import NsqdOptions, OptionsError, journal_settings, topic_limits
from emberq.nsqd.publishing import PublishBatcher
from emberq.nsqd.session import ClientSession
from emberq.nsqd.statsd import StatsdConfig, StatsdPusher, expand_prefix
from emberq.storage.backend import DiskLimits
from emberq.storage.data_folder import METADATA_FILE, DataPathLock, MetadataFile
from emberq.storage.disk_queue_sync import Syncer
from emberq.storage.error import StorageError
from emberq.storage.journal.commit import Workers
from emberq.wire.frame import BODY_OFFSET
from emberq.wire.parameter import is_ephemeral

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Nsqd:
    """One nsqd. `start` opens and starts everything, `stop` closes it in reverse order."""

    def __init__(self, options: NsqdOptions, *, clock: Clock | None = None) -> None:
        self.options = _validated(options)
        self.clock = clock or SystemClock()
        self.start_time_s = self.clock.wall_ns() // NS_PER_SECOND
        self.failed = asyncio.Event()
        """Set when the daemon cannot go on."""
        self.done = asyncio.Event()
        """Set when the daemon has been drained and may stop."""
        self.memory = Memory()
        self._timers = Timers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_timers: LoopTimers | None = None

        self._syncer = Syncer(clock=self.clock, timers=self._timers)
        self._data_path = Path(options.data_path)
        self._lock = DataPathLock(self._data_path)
        self._journal_threads = JournalThreads()
        self.broker = Broker(
            config=_topic_config(self.options),
            store=DiskStore(self._data_path, limits=_disk_limits(options), syncer=self._syncer),
            journals=self._journal_store(),
            clock=self.clock,
            timers=self._timers,
        )
        self._metadata_file = MetadataFile(
            self._data_path / METADATA_FILE,
            version=emberq.NSQ_VERSION,
            entries=self.broker.entries,
            run=self._run_urgently,
            hand_back=self._hand_back,
            clock=self.clock,
            timers=self._timers,
        )
        self._metadata_file.on_saved = self.broker.metadata_saved
        self._health = Health(
            self.broker,
            self._data_path,
            min_free_bytes=options.min_free_bytes,
            clock=self.clock,
            timers=self._timers,
            run=self._run_urgently,
            recover=self._recover,
        )
        self.draining = Drain(
            self.broker,
            clock=self.clock,
            timers=self._timers,
            refuse=self._health.close_to_publishers,
            announce=self._announce,
            on_empty=self.done.set,
        )
        self._tls = _loaded_tls(self.options)
        self._client_tls = _client_tls(self.options)
        self._lookup_tls = _lookup_tls(self.options)
        self._lookupd_secret = OwnSecret(self.options.lookupd_secret_file, flag="lookupd-secret-file")
        authorizer = _authorizer(self.options, self.clock)
        self._reserve = Reserve()
        self.batcher = PublishBatcher(self.broker, self._call_soon, self._reserve.published)
        gate = ConnectionGate(self.options, clock=self.clock)
        self._context = SessionContext(
            self.options,
            broker=self.broker,
            batcher=self.batcher,
            deliveries=Deliveries(),
            clock=self.clock,
            timers=self._timers,
            gate=gate,
            authorizer=authorizer,
            tls=self._tls,
        )
        self._listener = Listener(options.tcp_address, self._new_session, label="TCP")
        self._web = Web(
            self,
            self.options,
            scrape=self._scrape,
            clock=self.clock,
            timers=self._timers,
            gate=gate,
            tls=self._tls,
            authorizer=authorizer,
        )
        self._sweeper = Sweeper(timers=self._timers, clock=self.clock)
        self._loop_lag = LoopLag(timers=self._timers, clock=self.clock)
        self._statsd: StatsdPusher | None = None
        self._discovery: LookupService | None = None

    def _journal_store(self) -> JournalStore:
        try:
            settings = journal_settings(self.options)
        except OptionsError as wrong:
            raise StartError(str(wrong)) from wrong
        threads = self._journal_threads
        workers = Workers(
            start=threads.start,
            start_reading=threads.start_reading,
            start_removing=threads.start_removing,
            hand_back=threads.hand_back,
        )
        return JournalStore(self._data_path, settings, clock=self.clock, workers=workers)

    def _new_session(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, ClientSession(self._context))

    # Starting and stopping.

    async def start(self) -> None:
        """Open the data folder and serve clients. StartError if that fails; then everything is closed again."""
        _log.info("ID: %d", self.options.node_id)
        self._loop = asyncio.get_running_loop()
        self._journal_threads.use(self._loop)
        try:
            self._lock.acquire()
        except StorageError as failure:
            raise StartError(str(failure)) from failure
        try:
            await self._listener.bind()
            await self._web.bind()
            self._load()
            self._start_watches(self._loop)
            await self._listener.serve()
            await self._web.serve()
        except (StorageError, ListenError) as failure:
            await self._web.close()
            await self._listener.close()
            await self._stop_watches()
            self._journal_threads.close()
            self._syncer.close()
            self._lock.release()
            raise StartError(str(failure)) from failure

    def _load(self) -> None:
        self.broker.load(self._metadata_file.load())
        read_only: str | None = None
        try:
            self.persist_metadata()
        except StorageError as failure:
            if not lacks_room(failure):
                raise
            read_only = str(failure)
            _log.error("NSQ: starting read-only - %s", failure)
        if read_only is not None or self.broker.awaits_room:
            self._health.await_room(read_only)
        self.broker.add_listener(self._on_change)

    def _recover(self) -> str | None:
        """There seems to be room on the disk again: do what had to wait for it. The reason if nsqd.dat still has to."""
        self.broker.reopen_journals()
        try:
            self.persist_metadata()
        except StorageError as failure:
            return str(failure)
        return None

    def _start_watches(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop_timers = LoopTimers(loop, self._timers, self.clock)
        self._loop_timers.start()
        self._reserve.start()
        self._sweeper.start()
        self._loop_lag.start()
        self.memory.start()
        self._health.start()
        self._discovery = self._new_discovery()
        self._discovery.start()
        self.broker.add_listener(self._discovery.changed)
        if self.options.statsd_address:
            self._statsd = self._new_statsd()
            self._statsd.start()

    async def _stop_watches(self) -> None:
        self.draining.stop()
        if self._discovery is not None:
            await self._discovery.stop()
        if self._statsd is not None:
            await self._statsd.stop()
        self._health.stop()
        self.memory.stop()
        self._loop_lag.stop()
        self._sweeper.stop()
        self._reserve.stop()
        if self._loop_timers is not None:
            self._loop_timers.stop()

    async def stop(self) -> None:
        """Stop serving and bring everything to disk."""
        _log.info("NSQ: stopping subsystems")
        await self._listener.close()
        self.batcher.flush()
        for session in list(self._context.sessions):
            session.abort()
        while self._context.sessions:
            await asyncio.sleep(0)
        await self._web.close()
        _log.info("NSQ: closing topics")
        self.broker.finish_deleting()
        try:
            self.persist_metadata()
        except StorageError as failure:
            _log.error("failed to persist metadata - %s", failure)
        self._journal_threads.close()
        await asyncio.sleep(0)  # results that the threads handed back are taken before the topics close
        self.broker.close()
        await self._stop_watches()
        self._syncer.close()
        self._lock.release()
        _log.info("NSQ: bye")

    def reload(self) -> None:
        """Read the TLS certificates and the files of secrets again; open connections stay."""
        if self._tls is not None:
            self._tls.reload()
        if self._lookup_tls is not None:
            self._lookup_tls.reload()
        self._web.reload()
        self._lookupd_secret.reload()

    def drain(self) -> None:
        """Take nothing new, and be done when consumers have emptied it."""
        self.draining.begin()

    def run_timers(self) -> None:
        """Run the timers that are due by the clock; for tests that move it."""
        self._timers.run_due(self.clock.monotonic_ns())

    def _call_soon(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon(callback)

    def _hand_back(self, callback: Callable[[], None]) -> None:
        """Call this in the loop's thread; may be called from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(callback)

    def _run_urgently(self, work: Callable[[], None]) -> None:
        """Do this in the sync thread, before the syncs that wait there."""
        self._syncer.run(work, urgent=True)

    # Metadata and files.

    def persist_metadata(self) -> None:
        """Write nsqd.dat now, while the loop waits: for starting and stopping."""
        self._metadata_file.save()

    async def metadata_saved(self) -> None:
        """Return when nsqd.dat is on disk with all that has happened so far; StorageError if it cannot be."""
        saved: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self._metadata_file.save_soon(lambda failure: _resolve(saved, failure))
        failure = await saved
        if failure is not None:
            raise failure

    async def files_removed(self) -> None:
        """Return when the files of all that was deleted or emptied so far are gone; StorageError if some are not."""
        removed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._run_urgently(lambda: self._hand_back(lambda: _resolve(removed, None)))
        await removed
        if self._syncer.failed_removals:
            raise StorageError(self._syncer.failed_removals.popleft())

    def _announce(self, change: TopologyChange) -> None:
        """Have nsqlookupds know of a topic or channel, or forget it."""
        if self._discovery is not None:
            self._discovery.announce(change)

    def _on_change(self, change: TopologyChange) -> None:
        """A topic or channel was created or deleted."""
        if not is_ephemeral(change.topic) and (change.channel is None or not is_ephemeral(change.channel)):
            self._metadata_file.save_soon()

    # What the API, metrics and statsd show.

    @property
    def tcp_address(self) -> tuple[str, int] | str:
        """Where clients connect: host and port, or the path of a Unix socket."""
        return self._listener.address

    @property
    def tcp_port(self) -> int:
        """The port clients connect to; -1 for a Unix socket."""
        return self._listener.port

    @property
    def http_address(self) -> tuple[str, int] | str | None:
        """Where HTTP is served; None if it is not."""
        return self._web.http_address

    @property
    def https_address(self) -> tuple[str, int] | str | None:
        """Where HTTPS is served; None if it is not."""
        return self._web.https_address

    @property
    def http_port(self) -> int:
        """The port of HTTP; -1 for a Unix socket, 0 if it is not served."""
        return self._web.http_port

    @property
    def lookupd_tcp_addresses(self) -> tuple[str, ...]:
        """The nsqlookupds that nsqd registers with."""
        return self.options.lookupd_tcp_address if self._discovery is None else self._discovery.addresses

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """From here on, register with these nsqlookupds."""
        if self._discovery is not None:
            self._discovery.set_addresses(addresses)

    def log_level_changed(self) -> None:
        """The log shows more from here on, or less: connections write debug lines from here on, or stop that."""
        self._context.trace.refresh()

    def health(self) -> str:
        """`OK`, or what is wrong, in the words of /ping."""
        problem = self._health.problem
        return "OK" if problem is None else f"NOK - {problem}"

    def producers(self) -> Iterator[ClientStats]:
        """The connections that have published, one by one. Those that close meanwhile are left out."""
        sessions = self._context.sessions
        return (session.stats() for session in tuple(sessions) if session in sessions and session.has_published)

    def _scrape(self, topics: tuple[TopicStats, ...], producers: tuple[ClientStats, ...]) -> Scrape:
        return Scrape(
            start_time_s=self.start_time_s,
            is_healthy=self._health.problem is None,
            refuses_publishing=self._health.refuses_publishing,
            is_draining=self.draining.is_on,
            topics=topics,
            producers=producers,
            tcp_connection_count=len(self._context.sessions),
            http_connection_count=self._web.connection_count,
            memory=self.memory.stats(),
            lag=self._loop_lag.read(),
            min_free_bytes=self.options.min_free_bytes,
        )

    def _new_discovery(self) -> LookupService:
        return LookupService(
            self.options,
            tcp_port=self.tcp_port,
            http_port=self.http_port,
            snapshot=self.draining.registered,
            find_topic=self.broker.find_topic,
            clock=self.clock,
            timers=self._timers,
            query_tls=self._client_tls,
            tls=self._lookup_tls.context if self._lookup_tls is not None else None,
            secret=self._lookupd_secret,
        )

    def _new_statsd(self) -> StatsdPusher:
        options = self.options
        http_port = options.broadcast_http_port or max(0, self.http_port)
        config = StatsdConfig(
            address=options.statsd_address,
            interval_ns=options.statsd_interval_ns,
            prefix=expand_prefix(options.statsd_prefix, host=options.broadcast_address, http_port=http_port),
            max_datagram_bytes=options.statsd_udp_packet_size,
            with_memory=options.statsd_mem_stats,
            with_ephemeral=not options.statsd_exclude_ephemeral,
        )
        return StatsdPusher(
            config,
            clock=self.clock,
            timers=self._timers,
            read_topics=lambda: read_topics(self.broker),
            memory=self.memory.stats,
        )


def _resolve(future: asyncio.Future[_T], result: _T) -> None:
    """Unless the request was given up meanwhile."""
    if not future.done():
        future.set_result(result)


# From options to the parts they set up.


def _validated(options: NsqdOptions) -> NsqdOptions:
    try:
        return options.validated()
    except OptionsError as wrong:
        raise StartError(str(wrong)) from wrong


def _topic_config(options: NsqdOptions) -> TopicConfig:
    return TopicConfig(
        node_id=options.node_id,
        max_message_bytes=options.max_msg_size,
        limits_of=topic_limits(options),
        channel=ChannelLimits(
            mem_queue_size=options.mem_queue_size,
            mem_queue_bytes=options.mem_queue_bytes or NEVER,
            max_msg_timeout_ns=options.max_msg_timeout_ns,
            max_defer_ns=options.max_req_timeout_ns,
            max_consumers=options.max_channel_consumers,
            requeues_on_disconnect=options.requeue_on_disconnect,
            latency=LatencyConfig(
                quantiles=options.e2e_processing_latency_percentile,
                window_ns=options.e2e_processing_latency_window_time_ns,
            ),
        ),
    )


def _disk_limits(options: NsqdOptions) -> DiskLimits:
    return DiskLimits(
        max_bytes_per_file=options.max_bytes_per_file,
        min_record_bytes=BODY_OFFSET,
        max_record_bytes=options.max_msg_size + BODY_OFFSET,
        sync_every=options.sync_every,
        sync_timeout_ns=options.sync_timeout_ns,
    )


def _loaded_tls(options: NsqdOptions) -> ServerTls | None:
    try:
        return loaded_tls(options)
    except TlsError as wrong:
        raise StartError(str(wrong)) from wrong


def _client_tls(options: NsqdOptions) -> ssl.SSLContext | None:
    """For our own requests; None means the authorities that the system trusts."""
    try:
        return client_tls(options) if options.tls_root_ca_file else None
    except AuthOptionsError as wrong:
        raise StartError(str(wrong)) from wrong


def _lookup_tls(options: NsqdOptions) -> LookupTls | None:
    if not options.lookupd_tls:
        return None
    tls = LookupTls(options)
    try:
        tls.load()
    except TlsError as wrong:
        raise StartError(str(wrong)) from wrong
    return tls


def _authorizer(options: NsqdOptions, clock: Clock) -> Authorizer | None:
    try:
        return Authorizer(options, clock=clock) if options.auth_http_address else None
    except AuthOptionsError as wrong:
        raise StartError(str(wrong)) from wrong


# Threads of the journals.

MAX_THREADS = 4
"""Journals synced at once; each has one sync at a time. More threads would only wait for the same disk."""
MAX_READING_THREADS = 2
"""Threads that read journals in advance: one for channels, should an index that is made anew keep the other busy."""


class JournalThreads:
    """The threads of all journals. Owned by the daemon. Before `use` and after `close`, callers do the work."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._reading: ThreadPoolExecutor | None = None
        self._removing: ThreadPoolExecutor | None = None

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """From here on, do work in threads and hand results back to this loop."""
        self._loop = loop
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="emberq-journal")
        self._reading = ThreadPoolExecutor(MAX_READING_THREADS, thread_name_prefix="emberq-reading")
        self._removing = ThreadPoolExecutor(1, thread_name_prefix="emberq-removing")

    def start(self, work: Callable[[], None]) -> None:
        """Do this in another thread."""
        _start_in(self._pool, work)

    def start_reading(self, work: Callable[[], None]) -> None:
        """Do this in a thread of those that may wait for the disk for long."""
        _start_in(self._reading, work)

    def start_removing(self, work: Callable[[], None]) -> None:
        """Do this in the thread that removes files, one thing after the other."""
        _start_in(self._removing, work)

    def hand_back(self, work: Callable[[], None]) -> None:
        """Do this in the loop's thread; may be called from any thread."""
        if self._loop is None:
            work()
        else:
            self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Return when all work has been done."""
        pools = (self._pool, self._reading, self._removing)
        self._pool = self._reading = self._removing = None
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True)
        self._loop = None


def _start_in(pool: ThreadPoolExecutor | None, work: Callable[[], None]) -> None:
    if pool is None:
        work()
    else:
        pool.submit(work).add_done_callback(_report_defect)


def _report_defect(future: Future[None]) -> None:
    defect = future.exception()
    if defect is not None:
        _log.error("a journal thread failed: %r", defect, exc_info=defect)
