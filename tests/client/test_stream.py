"""Bytes in both directions, over every kind of stream."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.error import ConnectionLostError, RequestTimeoutError
from emberq.embedded import Embedded
from emberq.wire import command
from emberq.wire.frame import WireMessage
from tests.support.certificates import Authority
from tests.support.scripted_peer import Peer, keep_open, scripted_peer
from tests.support.waiting import until

CONFIG = ClientConfig(heartbeat_interval_ms=1000)


async def talk(address: str, config: ClientConfig) -> Connection:
    """Publish and consume a message on one connection, which is returned closed."""
    arrived: list[WireMessage] = []
    connection = await Connection.open(
        address, config, on_messages=lambda _, messages: arrived.extend(map(WireMessage._make, messages))
    )
    assert await connection.request(command.sub(topic="t", channel="c")) == b"OK"
    connection.send(command.rdy(1))
    body = b"hello" * 20_000
    assert await connection.request(command.pub("t", body)) == b"OK"
    await until(lambda: bool(arrived))
    assert arrived[0].body == body
    connection.send(command.fin([arrived[0].id]))
    assert await connection.request(command.CLS) == b"CLOSE_WAIT"
    await connection.close()
    return connection


@pytest.mark.loop("movable", "uvloop")
@pytest.mark.parametrize("compression", [{}, {"snappy": True}, {"deflate": True}], ids=["plain", "snappy", "deflate"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "tls"])
async def test_a_message_goes_out_and_comes_back_over_every_kind_of_stream(
    compression: dict[str, Any], encrypted: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    tls = ssl.create_default_context(cafile=str(authority.path)) if encrypted else None
    async with Embedded(**authority.issue("server").options()) as nsq:
        connection = await talk(nsq.nsqd_tcp_addresses[0], ClientConfig(tls=tls, **compression))
        agreed = connection.answer
        assert agreed.tls == encrypted
        assert {"snappy": agreed.snappy, "deflate": agreed.deflate} == {
            "snappy": False,
            "deflate": False,
        } | compression


async def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    async with scripted_peer(keep_open, unix_path=str(tmp_path / "n.sock")) as address:
        connection = await Connection.open(address, CONFIG)
        await connection.close()


@pytest.mark.loop("movable", "uvloop")
async def test_an_encrypted_connection_can_be_given_up_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    config = ClientConfig(tls=ssl.create_default_context(cafile=str(authority.path)))
    ends: list[BaseException | None] = []
    async with Embedded(with_lookupd=False, **authority.issue("server").options()) as nsq:
        connection = await Connection.open(nsq.nsqd_tcp_addresses[0], config, on_close=lambda _, why: ends.append(why))
        reason = RequestTimeoutError("enough")
        connection.abort(reason)
        await connection.close()
    assert ends == [reason]


async def test_what_is_sent_in_one_turn_arrives_in_order() -> None:
    lines: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        lines.extend([await peer.read_line() for _ in range(1000)])

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        for count in range(1000):
            connection.send(command.rdy(count))
        await until(lambda: len(lines) == 1000)
        await connection.close()
    assert lines == [b"RDY %d" % count for count in range(1000)]


async def test_a_peer_that_does_not_read_holds_writers_back() -> None:
    read_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await read_on.wait()
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        for _ in range(40):
            connection.send(bytes(1024 * 1024))
        draining = asyncio.create_task(connection.drain())
        await asyncio.sleep(0)
        assert connection.is_congested
        assert not draining.done()
        read_on.set()
        await draining
        await connection.close()


async def test_a_writer_that_is_held_back_hears_of_the_end() -> None:
    close_now = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await close_now.wait()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        connection.send(bytes(40 * 1024 * 1024))
        draining = asyncio.create_task(connection.drain())
        await asyncio.sleep(0)
        close_now.set()
        with pytest.raises(ConnectionLostError):
            await draining
