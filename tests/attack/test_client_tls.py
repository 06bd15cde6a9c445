"""A man in the middle of a client's TLS upgrade puts bytes in clear where only TLS may follow."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.connection import Connection
from emberq.client.error import ConnectError, HandshakeError, NsqError
from emberq.client.producer import Producer
from emberq.wire import command, frame
from tests.support.certificates import Authority
from tests.support.scripted_peer import ANSWER, MESSAGE, Peer, message_frame, scripted_peer

pytestmark = pytest.mark.loop("movable", "uvloop")

IN_CLEAR = frame.response(json.dumps(ANSWER | {"tls_v1": True}).encode())


def upgrade(authority: Authority, *, injected: bytes) -> Callable[[Peer], Awaitable[None]]:
    """nsqd, which has the right certificate and stores nothing, behind an attacker who adds to its answer in clear."""
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)

    async def script(peer: Peer) -> None:
        await peer.read_identify()
        peer.send(IN_CLEAR + injected)
        await peer.start_tls(context)
        peer.respond(b"OK")
        await peer.wait_until_closed()

    return script


def trusting(authority: Authority) -> ClientConfig:
    return ClientConfig(tls=ssl.create_default_context(cafile=str(authority.path)), connect_timeout_s=5)


@pytest.mark.parametrize(
    "injected",
    [frame.OK, frame.OK * 2, frame.OK[:5], frame.HEARTBEAT, message_frame(MESSAGE), b"\x00"],
    ids=["an OK", "two", "a part of one", "a heartbeat", "a message", "a byte"],
)
async def test_bytes_in_clear_before_the_tls_handshake_end_the_connection(tmp_path: Path, injected: bytes) -> None:
    authority = Authority(tmp_path, "authority")
    async with scripted_peer(upgrade(authority, injected=injected)) as address:
        with pytest.raises(HandshakeError, match=f"{len(injected)} bytes came in clear behind the answer to IDENTIFY"):
            await Connection.open(address, trusting(authority))


async def test_a_publish_is_not_confirmed_by_an_ok_that_came_in_clear(tmp_path: Path) -> None:
    """The OK in clear would count as that of TLS, and TLS's as that of the publish."""
    authority = Authority(tmp_path, "authority")
    async with scripted_peer(upgrade(authority, injected=frame.OK)) as address:
        retry = RetryPolicy(max_attempts=1, timeout_s=2)
        async with Producer([address], trusting(authority), retry=retry) as producer:
            with pytest.raises(NsqError):
                await producer.publish("orders", b"never stored")


async def test_bytes_in_clear_during_the_tls_handshake_end_the_connection(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.read_identify()
        peer.send(IN_CLEAR)
        assert await peer.read_some()  # the client has begun
        peer.send(frame.OK * 2)
        await peer.wait_until_closed()

    authority = Authority(tmp_path, "authority")
    async with scripted_peer(script) as address:
        with pytest.raises(ConnectError, match=r"TLS|SSL|closed"):
            await Connection.open(address, trusting(authority))


async def test_what_shares_a_packet_with_the_ok_inside_tls_is_kept(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate_path, pair.key_path)
    beaten = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.read_identify()
        peer.send(IN_CLEAR)
        await peer.start_tls(context)
        peer.send(frame.OK + frame.HEARTBEAT)
        assert await peer.read_line() == b"NOP"
        beaten.set()
        assert await peer.read_publication() == b"x"
        peer.respond(b"OK")
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, trusting(authority))
        await beaten.wait()
        assert await connection.request(command.pub("t", b"x"), answer=b"OK") == b"OK"
        await connection.close()
