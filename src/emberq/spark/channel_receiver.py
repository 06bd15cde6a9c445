"""A channel received into the spool, on the driver, in a thread of the process in which Spark runs a query's reader.

    nsqds ──> connections ──> a segment ──fsync──> FIN
              collect         is written while the next one collects

Messages are finished when they are on the disk and not before, whatever Spark does. So a receiver that dies has lost
nothing: what it had stored is in the spool, and what it had not stored is delivered again. What it had stored and not
finished is delivered again too, and recognized (`channel_spool`).

If Spark does not keep up, the receiver asks for no more messages once `MAX_WAITING_BYTES` wait in the spool. They stay
with nsqd.

**Links.** A receiver has several connections to one nsqd for one topic: a link. By default nsqd sends a connection at
most 2500 messages at a time, and messages on their way to the disk are not finished yet. The connections of a link
begin and end together, because a message may be delivered again on another connection than before, and then it must be
clear whether it was stored. When a link is lost, what it received and did not store yet is dropped. Before the next
link subscribes, what was stored is put in doubt (`channel_spool`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial

import uvloop

from emberq.base.address import TcpAddress, parse_tcp_address
from emberq.base.clock import NS_PER_SECOND
from emberq.base.task import LoopThread
from emberq.client import ClientConfig, Connection, ConnectionLostError, NsqError, ServerError
from emberq.client.connection import OnClose
from emberq.client.discovery import Connector, Discovery
from emberq.client.subscription import allowed_count
from emberq.http.client import HttpClient
from emberq.spark.channel_frames import Arrived
from emberq.spark.channel_spool import Spool, without_stored
from emberq.spark.error import NsqSparkError
from emberq.spark.journal_offset import Place
from emberq.spark.nsqd_http import Access, AddressBook
from emberq.spark.option import SourceSettings
from emberq.spark.schema import byte_strings
from emberq.wire import command
from emberq.wire.frame import Frame, FrameDecoder, WholeMessages

CONNECTIONS = 4
FIRST_RDY = 100
"""The RDY of a new connection, until it is known how large messages are."""
MAX_BYTES_IN_FLIGHT = 16 * 1024 * 1024
"""About this much may be in flight on one connection, and has to fit in memory."""
MAX_UNTAKEN_BYTES = 4 * MAX_BYTES_IN_FLIGHT
"""What may wait to be taken on one connection, when messages are larger than those before; then nsqd has to wait."""
CLOSE_TIMEOUT_S = 1.0

_log = logging.getLogger(__name__)


# One nsqd.


class ReceiverConnection:
    """One connection of a link, and the message frames that it has received until the receiver takes them."""

    def __init__(self, origin: Place) -> None:
        self.connection: Connection  # from `connect` on
        self._origin = origin
        self._pieces: list[bytes] = []
        self._lengths: list[int] = []
        self._rdy = 0
        self._highest_rdy = 0
        self._is_reading_paused = False
        self._mean_bytes = MAX_BYTES_IN_FLIGHT // FIRST_RDY
        self.in_doubt_until_ns = -1
        self.on_arrival: Callable[[int], None] = _ignore_arrival
        """Called with the number of messages that have arrived."""

    async def connect(self, config: ClientConfig, *, on_close: OnClose) -> None:
        """Raises what `Connection.open` does."""
        decoder = FrameDecoder(max_frame_bytes=config.max_frame_bytes)
        self.connection = await Connection.open(
            self._origin.nsqd,
            config,
            decode=partial(_decode, decoder),
            on_messages=self._collect,
            on_close=on_close,
        )

    def _collect(self, connection: Connection, received: WholeMessages) -> None:
        count = len(self._lengths) + len(received.lengths)
        if count > allowed_count(self._highest_rdy):
            connection.refuse(f"{count} messages are not taken yet, and no RDY was above {self._highest_rdy}")
            return
        self._pieces += received.pieces
        self._lengths += received.lengths
        if sum(map(len, self._pieces)) > MAX_UNTAKEN_BYTES:
            self._is_reading_paused = True
            connection.pause_reading()
        self.on_arrival(len(received.lengths))

    def take(self) -> Arrived | None:
        """The messages that arrived since the last call; None if there are none."""
        if not self._lengths:
            return None
        pieces, lengths = self._pieces, self._lengths
        self.forget()
        self._mean_bytes = sum(lengths) // len(lengths)
        return Arrived(self._origin, byte_strings(pieces, lengths), self.in_doubt_until_ns, self._send_if_open)

    def _send_if_open(self, data: bytes) -> None:
        if self.connection.is_open:
            self.connection.send(data)

    def forget(self) -> None:
        """Drop what has arrived and was not taken."""
        self._pieces, self._lengths = [], []
        if self._is_reading_paused:
            self._is_reading_paused = False
            self.connection.resume_reading()

    def ask(self, *, for_messages: bool) -> None:
        """Set RDY to as many messages as there is room for, or to 0."""
        room = max(1, MAX_BYTES_IN_FLIGHT // self._mean_bytes)
        rdy = min(room, self.connection.answer.max_rdy_count) if for_messages else 0
        if not self._rdy / 2 < rdy < self._rdy * 2 and rdy != self._rdy:  # not for small changes
            self._rdy = rdy
            self._highest_rdy = max(self._highest_rdy, rdy)
            self._send_if_open(command.rdy(rdy))


class ChannelLink:
    """All connections to one nsqd for one topic. Owned by a receiver, from `connect` until it is closed or lost."""

    def __init__(self, origin: Place, on_lost: Callable[[ChannelLink], None]) -> None:
        """`on_lost` is called when the link ends by itself, once it has subscribed."""
        self.origin = origin
        self.connections: list[ReceiverConnection] = []
        self._on_lost = on_lost
        self._is_live = False

    async def connect(self, config: ClientConfig) -> None:
        """Connect; no message comes yet. Raises what `Connection.open` does."""
        for _ in range(CONNECTIONS):
            receiving = ReceiverConnection(self.origin)
            await receiving.connect(config, on_close=self._on_close)
            self.connections.append(receiving)

    async def subscribe(self, channel: str, *, in_doubt_until_ns: int, on_arrival: Callable[[int], None]) -> None:
        """Subscribe to the channel; messages come when they are asked for. Raises what `Connection.request` does.

        An nsqd may allow a channel only so many consumers (`--max-channel-consumers`): one connection is enough.
        """
        for count, each in enumerate(self.connections):
            each.in_doubt_until_ns = in_doubt_until_ns
            each.on_arrival = on_arrival
            try:
                await each.connection.request(command.sub(topic=self.origin.topic, channel=channel))
            except ServerError as refusal:
                if not count:
                    raise
                _log.info("nsqd %s allows %d connections: %s", self.origin.nsqd, count, refusal)
                self.connections, surplus = self.connections[:count], self.connections[count:]
                await asyncio.gather(*(each.connection.close() for each in surplus))
                break
        if not all(each.connection.is_open for each in self.connections):  # one may have ended behind its answer
            raise ConnectionLostError(self.origin.nsqd, "lost while subscribing")
        self._is_live = True

    def ask(self, *, for_messages: bool) -> None:
        """Ask nsqd for messages, or for none from now on."""
        for each in self.connections:
            each.ask(for_messages=for_messages)

    async def finish_up(self) -> None:
        """Send CLS. When nsqd has answered, everything it sent before has arrived."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                open_ones = [each.connection for each in self.connections if each.connection.is_open]
                await asyncio.gather(*(connection.request(command.CLS) for connection in open_ones))
        except (TimeoutError, NsqError) as failure:
            _log.warning("nsqd %s: %s", self.origin.nsqd, failure or "does not say that it sends no more")

    async def close(self) -> None:
        """Close all connections, without calling `on_lost`."""
        self._is_live = False
        await asyncio.gather(*(each.connection.close() for each in self.connections))

    def _on_close(self, lost: Connection, failure: BaseException | None) -> None:
        if not self._is_live or lost not in [each.connection for each in self.connections]:
            return
        self._is_live = False
        _log.warning("lost nsqd %s: %s", self.origin.nsqd, failure)
        for each in self.connections:
            each.forget()
            each.connection.abort(failure or ConnectionError("another connection to this nsqd was lost"))
        self._on_lost(self)


