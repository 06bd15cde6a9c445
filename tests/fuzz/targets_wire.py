"""Targets without I/O: what a decoder is given, and what it makes of it.

A stream must mean the same however it is cut. So most of these play each input twice, whole and in pieces, and compare;
where the pieces lie follows from the input.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from emberq.http.message import HttpError, Request, Response, plain
from emberq.http.reader import RequestReader
from emberq.http.router import DEFAULT_LIMITS, SLICE_BYTES, Admission, Route, Router
from emberq.nsqd.api.publish import batch_of_lines, batch_of_records
from emberq.wire import command, frame
from emberq.wire.command import MAGIC_V2
from emberq.wire.compression import (
    PIECE_BYTES,
    STREAM_IDENTIFIER,
    Codec,
    CompressionError,
    DeflateCodec,
    SnappyCodec,
)
from emberq.wire.dead_letter import DeadLetter, decode_dead_letter, encode_dead_letter, target_of
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.frame import FrameDecoder, FrameError
from emberq.wire.line import CommandLimits
from emberq.wire.lookup import AnswerError, LookupAnswerReader, LookupDecoder, check_ok, parse_info
from emberq.wire.negotiation import ConnectionSettings, ServerLimits, negotiate, parse_request
from emberq.wire.parameter import is_valid_name
from tests.fuzz.engine import Target, tells_in_a_line
from tests.wire.playback import bodies_of, play
from tests.wire.reference_decoder import transcribe

LIMITS = CommandLimits(max_msg_size=200, max_body_size=1000, max_req_timeout_ms=5000, max_rdy_count=50)
"""Small, so that inputs of a few hundred bytes reach them."""
MESSAGE_ID = b"0123456789abcdef"

COMMANDS = (
    b"NOP\n",
    b"CLS\n",
    b"RDY 5\n",
    b"FIN %b\n" % MESSAGE_ID,
    b"TOUCH %b\n" % MESSAGE_ID,
    b"REQ %b 100\n" % MESSAGE_ID,
    b"SUB t c\n",
    b"SUB t#ephemeral c#ephemeral\n",
    command.pub("t", b"body"),
    command.pub("u", b"x" * 40),
    command.dpub("t", b"later", defer_ms=10),
    command.mpub("t", [b"one", b"two", b"3"]),
    command.mpub("t", [b"same", b"size"]),
    command.identify({"client_id": "c", "feature_negotiation": True, "heartbeat_interval": 1000, "msg_timeout": 2000}),
    command.auth(b"secret"),
)
WORDS = (b"#ephemeral", b" ", b"\n", b"\r\n", b"PUB ", b"MPUB ", b"DPUB t ", b"\0\0\0\x01", b"\xff\xff\xff\xff")


def cut(data: bytes) -> list[bytes]:
    """The input in pieces: single bytes, or at most five, at places that follow from the input."""
    dice = random.Random(zlib.crc32(data))
    if len(data) < 400 and dice.random() < 0.2:
        return [data[index : index + 1] for index in range(len(data))]
    ends = sorted({0, len(data), *(dice.randint(0, len(data)) for _ in range(dice.randrange(5)))})
    return [data[start:end] for start, end in pairwise(ends)]


class DecoderTarget(Target):
    """nsqd's decoder against a plain one, which is slow and shares no code with it."""

    name = "decoder"
    modules = ("wire/decoder.py", "wire/line.py", "wire/run.py", "wire/body.py", "wire/mpub.py", "wire/parameter.py")
    tokens = (*COMMANDS, *WORDS, MAGIC_V2)
    slice_count = 500

    def seeds(self) -> Iterable[bytes]:
        yield from (MAGIC_V2 + each for each in COMMANDS)
        yield MAGIC_V2 + b"SUB t c\n" + b"".join(COMMANDS[2:6]) * 3 + b"".join(COMMANDS[8:12])
        yield MAGIC_V2 + COMMANDS[8] * 5 + COMMANDS[11] * 3

    def play(self, data: bytes) -> None:
        expected = transcribe(data, LIMITS)
        for pieces in ([data], cut(data)):
            found = play(pieces, LIMITS)
            assert found.commands == expected.commands, (found.commands, expected.commands)
            assert (found.end.data, found.end.topic) == (expected.end.data, expected.end.topic)


