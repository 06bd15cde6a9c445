"""Bodies without an end: sent as they come, until the connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from emberq.base.clock import SystemClock
from emberq.base.timers import Timers
from emberq.http.body import StreamBody
from emberq.http.message import Request, Response, plain
from emberq.http.router import Route, Router
from emberq.http.server import HttpServer
from tests.support.waiting import until

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Pieces(StreamBody):
    """Gives what the test puts into it; an empty piece is the end."""

    def __init__(self, *, length: int | None = None) -> None:
        self.length = length
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_closed = asyncio.Event()

    async def next_piece(self) -> bytes:
        return await self.waiting.get()

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
async def pieces() -> Pieces:
    return Pieces()


@pytest.fixture
async def connection(pieces: Pieces) -> AsyncIterator[Connection]:
    """A client that was served the pieces; when it goes, they are closed."""

    def stream(_request: Request) -> Response:
        return Response(200, content_type="text/event-stream", file=pieces)

    def ping(_request: Request) -> Response:
        return plain("OK")

    router = Router([Route("GET", "/stream", stream), Route("GET", "/ping", ping)])
    http = HttpServer(router, clock=SystemClock(), timers=Timers())
    server = await asyncio.get_running_loop().create_server(http.make_protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n")
    yield reader, writer
    await pieces.is_closed.wait()
    writer.close()
    server.close()


async def test_pieces_are_sent_as_they_come_until_the_end(pieces: Pieces, connection: Connection) -> None:
    reader, _ = connection
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert "Connection: close" in head
    assert "Content-Length" not in head
    assert "Content-Encoding" not in head
    for piece in (b"one", b"two"):
        pieces.waiting.put_nowait(piece)
        assert await reader.readexactly(3) == piece
    pieces.waiting.put_nowait(b"")
    assert await reader.read() == b""


async def test_what_is_asked_behind_a_stream_is_not_answered(pieces: Pieces, connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    pieces.waiting.put_nowait(b"only this")
    pieces.waiting.put_nowait(b"")
    assert await reader.read() == b"only this"


async def test_a_client_that_goes_away_ends_the_stream(pieces: Pieces, connection: Connection) -> None:
    reader, writer = connection
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()

    def is_closed() -> bool:
        pieces.waiting.put_nowait(b"is anybody there?")
        return pieces.is_closed.is_set()

    await until(is_closed)


def test_a_length_is_told_if_it_is_known() -> None:
    assert b"Content-Length: 5\r\n" in Response(200, file=Pieces(length=5)).head
    assert b"Content-Length" not in Response(200, file=Pieces()).head
