"""Requests over connections that are kept."""

from __future__ import annotations

import asyncio

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.http.client import (
    MAX_CONNECTING,
    ConnectionPool,
    HttpClient,
    HttpOrigin,
    HttpQueryError,
    HttpUrl,
    QueryConnection,
)
from tests.support.loop import advance
from tests.support.waiting import until
from tests.support.web_server import Request, WebServer, answer

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMIT_S = 20


def make_client() -> HttpClient:
    return HttpClient(connect_timeout_ns=2 * NS_PER_SECOND, request_timeout_ns=LIMIT_S * NS_PER_SECOND)


def origin_of(server: WebServer) -> HttpOrigin:
    return HttpUrl.parse(server.url).origin


async def test_requests_in_a_row_share_a_connection() -> None:
    client = make_client()
    async with WebServer() as server:
        assert [await client.send(origin_of(server), REQUEST) for _ in range(5)] == [200] * 5
        assert server.connection_count == 1
        client.close()


async def test_requests_at_a_time_share_few_connections_to_a_fast_server() -> None:
    client = make_client()
    async with WebServer() as server:
        for _ in range(3):
            await asyncio.gather(*(client.send(origin_of(server), REQUEST) for _ in range(100)))
        assert len(server.requests) == 300
        assert server.connection_count < 50
        client.close()


async def test_a_slow_server_gets_a_connection_for_each_request_at_a_time() -> None:
    client = make_client()
    async with WebServer(lambda _: None) as server:
        sending = [asyncio.create_task(client.send(origin_of(server), REQUEST)) for _ in range(20)]
        await until(lambda: len(server.requests) == 20)
        assert server.connection_count == 20
        for each in sending:
            each.cancel()
        await asyncio.gather(*sending, return_exceptions=True)


async def test_no_more_than_a_few_connections_are_made_at_a_time() -> None:
    pool = ConnectionPool()
    connecting = 0
    at_most = 0

    async def connect() -> QueryConnection:
        nonlocal connecting, at_most
        connecting += 1
        at_most = max(at_most, connecting)
        await asyncio.sleep(0)
        connecting -= 1
        return QueryConnection(max_body_bytes=100)

    takers = [asyncio.create_task(pool.take(connect)) for _ in range(30)]
    takers[10].cancel()
    taken = await asyncio.gather(*takers, return_exceptions=True)
    assert sum(isinstance(each, QueryConnection) for each in taken) == 29
    assert at_most == MAX_CONNECTING


@pytest.mark.parametrize(
    "response",
    [
        answer(503),
        b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + answer(503),
        b"HTTP/1.1 503 X\r\nConnection: close\r\n\r\nas long as it lasts",
        answer(503, headers="Connection: close\r\n"),
    ],
)
async def test_any_form_of_answer_gives_its_status(response: bytes) -> None:
    client = make_client()
    async with WebServer(lambda _: response) as server:
        assert await client.send(origin_of(server), REQUEST) == 503
        assert await client.send(origin_of(server), REQUEST) == 503
        client.close()


async def test_a_server_that_hangs_up_between_requests_does_no_harm() -> None:
    client = make_client()
    async with WebServer(hang_up_after=lambda _: True) as server:
        for _ in range(5):
            assert await client.send(origin_of(server), REQUEST) == 200
        assert server.connection_count == 5
        client.close()


async def test_a_kept_connection_that_turns_out_to_be_dead_is_replaced() -> None:
    """The server hangs up on the second request of a connection instead of answering it."""

    client = make_client()
    counts: list[Request] = []

    def respond(request: Request) -> bytes:
        counts.append(request)
        return b"" if len(counts) == 2 else answer()

    async with WebServer(respond) as server:
        assert await client.send(origin_of(server), REQUEST) == 200
        assert await client.send(origin_of(server), REQUEST) == 200
        assert server.connection_count == 2
        client.close()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (b"", "closed before the answer was complete"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nab",
            "closed before the answer was complete",
        ),
        (b"SSH-2.0-x\r\nConnection: close", "the answer is not HTTP"),
    ],
)
async def test_half_an_answer_is_none(response: bytes, reason: str) -> None:
    client = make_client()
    async with WebServer(lambda _: response) as server:
        with pytest.raises(HttpQueryError, match=reason):
            await client.send(origin_of(server), REQUEST)


async def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(HttpQueryError, match="cannot connect"):
        await make_client().send(HttpOrigin("http", "127.0.0.1", 1), REQUEST)


async def test_an_answer_that_does_not_come_in_time_is_an_error_and_its_connection_is_not_used_again() -> None:
    client = make_client()
    async with WebServer(lambda _: None if server.connection_count == 1 else answer()) as server:
        sending = asyncio.create_task(client.send(origin_of(server), REQUEST))
        await until(lambda: len(server.requests) == 1)
        advance(LIMIT_S)
        with pytest.raises(HttpQueryError, match="no answer in time"):
            await sending
        assert await client.send(origin_of(server), REQUEST) == 200
        assert server.connection_count == 2
        client.close()


async def test_a_server_that_does_not_answer_the_tls_handshake_is_given_up_sooner() -> None:
    async with WebServer() as server:
        origin = HttpOrigin("https", "127.0.0.1", origin_of(server).port)
        sending = asyncio.create_task(make_client().send(origin, REQUEST))
        await until(lambda: server.connection_count == 1)
        advance(2)
        with pytest.raises(HttpQueryError, match="cannot connect in time"):
            await sending


async def test_a_timeout_of_zero_is_none() -> None:
    client = HttpClient(connect_timeout_ns=0, request_timeout_ns=0)
    async with WebServer() as server:
        assert await client.send(origin_of(server), REQUEST) == 200
        client.close()


async def test_an_answer_with_more_behind_it_is_the_last_of_its_connection() -> None:
    """Else what follows would be taken for the answer to the next request."""

    client = make_client()
    async with WebServer(lambda _: answer(200) + answer(500)) as server:
        assert [await client.send(origin_of(server), REQUEST) for _ in range(3)] == [200] * 3
        assert server.connection_count == 3
        client.close()


async def test_a_connection_that_is_lost_before_its_first_request_is_an_error_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with WebServer() as server:
        origin = origin_of(server)
        _, connection = await loop.create_connection(
            lambda: QueryConnection(max_body_bytes=100), origin.host, origin.port
        )
        connection.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(HttpQueryError, match="closed before the answer was complete"):
            await connection.exchange(REQUEST)


async def test_the_body_of_an_answer_is_bounded_though_it_is_dropped() -> None:
    client = HttpClient(connect_timeout_ns=0, request_timeout_ns=0, max_body_bytes=10)
    async with WebServer(lambda _: answer(body=b"x" * 11)) as server:
        with pytest.raises(HttpQueryError, match="too big"):
            await client.send(origin_of(server), REQUEST)
