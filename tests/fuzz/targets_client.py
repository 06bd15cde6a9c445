"""Targets that connect to others: our client facing a hostile nsqd, consumers and nsqd facing a hostile nsqlookupd, and
the HTTP client of all programs facing a hostile server."""

from __future__ import annotations

import asyncio
import json
import struct
from abc import abstractmethod
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any

from emberq.base.address import AddressError
from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.client.address import nsqd_address
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.connection import Connection, shake_hands
from emberq.client.discovery import MAX_NSQDS, producer_addresses
from emberq.client.error import NsqError
from emberq.client.message import Message
from emberq.client.rdy import Share
from emberq.client.stream import SETUP_AHEAD_BYTES, IdentifyAnswer, Stream
from emberq.client.subscription import EXTRA_MESSAGES, OVERSHOOT, Subscription
from emberq.http.client import HttpQueryError, QueryConnection, UnexpectedStatusError
from emberq.nsqd.lookup_peer import Conversation, LookupPeer, PeerContext
from emberq.wire import command, frame
from emberq.wire.compression import Codec, DeflateCodec, SnappyCodec
from emberq.wire.frame import FrameDecoder, MessageFields, WireMessage
from emberq.wire.lookup import AnswerError, NsqdIdentity, parse_channels
from tests.client.hostile_wire import Wire
from tests.fuzz.engine import Target, tells_in_a_line
from tests.fuzz.targets_wire import MESSAGE_ID, cut
from tests.support.scripted_peer import ANSWER, message_frame

ADDRESS = "127.0.0.1:4150"
FRAMES = (
    frame.OK,
    frame.HEARTBEAT,
    frame.CLOSE_WAIT,
    frame.error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"),
    frame.error(b"E_INVALID \x1b[2J"),
    message_frame(WireMessage(1, 1, MESSAGE_ID, b"hello")),
    message_frame(WireMessage(1, 3, b"\xff" * 16, b"")),
    b"\0\0\0\x06\0\0\0\x03",
)
RDY = 5


