"""Setting up a connection: what is agreed, what is refused, and peers that are something else."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig
from emberq.client.connection import Connection
from emberq.client.error import AuthError, ConnectError, HandshakeError
from emberq.embedded import Embedded
from emberq.wire import command, frame
from emberq.wire.compression import DeflateCodec, SnappyCodec
from emberq.wire.frame import WireMessage
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.certificates import self_signed
from tests.support.scripted_peer import ANSWER, MESSAGE, Peer, message_frame, scripted_peer
from tests.support.waiting import until

CONFIG = ClientConfig(heartbeat_interval_ms=1000)


async def test_the_answer_tells_what_was_agreed() -> None:
    async with Embedded(max_rdy_count=77, with_lookupd=False) as nsq:
        connection = await Connection.open(nsq.nsqd_tcp_addresses[0], ClientConfig(msg_timeout_ms=5000))
        assert connection.answer.max_rdy_count == 77
        assert connection.answer.msg_timeout_ms == 5000
        assert connection.answer.version
        await connection.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False, **self_signed(tmp_path, "loner").options()) as nsq:
        with pytest.raises(ConnectError, match="certificate"):
            await Connection.open(nsq.nsqd_tcp_addresses[0], ClientConfig(tls=ssl.create_default_context()))


async def test_a_client_that_asks_for_tls_does_not_go_on_in_clear() -> None:
    async with Embedded(with_lookupd=False) as nsq:
        with pytest.raises(ConnectError, match="does not offer TLS"):
            await Connection.open(nsq.nsqd_tcp_addresses[0], ClientConfig(tls=ssl.create_default_context()))


async def test_a_client_with_the_right_secret_is_let_in() -> None:
    with AuthServer(grant(entry())) as server:
        async with Embedded(with_lookupd=False, auth_http_address=(server.address,)) as nsq:
            connection = await Connection.open(nsq.nsqd_tcp_addresses[0], ClientConfig(auth_secret=b"s3cret"))
            assert await connection.request(command.pub("t", b"x")) == b"OK"
            await connection.close()
        assert server.questions[0].params["secret"] == ["s3cret"]


@pytest.mark.parametrize("secret", [b"", b"wrong"])
async def test_a_client_without_the_right_secret_is_refused(secret: bytes) -> None:
    with AuthServer(grant()) as server:
        async with Embedded(with_lookupd=False, auth_http_address=(server.address,)) as nsq:
            with pytest.raises(AuthError):
                await Connection.open(nsq.nsqd_tcp_addresses[0], ClientConfig(auth_secret=secret))


async def refuse_to_open(script: Callable[[Peer], Any], *, match: str, config: ClientConfig = CONFIG) -> None:
    async with scripted_peer(script) as address:
        with pytest.raises(ConnectError, match=match) as raised:
            await Connection.open(address, config)
        assert raised.value.address == address


async def test_a_peer_that_closes_is_a_failed_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.read_identify()

    await refuse_to_open(script, match="closed while")


async def test_an_http_server_is_recognised() -> None:
    async def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.wait_until_closed()

    await refuse_to_open(script, match="unexpected HTTP response")


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-OpenSSH\r\n", frame.response(b"{"), frame.response(b'{"max_rdy_count":"many"}'), message_frame(MESSAGE)],
)
async def test_a_peer_that_is_no_nsqd_is_a_failed_connection(data: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(data)
        await peer.wait_until_closed()

    await refuse_to_open(script, match="not an nsqd|makes no sense|instead of an answer")


async def test_garbage_instead_of_a_compressed_stream_is_a_failed_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(snappy=True)
        peer.send(b"\x00" * 100)
        await peer.wait_until_closed()

    await refuse_to_open(script, match="snappy", config=ClientConfig(snappy=True))


async def test_a_server_too_old_to_negotiate_is_good_enough() -> None:
    async def script(peer: Peer) -> None:
        await peer.read_identify()
        peer.respond(b"OK")
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        connection = await Connection.open(address, CONFIG)
        assert connection.answer.max_rdy_count == 2500
        await connection.close()


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
async def test_the_answer_may_share_a_packet_with_the_compressed_stream_behind_it(kind: str) -> None:
    async def script(peer: Peer) -> None:
        codec = SnappyCodec() if kind == "snappy" else DeflateCodec(6)
        await peer.read_identify()
        answer = frame.response(json.dumps(ANSWER | {kind: True}).encode())
        peer.send(answer + codec.compress(frame.OK) + codec.compress(message_frame(MESSAGE)))
        await peer.wait_until_closed()

    arrived: list[WireMessage] = []
    async with scripted_peer(script) as address:
        connection = await Connection.open(
            address, CONFIG, on_messages=lambda _, batch: arrived.extend(map(WireMessage._make, batch))
        )
        await until(lambda: arrived == [MESSAGE])
        await connection.close()


async def test_the_ports_of_other_servers_are_told_from_an_nsqd() -> None:
    async with Embedded() as nsq:
        for address in (*nsq.nsqd_http_addresses, *nsq.lookupd_http_addresses, *nsq.lookupd_tcp_addresses):
            with pytest.raises(HandshakeError, match="usually has port 4150"):
                await Connection.open(address, CONFIG)


async def test_an_address_that_is_none_fails_with_the_right_spelling() -> None:
    with pytest.raises(ConnectError, match="write 'nsqd:4150'"):
        await Connection.open("http://nsqd:4151", CONFIG)
