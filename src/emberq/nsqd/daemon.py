"""The nsqd daemon: what starts and stops, in which order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import emberq
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.garbage import Sweeper
from emberq.base.listener import Listener, ListenError
from emberq.base.loop_timers import LoopTimers
from emberq.base.timers import Timers
from emberq.broker.broker import Broker, Change
from emberq.broker.stats import ClientStats, TopicStats
from emberq.broker.store import DiskStore
from emberq.broker.topic import TopicConfig
from emberq.nsqd.intake import Intake
from emberq.nsqd.metadata_file import MetadataFile
from emberq.nsqd.options import Options, OptionsError
from emberq.nsqd.service import Service
from emberq.nsqd.session import Session
from emberq.storage.errors import StorageError
from emberq.storage.limits import DiskLimits
from emberq.storage.lock import DataPathLock
from emberq.storage.sync import Syncer
from emberq.wire.message import BODY_OFFSET
from emberq.wire.name import is_ephemeral

_log = logging.getLogger(__name__)


class StartError(Exception):
    """nsqd could not start; the text says why."""


class Nsqd:
    """One nsqd. `start` takes hold of everything, `stop` lets go of it in reverse order."""

    def __init__(self, options: Options, *, clock: Clock | None = None) -> None:
        try:
            self.options = options.validated()
        except OptionsError as wrong:
            raise StartError(str(wrong)) from wrong
        self._clock = clock or SystemClock()
        self._timers = Timers()
        self._syncer = Syncer(clock=self._clock, timers=self._timers)
        self._data_path = Path(options.data_path)
        self._lock = DataPathLock(self._data_path)
        self.broker = Broker(
            config=TopicConfig(
                node_id=options.node_id,
                mem_queue_size=options.mem_queue_size,
                max_msg_timeout_ns=options.max_msg_timeout_ns,
                max_channel_consumers=options.max_channel_consumers,
            ),
            store=DiskStore(self._data_path, limits=_disk_limits(options), syncer=self._syncer),
            clock=self._clock,
            timers=self._timers,
        )
        self._intake = Intake(self.broker, self._call_soon)
        self._service = Service(
            self.options, broker=self.broker, intake=self._intake, clock=self._clock, timers=self._timers
        )
        self._metadata_file = MetadataFile(self._data_path / "nsqd.dat", run=self._syncer.run)
        self._listener = Listener(options.tcp_address, lambda: Session(self._service), label="TCP")
        self._sweeper = Sweeper(timers=self._timers, clock=self._clock)
        self._loop_timers: LoopTimers | None = None
        self._persist_pending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failed = asyncio.Event()
        """Set when the daemon cannot go on."""

        self.start_time_s = self._clock.wall_ns() // NS_PER_SECOND
        self.lookupd_tcp_addresses = options.lookupd_tcp_address

    def set_lookupd_tcp_addresses(self, addresses: tuple[str, ...]) -> None:
        """Register with these nsqlookupds from here on."""
        self.lookupd_tcp_addresses = addresses

    def health(self) -> str:
        """`OK`, or what is wrong, in the words of /ping."""
        return "OK" if self.broker.health is None else f"NOK - {self.broker.health}"

    @property
    def tcp_port(self) -> int:
        """The port clients connect to; -1 for a Unix socket."""
        return self._listener.port

    @property
    def tcp_address(self) -> tuple[str, int] | str:
        """Where clients connect: host and port, or the path of a Unix socket."""
        return self._listener.address

    async def start(self) -> None:
        """Open the data folder and serve clients; StartError, with nothing left behind, if that cannot be."""
        self._loop = asyncio.get_running_loop()
        try:
            self._lock.acquire()
        except StorageError as failure:
            raise StartError(str(failure)) from failure
        try:
            await self._listener.bind()
            self._load()
            self._loop_timers = LoopTimers(self._loop, self._timers, self._clock)
            self._loop_timers.start()
            self._sweeper.start()
            self.broker.add_listener(self._on_change)
            await self._listener.serve()
        except (StorageError, ListenError) as failure:
            await self._listener.close()
            self._syncer.close()
            self._lock.release()
            raise StartError(str(failure)) from failure

    def _load(self) -> None:
        self.broker.load(self._metadata_file.load())
        _log.info("NSQ: persisting topic/channel metadata to %s", self._metadata_file.path)
        self.persist_metadata()

    async def stop(self) -> None:
        """Stop serving and bring everything to disk."""
        _log.info("NSQ: stopping subsystems")
        await self._listener.close()
        self._intake.flush()
        for session in list(self._service.sessions):
            session.abort()
        while self._service.sessions:
            await asyncio.sleep(0)
        _log.info("NSQ: closing topics")
        try:
            self.persist_metadata()
        except StorageError as failure:
            _log.error("failed to persist metadata - %s", failure)
        self.broker.close()
        self._sweeper.stop()
        if self._loop_timers is not None:
            self._loop_timers.stop()
        self._syncer.close()
        self._lock.release()
        _log.info("NSQ: bye")

    def run_timers(self) -> None:
        """Do what is due by the clock now; for tests that move it."""
        self._timers.run_due(self._clock.monotonic_ns())

    def persist_metadata(self) -> None:
        """Write nsqd.dat now."""
        self._metadata_file.save(self.broker.metadata(emberq.NSQ_VERSION))

    def _on_change(self, change: Change) -> None:
        """A topic or channel came or went: write nsqd.dat soon, once for all that happens in this turn of the loop."""
        if is_ephemeral(change.topic) or (change.channel is not None and is_ephemeral(change.channel)):
            return
        if not self._persist_pending:
            self._persist_pending = True
            self._call_soon(self._persist_soon)

    def _call_soon(self, callback: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon(callback)

    def _persist_soon(self) -> None:
        self._persist_pending = False
        self._metadata_file.save_soon(self.broker.metadata(emberq.NSQ_VERSION))

    def snapshot(self) -> tuple[TopicStats, ...]:
        """The state of all topics now."""
        return self.broker.snapshot()

    def producers(self) -> tuple[ClientStats, ...]:
        """The connections that have published."""
        return tuple(session.stats() for session in self._service.sessions if session.has_published)


def _disk_limits(options: Options) -> DiskLimits:
    return DiskLimits(
        max_bytes_per_file=options.max_bytes_per_file,
        min_record_bytes=BODY_OFFSET,
        max_record_bytes=options.max_msg_size + BODY_OFFSET,
        sync_every=options.sync_every,
        sync_timeout_ns=options.sync_timeout_ns,
    )