class LoopTarget(Target):
    """A target that needs an event loop. Its time is that of the machine, but no input waits for it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._unhandled: list[dict[str, Any]] = []

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._unhandled.append(context))

    def close(self) -> None:
        self._loop.close()

    @abstractmethod
    def meet(self, data: bytes) -> Coroutine[Any, Any, None]:
        """Play the input, in the loop."""

    def play(self, data: bytes) -> None:
        self._unhandled.clear()
        self._loop.run_until_complete(self.meet(data))
        if self._unhandled:
            context = self._unhandled[0]
            raise AssertionError(f"unhandled: {context['message']}") from context.get("exception")


class ConnectionTarget(LoopTarget):
    """A connection that is set up, of a consumer or a producer. The first byte tells of which, and how it is packed."""

    name = "client-connection"
    modules = ("client/connection.py", "client/stream.py", "client/subscription.py", "client/message.py")
    tokens = FRAMES
    max_bytes = 8192
    slice_count = 150
    _config = ClientConfig(max_frame_bytes=1000)

    def seeds(self) -> Iterable[bytes]:
        stream = frame.OK + b"".join(FRAMES[5:7]) * 3 + frame.HEARTBEAT
        yield from (bytes([kind]) + stream for kind in (0, 1))
        yield b"\x02" + SnappyCodec().compress(stream)
        yield b"\x04" + DeflateCodec(6).compress(stream)
        yield b"\x00" + FRAMES[5] * 60

    async def meet(self, data: bytes) -> None:
        kind = data[0] if data else 0
        ends: list[BaseException | None] = []
        taken: list[Message] = []
        stream = Stream(asyncio.get_running_loop())
        wire = Wire(stream)
        if kind & 6:
            stream.start_codec(SnappyCodec() if kind & 2 else DeflateCodec(6))

        def take(_connection: Connection, received: list[MessageFields]) -> None:
            taken.extend(subscription.receive(received))
            if len(taken) > 2 * RDY:
                taken.pop().finish()

        connection = Connection(
            stream,
            address=ADDRESS,
            config=self._config,
            answer=IdentifyAnswer(),
            decode=FrameDecoder(max_frame_bytes=self._config.max_frame_bytes).feed,
            on_messages=None if kind & 1 else take,
            on_error=None,
            on_close=lambda _, failure: ends.append(failure),
        )
        subscription = Subscription(
            connection, Share(cap=100), config=ConsumerConfig(), clock=ManualClock(), on_outcome=lambda _: None
        )
        connection._start()
        subscription.send_rdy(RDY)
        question = connection.submit(command.pub("t", b"x"), answer=b"OK")
        await wire.carry(cut(data[1:]))
        (failure,) = ends
        assert isinstance(failure, NsqError), failure
        assert str(failure).isprintable()
        assert len(subscription.in_flight) <= OVERSHOOT * RDY + EXTRA_MESSAGES
        (outcome,) = await asyncio.gather(question, return_exceptions=True)
        assert outcome == b"OK" or isinstance(outcome, NsqError), outcome
        assert len(wire.written) < 50_000
        subscription.ended()


class HandshakeTarget(LoopTarget):
    """Setting up a connection: there is one in the end, or an error of ours."""

    name = "client-handshake"
    modules = ("client/stream.py", "client/connection.py", "client/error.py")
    tokens = (*FRAMES, b'"snappy":true', b'"deflate":true', b'"auth_required":true', b"HTTP/1.1 400", b"null")
    slice_count = 200
    _config = ClientConfig(auth_secret=b"secret")

    def seeds(self) -> Iterable[bytes]:
        answers: tuple[dict[str, object], ...] = (
            {},
            {"auth_required": True},
            {"snappy": True},
            {"deflate": True, "deflate_level": 3},
        )
        for more in answers:
            answer = frame.response(json.dumps(ANSWER | more).encode())
            codec: Codec = SnappyCodec() if "snappy" in more else DeflateCodec(3)
            yield answer + (codec.compress(frame.OK) if {"snappy", "deflate"} & set(more) else frame.OK)
        yield frame.OK
        yield b"HTTP/1.1 400 Bad Request\r\n\r\n"

    async def meet(self, data: bytes) -> None:
        stream = Stream(asyncio.get_running_loop())
        wire = Wire(stream)
        shaking = asyncio.ensure_future(shake_hands(stream, address=ADDRESS, config=self._config))
        await wire.carry(cut(data))
        (outcome,) = await asyncio.gather(shaking, return_exceptions=True)
        assert isinstance(outcome, IdentifyAnswer | NsqError), repr(outcome)
        assert isinstance(outcome, IdentifyAnswer) or str(outcome).isprintable()
        assert isinstance(outcome, IdentifyAnswer) or len(str(outcome)) < 2000
        assert stream.unread_bytes <= 2 * SETUP_AHEAD_BYTES


class DiscoveryTarget(Target):
    """What an nsqlookupd answers over HTTP: to consumers that look for nsqds, and to nsqd that looks for channels."""

    name = "discovery"
    modules = ("client/discovery.py", "client/address.py", "base/address.py", "wire/lookup.py")
    tokens = (
        b'"producers":',
        b'"broadcast_address":"h"',
        b'"tcp_port":4150',
        b'"data":{',
        b"null",
        b"[]",
        b'"channels":',
    )
    slice_count = 300

    def seeds(self) -> Iterable[bytes]:
        producers = [
            {"broadcast_address": host, "tcp_port": 4150, "http_port": 4151} for host in ("h", "10.0.0.1", "::1")
        ]
        yield json.dumps({"channels": ["c", "d#ephemeral"], "producers": producers}).encode()
        yield json.dumps({"status_code": 200, "data": {"channels": [], "producers": producers}}).encode()

    def play(self, data: bytes) -> None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return
        with suppress(AnswerError):
            assert all(parse_channels(document))
        try:
            found = producer_addresses(document)
        except HttpQueryError:
            return
        assert len(found) <= MAX_NSQDS
        for address in found:
            assert address.isprintable()
            assert len(address) < 300
            with suppress(AddressError):  # told in a line, when it is tried
                nsqd_address(address)


class LookupPeerTarget(LoopTarget):
    """nsqd's link to a hostile nsqlookupd: it registers what it has, or says that it is not registered."""

    name = "lookup-peer"
    modules = ("nsqd/lookup_peer.py", "wire/lookup.py")
    tokens = (b"\0\0\0\x02OK", b"\0\0\0\x0fE_INVALID wrong", b'"http_port":4161', b"\0\0\0\x02{}")
    slice_count = 200
    _identity = NsqdIdentity(broadcast_address="h", hostname="h", tcp_port=4150, http_port=4151, version="1.3.0")

    def seeds(self) -> Iterable[bytes]:
        info = json.dumps({"broadcast_address": "h", "http_port": 4161, "tcp_port": 4160, "version": "1.3.0"}).encode()
        yield struct.pack(">i", len(info)) + info + b"\0\0\0\x02OK" * 3
        yield b"\0\0\0\x0fE_INVALID wrong"

    async def meet(self, data: bytes) -> None:
        clock, timers = ManualClock(), Timers()
        started: list[Coroutine[Any, Any, None]] = []

        def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            started.append(work)
            return asyncio.ensure_future(asyncio.sleep(0))

        context = PeerContext(
            identity=self._identity,
            snapshot=lambda: [("t", ("c", "d")), ("u", ())],
            max_answer_bytes=1000,
            clock=clock,
            timers=timers,
            spawn=spawn,
            chance=lambda: 0.5,
        )
        peer = LookupPeer("127.0.0.1:4160", context)
        peer.start()
        connection = peer._connection
        assert connection is not None
        wire = _Pipe()
        connection.connection_made(wire)
        for piece in cut(data):
            connection.data_received(piece)
        peer.tell(b"REGISTER v\n")
        for _ in range(3):
            clock.advance(seconds=20)
            timers.run_due(clock.monotonic_ns())
        assert isinstance(connection.conversation, Conversation)
        assert wire.written_bytes < 10_000
        peer.close()
        for work in started:
            work.close()
        await asyncio.sleep(0)