class CompressedTarget(Target):
    """A compressed stream of commands, as nsqd reads it. The first byte tells which codec, the rest is the stream."""

    name = "compression"
    modules = ("wire/compression.py", "wire/decoder.py", "wire/body.py", "wire/line.py")
    tokens = (
        STREAM_IDENTIFIER,
        b"\xfe\x00\x00\x00",
        b"\xfe\xff\xff\x00",
        b"\x00\x0c\x00\x00",
        b"\x01\x05\x00\x00",
        b"\x00\x00\x00\xff\xff",
        b"\x01\x00\x00\xff\xff",
    )
    max_bytes = 16384
    slice_count = 300
    _max_plain_bytes = 32 << 20

    def seeds(self) -> Iterable[bytes]:
        stream = MAGIC_V2 + b"".join(COMMANDS)
        codecs: tuple[Callable[[], Codec], ...] = (SnappyCodec, lambda: DeflateCodec(6))
        for kind, new_codec in enumerate(codecs):
            codec = new_codec()
            yield bytes([kind]) + codec.compress(stream)
            yield bytes([kind]) + b"".join(codec.compress(each) for each in COMMANDS)
            yield bytes([kind]) + new_codec().compress(MAGIC_V2 + bytes(100_000))
        yield b"\x00" + STREAM_IDENTIFIER + b"\xfe\x04\x00\x00abcd" * 20 + SnappyCodec().compress(b"NOP\n")

    def play(self, data: bytes) -> None:
        whole = self._plain(data, [data[1:]])
        in_pieces = self._plain(data, cut(data[1:]))
        assert whole[1] == in_pieces[1], (whole, in_pieces)
        shorter, longer = sorted((whole[0], in_pieces[0]), key=len)
        assert longer == shorter or (whole[1] and longer.startswith(shorter))  # before damage, more or less may come
        decoder = CommandDecoder(LIMITS)
        try:
            decoder.feed(whole[0])
            while decoder.next_command() is not None:
                pass
        except FatalError:
            pass

    def _plain(self, data: bytes, pieces: Iterable[bytes]) -> tuple[bytes, bool]:
        """The plain bytes, and whether the stream was refused behind them."""
        codec: Codec = DeflateCodec(6) if data[:1] == b"\x01" else SnappyCodec()
        plain_bytes = bytearray()
        try:
            for piece in pieces:
                for plain_piece in codec.decompress(piece):
                    assert len(plain_piece) <= PIECE_BYTES
                    plain_bytes += plain_piece
                    if len(plain_bytes) > self._max_plain_bytes:
                        return bytes(plain_bytes[: self._max_plain_bytes]), False
        except CompressionError:
            return bytes(plain_bytes), True
        return bytes(plain_bytes), False


class MpubTarget(Target):
    """The body of an MPUB, over TCP and over HTTP: what is taken is encoded to the same again."""

    name = "mpub"
    modules = ("wire/mpub.py", "wire/body.py", "nsqd/api/publish.py")
    tokens = (b"\0\0\0\x01x", b"\0\0\0\x04same", b"\n", struct.pack(">i", 40))
    slice_count = 500

    def seeds(self) -> Iterable[bytes]:
        for bodies in ([b"a"], [b"a", b"bc", b"def"], [b"same"] * 30, [b"x" * 200, b"y"], [b"1"] * 10 + [b"22"] * 10):
            yield command.mpub("t", bodies)[len(b"MPUB t\n") :]
        yield b"one\ntwo\n\nthree\n"

    def play(self, data: bytes) -> None:
        whole = self._published([b"MPUB t\n" + data])
        assert whole == self._published([b"MPUB t\n", *cut(data)])
        if isinstance(whole, list):
            bodies = whole
            assert data.startswith(command.mpub("t", bodies)[len(b"MPUB t\n") + 4 :], 4)
        self._over_http(data)

    def _published(self, pieces: Iterable[bytes]) -> list[bytes] | bytes | None:
        """The messages; or what is wrong; None if more was to come."""
        decoder = CommandDecoder(LIMITS)
        try:
            decoder.feed(MAGIC_V2)
            decoder.next_command()
            for piece in pieces:
                found = decoder.receive(piece)
                if isinstance(found, command.Publish):
                    return bodies_of(found.blob, found.ends)
            decoder.eof()
        except FatalError as wrong:
            return wrong.data
        return None

    def _over_http(self, data: bytes) -> None:
        try:
            lines, ends = batch_of_lines(data, max_msg_size=LIMITS.max_msg_size)
        except HttpError:
            pass
        else:
            assert (bodies_of(lines, ends) if ends else []) == [line for line in data.split(b"\n") if line]
        try:
            blob, record_ends = batch_of_records(
                data, topic="t", max_msg_size=LIMITS.max_msg_size, max_body_size=LIMITS.max_body_size
            )
        except HttpError:
            return
        bodies = bodies_of(blob, record_ends)
        assert data.startswith(command.mpub("t", bodies)[len(b"MPUB t\n") + 4 :])


