"""A client's connection: bytes to commands, commands to the broker, frames back.

Everything that arrives in one packet is decoded and executed before `data_received` returns. Small publishes are
gathered, and messages delivered, at the end of the loop's turn, when all sockets that were readable have been read (see
`publishing`, `subscription`): so much is done once for many clients, and nothing is sent while others wait to be read.

The session decides what is executed, whose turn it is and when to close. The rest is done by its parts:

    Publishing            what the client publishes, and the replies to that
    ClientSubscription    what it consumes
    Output, Deadlines     what leaves, and when
    StreamUpgrade         TLS and compression
    Pause                 stopping for a while: to let others have their turn, and for commands that take time

Back-pressure. A full socket blocks its own subscriber and no other. A client that goes on sending commands but does not
read the replies is not read from either. One that reads nothing for a whole heartbeat interval is cut off; one that
reads slowly is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from emberq.base.address import format_peer
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.broker.error import BrokerError
from emberq.broker.stats import ClientStats
from emberq.broker.subscriber import Subscriber
from emberq.nsqd.auth.authorizer import AuthPeer, ConnectionAuth
from emberq.nsqd.connection import Deadlines, Due, Output, Pause
from emberq.nsqd.context import StreamUpgrade
from emberq.nsqd.publishing import MAX_SMALL_BYTES, Publishing
from emberq.nsqd.subscription import ClientSubscription
from emberq.nsqd.tls import TlsConnection
from emberq.nsqd.trace import ConnectionLog
from emberq.storage.error import StorageError
from emberq.wire import error, frame
from emberq.wire.command import (
    MAGIC_V2,
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    Nop,
    NumberedPublish,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.compression import Codec, CompressionError, DeflateCodec, SnappyCodec
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError, SilentClose
from emberq.wire.negotiation import Agreement, ConnectionSettings, negotiate, parse_request

if TYPE_CHECKING:
    from emberq.nsqd.context import SessionContext
MAX_TURN_COMMANDS = 512
MAX_TURN_BYTES = 128 * 1024
MAX_TURN_NS = 2 * NS_PER_MS
"""One client's share of a turn of the event loop, in commands, in bytes once decompressed, and in time."""
MIN_PIECE_COST_BYTES = 64 * 1024
"""What the smallest piece of a compressed stream counts for in that share: it may have taken as long to make."""
LARGE_PACKET_BYTES = 64 * 1024
"""After a packet of this size the loop reads on from the same socket, so the client's turn would not end."""
MAX_WAITING_REPLIES = 1024
"""Replies that may wait for the disk. With more, the client is not read from."""
MAX_GREETING_NS = 10 * NS_PER_SECOND
"""How long the first bytes may take. Clients send them at once; a connection without them only holds a descriptor."""
CLOSE_GRACE_NS = 5 * NS_PER_SECOND
"""How long a last frame may take to leave before the connection is cut off."""
LINGER_NS = NS_PER_SECOND
"""How long a publisher may take to read that it was refused."""