class _Pipe(asyncio.Transport):
    """Takes all that is written, and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes = 0

    def write(self, data: Any) -> None:
        self.written_bytes += len(data)

    def abort(self) -> None:
        """The peer has given the connection up; nothing is lost."""

    close = abort

    def is_closing(self) -> bool:
        return False


class HttpClientTarget(LoopTarget):
    """The answer of a hostile HTTP server: a body, or an `HttpQueryError`."""

    name = "http-client"
    modules = ("http/client.py",)
    tokens = (
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\n",
        b"Content-Length: 2\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Location: https://x/\r\n",
        b"\r\n",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"Upgrade: h2c\r\n",
    )
    slice_count = 200
    _max_body_bytes = 1000

    def seeds(self) -> Iterable[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        yield b"HTTP/1.0 404 Not Found\r\nConnection: close\r\n\r\nTOPIC_NOT_FOUND"
        yield b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"

    async def meet(self, data: bytes) -> None:
        connection = QueryConnection(max_body_bytes=self._max_body_bytes)
        connection.connection_made(_Pipe())
        for _ in range(2):  # the second time it may be a connection that was used before
            asked = asyncio.ensure_future(connection.exchange(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
            await asyncio.sleep(0)
            for piece in cut(data):
                connection.data_received(piece)
            if not connection.is_reusable:
                connection.connection_lost(None)
            try:
                answer = await asked
            except HttpQueryError as failure:
                tells_in_a_line(failure)
                break
            assert len(answer.body) <= self._max_body_bytes
            refusal = UnexpectedStatusError(status=answer.status, reason=answer.reason, body=answer.body)
            assert str(refusal).isprintable(), str(refusal)
            if not connection.is_reusable:
                break
        connection.close()


TARGETS: tuple[type[Target], ...] = (
    ConnectionTarget,
    HandshakeTarget,
    DiscoveryTarget,
    LookupPeerTarget,
    HttpClientTarget,
)