def _decode(decoder: FrameDecoder, data: bytes) -> tuple[WholeMessages | None, list[Frame]]:
    """How a receiving connection decodes: messages stay in their frames."""
    received = decoder.feed_whole(data)
    return received if received.lengths else None, received.others


def _ignore_arrival(_count: int) -> None:
    """For a connection that has not subscribed yet, on which no message can arrive."""


# The receiver.

HEARTBEAT_INTERVAL_MS = 5_000
"""An nsqd that is silent for twice as long counts as dead; the spool relies on that."""
MSG_TIMEOUT_MS = 10_000
"""After this time nsqd delivers again what a dead receiver had not finished. Storing takes milliseconds; should it ever
take longer than this, the second delivery is recognized."""
ENOUGH_ROWS = 2000
"""So many messages are stored at once. Fewer wait up to `BATCH_WAIT_S` for others, to share an fsync."""
BATCH_WAIT_S = 0.02
MAX_WAITING_BYTES = 2 * 1024 * 1024 * 1024
MAX_RECONNECT_DELAY_S = 5.0
LOOKUPD_TIMEOUT_S = 10.0


class ChannelReceiver:
    """Consumes a channel into a spool, from `start` to `stop`. Owned by a reader on the driver."""

    def __init__(self, settings: SourceSettings, spool: Spool, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._settings = settings
        self._spool = spool
        self._max_waiting_bytes = max_waiting_bytes
        self._nsqds: list[str] = []
        self._links: set[ChannelLink] = set()
        self._connectors: dict[str, Connector] = {}
        """By topic."""
        self._refusal: ServerError | None = None
        """Why an nsqd refused a subscription. A query that starts fails with it."""
        self._read_to = 0
        """Spark has read the segments below this number."""
        self._loop = LoopThread("emberq-receiver", new_loop=uvloop.new_event_loop)
        self._receiving: asyncio.Task[None] | None = None
        """Runs in the loop from `start` on."""
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
        self._loop.run(self._begin)

    def stop(self) -> None:
        """Stop receiving. Returns when every message received is stored and finished, or left to nsqd."""
        self._loop.end(self._end)

    @property
    def is_full(self) -> bool:
        """Whether the spool takes no more until Spark has read some of it."""
        return self._spool.bytes_from(self._read_to) > self._max_waiting_bytes

    def has_read(self, number: int) -> None:
        """Note that Spark has read the segments below this number. It may read some of them again."""
        if number > self._read_to:
            self._read_to = number
            if not self._loop.is_ended:
                self._loop.run(self._control_flow)

    # In the loop.

    async def _begin(self) -> None:
        self._receiving = asyncio.create_task(self._receive_or_fail())

    async def _end(self) -> None:
        self._stopping.set()
        if self._receiving is not None:
            await self._receiving

    async def _receive_or_fail(self) -> None:
        try:
            await self._receive()
        except Exception as failure:  # noqa: BLE001 - whatever it is, the query must hear of it
            self.failure = failure
            _log.error("receiving has ended: %s", failure)

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
        assert channel is not None  # noqa: S101 - the reader has checked it
        link = ChannelLink(Place(nsqd, topic), self._lost)
        try:
            await link.connect(_client_config(self._settings.access))
            async with self._storing:  # then all that an earlier link received is stored or dropped
                self._spool.put_in_doubt()
                in_doubt_until_ns = self._spool.newest_ns(link.origin)
            await link.subscribe(channel, in_doubt_until_ns=in_doubt_until_ns, on_arrival=self._has_arrived)
        except BaseException as failure:
            if isinstance(failure, ServerError):
                self._refusal = failure
            await link.close()
            raise
        self._links.add(link)
        await self._control_flow()

    def _lost(self, link: ChannelLink) -> None:
        self._links.discard(link)
        self._spool.put_in_doubt()
        self._connectors[link.origin.topic].lost(link.origin.nsqd)

    async def _control_flow(self) -> None:
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
            await self._control_flow()

    async def _store_what_arrived(self) -> None:
        async with self._storing:
            self._arrived_count = 0
            self._has_some.clear()
            self._has_enough.clear()
            arrived = [taken for link in self._links for each in link.connections if (taken := each.take()) is not None]
            if arrived:
                await asyncio.to_thread(self._store, arrived)
        for each in arrived:
            each.finish()

    def _store(self, arrived: list[Arrived]) -> None:
        if fresh := without_stored(arrived, self._spool):
            self._spool.append(fresh)


def tcp_addresses(access: Access) -> list[str]:
    """The TCP addresses of the nsqds whose HTTP addresses the options name. None if the options name nsqlookupds."""
    with closing(AddressBook(access)) as book:
        ports = {nsqd: int(book.peer(nsqd).get_json("/info")["tcp_port"]) for nsqd in access.nsqds}
    hosts = {nsqd: parse_tcp_address(nsqd.rpartition("://")[2]).host for nsqd in access.nsqds}
    return [str(TcpAddress(hosts[nsqd], port)) for nsqd, port in ports.items()]


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
    access = settings.access
    needs_tls = any(lookupd.startswith("https://") for lookupd in access.lookupds)
    tls = access.tls_context() if needs_tls else None
    return Discovery(
        access.lookupds,
        topic,
        client=HttpClient(connect_timeout_ns=timeout_ns, request_timeout_ns=timeout_ns, tls=tls),
        interval_s=settings.discovery_interval_s,
        secret=(settings.access.lookupd_secret or "").encode(),
    )