class IdentifyTarget(Target):
    """The JSON of an IDENTIFY, to nsqd and to nsqlookupd, and of nsqlookupd's answer to it."""

    name = "identify"
    modules = ("wire/negotiation.py", "wire/parameter.py", "wire/lookup.py")
    tokens = (b'"snappy":true', b'"deflate":true', b'"tls_v1":true', b'"sample_rate":', b"null", b"1e5", b"-1", b"{}")
    slice_count = 400
    _settings = ConnectionSettings("c", "h", 30_000, 250, 60_000)
    _limits = ServerLimits(version="1.3.0", tls=True)

    def seeds(self) -> Iterable[bytes]:
        yield (
            b'{"client_id":"c","hostname":"h","user_agent":"a/1","feature_negotiation":true,"heartbeat_interval":1000,'
            b'"output_buffer_size":1024,"output_buffer_timeout":100,"tls_v1":true,"snappy":true,"deflate":true,'
            b'"deflate_level":3,"sample_rate":50,"msg_timeout":5000,"topology_zone":"z","topology_region":"r",'
            b'"emberq_producer_id":"00112233445566778899aabbccddeeff"}'
        )
        yield b'{"short_id":"c","long_id":"h","heartbeat_interval":-1}'
        yield b'{"broadcast_address":"h","hostname":"h","tcp_port":4150,"http_port":4151,"version":"1.3.0"}'

    def play(self, data: bytes) -> None:
        try:
            agreement = negotiate(parse_request(data), self._settings, self._limits)
        except FatalError:
            pass
        else:
            assert len(agreement.settings.client_id) <= 256
            assert len(agreement.settings.hostname) <= 256
        for answer in (data, b"OK"):
            try:
                check_ok(answer)
                parse_info(data).http_address  # noqa: B018 - it must not raise
            except AnswerError as wrong:
                tells_in_a_line(wrong)
        self._to_lookupd(data)

    def _to_lookupd(self, data: bytes) -> None:
        decoder = LookupDecoder()
        try:
            list(decoder.receive(b"  V1IDENTIFY\n" + struct.pack(">i", len(data)) + data + b"PING\nREGISTER t c\n"))
        except FatalError as wrong:
            tells_in_a_line(wrong, max_characters=200)


class DeadLetterTarget(Target):
    """The body of a message that is to be redriven: an envelope of nsqd's, or what any publisher took for one."""

    name = "dead-letter"
    modules = ("wire/dead_letter.py", "wire/parameter.py")
    tokens = (b'"body":', b'"body_base64":"eA=="', b'"topic":"t"', b"null", b"{}")

    def seeds(self) -> Iterable[bytes]:
        for body in (b"text", b"\xff\xfe"):
            letter = DeadLetter(
                topic="t", channel="c", id="0" * 16, attempts=3, timestamp_ns=1, reason="no reason", body=body
            )
            yield encode_dead_letter(letter, max_bytes=1000) or b""

    def play(self, data: bytes) -> None:
        letter = decode_dead_letter(data)
        for to in (None, "u"):
            target = target_of(data, to=to)
            assert target is None or is_valid_name(target.topic)
        if letter is not None:
            again = encode_dead_letter(letter, max_bytes=1 << 20)
            assert again is not None
            assert decode_dead_letter(again) is not None