class ClientSession:
    """One connection. Owned by the event loop; registered with the context while it is open.

    An `asyncio.Protocol` in all but name: a compiled class cannot have an interpreted base.
    """

    __slots__ = (
        "_auth",
        "_batcher",
        "_connected_ns",
        "_connection_log",
        "_context",
        "_deadlines",
        "_decoder",
        "_delivery_settings",
        "_is_admitted",
        "_now_ns",
        "_output",
        "_pause",
        "_publishing",
        "_remote_address",
        "_remote_host",
        "_settings",
        "_subscription",
        "_trace",
        "_upgrade",
    )

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._trace = context.trace
        self._connection_log = ConnectionLog(context.trace)
        self._now_ns = context.clock.monotonic_ns
        self._batcher = context.batcher
        self._decoder = CommandDecoder(context.command_limits)
        self._decoder.tls_required = context.tls_required
        self._settings = context.default_settings
        """What the client has negotiated, or the defaults."""
        self._delivery_settings: ConnectionSettings | None = None
        """The settings of the first IDENTIFY: later ones do not change how messages are delivered."""
        self._auth = _new_auth(context)
        """None: every client may do everything."""
        self._remote_address = ""
        self._remote_host = ""
        """Without the port; empty for a Unix socket."""
        self._connected_ns = 0
        self._is_admitted = False
        """Whether the connection counts at the gate."""
        self._output = output = Output()
        self._deadlines = Deadlines(clock=context.clock, timers=context.timers, ring=self._on_time)
        self._pause = Pause(output, spawn=context.spawn, resume=self._resume, fail=self._fail)
        self._upgrade = StreamUpgrade(context, self._decoder, output)
        self._publishing = Publishing(
            output,
            broker=context.broker,
            batcher=context.batcher,
            may=None if self._auth is None else self._may,
            fail=self._fail,
        )
        self._subscription = ClientSubscription(
            self, context, output=output, deadlines=self._deadlines, stop_until=self._pause.until
        )

    def __repr__(self) -> str:
        return f"<Session {self._remote_address} {self._decoder.state.name}>"

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output.use_transport(cast(asyncio.Transport, transport))
        peer = transport.get_extra_info("peername")
        self._remote_host = peer[0] if isinstance(peer, tuple) else ""
        self._remote_address = self._subscription.remote_address = format_peer(peer)
        self._settings = replace(self._settings, client_id=self._remote_host, hostname=self._remote_host)
        self._connected_ns = self._context.clock.wall_ns()
        self._context.sessions.add(self)
        refusal = self._context.gate.enter(self._remote_address, transport)
        if refusal is not None:
            self._output.reply(frame.error(b"%b %b" % (error.TOO_MANY_CONNECTIONS, refusal.encode())))
            self.close()
            return
        self._is_admitted = True
        self._connection_log.connected(self._remote_address)
        self._deadlines.cut_off_within(MAX_GREETING_NS)

    def data_received(self, data: bytes) -> None:
        output = self._output
        if output.is_closing:
            return
        if self._pause.awaited is not None:
            self._pause.keep(data)
            return
        try:
            if output.codec is None:
                publishing = self._publishing
                if len(data) <= MAX_SMALL_BYTES and not self._trace.is_on:
                    message = self._decoder.repeated(data)
                    if message is not None and publishing.is_unhindered:
                        if self._subscription.is_unsettled:
                            self._subscription.settle()
                        self._deadlines.last_heard_ns = self._now_ns()
                        publishing.publish_again(self._decoder.last, message)
                        return
                command = self._decoder.receive(data)
                if not self._connection_log.is_greeted and self._decoder.greeted:
                    self._connection_log.greeted(MAGIC_V2)
                self._execute(command)
                if len(data) >= LARGE_PACKET_BYTES:
                    self._after_large_packet()
            else:
                self._decompress(output.codec, data)
        except FatalError as wrong:
            self._fail(wrong)
        if not self._deadlines.has_started and self._decoder.greeted:
            self._deadlines.start(self._settings.heartbeat_interval_ms)

    def _after_large_packet(self) -> None:
        if self._now_ns() - self._deadlines.last_heard_ns > MAX_TURN_NS:
            self._pause.give_way()
        if self._upgrade.tls is None and not self._output.is_closing and self._decoder.room() is not None:
            self._output.transport.set_protocol(cast(asyncio.BaseProtocol, BodyReceiver(self, self._decoder)))

    def body_received(self) -> None:
        """The rest of a large message was received. It becomes a command when the loop has let go of its buffer."""
        self._pause.give_way()
        self._output.transport.set_protocol(cast(asyncio.BaseProtocol, self))

    def _decompress(self, codec: Codec, data: bytes) -> None:
        """Execute what arrived compressed, and let others have turns in between.

        A few bytes may hold many commands. Many bytes may hold few or none, and take as long: an empty piece is a sign
        of that.
        """
        turn_bytes = 0
        try:
            for piece in codec.decompress(data):
                if piece:
                    self._execute(self._decoder.receive(piece))
                turn_bytes += max(len(piece), MIN_PIECE_COST_BYTES)
                if not piece or turn_bytes >= MAX_TURN_BYTES:
                    self._pause.give_way()
                if self._output.is_closing or self._pause.awaited is not None:
                    return  # the codec keeps what was not taken
        except CompressionError as wrong:
            raise SilentClose(str(wrong)) from wrong
        if len(data) >= LARGE_PACKET_BYTES:
            self._pause.give_way()

    def _execute(self, command: Command | None) -> None:
        """Execute this command, and all that have arrived behind it."""
        if command is None:
            return
        self._deadlines.last_heard_ns = self._now_ns()
        output, pause, publishing, subscription = self._output, self._pause, self._publishing, self._subscription
        turns_left = MAX_TURN_COMMANDS
        while command is not None:
            if self._trace.is_on:
                self._trace.received(self._remote_address, command)
            kind = type(command)
            if subscription.is_unsettled and kind not in _CONSUMING:
                subscription.settle()  # messages leave before the answers to what came later
            if isinstance(command, Fin) and not publishing.is_unanswered:
                subscription.finish(command)
            elif isinstance(command, Publish):
                publishing.publish(command)
            else:
                if publishing.is_unanswered:
                    self._batcher.flush()  # answers leave in the order of the commands
                if len(publishing.replies) and kind in _ANSWERED:
                    pause.until(publishing.replies.drained(), waiting=command)
                    return
                _HANDLERS[kind](self, command)
            if len(publishing.replies) > MAX_WAITING_REPLIES and pause.awaited is None and not output.is_closing:
                pause.until(publishing.replies.drained())
            turns_left -= 1
            if not turns_left:
                pause.give_way()
            if output.is_closing or pause.awaited is not None:
                return
            command = self._decoder.next_command()
        if subscription.is_at_ease:
            subscription.is_at_ease = False
            pause.rest()

    def _resume(self, waiting: Command | None) -> None:
        """Go on after a pause, with the command that waited and the packet that came meanwhile.

        The packet stays in the pause as long as the command runs, which may be an IDENTIFY that makes it worthless.
        """
        self._deadlines.last_heard_ns = self._now_ns()  # nothing was read during the pause
        try:
            self._execute(waiting or self._decoder.next_command())
        except FatalError as wrong:
            self._fail(wrong)
        self.data_received(self._pause.take_kept())

    def eof_received(self) -> bool:
        if self._output.is_closing:
            return False
        self._subscription.answer_refused()
        publishing = self._publishing
        if publishing.is_unanswered:
            self._batcher.flush()
        if len(publishing.replies) and self._pause.awaited is None:
            self._pause.until(self._close_when_answered())
            return True
        try:
            self._decoder.eof()
        except FatalError as wrong:
            self._fail(wrong)
        return False  # the loop closes the connection, after what was written has left

    async def _close_when_answered(self) -> None:
        await self._publishing.replies.drained()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything. The parts let go of this session too, so that all are freed without the collector."""
        if self not in self._context.sessions:
            return
        self._context.sessions.discard(self)
        if self._is_admitted:
            self._context.gate.leave(self._remote_address)
        self._connection_log.closed(exc, by_client=not self._output.is_closing)
        self._output.is_closing = True
        self._deadlines.stop()
        self._pause.end()
        self._publishing.end()
        self._subscription.end()

    def pause_writing(self) -> None:
        self._output.has_no_room()
        self._deadlines.socket_is_full()
        self._subscription.block()

    def resume_writing(self) -> None:
        self._output.has_room()
        if not self._output.is_closing:
            self._deadlines.socket_has_room()
        self._subscription.unblock()

    def _on_time(self) -> None:
        due = self._deadlines.due(is_reading=self._pause.awaited is None)
        if Due.CUT_OFF in due:
            if not self._output.is_closing and not self._deadlines.has_started:
                self._connection_log.did_not_greet()
                self.close()
            elif not self._output.is_closing and self._output.has_progressed():
                self._deadlines.socket_is_full()
            else:
                if not self._output.is_closing:
                    self._connection_log.did_not_read()
                self.abort()
        elif Due.GIVE_UP in due:
            self._connection_log.was_silent()
            self.close()
        else:
            if Due.FLUSH in due:
                self._output.flush()
            if Due.HEARTBEAT in due and not self._output.is_full and not self._upgrade.is_shaking_hands:
                self._output.reply(frame.HEARTBEAT)

    # Closing.

    def close(self) -> None:
        """Close once what was written has left, or after CLOSE_GRACE_NS."""
        if not self._output.is_closing:
            self._output.is_closing = True
            self._deadlines.end_within(CLOSE_GRACE_NS)
            self._output.transport.close()

    def _close_when_read(self) -> None:
        """Close so that a publisher gets to read what was written last.

        If the system closes a connection with something left to read, such as commands that were sent ahead, it tells
        the client of a reset, and that may take from the client the answers that it has not read yet. So what comes is
        read and dropped until the client closes, too, or until LINGER_NS is over. A client that has published nothing
        has no such answers; consumers send little, and what they hold should go to others at once.
        """
        output = self._output
        is_publisher = self.has_published and self._subscription.subscriber is None
        if not is_publisher or not output.transport.can_write_eof():
            self.close()
            return
        output.is_closing = True
        self._deadlines.end_within(LINGER_NS)
        output.transport.write_eof()
        output.read_on()

    def abort(self) -> None:
        """Close now."""
        self._output.is_closing = True
        self._output.transport.abort()

    def _fail(self, wrong: FatalError) -> None:
        """Tell the client what is wrong, and close."""
        self._subscription.answer_refused()
        publishing = self._publishing
        if publishing.is_unanswered:
            self._batcher.flush()
        if len(publishing.replies) and self._pause.awaited is None:
            self._pause.until(self._fail_when_answered(wrong))
            return
        if self._auth is not None:
            wrong = self._auth.judge(wrong)
        if wrong.topic is not None:
            with suppress(BrokerError, StorageError):  # as in the reference, a bad MPUB creates its topic
                self._context.broker.topic(wrong.topic)
        if self._decoder.greeted:
            self._connection_log.greeted(MAGIC_V2)
        self._connection_log.failed(wrong)
        if isinstance(wrong, SilentClose) or self._output.is_closing:
            self.close()
        else:
            self._output.reply(frame.error(wrong.data))
            self._close_when_read()

    async def _fail_when_answered(self, wrong: FatalError) -> None:
        await self._publishing.replies.drained()
        raise wrong

    # Commands about the connection itself.

    def identify(self, command: Identify) -> None:
        """IDENTIFY: agree on settings, then on a stream of another kind if the client wants one."""
        request = parse_request(command.body)
        self._connection_log.identified(request)
        outcome = negotiate(request, self._settings, self._context.server_limits)
        settings = self._settings = self._subscription.settings = outcome.settings
        self._decoder.heartbeats_enabled = settings.heartbeat_interval_ms > 0
        self._decoder.take_sequences(bool(settings.producer_id))
        self._publishing.producer_id = settings.producer_id
        default_timeout_ms = self._context.default_settings.output_buffer_timeout_ms
        self._output.buffer_bytes = settings.output_buffer_size
        self._output.holds = settings.output_buffer_size > 1 and settings.output_buffer_timeout_ms != default_timeout_ms
        self._output.reply(frame.response(outcome.answer))
        if self._delivery_settings is None:
            self._delivery_settings = settings
            self._deadlines.start(settings.heartbeat_interval_ms)
        else:
            self._deadlines.change_deadlines(settings.heartbeat_interval_ms)
        if outcome.tls:
            self._pause.until(self._encrypt(outcome))
        else:
            self._upgrade.compress(outcome)

    async def _encrypt(self, outcome: Agreement) -> None:
        """Shake hands, and forget all that came before: a stranger on the way may have added to it.

        Nothing is read between here and the beginning of the handshake, so what comes later came encrypted.
        """
        self._decoder.discard()
        self._pause.discard()
        try:
            await self._upgrade.encrypt(cast(asyncio.Protocol, self))
        except (OSError, TimeoutError) as failure:
            reason = f"IDENTIFY failed TLS handshake failed - {str(failure) or 'EOF'}"
            self._connection_log.failed(FatalError(error.IDENTIFY_FAILED, reason.encode()))
            self.connection_lost(failure)  # the loop does not always call this after a failed handshake
            return
        if self._auth is not None:
            self._auth = _new_auth(self._context)
        self._upgrade.compress(outcome)

    def authorize(self, command: Auth) -> None:
        """AUTH."""
        if self._auth is None:
            raise FatalError(error.AUTH_DISABLED, b"AUTH disabled")
        self._auth.refuse_if_set()
        self._pause.until(self._ask_for_authorization(self._auth, command))

    async def _ask_for_authorization(self, auth: ConnectionAuth, command: Auth) -> None:
        tls = self._upgrade.tls
        peer = AuthPeer(
            remote_ip=self._remote_host,
            is_tls=tls is not None,
            common_name=tls.peer_common_name if tls is not None else "",
        )
        try:
            await auth.authorize(command.secret, peer)
        except FatalError as wrong:
            if wrong.__cause__ is not None:
                self._connection_log.auth_failed(wrong.__cause__)
            raise
        self._output.reply(frame.response(auth.answer()))

    def _may(self, command: Command, verb: bytes, topic: str, channel: str = "") -> bool:
        """Whether the command is allowed now. If the servers must be asked first: False, and it is executed later."""
        if self._auth is None or self._auth.check(verb, topic, channel):
            return True
        self._pause.until(self._auth.refresh(), waiting=command)
        return False

    def subscribe(self, command: Sub) -> None:
        """SUB."""
        if self._may(command, b"SUB", command.topic, command.channel):
            self._subscription.subscribe(command, self._delivery_settings or self._settings)

    # For the daemon and /stats.

    @property
    def has_published(self) -> bool:
        return bool(self._publishing.counts)

    def stats(self) -> ClientStats:
        """The connection as /stats shows it."""
        return client_stats(
            self._settings,
            remote_address=self._remote_address,
            connected_ns=self._connected_ns,
            state=int(self._decoder.state),
            subscriber=self._subscription.subscriber,
            pub_counts=self._publishing.counts,
            codec=self._output.codec,
            auth=self._auth,
            tls=self._upgrade.tls,
        )


def _new_auth(context: SessionContext) -> ConnectionAuth | None:
    """That of a client which has not sent an AUTH."""
    return ConnectionAuth(context.authorizer, clock=context.clock) if context.authorizer else None


class BodyReceiver:
    """Takes the place of a session, as the transport's protocol, while the rest of a large message is received.

    An `asyncio.BufferedProtocol` in all but name: bytes go from the socket to where they will stay.
    """

    __slots__ = ("_decoder", "_session")

    def __init__(self, session: ClientSession, decoder: CommandDecoder) -> None:
        self._session = session
        self._decoder = decoder

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:  # noqa: ARG002 - the size is known better
        room = self._decoder.room()
        return bytearray(1) if room is None else room  # the session is closing, and does not look at what comes

    def buffer_updated(self, count: int) -> None:
        self._decoder.received(count)
        if self._decoder.has_received_body:
            self._session.body_received()

    def data_received(self, data: bytes) -> None:
        """For an event loop that does not know buffers."""
        self._session.data_received(data)

    def eof_received(self) -> bool:
        return self._session.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(exc)

    def pause_writing(self) -> None:
        self._session.pause_writing()

    def resume_writing(self) -> None:
        self._session.resume_writing()


_ANSWERED: frozenset[type[Command]] = frozenset({Sub, Cls, Identify, Auth})
"""Commands that are answered at once. They wait until the replies before theirs have left."""
_CONSUMING: frozenset[type[Command]] = frozenset({Fin, Rdy, Req, Touch})
"""Commands that change what a consumer can be given, which is given once for all of them."""
_HANDLERS: dict[type[Command], Callable[[ClientSession, Any], None]] = {
    Fin: lambda session, command: session._subscription.finish(command),
    Rdy: lambda session, command: session._subscription.ready(command),
    Req: lambda session, command: session._subscription.requeue(command),
    Touch: lambda session, command: session._subscription.touch(command),
    Nop: lambda _session, _command: None,  # it only shows that the client is alive
    NumberedPublish: lambda session, command: session._publishing.publish_numbered(command),
    DeferredPublish: lambda session, command: session._publishing.publish_deferred(command),
    Sub: ClientSession.subscribe,
    Cls: lambda session, _command: session._subscription.start_close(),
    Identify: ClientSession.identify,
    Auth: ClientSession.authorize,
}
"""What executes each command. `Fin` and `Publish` are so frequent that `_execute_all` tests for them first."""


# A connection in /stats.


def client_stats(
    settings: ConnectionSettings,
    *,
    remote_address: str,
    connected_ns: int,
    state: int,
    subscriber: Subscriber | None,
    pub_counts: Mapping[str, int],
    codec: Codec | None,
    auth: ConnectionAuth | None,
    tls: TlsConnection | None,
) -> ClientStats:
    """A connection with these parts, as /stats shows it."""
    return ClientStats(
        client_id=settings.client_id,
        hostname=settings.hostname,
        user_agent=settings.user_agent,
        remote_address=remote_address,
        state=state,
        ready_count=subscriber.ready_count if subscriber else 0,
        in_flight_count=subscriber.in_flight_count if subscriber else 0,
        message_count=subscriber.message_count if subscriber else 0,
        finish_count=subscriber.finish_count if subscriber else 0,
        requeue_count=subscriber.requeue_count if subscriber else 0,
        connect_ts=connected_ns // NS_PER_SECOND,
        sample_rate=settings.sample_rate,
        deflate=isinstance(codec, DeflateCodec),
        snappy=isinstance(codec, SnappyCodec),
        authed=auth is not None and auth.is_authorized,
        auth_identity=auth.identity if auth else "",
        auth_identity_url=auth.identity_url if auth else "",
        tls=tls is not None,
        tls_version=tls.version if tls else "",
        tls_cipher_suite=tls.cipher_suite if tls else "",
        tls_negotiated_protocol=tls.negotiated_protocol if tls else "",
        topology_zone=settings.topology_zone,
        topology_region=settings.topology_region,
        pub_counts=tuple(pub_counts.items()),
    )
