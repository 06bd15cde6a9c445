"""Consumes a channel into a spool: in a thread of the process that Spark runs a query's reader in, on the driver.

    nsqds ──> lanes ──> a segment ──fsync──> FIN
              collect   is written while the next one collects

Messages are finished when they are on the disk, never before and whatever Spark does. So a receiver that dies has lost
nothing: what it had stored is in the spool, what it had not comes again, and what it had stored and not finished comes
again too and is recognized (`channel_spool`).

If Spark does not keep up, no more messages are asked for once `MAX_WAITING_BYTES` wait in the spool; they stay with
nsqd.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from functools import partial

import uvloop

from emberq.base.address import TcpAddress, parse_tcp_address
from emberq.base.clock import NS_PER_SECOND
from emberq.base.http_query import HttpClient
from emberq.client import ClientConfig, ServerError
from emberq.client.connector import Connector
from emberq.client.discovery import Discovery
from emberq.spark.address_book import AddressBook
from emberq.spark.channel_duplicate import without_stored
from emberq.spark.channel_frames import Arrived, Origin
from emberq.spark.channel_link import ChannelLink
from emberq.spark.channel_spool import Spool
from emberq.spark.error import NsqSparkError
from emberq.spark.setting import Access, SourceSettings

HEARTBEAT_INTERVAL_MS = 5_000
"""An nsqd that is silent for twice as long is dead; the spool relies on it."""
MSG_TIMEOUT_MS = 10_000
"""What a receiver leaves behind that dies, nsqd brings again after so long. Storing takes milliseconds; should it ever
take longer than that, what comes a second time is recognized."""
ENOUGH_ROWS = 2000
"""Are stored at once; fewer wait for others, `BATCH_WAIT_S` long, to share an fsync with."""
BATCH_WAIT_S = 0.02
MAX_WAITING_BYTES = 2 * 1024 * 1024 * 1024
MAX_RECONNECT_DELAY_S = 5.0
LOOKUPD_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class ChannelReceiver:
    """Runs from `start` to `stop`. Owned by a reader on the driver."""

    def __init__(self, settings: SourceSettings, spool: Spool, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._settings = settings
        self._spool = spool
        self._max_waiting_bytes = max_waiting_bytes
        self._nsqds: list[str] = []
        self._links: set[ChannelLink] = set()
        self._connectors: dict[str, Connector] = {}
        """By topic."""
        self._refusal: ServerError | None = None
        """Why an nsqd does not let us consume. When a query starts, it fails for that."""
        self._read_to = 0
        """Spark has read the segments below this number."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="emberq-receiver", daemon=True)
        self._stopping = asyncio.Event()
        self._storing = asyncio.Lock()
        """Held while a segment is being stored."""
        self._arrived_count = 0
        self._has_some = asyncio.Event()
        self._has_enough = asyncio.Event()
        self.failure: Exception | None = None
        """Why it has ended by itself."""

    def start(self) -> None:
        """NsqdUnavailable if an nsqd that the options name does not answer."""
        self._nsqds = tcp_addresses(self._settings.access)
        self._thread.start()

    def stop(self) -> None:
        """Returns when what was taken is stored and finished, or given back."""
        self._in_loop(self._stopping.set)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_full(self) -> bool:
        """Whether no more is taken until Spark has read some of what there is."""
        return self._spool.bytes_from(self._read_to) > self._max_waiting_bytes

    def has_read(self, number: int) -> None:
        """Spark has read the segments below this number, though it may want some of them again."""
        if number > self._read_to:
            self._read_to = number
            self._in_loop(self._control_flow)

    def _in_loop(self, action: Callable[[], None]) -> None:
        """Have it done by the receiver's thread, unless that has ended."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(action)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._receive())
        except Exception as failure:  # noqa: BLE001 - whatever it is, the query must hear of it
            self.failure = failure
            _log.error("receiving has ended: %s", failure)
        finally:
            self._loop.close()

    async def _receive(self) -> None:
        self._connectors = {topic: self._connector(topic) for topic in self._settings.topics}
        storing = asyncio.create_task(self._store_all())
        ends: set[asyncio.Task[object]] = {storing, asyncio.create_task(self._stopping.wait())}
        connecting: list[asyncio.Task[None]] = []
        try:
            for connector in self._connectors.values():
                await connector.connect_all()
                if self._refusal is not None:
                    raise NsqSparkError(f"nsqd does not let us consume: {self._refusal}") from self._refusal
                connecting.append(asyncio.create_task(connector.run()))
            await asyncio.wait({*ends, *connecting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in connecting:
                task.cancel()
            self._stopping.set()
            self._has_some.set()
            await asyncio.gather(*connecting, *ends, return_exceptions=True)
            await self._wind_up()
        storing.result()

    async def _wind_up(self) -> None:
        links = list(self._links)
        await asyncio.gather(*(link.finish_up() for link in links))
        try:
            await self._store_what_arrived()
        finally:
            await asyncio.gather(*(link.close() for link in links))

    # Connections.

    def _connector(self, topic: str) -> Connector:
        return Connector(
            partial(self._connect, topic),
            direct_addresses=self._nsqds,
            discovery=_discovery(topic, self._settings) if self._settings.access.lookupds else None,
            max_delay_s=MAX_RECONNECT_DELAY_S,
        )

    async def _connect(self, topic: str, nsqd: str) -> None:
        channel = self._settings.channel
        assert channel is not None  # noqa: S101 - the reader has seen to it
        link = ChannelLink(Origin(topic, nsqd), self._lost)
        try:
            await link.connect(_client_config(self._settings.access))
            async with self._storing:  # so that all that an earlier link has brought is stored, or forgotten
                self._spool.put_in_doubt()
                in_doubt_until_ns = self._spool.newest_ns(link.origin)
            await link.subscribe(channel, in_doubt_until_ns=in_doubt_until_ns, on_arrival=self._has_arrived)
        except BaseException as failure:
            if isinstance(failure, ServerError):
                self._refusal = failure
            await link.close()
            raise
        self._links.add(link)
        self._control_flow()

    def _lost(self, link: ChannelLink) -> None:
        self._links.discard(link)
        self._spool.put_in_doubt()
        self._connectors[link.origin.topic].lost(link.origin.nsqd)

    def _control_flow(self) -> None:
        """Ask for messages, or for none if too many wait to be read."""
        wants_more = not self.is_full and not self._stopping.is_set()
        for link in self._links:
            link.ask(for_messages=wants_more)

    # Messages.

    def _has_arrived(self, count: int) -> None:
        self._arrived_count += count
        self._has_some.set()
        if self._arrived_count >= ENOUGH_ROWS:
            self._has_enough.set()

    async def _store_all(self) -> None:
        while not self._stopping.is_set():
            await self._has_some.wait()
            try:
                async with asyncio.timeout(BATCH_WAIT_S):
                    await self._has_enough.wait()
            except TimeoutError:
                pass  # few are stored as well
            await self._store_what_arrived()
            self._control_flow()

    async def _store_what_arrived(self) -> None:
        async with self._storing:
            self._arrived_count = 0
            self._has_some.clear()
            self._has_enough.clear()
            arrived = [taken for link in self._links for lane in link.lanes if (taken := lane.take()) is not None]
            if arrived:
                await asyncio.to_thread(self._store, arrived)
        for each in arrived:
            each.finish()

    def _store(self, arrived: list[Arrived]) -> None:
        if fresh := without_stored(arrived, self._spool):
            self._spool.append(fresh)


def tcp_addresses(access: Access) -> list[str]:
    """Where the nsqds speak TCP whose HTTP addresses the options name; none if nsqlookupds are named instead."""
    book = AddressBook(access)
    try:
        return [
            str(TcpAddress(parse_tcp_address(nsqd.rpartition("://")[2]).host, int(_info(book, nsqd)["tcp_port"])))
            for nsqd in access.nsqds
        ]
    finally:
        book.close()


def _info(book: AddressBook, nsqd: str) -> dict[str, int]:
    document = book.peer(nsqd).get_json("/info")
    found: dict[str, int] = document.get("data", document)
    return found


def _client_config(access: Access) -> ClientConfig:
    return ClientConfig(
        tls=access.tls_context() if access.tls else None,
        auth_secret=(access.auth_secret or "").encode(),
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        msg_timeout_ms=MSG_TIMEOUT_MS,
        output_buffer_size=64 * 1024,
        output_buffer_timeout_ms=25,
    )


def _discovery(topic: str, settings: SourceSettings) -> Discovery:
    timeout_ns = round(LOOKUPD_TIMEOUT_S * NS_PER_SECOND)
    return Discovery(
        settings.access.lookupds,
        topic,
        client=HttpClient(connect_timeout_ns=timeout_ns, request_timeout_ns=timeout_ns),
        interval_s=settings.discovery_interval_s,
        secret=(settings.access.auth_secret or "").encode(),
    )