class FrameTarget(Target):
    """What our client reads of nsqd, and what nsqd reads of nsqlookupd: frames and answers."""

    name = "frame"
    modules = ("wire/frame.py", "wire/lookup.py")
    tokens = (frame.OK, frame.HEARTBEAT, frame.error(b"E_INVALID"), b"\0\0\0\x06\0\0\0\x02", b"\0\0\0\x02OK")
    slice_count = 400
    _max_frame_bytes = 500

    def seeds(self) -> Iterable[bytes]:
        message = frame.encode_message(frame.WireMessage(1, 1, MESSAGE_ID, b"hello"))
        whole = struct.pack(">ii", 4 + len(message), frame.MESSAGE) + message
        yield frame.OK + frame.HEARTBEAT + whole * 3 + frame.error(b"E_FIN_FAILED")
        yield whole
        yield b"\0\0\0\x02OK" * 4

    def play(self, data: bytes) -> None:
        assert self._frames([data]) == self._frames(cut(data))
        try:
            answers = LookupAnswerReader(max_bytes=500).feed(data)
        except AnswerError:
            return
        reader = LookupAnswerReader(max_bytes=500)
        assert [answer for piece in cut(data) for answer in reader.feed(piece)] == answers

    def _frames(self, pieces: Iterable[bytes]) -> tuple[list[object], list[object], bool]:
        """Messages, other frames, and whether the stream was refused."""
        decoder = FrameDecoder(max_frame_bytes=self._max_frame_bytes)
        messages: list[object] = []
        others: list[object] = []
        try:
            for piece in (*pieces, b""):  # what is no frame is told behind the good ones before it
                found, frames = decoder.feed(piece)
                messages += found
                others += frames
        except FrameError:
            return messages, others, True
        return messages, others, False


class HttpReaderTarget(Target):
    """Requests, as the HTTP server of all daemons reads them."""

    name = "http-reader"
    modules = ("http/reader.py", "http/router.py", "http/message.py")
    tokens = (
        b"GET ",
        b"POST ",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"Host: x\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: h2c\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"?a=%20&b=",
        b"/echo",
        b"/many/",
        b"%2e%2e/",
        b"//",
    )
    slice_count = 500

    def seeds(self) -> Iterable[bytes]:
        host = b" HTTP/1.1\r\nHost: x\r\n"
        yield b"GET /ping" + host + b"\r\n" + b"GET /ping" + host + b"\r\n"
        yield b"POST /echo?a=b&c=%41" + host + b"Content-Length: 5\r\n\r\nhello" + b"GET /PING/" + host + b"\r\n"
        yield b"POST /echo" + host + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n"
        yield b"POST /echo" + host + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"
        yield b"POST /echo" + host + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello"
        yield b"OPTIONS /many/a%20b" + host + b"Origin: http://evil\r\nSec-Fetch-Site: cross-site\r\n\r\n"
        yield b"GET /many/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /nowhere HTTP/1.0\r\n\r\n"

    def play(self, data: bytes) -> None:
        whole = list(self._read([data]))
        assert whole == list(self._read(cut(data))), whole

    def _read(self, pieces: Iterable[bytes]) -> Iterator[tuple[object, ...]]:
        """What becomes of each request: who may see it, or how it is refused."""
        admission = Admission(Router(_ROUTES), guard=None, limits=DEFAULT_LIMITS)
        reader = RequestReader(admission, remote_address="127.0.0.1:1", is_tls=False)
        for piece in pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                reader.feed(piece[start : start + SLICE_BYTES])
        reader.feed_eof()
        for exchange in reader.ready:
            request, refusal = exchange.request, exchange.refusal
            try:
                query: object = dict(request.query())
            except HttpError as wrong:
                query = wrong.message
            route = None if exchange.route is None else exchange.route.path
            said = None if refusal is None else (refusal.status, bytes(refusal.body))
            yield request.method, request.target, route, request.body, exchange.ending, said, query
        reader.close()


def _echo(request: Request) -> Response:
    return plain(request.body.decode("latin-1"))


_ROUTES = [
    Route("GET", "/ping", _echo),
    Route("POST", "/echo", _echo, max_body_bytes=100),
    Route("GET", "/many/{name}", _echo),
    Route("PUT", "/many/{name}", _echo, max_body_bytes=10),
]

TARGETS: tuple[type[Target], ...] = (
    DecoderTarget,
    CompressedTarget,
    MpubTarget,
    IdentifyTarget,
    DeadLetterTarget,
    FrameTarget,
    HttpReaderTarget,
)
