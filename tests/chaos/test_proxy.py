"""The bad network itself: what it carries, delays, swallows and cuts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.proxy import FAIR, Proxy, Weather

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MOMENT_S = 0.1
"""Long enough for what is on this machine to arrive; what should not arrive is not waited for any longer."""

pytestmark = pytest.mark.loop("uvloop")


@asynccontextmanager
async def echo_through_proxy() -> AsyncIterator[tuple[Proxy, Streams]]:
    """A server that sends everything back, and a connection to it through the proxy."""
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy(server.sockets[0].getsockname()[1], dice=random.Random(1))
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield proxy, (reader, writer)
    finally:
        writer.close()
        await proxy.close()
        server.close()
        for each in writers:
            each.close()
        await asyncio.sleep(MOMENT_S)


async def exchange(streams: Streams, data: bytes) -> bytes:
    reader, writer = streams
    writer.write(data)
    return await reader.readexactly(len(data))


async def test_in_fair_weather_bytes_pass_both_ways() -> None:
    async with echo_through_proxy() as (proxy, streams):
        assert await exchange(streams, b"hello") == b"hello"
        assert proxy.connection_count == 1


async def test_bytes_are_delayed_in_both_directions() -> None:
    async with echo_through_proxy() as (proxy, streams):
        proxy.weather = Weather(delay_s=0.1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert await exchange(streams, b"hello") == b"hello"
        assert loop.time() - began_s >= 0.19
        proxy.weather = FAIR


async def test_a_swallowed_connection_stays_open_and_silent_until_it_is_cut() -> None:
    async with echo_through_proxy() as (proxy, streams):
        assert await exchange(streams, b"hello") == b"hello"
        proxy.swallow()
        streams[1].write(b"hello?")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(streams[0].read(1), MOMENT_S)
        proxy.cut(with_reset=True)
        with pytest.raises(ConnectionResetError):
            await streams[0].read(1)


async def test_a_cut_connection_ends_in_order() -> None:
    async with echo_through_proxy() as (proxy, streams):
        assert await exchange(streams, b"hello") == b"hello"
        proxy.cut(with_reset=False)
        assert await streams[0].read(1) == b""


async def test_a_connection_breaks_in_the_middle_of_its_bytes() -> None:
    async with echo_through_proxy() as (proxy, streams):
        proxy.weather = Weather(breaks=1.0)
        streams[1].write(b"x" * 1000)
        received = b""
        try:
            while data := await streams[0].read(1000):
                received += data
        except ConnectionResetError:
            pass
        assert len(received) < 1000


async def test_no_connection_is_made_where_none_is_let_in() -> None:
    async with echo_through_proxy() as (proxy, _):
        proxy.weather = Weather(is_refusing=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await reader.read(1) == b""
        writer.close()
