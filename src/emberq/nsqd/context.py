"""What all sessions of one nsqd share, how a session's stream is upgraded, and which connections are served at all.

An upgrade turns a plain stream into what IDENTIFY agreed on: TLS first, then compression. The client hears of each
step inside the new stream, by an OK. What it sent behind the IDENTIFY in the old stream is dropped, because it belongs
to neither. There is one upgrade: on a stream that is encrypted or compressed, IDENTIFY is refused.

What came in clear may be the work of a stranger between client and nsqd, who lets the client shake hands afterwards. So
nothing of it lasts over a handshake: no bytes, and no authorization. (What the IDENTIFY itself asked for does.)

`ConnectionGate` bounds the connections, over TCP, HTTP and HTTPS together. An operator may set limits. Without them,
connections still leave a part of the process's descriptors free, because nsqd itself has to open files: one that cannot
open the next file of a queue cannot take messages from any client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections import Counter
from collections.abc import Coroutine
from ipaddress import ip_network
from typing import Any

import emberq
from emberq.base.address import NetworkError, format_peer, parse_remote
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.log import RefusalLog
from emberq.base.timers import Timers
from emberq.base.tls import ServerTls
from emberq.broker.broker import Broker
from emberq.broker.subscriber import Locality
from emberq.nsqd.auth.authorizer import Authorizer
from emberq.nsqd.connection import ClientConnection, Deliveries, Output
from emberq.nsqd.options import NsqdOptions, TlsRequired
from emberq.nsqd.publishing import PublishBatcher
from emberq.nsqd.tls import TlsConnection
from emberq.nsqd.trace import Trace
from emberq.wire import frame
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.decoder import CommandDecoder
from emberq.wire.line import CommandLimits
from emberq.wire.negotiation import Agreement, ConnectionSettings, ServerLimits

TLS_HANDSHAKE_SECONDS = 5.0
TLS_SHUTDOWN_SECONDS = 5.0
TOPOLOGY_EXPERIMENT = "topology-aware-consumption"

_log = logging.getLogger(__name__)


class SessionContext:
    """The broker, the clock and the limits, as a session needs them. Owned by the daemon."""

    def __init__(
        self,
        options: NsqdOptions,
        *,
        broker: Broker,
        batcher: PublishBatcher,
        deliveries: Deliveries,
        clock: Clock,
        timers: Timers,
        gate: ConnectionGate,
        authorizer: Authorizer | None,
        tls: ServerTls | None,
    ) -> None:
        self.broker = broker
        self.batcher = batcher
        self.deliveries = deliveries
        self.gate = gate
        self.authorizer = authorizer
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        """What sessions wait for. The event loop holds its tasks only weakly, so they are held here."""
        self.clock = clock
        self.timers = timers
        self.sessions: set[ClientConnection] = set()
        self.trace = Trace()
        self.tls_required = options.tls_required is not TlsRequired.NO
        self.command_limits = CommandLimits(
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
            max_req_timeout_ms=options.max_req_timeout_ns // NS_PER_MS,
            max_rdy_count=options.max_rdy_count,
        )
        self.server_limits = ServerLimits(
            version=emberq.NSQ_VERSION,
            max_rdy_count=options.max_rdy_count,
            max_heartbeat_interval_ms=options.max_heartbeat_interval_ns // NS_PER_MS,
            max_output_buffer_size=options.max_output_buffer_size,
            min_output_buffer_timeout_ms=options.min_output_buffer_timeout_ns // NS_PER_MS,
            max_output_buffer_timeout_ms=options.max_output_buffer_timeout_ns // NS_PER_MS,
            max_msg_timeout_ms=options.max_msg_timeout_ns // NS_PER_MS,
            max_deflate_level=options.max_deflate_level,
            tls=tls is not None,
            auth_required=authorizer is not None,
            deflate=options.deflate,
            snappy=options.snappy,
            topology_region=options.topology_region,
            topology_zone=options.topology_zone,
        )
        self.default_settings = ConnectionSettings(
            client_id="",
            hostname="",
            heartbeat_interval_ms=options.client_timeout_ns // 2 // NS_PER_MS,
            output_buffer_timeout_ms=options.output_buffer_timeout_ns // NS_PER_MS,
            msg_timeout_ms=options.msg_timeout_ns // NS_PER_MS,
        )
        self._knows_topology = TOPOLOGY_EXPERIMENT in options.enable_experiment
        self._zone = options.topology_zone
        self._region = options.topology_region

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that a session waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def start_tls(self, transport: asyncio.Transport, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Shake hands as the server on a connection that is open; OSError or TimeoutError if that fails."""
        if self._tls is None:
            raise OSError("no certificate")
        encrypted = await asyncio.get_running_loop().start_tls(
            transport,
            protocol,
            self._tls.context,
            server_side=True,
            ssl_handshake_timeout=TLS_HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
        )
        if encrypted is None or encrypted.get_extra_info("ssl_object") is None:
            raise OSError("the connection is gone")
        return encrypted

    def locality(self, settings: ConnectionSettings) -> Locality:
        """How near the client is, by the zone and region it named. GLOBAL unless the topology experiment is on."""
        if self._knows_topology and self._zone and settings.topology_zone == self._zone:
            return Locality.ZONE
        if self._knows_topology and self._region and settings.topology_region == self._region:
            return Locality.REGION
        return Locality.GLOBAL


