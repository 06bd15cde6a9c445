"""A client's connection: bytes to commands, commands to the broker, frames back.

Everything that arrives in one packet is decoded, executed and answered before `data_received` returns, except for
small publishes, which are gathered over one turn of the loop (see `intake`). The event loop sends what was written for
a connection in one go at the end of its turn.

Two commands take longer: IDENTIFY when it agrees on TLS, and AUTH. They suspend the session: nothing more is read or
decoded until they are through.

Back-pressure. A full socket blocks its own subscriber and nobody else. A client that goes on sending commands but does
not read the answers is not read from either. One that makes no room for a whole heartbeat interval is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.broker.channel import Channel
from emberq.broker.error import BrokerError
from emberq.broker.stats import ClientStats
from emberq.broker.subscriber import Subscriber
from emberq.nsqd.auth.authorizer import Peer
from emberq.nsqd.auth.connection import ConnectionAuth
from emberq.nsqd.output import Output
from emberq.nsqd.pulse import Due, Pulse
from emberq.nsqd.reply_line import Reply, ReplyLine
from emberq.nsqd.tls_connection import TlsConnection
from emberq.storage.errors import StorageError
from emberq.wire import error, frame
from emberq.wire.command import (
    Auth,
    Cls,
    Command,
    DeferredPublish,
    Fin,
    Identify,
    Nop,
    Publish,
    Rdy,
    Req,
    Sub,
    Touch,
)
from emberq.wire.compression import Codec, CompressionError, DeflateCodec, SnappyCodec
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import ClientError, FatalError, SilentClose
from emberq.wire.negotiation import ConnectionSettings, Outcome, negotiate, parse_request

if TYPE_CHECKING:
    from emberq.nsqd.service import Service

MAX_SMALL_BYTES = 8 * 1024
"""Publishes up to this size are gathered with others; a larger one is worth a batch of its own."""
MAX_TURN_COMMANDS = 512
MAX_TURN_BYTES = 128 * 1024
MAX_TURN_NS = 2 * NS_PER_MS
"""What one client may have executed before others have their turn, and how long that may take."""
LARGE_PACKET_BYTES = 64 * 1024
"""The loop reads on at once from a socket that gave as much as this, so that its turn would not end."""
MAX_WAITING_REPLIES = 1024
"""Answers that wait for the disk before a client is not read from any more."""
CLOSE_GRACE_NS = 5 * NS_PER_SECOND
"""How long a last frame may take to leave before the connection is cut off."""

_log = logging.getLogger(__name__)
_Refusal = (BrokerError, StorageError)


class _Promised:
    """The place of a publish in the line of answers."""

    __slots__ = ("_reply", "_session")

    def __init__(self, session: Session, reply: Reply) -> None:
        self._session = session
        self._reply = reply

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        session = self._session
        session.replies.settle(self._reply, lambda: session.accepted_now(topic, count, reply_count))

    def refused(self, verb: bytes, refusal: Exception) -> None:
        session = self._session
        session.replies.settle(self._reply, lambda: session.refused(verb, refusal))


class Session:
    """One connection. Owned by the event loop; registered with the service while it is open.

    An `asyncio.Protocol` in all but name: a compiled class cannot have an interpreted base.
    """

    __slots__ = (
        "_auth",
        "_channel",
        "_closing",
        "_connected_ns",
        "_decoder",
        "_delivery_settings",
        "_intake",
        "_is_shaking_hands",
        "_kept",
        "_now_ns",
        "_output",
        "_pub_counts",
        "_pulse",
        "_remote_address",
        "_remote_host",
        "_service",
        "_settings",
        "_subscriber",
        "_suspension",
        "_tls",
        "_unanswered",
        "replies",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._now_ns = service.clock.monotonic_ns
        self._intake = service.intake
        self._decoder = CommandDecoder(service.command_limits)
        self._decoder.tls_required = service.tls_required
        self._output = Output()
        self._pulse = Pulse(clock=service.clock, timers=service.timers, ring=self._on_time)
        self._settings = service.default_settings
        """What the client has negotiated, or the defaults."""
        self._delivery_settings: ConnectionSettings | None = None
        """The settings of the first IDENTIFY: later ones do not change how messages are delivered."""
        self._auth = ConnectionAuth(service.authorizer, clock=service.clock) if service.authorizer else None
        """None: everybody may do everything."""
        self._tls: TlsConnection | None = None
        self._is_shaking_hands = False
        """TLS is being agreed on: nothing of ours may get in between."""
        self._suspension: asyncio.Task[None] | asyncio.Handle | None = None
        """What this session waits for before it goes on."""
        self._kept = b""
        """What arrived meanwhile all the same; one packet at most, for reading is paused."""
        self._remote_address = ""
        self._remote_host = ""
        """Without the port; empty for a Unix socket."""
        self._connected_ns = 0
        self._unanswered = False
        """Something it published waits in the intake."""
        self.replies = ReplyLine()
        """Answers that wait for the disk, and those behind them."""
        self._closing = False
        self._channel: Channel | None = None
        self._subscriber: Subscriber | None = None
        self._pub_counts: dict[str, int] = {}
        """How many messages it has published, by topic."""

    def __repr__(self) -> str:
        return f"<Session {self._remote_address} {self._decoder.state.name}>"

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._output.use_transport(cast(asyncio.Transport, transport))
        peer = transport.get_extra_info("peername")
        self._remote_host = peer[0] if isinstance(peer, tuple) else ""
        self._remote_address = _format_peer(peer)
        self._settings = replace(self._settings, client_id=self._remote_host, hostname=self._remote_host)
        self._connected_ns = self._service.clock.wall_ns()
        self._service.sessions.add(self)
        _log.info("TCP: new client(%s)", self._remote_address)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._suspension is not None:
            self._kept += data
            return
        try:
            if self._output.codec is None:
                if self._auth is None and len(data) <= MAX_SMALL_BYTES:
                    message = self._decoder.repeated_pub(data)
                    if message is not None:
                        self._pulse.last_heard_ns = self._now_ns()
                        self._unanswered = True
                        self._intake.add_single(self, self._decoder.pub_topic, message)
                        return
                self._execute(self._decoder.receive(data))
                if len(data) >= LARGE_PACKET_BYTES and self._now_ns() - self._pulse.last_heard_ns > MAX_TURN_NS:
                    self._give_way()
            else:
                self._decompress(self._output.codec, data)
        except FatalError as wrong:
            self._fail(wrong)
        if not self._pulse.has_started and self._decoder.greeted:
            self._pulse.start(self._settings.heartbeat_interval_ms)

    def _decompress(self, codec: Codec, data: bytes) -> None:
        """Execute what arrived compressed. A little may stand for much: others have their turn before it goes on."""
        executed_bytes = 0
        try:
            for piece in codec.decompress(data):
                self._execute(self._decoder.receive(piece))
                executed_bytes += len(piece)
                if executed_bytes >= MAX_TURN_BYTES:
                    self._give_way()
                if self._closing or self._suspension is not None:
                    return  # the codec keeps what was not taken
        except CompressionError as wrong:
            raise SilentClose(str(wrong)) from wrong

    def _execute(self, command: Command | None) -> None:
        """Execute this command and all that have arrived behind it."""
        if command is not None:
            self._pulse.last_heard_ns = self._now_ns()
        turns_left = MAX_TURN_COMMANDS
        while command is not None:
            kind = type(command)
            if self._unanswered and kind is not Publish:
                self._intake.flush()  # answers leave in the order of the commands
            if len(self.replies) and kind in _ANSWERED:
                self._suspend(self.replies.drained(), waiting=command)
                return
            _HANDLERS[kind](self, command)
            if len(self.replies) > MAX_WAITING_REPLIES and self._suspension is None and not self._closing:
                self._suspend(self.replies.drained())
            turns_left -= 1
            if not turns_left:
                self._give_way()
            if self._closing or self._suspension is not None:
                return
            command = self._decoder.next_command()

    # Taking turns, and commands that take time.

    def _give_way(self) -> None:
        """Let others have their turn before going on. The loop would read from a busy socket again and again."""
        if self._suspension is None and not self._closing:
            self._output.suspend_reading()
            self._suspension = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._suspension = None
        if not self._closing:
            self._output.resume_reading()
            self._resume(None)

    def _suspend(self, work: Coroutine[Any, Any, None], waiting: Command | None = None) -> None:
        """Read and execute nothing until `work` is done; then go on with the command that is `waiting`."""
        self._output.suspend_reading()
        self._suspension = self._service.spawn(self._suspended(work, waiting))

    async def _suspended(self, work: Coroutine[Any, Any, None], waiting: Command | None) -> None:
        try:
            await work
        except FatalError as wrong:
            self._suspension = None
            self._fail(wrong)
            return
        finally:
            work.close()
        self._suspension = None
        if not self._closing:
            self._output.resume_reading()
            self._resume(waiting)

    def _resume(self, waiting: Command | None) -> None:
        self._pulse.last_heard_ns = self._now_ns()  # what the client said meanwhile could not be heard
        try:
            self._execute(waiting or self._decoder.next_command())
        except FatalError as wrong:
            self._fail(wrong)
        kept, self._kept = self._kept, b""
        self.data_received(kept)

    def eof_received(self) -> bool:
        if self._unanswered:
            self._intake.flush()
        if len(self.replies) and self._suspension is None:
            self._suspend(self._close_when_answered())
            return True
        try:
            self._decoder.eof()
        except FatalError as wrong:
            self._fail(wrong)
        return False  # the loop closes the connection, after what was written has left

    async def _close_when_answered(self) -> None:
        await self.replies.drained()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it was lost makes no difference
        if self not in self._service.sessions:
            return
        self._service.sessions.discard(self)
        self._closing = True
        self._pulse.stop()
        if self._suspension is not None:
            self._suspension.cancel()
            self._suspension = None
        if self._subscriber is not None and self._channel is not None:
            self._channel.unsubscribe(self._subscriber)
            self._service.broker.leave(self._channel)
        _log.info("PROTOCOL(V2): [%s] exiting", self._remote_address)

    def pause_writing(self) -> None:
        self._output.is_full = True
        self._pulse.socket_is_full()
        if self._subscriber is not None and self._channel is not None:
            self._channel.block(self._subscriber)

    def resume_writing(self) -> None:
        self._output.has_room()
        if not self._closing:
            self._pulse.socket_has_room()
        if self._subscriber is not None and self._channel is not None:
            self._channel.unblock(self._subscriber)

    def _on_time(self) -> None:
        due = self._pulse.due()
        if Due.CUT_OFF in due:
            self.abort()
        elif Due.GIVE_UP in due and self._suspension is None:
            _log.info("[%s] - no command within two heartbeat intervals, closing", self._remote_address)
            self.close()
        else:
            if Due.FLUSH in due:
                self._output.flush()
            if Due.HEARTBEAT in due and not self._output.is_full and not self._is_shaking_hands:
                self._output.reply(frame.HEARTBEAT)

    # The broker's side.

    def deliver(self, frames: bytes) -> None:
        """Send message frames, or hold them if the client asked for that."""
        output = self._output
        if not output.holds:
            output.write(frames)
        elif output.hold(frames) or not self._is_ready():
            self._flush()
        elif self._settings.output_buffer_timeout_ms:
            self._pulse.flush_within(self._settings.output_buffer_timeout_ms)

    def _is_ready(self) -> bool:
        subscriber = self._subscriber
        return subscriber is not None and subscriber.ready_count > subscriber.in_flight.count

    def _flush(self) -> None:
        self._output.flush()
        self._pulse.flushed()

    def close(self) -> None:
        """Close once what was written has left, which may not take long."""
        if not self._closing:
            self._closing = True
            self._pulse.cut_off_within(CLOSE_GRACE_NS)
            self._output.transport.close()

    def abort(self) -> None:
        """Close now."""
        self._closing = True
        self._output.transport.abort()

    def _fail(self, wrong: FatalError) -> None:
        """Tell the client what is wrong, and close."""
        if self._unanswered:
            self._intake.flush()
        if len(self.replies) and self._suspension is None:
            self._suspend(self._fail_when_answered(wrong))
            return
        if self._auth is not None:
            wrong = self._auth.judge(wrong)
        if wrong.topic is not None:
            with suppress(*_Refusal):  # it would have come into being; the client is told what else is wrong
                self._service.broker.topic(wrong.topic)
        _log.error("[%s] - %s", self._remote_address, wrong)
        if not isinstance(wrong, SilentClose) and not self._closing:
            self._output.reply(frame.error(wrong.data))
        self.close()

    async def _fail_when_answered(self, wrong: FatalError) -> None:
        await self.replies.drained()
        raise wrong

    # Commands.

    def _identify(self, command: Identify) -> None:
        outcome = negotiate(parse_request(command.body), self._settings, self._service.server_limits)
        settings = self._settings = outcome.settings
        self._decoder.heartbeats_enabled = settings.heartbeat_interval_ms > 0
        default_timeout_ms = self._service.default_settings.output_buffer_timeout_ms
        self._output.buffer_bytes = settings.output_buffer_size
        self._output.holds = settings.output_buffer_size > 1 and settings.output_buffer_timeout_ms != default_timeout_ms
        self._output.reply(frame.response(outcome.answer))
        if self._delivery_settings is None:
            self._delivery_settings = settings
            self._pulse.start(settings.heartbeat_interval_ms)
        else:
            self._pulse.change_deadlines(settings.heartbeat_interval_ms)
        if outcome.tls:
            self._decoder.discard()
            self._suspend(self._encrypt_stream(outcome))
        else:
            self._compress_stream(outcome)

    async def _encrypt_stream(self, outcome: Outcome) -> None:
        """Shake hands on this connection; the client is told inside TLS."""
        self._is_shaking_hands = True
        try:
            transport = await self._service.start_tls(self._output.transport, cast(asyncio.Protocol, self))
        except (OSError, TimeoutError) as failure:  # ssl.SSLError is an OSError
            _log.error("[%s] - TLS handshake failed - %s", self._remote_address, failure)
            self.connection_lost(failure)  # the loop does not always say so of a connection that TLS never became
            return
        self._is_shaking_hands = False
        self._output.use_transport(transport)
        self.resume_writing()  # whatever the old transport last said, the new one is empty
        self._tls = TlsConnection.of(transport.get_extra_info("ssl_object"))
        self._decoder.tls_required = False
        self._output.reply(frame.OK)
        self._compress_stream(outcome)

    def _compress_stream(self, outcome: Outcome) -> None:
        """Switch both directions to what was agreed; the client is told inside the compressed stream."""
        if outcome.snappy:
            self._output.use_codec(SnappyCodec())
        elif outcome.deflate_level:
            self._output.use_codec(DeflateCodec(outcome.deflate_level))
        else:
            return
        self._decoder.discard()
        self._output.reply(frame.OK)

    def _authorize(self, command: Auth) -> None:
        if self._auth is None:
            raise FatalError(error.AUTH_DISABLED, b"AUTH disabled")
        self._auth.refuse_if_set()
        self._suspend(self._ask_for_authorization(self._auth, command))

    async def _ask_for_authorization(self, auth: ConnectionAuth, command: Auth) -> None:
        peer = Peer(
            remote_ip=self._remote_host,
            is_tls=self._tls is not None,
            common_name=self._tls.peer_common_name if self._tls is not None else "",
        )
        await auth.authorize(command.secret, peer)
        self._output.reply(frame.response(auth.answer()))

    def _may(self, command: Command, verb: bytes, topic: str, channel: str = "") -> bool:
        """Whether the command is allowed. If that has to be asked anew, False: it will be executed after the answer."""
        if self._auth is None or self._auth.check(verb, topic, channel):
            return True
        self._suspend(self._auth.refresh(), waiting=command)
        return False

    def _subscribe(self, command: Sub) -> None:
        if not self._may(command, b"SUB", command.topic, command.channel):
            return
        delivery = self._delivery_settings or self._settings
        subscriber = Subscriber(
            self,
            msg_timeout_ns=delivery.msg_timeout_ms * NS_PER_MS,
            sample_rate=delivery.sample_rate,
            locality=self._service.locality(delivery),
        )
        try:
            channel = self._service.broker.topic(command.topic).channel(command.channel)
            channel.subscribe(subscriber)
        except _Refusal as refusal:
            raise _failed(error.SUB_FAILED, b"SUB", refusal) from refusal
        self._channel = channel
        self._subscriber = subscriber
        if self._output.is_full:
            channel.block(subscriber)
        self._output.reply(frame.OK)

    def _publish(self, command: Publish) -> None:
        if self._auth is not None and not self._may(command, command.verb, command.topic):
            return
        if len(command.blob) <= MAX_SMALL_BYTES:
            self._unanswered = True
            self._intake.add(self, command)
        else:
            if self._unanswered:
                self._intake.flush()
            self._intake.publish(self, command)

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """What was published is stored."""
        self._unanswered = False
        if len(self.replies):
            self.promised().accepted(topic, count, reply_count)
        else:
            self.accepted_now(topic, count, reply_count)

    def promised(self) -> _Promised:
        """What becomes of what was published will be known later."""
        self._unanswered = False
        return _Promised(self, self.replies.reserve())

    def accepted_now(self, topic: str, count: int, reply_count: int) -> None:
        """Answer, for it is its turn."""
        counts = self._pub_counts
        counts[topic] = counts.get(topic, 0) + count
        if not self._closing:
            self._output.reply(frame.OK if reply_count == 1 else frame.OK * reply_count)

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """What was published could not be stored."""
        self._unanswered = False
        if not self._closing:
            self._fail(_failed(_PUBLISH_CODES[verb], verb, refusal))

    def _publish_deferred(self, command: DeferredPublish) -> None:
        if not self._may(command, b"DPUB", command.topic):
            return
        try:
            topic = self._service.broker.topic(command.topic)
            if command.defer_ms:
                pending = topic.publish_deferred(command.blob, delay_ns=command.defer_ms * NS_PER_MS)
            else:
                pending = topic.publish(command.blob, [len(command.blob)])
        except _Refusal as refusal:
            raise _failed(error.DPUB_FAILED, b"DPUB", refusal) from refusal
        if pending is None:
            self.accepted(command.topic, 1, 1)
            return
        promise = self.promised()
        pending.when_settled(
            lambda failure: (
                promise.accepted(command.topic, 1, 1) if failure is None else promise.refused(b"DPUB", failure)
            )
        )

    def _ready(self, command: Rdy) -> None:
        channel, subscriber = self._subscription()
        channel.set_ready(subscriber, command.count)
        if self._output.has_held and not self._is_ready():
            self._flush()

    def _finish(self, command: Fin) -> None:
        channel, subscriber = self._subscription()
        unknown = channel.finish(subscriber, command.lines)
        for message_id in unknown:
            self._refuse(error.FIN_FAILED, b"FIN", message_id, channel.why_not(message_id))
        if unknown:
            self._give_way()  # refusing takes its time, and a client that goes wrong may go on so

    def _requeue(self, command: Req) -> None:
        channel, subscriber = self._subscription()
        limit_ms = self._service.command_limits.max_req_timeout_ms
        timeout_ms = max(0, min(command.timeout_ms, limit_ms))
        if timeout_ms != command.timeout_ms:
            _log.info("[%s] REQ timeout %d out of range 0-%d", self._remote_address, command.timeout_ms, limit_ms)
        try:
            channel.requeue(subscriber, command.id, delay_ns=timeout_ms * NS_PER_MS)
        except BrokerError as refusal:
            self._refuse(error.REQ_FAILED, b"REQ", command.id, refusal)

    def _touch(self, command: Touch) -> None:
        channel, subscriber = self._subscription()
        try:
            channel.touch(subscriber, command.id, msg_timeout_ns=self._settings.msg_timeout_ms * NS_PER_MS)
        except BrokerError as refusal:
            self._refuse(error.TOUCH_FAILED, b"TOUCH", command.id, refusal)

    def _start_close(self, _command: Cls) -> None:
        channel, subscriber = self._subscription()
        channel.set_ready(subscriber, 0)
        self._output.reply(frame.CLOSE_WAIT)

    def _do_nothing(self, _command: Nop) -> None:
        """NOP: that it came is all it says."""

    def _refuse(self, code: bytes, verb: bytes, message_id: bytes, refusal: BrokerError) -> None:
        """Answer a command that failed without harm to the connection."""
        wrong = ClientError(code, b"%b %b failed %b" % (verb, message_id, str(refusal).encode()))
        _log.error("[%s] - %s", self._remote_address, wrong)
        self._output.reply(frame.error(wrong.data))

    def _subscription(self) -> tuple[Channel, Subscriber]:
        """The decoder lets no command through that needs a subscription before there is one."""
        assert self._channel is not None  # noqa: S101
        assert self._subscriber is not None  # noqa: S101
        return self._channel, self._subscriber

    # What others may know.

    @property
    def has_published(self) -> bool:
        return bool(self._pub_counts)

    def stats(self) -> ClientStats:
        """The connection as /stats shows it."""
        settings, subscriber = self._settings, self._subscriber
        return ClientStats(
            client_id=settings.client_id,
            hostname=settings.hostname,
            user_agent=settings.user_agent,
            remote_address=self._remote_address,
            state=int(self._decoder.state),
            ready_count=subscriber.ready_count if subscriber else 0,
            in_flight_count=subscriber.in_flight.count if subscriber else 0,
            message_count=subscriber.message_count if subscriber else 0,
            finish_count=subscriber.finish_count if subscriber else 0,
            requeue_count=subscriber.requeue_count if subscriber else 0,
            connect_ts=self._connected_ns // NS_PER_SECOND,
            sample_rate=settings.sample_rate,
            deflate=isinstance(self._output.codec, DeflateCodec),
            snappy=isinstance(self._output.codec, SnappyCodec),
            authed=self._auth is not None and self._auth.is_authorized,
            auth_identity=self._auth.identity if self._auth is not None else "",
            auth_identity_url=self._auth.identity_url if self._auth is not None else "",
            tls=self._tls is not None,
            tls_version=self._tls.version if self._tls is not None else "",
            tls_cipher_suite=self._tls.cipher_suite if self._tls is not None else "",
            tls_negotiated_protocol=self._tls.negotiated_protocol if self._tls is not None else "",
            topology_zone=settings.topology_zone,
            topology_region=settings.topology_region,
            pub_counts=tuple(self._pub_counts.items()),
        )


def _format_peer(peer: Any) -> str:
    if not isinstance(peer, tuple):
        return "@"  # a Unix socket's peer has no address
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _failed(code: bytes, verb: bytes, refusal: Exception) -> FatalError:
    return FatalError(code, b"%b failed %b" % (verb, str(refusal).encode()))


_PUBLISH_CODES = {b"PUB": error.PUB_FAILED, b"MPUB": error.MPUB_FAILED, b"DPUB": error.DPUB_FAILED}

_ANSWERED: frozenset[type[Command]] = frozenset({Sub, Cls, Identify, Auth})
"""Commands that are answered at once, and so have to wait for the answers before."""

_HANDLERS: dict[type[Command], Any] = {
    Publish: Session._publish,
    Fin: Session._finish,
    Rdy: Session._ready,
    Req: Session._requeue,
    Touch: Session._touch,
    Nop: Session._do_nothing,
    DeferredPublish: Session._publish_deferred,
    Sub: Session._subscribe,
    Cls: Session._start_close,
    Identify: Session._identify,
    Auth: Session._authorize,
}
