"""From a socket to a stream of bytes that takes commands: TLS, compression, handshake.

**Stream.** It carries the bytes of one connection, in both directions, whatever lies between: plain TCP or a Unix
socket, TLS, compression. It has two phases. While the connection is being set up, bytes are asked for
(`read_exactly`), because what follows them may be of another kind: an answer in clear can share a packet with the first
bytes of a compressed stream. From `deliver_to` on, bytes are passed on as they arrive. What is written within one turn
of the event loop leaves in one piece: a thousand small commands cost one system call, and one flush of the compressor.

**Handshake**, from an open socket to a connection that takes commands:

    client                          nsqd
    "  V2", IDENTIFY {...}    →
                              ←     {...}: what was agreed, in clear
    TLS handshake             ↔                                if agreed
                              ←     OK, inside TLS
                              ←     OK, compressed             if agreed
    AUTH secret               →                                if demanded
                              ←     {...}: who we are

Nothing may be sent behind an IDENTIFY before its answer is there: nsqd drops what it read in clear when it changes to
another kind of stream. The other way round it is an attack: bytes in clear that lie between the answer and the TLS
handshake were not sent by nsqd, and would be taken for answers from inside TLS. They end the connection.

**A hostile peer** gets no more memory than an honest one needs. Until the connection is set up no more is read than is
asked for, but for SETUP_AHEAD_BYTES. A compressed stream is decompressed piece by piece, PLAIN_BYTES_PER_TURN in a turn
of the loop; what is behind waits in its compressed form, and so does the socket. The owner of the stream may let it
wait, too (`pause_reading`).
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, cast

from emberq.base.address import TcpAddress, UnixAddress, parse_address
from emberq.base.clock import NS_PER_MS
from emberq.client.config import ClientConfig
from emberq.client.error import AuthError, HandshakeError, server_error, shown
from emberq.wire import command
from emberq.wire.compression import Codec, CompressionError, DeflateCodec, SnappyCodec
from emberq.wire.frame import ERROR, FRAME_HEADER, MAX_ANSWER_BYTES, RESPONSE

WRITE_BUFFER_HIGH_BYTES = 1024 * 1024
"""What may wait for a slow peer before writers are held back: enough to fill a fast link for some milliseconds."""
CLOSE_TIMEOUT_S = 2.0
"""How long a peer may take to accept the last bytes; one that is gone for good never does."""
SETUP_AHEAD_BYTES = 256 * 1024
"""What may arrive ahead of the question for it while a connection is set up: what one read from a socket brings."""
PLAIN_BYTES_PER_TURN = 1024 * 1024
"""A read of compressed bytes can stand for a thousand times as many. To take this much apart takes milliseconds; then
the event loop gets its turn."""
REST_READ_BYTES = 64 * 1024
MAX_REST_READS = 64
"""What a socket can hold unread when its connection ends: 4 MiB, which is above what systems allow by default."""


class PlaintextError(Exception):
    """Bytes in clear came where only TLS may follow."""


class Stream(asyncio.Protocol):
    """Owned by a `Connection`. `last_read_s` is the loop's time at which the last bytes arrived."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._codec: Codec | None = None
        self._arrived = bytearray()
        """Bytes that `read_exactly` has not taken yet; unused from `deliver_to` on."""
        self._receive: Callable[[bytes], None] = self._keep
        self._on_lost: Callable[[BaseException | None], None] | None = None
        self._reader: asyncio.Future[None] | None = None
        """Waits for the next bytes in `read_exactly`."""
        self.is_reading_paused = False
        """Whether what arrives is left where it is: in the socket, and in the codec."""
        self._is_giving_way = False
        """Whether the rest of a large piece of the compressed stream is due in the next turn of the loop."""
        self._outgoing: list[bytes] = []
        """Written in this turn of the loop."""
        self._outgoing_bytes = 0
        self._is_paused = False
        self._drainers: list[asyncio.Future[None]] = []
        self._failure: BaseException | None = None
        """Why we gave the connection up, if it was us."""
        self._lost: asyncio.Future[None] = loop.create_future()
        self.last_read_s = loop.time()

    @classmethod
    async def connect(cls, address: str) -> Stream:
        """A stream to `host:port` or to the path of a Unix socket."""
        loop = asyncio.get_running_loop()
        target = parse_address(address)
        if isinstance(target, UnixAddress):
            try:
                _, stream = await loop.create_unix_connection(lambda: cls(loop), target.path)
            except NotImplementedError:
                raise OSError(errno.EAFNOSUPPORT, "Windows has no Unix sockets") from None
        else:
            _, stream = await loop.create_connection(lambda: cls(loop), target.host or "localhost", target.port)
        return stream

    # Upgrades

    async def start_tls(self, context: ssl.SSLContext, *, server_hostname: str) -> None:
        """Go on in TLS; returns when hands have been shaken. PlaintextError if more has arrived than was asked for.

        What arrives from here on goes to TLS: the loop changes the transport's protocol before this first waits.
        """
        if self._arrived:
            raise PlaintextError(f"{self.unread_bytes} bytes")
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=server_hostname)
        self._adopt(cast(asyncio.Transport, transport))

    def start_codec(self, codec: Codec) -> None:
        """Go on in a compressed stream, beginning with what has arrived but has not been asked for."""
        ahead = bytes(self._arrived)
        self._arrived.clear()
        self._codec = codec
        self._decompress(codec, ahead)

    # Reading

    async def read_exactly(self, count: int) -> bytes:
        """The next `count` bytes; EOFError if the peer closes before, CompressionError if it sends nonsense."""
        while len(self._arrived) < count:
            if isinstance(self._failure, CompressionError):
                raise self._failure
            if self._lost.done():
                raise EOFError
            if self.is_reading_paused:
                self.resume_reading()
                continue
            self._reader = self._loop.create_future()
            await self._reader
        data = bytes(self._arrived[:count])
        del self._arrived[:count]
        return data

    @property
    def unread_bytes(self) -> int:
        """How much has arrived that `read_exactly` was not asked for yet."""
        return len(self._arrived)

    def deliver_to(self, receive: Callable[[bytes], None], *, on_lost: Callable[[BaseException | None], None]) -> None:
        """From now on pass on bytes as they arrive, beginning with those that have; at the end, say that it ended."""
        self._receive = receive
        self._on_lost = on_lost
        ahead = bytes(self._arrived)
        self._arrived.clear()
        if ahead:
            receive(ahead)
        if self._lost.done():
            self._loop.call_soon(on_lost, self._failure)  # not before the caller knows what was lost
        elif self.is_reading_paused:
            self.resume_reading()  # it was full of what is passed on now

    def _keep(self, data: bytes) -> None:
        self._arrived += data
        if len(self._arrived) > SETUP_AHEAD_BYTES:
            self.pause_reading()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def pause_reading(self) -> None:
        """Leave what arrives where it is: the peer has to wait. Its end is not noticed meanwhile."""
        self.is_reading_paused = True
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, beginning with what the codec has."""
        self.is_reading_paused = False
        self.last_read_s = self._loop.time()  # the silence was ours
        self._go_on()

    def _decompress(self, codec: Codec, data: bytes) -> None:
        """Pass on the plain bytes of `data`; in this turn of the loop only a part of them, if there are very many."""
        plain_bytes = 0
        try:
            for piece in codec.decompress(data):
                self._receive(piece)
                plain_bytes += len(piece)
                if self.is_reading_paused or self._transport.is_closing():
                    return
                if plain_bytes >= PLAIN_BYTES_PER_TURN:
                    self._give_way()
                    return
        except CompressionError as failure:
            self.abort(failure)
            self._wake_reader()

    def _give_way(self) -> None:
        """Go on in the next turn of the loop."""
        self._is_giving_way = True
        self._transport.pause_reading()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_giving_way = False
        if self._codec is not None and self._may_read:
            self._decompress(self._codec, b"")
        if self._may_read:
            self._transport.resume_reading()

    @property
    def _may_read(self) -> bool:
        return not (self.is_reading_paused or self._is_giving_way or self._transport.is_closing())

    # Writing

    def write(self, data: bytes) -> None:
        """Send in order, at the end of this turn of the loop. What is written to a closing stream is dropped."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)

    @property
    def is_congested(self) -> bool:
        """Whether writers should wait in `drain`."""
        return self._is_paused or self._outgoing_bytes >= WRITE_BUFFER_HIGH_BYTES

    async def drain(self) -> None:
        """Wait while the peer takes less than is written. Returns as well when the stream ends."""
        if self._outgoing_bytes >= WRITE_BUFFER_HIGH_BYTES:
            self._flush()
        while self._is_paused and not self._lost.done():
            drainer = self._loop.create_future()
            self._drainers.append(drainer)
            await drainer

    def _flush(self) -> None:
        if not self._outgoing:
            return
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if not self._transport.is_closing():
            self._transport.write(self._codec.compress(data) if self._codec is not None else data)

    # Ending

    async def close(self) -> None:
        """Send what has been written, then close; a peer that does not take it in time is cut off."""
        self._flush()
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self._transport.abort()
            await self._lost

    def abort(self, failure: BaseException | None) -> None:
        """Close at once; `failure` is what `on_lost` will be told."""
        if self._failure is None:
            self._failure = failure
        self._transport.abort()

    def read_rest(self) -> None:
        """Pass on what had arrived when the connection broke; to be called by `on_lost`.

        A peer that closes while more is being sent to it resets the connection. Then a write fails, and the event loop
        gives the connection up without reading what the peer said before. Inside TLS that is lost indeed.
        """
        if self.is_reading_paused or self._transport.get_extra_info("sslcontext") is not None:
            return
        broken = self._transport.get_extra_info("socket")
        try:
            with socket.fromfd(broken.fileno(), broken.family, broken.type) as rest:
                for _ in range(MAX_REST_READS):
                    if not (data := rest.recv(REST_READ_BYTES)):
                        return
                    self.data_received(data)
        except OSError:
            return  # all has been read: the next thing in line is the reset

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._adopt(cast(asyncio.Transport, transport))

    def _adopt(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        self.last_read_s = self._loop.time()
        if self._codec is None:
            self._receive(data)
        else:
            self._decompress(self._codec, data)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._wake_drainers()

    def _wake_drainers(self) -> None:
        drainers, self._drainers = self._drainers, []
        for drainer in drainers:
            if not drainer.done():
                drainer.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._failure = self._failure or exc
        if not self._lost.done():
            self._lost.set_result(None)
        self._wake_reader()
        self._wake_drainers()
        if self._on_lost is not None:
            self._on_lost(self._failure)


# The handshake

_START_OF_HTTP = int.from_bytes(b"HTTP", "big")
"""The size of the first frame, if the peer answers in HTTP."""
_UNFRAMED_ERROR = int.from_bytes(b"E_BA", "big")
"""The type of the first frame, if the peer is an nsqlookupd: its E_BAD_PROTOCOL has a size, but no type."""


@dataclass(frozen=True, slots=True)
class IdentifyAnswer:
    """What nsqd agreed to. The defaults are what an nsqd too old to negotiate does."""

    version: str = ""
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    auth_required: bool = False
    idempotent: bool = False
    """Whether batches may be numbered."""
    max_msg_size: int = 0
    """The largest message in bytes; 0: not told."""
    max_body_size: int = 0
    """The largest body of an MPUB in bytes; 0: not told."""


_SPELLED = {"msg_timeout_ms": "msg_timeout", "tls": "tls_v1", "idempotent": "emberq_idempotent"}
"""Fields whose key in nsqd's document is another one."""


_RANGES = {
    "max_rdy_count": (0, 2**63 - 1),
    "msg_timeout_ms": (1, 2**63 // NS_PER_MS),
    "deflate_level": (-1, 9),
    "max_msg_size": (0, 2**63 - 1),
    "max_body_size": (0, 2**63 - 1),
}
"""What a number may be: nsqd has them in 64 bits, times as nanoseconds; zlib knows these levels."""


def parse_answer(data: bytes) -> IdentifyAnswer:
    """What an answer to IDENTIFY says; ValueError if it cannot be one."""
    if not data.startswith(b"{"):
        return IdentifyAnswer()
    try:
        document: dict[str, Any] = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    known: dict[str, Any] = {}
    for each in fields(IdentifyAnswer):
        key = _SPELLED.get(each.name, each.name)
        value = document.get(key)
        if value is None:
            continue
        least, most = _RANGES.get(each.name, (value, value))
        if type(value) is not type(each.default) or not least <= value <= most:
            raise ValueError(f"{key} is {shown(repr(value))}")
        known[each.name] = value
    answer = IdentifyAnswer(**known)
    if answer.snappy and answer.deflate:
        raise ValueError("it has both snappy and deflate")
    return answer


class Handshake:
    """Sets up one connection. Used once; if it fails, the caller closes the stream."""

    def __init__(self, stream: Stream, *, address: str, config: ClientConfig) -> None:
        self._stream = stream
        self._address = address
        self._config = config

    async def run(self) -> IdentifyAnswer:
        """What was agreed, once commands can be sent; a `HandshakeError` or a `ServerError` otherwise."""
        self._stream.write(command.MAGIC_V2 + command.identify(self._config.identify_fields()))
        answer = self._parse(await self._read_response())
        if self._config.producer_id and not answer.idempotent:
            raise self._failed("nsqd cannot tell batches that are sent again, and storing them twice is not wanted")
        await self._encrypt(answer)
        await self._compress(answer)
        if answer.auth_required:
            await self._authenticate()
        return answer

    def _parse(self, data: bytes) -> IdentifyAnswer:
        try:
            return parse_answer(data)
        except ValueError as error:
            raise self._failed(f"the answer to IDENTIFY makes no sense: {shown(str(error))}") from error

    async def _encrypt(self, answer: IdentifyAnswer) -> None:
        context = self._config.tls
        if context is None:
            return
        if not answer.tls:
            raise self._failed("nsqd does not offer TLS, and going on without is not what was asked for")
        try:
            await self._stream.start_tls(context, server_hostname=self._server_hostname(context))
        except PlaintextError as error:
            raise self._failed(
                f"{error} came in clear behind the answer to IDENTIFY, where only TLS may follow; an nsqd sends none, "
                "so they may have been put there on the way"
            ) from error
        except ssl.SSLError as error:
            raise self._failed(f"no agreement on TLS: {error}") from error
        await self._expect_ok("TLS")

    def _server_hostname(self, context: ssl.SSLContext) -> str:
        """The name that nsqd's certificate must bear. A Unix socket has none but this machine's."""
        target = parse_address(self._address)
        host = target.host if isinstance(target, TcpAddress) else ""
        return host or ("localhost" if context.check_hostname else "")

    async def _compress(self, answer: IdentifyAnswer) -> None:
        if answer.snappy:
            self._stream.start_codec(SnappyCodec())
            await self._expect_ok("snappy")
        elif answer.deflate:
            self._stream.start_codec(DeflateCodec(answer.deflate_level))
            await self._expect_ok("deflate")

    async def _authenticate(self) -> None:
        if not self._config.auth_secret:
            raise AuthError("E_AUTH_FIRST", "nsqd demands AUTH, and no auth_secret is configured")
        self._stream.write(command.auth(self._config.auth_secret))
        await self._read_response()

    async def _expect_ok(self, upgrade: str) -> None:
        data = await self._read_response()
        if data != b"OK":
            raise self._failed(f"{data[:64]!r} instead of OK after the change to {upgrade}")

    async def _read_response(self) -> bytes:
        """The data of the next frame, which must be a response; an error frame is raised."""
        size, frame_type = FRAME_HEADER.unpack(await self._stream.read_exactly(FRAME_HEADER.size))
        if size == _START_OF_HTTP:
            raise self._failed(
                "unexpected HTTP response; give the address at which nsqd speaks TCP, which usually has port 4150"
            )
        if frame_type == _UNFRAMED_ERROR:
            raise self._failed(
                "this answers like an nsqlookupd; give the address of an nsqd, which usually has port 4150, or give "
                "nsqlookupd's HTTP address as lookupd_addresses"
            )
        if not 4 <= size <= MAX_ANSWER_BYTES:
            raise self._failed(f"an answer of {size} bytes; this is not an nsqd")
        data = await self._stream.read_exactly(size - 4)
        if frame_type == ERROR:
            raise server_error(data)
        if frame_type != RESPONSE:
            raise self._failed(f"a frame of type {frame_type} instead of an answer")
        return data

    def _failed(self, reason: str) -> HandshakeError:
        return HandshakeError(self._address, reason)
