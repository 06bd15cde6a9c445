"""Requests played to a connection in any pieces and at any pace, with a transport that keeps what is written.

Every `Played` request knows what must come back, so a stream of them is its own oracle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.http.server import HttpServer
from tests.http.site import MAX_ECHO_BYTES, Site
from tests.support.examples import examples as examples
from tests.support.raw_http_client import Answer, chunked, cut_answers, request
from tests.support.waiting import turns


class RecordingTransport(asyncio.Transport):
    """In place of a socket. Can be made to look full after every write."""

    def __init__(self, protocol: asyncio.Protocol, *, fills_up: bool) -> None:
        super().__init__()
        self.written = b""
        self.parts: list[bytes | bytearray | memoryview[Any]] = []
        """The latest that were written together without being joined."""
        self.is_paused = False
        self._protocol = protocol
        self._fills_up = fills_up
        self._is_full = False
        self._is_closing = False
        self.has_ended = False
        """Whether our direction was shut, or all of it."""

    def get_protocol(self) -> asyncio.Protocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1234) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self.has_ended, "a write after the end"
        self.written += data
        if self._fills_up and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.parts = list(list_of_data)
        super().writelines(self.parts)

    def drain(self) -> None:
        """Be empty again."""
        if self._is_full:
            self._is_full = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.has_ended = True
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False


class Stage:
    """A server to play to. Connections come one after the other, and the later ones find its caches warm."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.clock = ManualClock()
        self._site = Site()
        self.server = HttpServer(self._site.router(), clock=self.clock, timers=self.timers)

    async def play(self, pieces: Iterable[bytes], *, fills_up: bool = False) -> RecordingTransport:
        """Play a stream on a new connection; returns when all of it has been answered, or the server has ended it."""
        protocol = self.server.make_protocol()
        transport = RecordingTransport(protocol, fills_up=fills_up)
        protocol.connection_made(transport)
        for piece in pieces:
            while transport.is_paused and not transport.is_closing():
                await self._turn(transport)
            if transport.is_closing():
                break
            protocol.data_received(piece)
        for _ in range(10):
            await self._turn(transport)
        return transport

    async def _turn(self, transport: RecordingTransport) -> None:
        await turns(3)  # a waiting handler takes up to three
        transport.drain()

    async def leave(self, transport: RecordingTransport) -> None:
        """Close what was played to, and let go what waits at the gate."""
        transport.close()
        self._site.gate.set()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Played:
    """A request, and what must come back."""

    data: bytes
    status: int
    body: bytes | None = None
    """None: whatever."""
    is_last: bool = False
    """The server must not answer anything after it."""

    def fits(self, answer: Answer) -> bool:
        return (
            answer.status == self.status
            and (self.body is None or answer.body == self.body)
            and answer.closes == self.is_last
        )


def expected(stream: Iterable[Played]) -> Iterator[Played]:
    """What is answered of a stream: everything up to the first request that is the last."""
    for played in stream:
        yield played
        if played.is_last:
            return


def final_answers(written: bytes) -> list[Answer]:
    """The answers without the interim ones, which depend on when a body arrives."""
    return [answer for answer in cut_answers(written) if answer.status >= 200]