class StreamUpgrade:
    """The upgrades of one connection. Owned by its session."""

    __slots__ = ("_context", "_decoder", "_output", "is_shaking_hands", "tls")

    def __init__(self, context: SessionContext, decoder: CommandDecoder, output: Output) -> None:
        self._context = context
        self._decoder = decoder
        self._output = output
        self.tls: TlsConnection | None = None
        """What was agreed, once the stream is encrypted."""
        self.is_shaking_hands = False
        """A TLS handshake is under way: no frame may be written into it."""

    async def encrypt(self, protocol: asyncio.Protocol) -> None:
        """Shake hands on this connection; OSError (ssl.SSLError is one) or TimeoutError if that fails."""
        self._log_upgrade("TLS")
        self.is_shaking_hands = True
        transport = await self._context.start_tls(self._output.transport, protocol)
        self.is_shaking_hands = False
        self._output.use_transport(transport)
        protocol.resume_writing()  # the old transport may have been full, the new one is empty
        self.tls = TlsConnection.of(transport.get_extra_info("ssl_object"))
        self._decoder.tls_required = False
        self._decoder.is_upgraded = True
        self._output.reply(frame.OK)

    def compress(self, outcome: Agreement) -> None:
        """Switch both directions to what was agreed, if anything was."""
        if outcome.snappy:
            self._log_upgrade("snappy")
            self._output.use_codec(SnappyCodec())
        elif outcome.deflate_level:
            self._log_upgrade(f"deflate (level {outcome.deflate_level})")
            self._output.use_codec(DeflateCodec(outcome.deflate_level))
        else:
            return
        self._decoder.discard()
        self._decoder.is_upgraded = True
        self._output.reply(frame.OK)

    def _log_upgrade(self, what: str) -> None:
        peer = format_peer(self._output.transport.get_extra_info("peername"))
        _log.info("PROTOCOL(V2): [%s] upgrading connection to %s", peer, what)


# Which connections are served.

DESCRIPTOR_SHARE = 4
MAX_RESERVED_COUNT = 4096
"""Connections leave one in so many descriptors free, but no more than these: it is what journals keep open at most."""
REFUSAL_LOG_INTERVAL_NS = 10 * NS_PER_SECOND
NO_DESCRIPTORS = "nsqd needs the file descriptors that are left (ulimit -n)"
NO_LIMIT = 1 << 31
"""More than there can be descriptors."""
IPV6_PREFIX_BITS = 64
"""A host of IPv6 may have as many addresses as it likes within this prefix. So they count as one."""


class ConnectionGate:
    """Counts the connections of all listeners, and refuses those beyond the limits. Owned by the daemon."""

    def __init__(self, options: NsqdOptions, *, clock: Clock) -> None:
        self._max_count = options.max_connections
        self._max_address_count = options.max_connections_per_address
        self._count = 0
        self._address_counts: Counter[str] = Counter()
        """How many there are of each address; kept only if that has a limit."""
        self._refusals = RefusalLog(_log, clock=clock, interval_ns=REFUSAL_LOG_INTERVAL_NS)

    def enter(self, remote_address: str, transport: asyncio.BaseTransport) -> str | None:
        """Count a new connection, or return why it is refused. One that was counted has to `leave`."""
        address = _counted_address(remote_address) if self._max_address_count else ""
        if self._is_full:
            return self._refuse(remote_address, self._too_many)
        if address and self._address_counts[address] >= self._max_address_count:
            limit = f"{self._max_address_count} connections from {address} (--max-connections-per-address)"
            return self._refuse(remote_address, f"more than {limit}")
        if transport.get_extra_info("socket").fileno() >= _max_descriptor():
            return self._refuse(remote_address, NO_DESCRIPTORS)
        self._count += 1
        if address:
            self._address_counts[address] += 1
        return None

    def leave(self, remote_address: str) -> None:
        """A connection that was counted is gone."""
        self._count -= 1
        if self._max_address_count:
            address = _counted_address(remote_address)
            self._address_counts[address] -= 1
            if not self._address_counts[address]:
                del self._address_counts[address]

    def has_room(self) -> bool:
        """Whether a connection of HTTPS may shake hands. Behind that it has to `enter`."""
        reason = self._too_many if self._is_full else None if _has_descriptors() else NO_DESCRIPTORS
        if reason is not None:
            self._refuse("a client of HTTPS", reason)
        return reason is None

    @property
    def _is_full(self) -> bool:
        return 0 < self._max_count <= self._count

    @property
    def _too_many(self) -> str:
        return f"more than {self._max_count} connections (--max-connections)"

    def _refuse(self, remote_address: str, reason: str) -> str:
        self._refusals.warn(f"refused a connection from {remote_address}: {reason}")
        return reason


def _max_descriptor() -> int:
    """The first descriptor that no connection may have. The system gives the lowest that is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return NO_LIMIT
    return limit - min(limit // DESCRIPTOR_SHARE, MAX_RESERVED_COUNT)


def _has_descriptors() -> bool:
    """Whether the next descriptor may be that of a connection."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return False
    os.close(descriptor)
    return descriptor < _max_descriptor()


def _counted_address(remote_address: str) -> str:
    """The address that a connection counts for, without its port; empty for a Unix socket."""
    try:
        address = parse_remote(remote_address)
    except NetworkError:
        return ""
    if address.version == 4:
        return str(address)
    return str(ip_network((address, IPV6_PREFIX_BITS), strict=False))
