"""What all sessions of one nsqd share, and how a session's stream is upgraded.

An upgrade turns a plain stream into what IDENTIFY agreed on: TLS first, then compression. The client hears of each
step inside the new stream, by an OK. What it sent behind the IDENTIFY in the old stream is dropped, because it belongs
to neither. There is one upgrade: on a stream that is encrypted or compressed, IDENTIFY is refused.

What came in clear may be the work of a stranger between client and nsqd, who lets the client shake hands afterwards. So
nothing of it lasts over a handshake: no bytes, and no authorization. (What the IDENTIFY itself asked for does.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import emberq
from emberq.base.address import format_peer
from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import Timers
from emberq.base.tls import ServerTls
from emberq.broker.broker import Broker
from emberq.broker.subscriber import Locality
from emberq.nsqd.auth.authorizer import Authorizer
from emberq.nsqd.connection import ClientConnection, Deliveries, Output
from emberq.nsqd.gate import ConnectionGate
from emberq.nsqd.options import NsqdOptions, TlsRequired
from emberq.nsqd.publishing import PublishBatcher
from emberq.nsqd.tls import TlsConnection
from emberq.nsqd.trace import Trace
from emberq.wire import frame
from emberq.wire.compression import DeflateCodec, SnappyCodec, load_crc32c
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
        if options.snappy:
            load_crc32c()
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
            max_msg_size=options.max_msg_size,
            max_body_size=options.max_body_size,
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