def pieces_of(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The stream cut at these places."""
    ends = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(ends)]


_OFFER: dict[str, Any] = {"connection": "Upgrade, x", "upgrade": "h2c"}
_bodies = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"\r\n\r\n", request("GET", "/ping"), b"0\r\n\r\n"]),
    st.integers(0, MAX_ECHO_BYTES).map(lambda size: b"x" * size),
)
_too_long_bodies = st.integers(1, 500).map(lambda excess: b"x" * (MAX_ECHO_BYTES + excess))
_too_big = b'{"message":"MSG_TOO_BIG"}'


def _in_chunks(path: str, chunks: list[bytes]) -> bytes:
    return request("POST", path, content_length="", transfer_encoding="chunked") + chunked(*filter(None, chunks))


_ordinary = st.one_of(
    st.just(Played(request("GET", "/ping"), 200, b"OK")),
    st.just(Played(b"\r\n" + request("GET", "/ping"), 200, b"OK")),
    st.just(Played(request("GET", "/ping", x_long="v" * 3000), 200, b"OK")),
    st.just(Played(b"GET /ping HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 200, b"OK")),
    st.just(Played(request("GET", "/config/a"), 200, b'{"option":"a"}')),
    st.just(Played(request("GET", "/CONFIG/a"), 301, b"")),
    st.just(Played(request("OPTIONS", "/ping"), 200, b"")),
    st.just(Played(request("GET", "/nowhere"), 404, b'{"message":"NOT_FOUND"}')),
    st.just(Played(request("GET", "/query?name=%zz"), 400, b'{"message":"INVALID_REQUEST"}')),
    st.just(Played(request("GET", "/refuse-later"), 404, b'{"message":"CHANNEL_NOT_FOUND"}')),
    st.just(Played(request("GET", "/big"), 200)),
    _bodies.map(lambda body: Played(request("POST", "/echo", body), 200, body)),
    _bodies.map(lambda body: Played(request("POST", "/later", body), 200, body)),
    _bodies.map(lambda body: Played(request("POST", "/topic/create", body), 200, b"")),
    _bodies.map(lambda body: Played(request("POST", "/nowhere", body), 404, b'{"message":"NOT_FOUND"}')),
    _bodies.map(lambda body: Played(request("POST", "/echo", body, expect="100-continue"), 200, body)),
    _bodies.map(lambda body: Played(request("POST", "/echo", body, **_OFFER), 200, body)),
    _too_long_bodies.map(lambda body: Played(request("POST", "/echo", body), 413, _too_big)),
    _too_long_bodies.map(lambda body: Played(_in_chunks("/echo", [body[:999], body[999:]]), 413, _too_big)),
    st.lists(st.binary(max_size=10), max_size=5).map(
        lambda chunks: Played(_in_chunks("/echo", chunks), 200, b"".join(chunks))
    ),
    st.lists(st.binary(max_size=10), max_size=5).map(
        lambda chunks: Played(_in_chunks("/later", chunks), 200, b"".join(chunks))
    ),
)
_last = st.sampled_from(
    [
        Played(request("GET", "/ping", connection="close"), 200, b"OK", is_last=True),
        Played(request("POST", "/later", b"x", connection="close"), 200, b"x", is_last=True),
        Played(b"GET /ping HTTP/1.0\r\n\r\n", 200, b"OK", is_last=True),
        Played(request("POST", "/echo", content_length="300000"), 413, _too_big, is_last=True),
        Played(request("POST", "/echo", content_length="9999", expect="100-continue"), 413, _too_big, is_last=True),
        Played(request("GET", "/ping", host=""), 400, is_last=True),
        Played(b"GET /ping HTTP/1.1\r\nHost: x\r\n" + b"X: v\r\n" * 120 + b"\r\n", 431, is_last=True),
        Played(request("GET", "/ping", x_long="v" * 70_000), 431, is_last=True),
        Played(b"GET /ping HTTP/1.1\r\nbroken\r\n\r\n", 400, is_last=True),
        Played(b"GET /ping HTTP/3.0\r\n\r\n", 400, is_last=True),
        Played(b"\x00", 400, is_last=True),
    ]
)


def damaged(stream: list[Played], damage: Iterable[tuple[int, bytes]]) -> bytes:
    """The bytes of a stream, some of them replaced."""
    data = bytearray(b"".join(played.data for played in stream))
    for position, garbage in damage:
        start = position % len(data)
        data[start : start + len(garbage)] = garbage
    return bytes(data)


streams = st.lists(st.one_of(_ordinary, _ordinary, _ordinary, _ordinary, _ordinary, _last), min_size=1, max_size=12)
"""Requests of every kind, one behind the other."""

damages = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=4)), min_size=1, max_size=8)
"""Positions in a stream, and what stands there instead."""
