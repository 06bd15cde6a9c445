"""Staying connected to an nsqd that fails, and trusting it again."""

from __future__ import annotations

import asyncio
import logging
import ssl
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig, ReconnectDelay, RetryPolicy
from emberq.client.error import AuthError, BadRequestError, ConnectError, HandshakeError, PublishError
from emberq.client.link import publication_in
from emberq.client.observer import Publication
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from emberq.wire import command
from tests.support.auth_server import AuthServer, grant
from tests.support.certificates import self_signed
from tests.support.loop import advance
from tests.support.publishing import AT_ONCE, NEVER_AGAIN, Recorder, connect_all, numbered, publish_all
from tests.support.scripted_peer import Peer, scripted_peer
from tests.support.waiting import until

NOWHERE = "127.0.0.1:1"
HEARTBEAT_MS = 100
"""Less than any nsqd agrees to."""


async def test_an_nsqd_that_cannot_store_is_passed_over() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()
        peer.refuse(b"E_PUB_FAILED PUB failed exiting")

    living = Recorder()
    async with scripted_peer(script) as first, scripted_peer(living) as second:
        async with Producer([first, second], reconnect_delay=NEVER_AGAIN) as producer:
            await connect_all(producer)
            await publish_all(producer, numbered(4))
            assert isinstance(producer.health()[0].last_failure, PublishError)
        assert sorted(living.bodies) == numbered(4)


async def test_an_nsqd_that_failed_is_tried_with_one_message_before_it_gets_more() -> None:
    received: list[bytes] = []
    confirm = asyncio.Event()
    connections: list[Peer] = []

    async def script(peer: Peer) -> None:
        connections.append(peer)
        await peer.accept()
        if len(connections) == 1:
            return
        received.append(await peer.read_publication())
        await confirm.wait()
        peer.respond(b"OK")
        await peer.confirm_forever()

    living = Recorder()
    async with (
        scripted_peer(script) as first,
        scripted_peer(living) as second,
        Producer([first, second], reconnect_delay=AT_ONCE) as producer,
    ):
        await until(lambda: len(connections) == 2)
        await connect_all(producer)
        publishing = asyncio.create_task(publish_all(producer, numbered(10)))
        await until(lambda: len(received) + len(living.bodies) == 10)
        assert len(received) == 1
        assert producer.health()[0].pending_count == 1
        confirm.set()
        await publishing
        assert producer.health()[0].failures == 0


async def test_a_message_waits_for_the_connection_to_come_back() -> None:
    recorder = Recorder(limit=1)
    async with scripted_peer(recorder) as address:
        async with Producer(address, reconnect_delay=AT_ONCE) as producer:
            await producer.publish("t", b"first")
            recorder.limit = None
            await until(lambda: recorder.connection_count == 2)
            await producer.publish("t", b"second")
        assert recorder.bodies == [b"first", b"second"]


async def test_reconnecting_is_put_off_longer_each_time() -> None:
    attempts: list[float] = []

    async def script(_: Peer) -> None:
        attempts.append(asyncio.get_running_loop().time())

    async with scripted_peer(script) as address:
        delay = ReconnectDelay(first_s=10, max_s=1000)
        async with Producer(address, reconnect_delay=delay, random=lambda: 0.0) as producer:
            for failures, seconds in ((1, 10), (2, 20), (3, 40)):
                await until(lambda failures=failures: producer.health()[0].failures == failures)  # type: ignore[misc]
                advance(seconds)
            await until(lambda: len(attempts) == 4)
    waited_s = [later - earlier for earlier, later in pairwise(attempts)]
    assert all(waited > asked - 1 for waited, asked in zip(waited_s, (10, 20, 40), strict=True)), waited_s


# Refusals


async def fail_to_publish(address: str, config: ClientConfig, expected: type[Exception], *, match: str) -> None:
    """Publish with the usual patience of half a minute, and see it fail at once instead."""
    async with asyncio.timeout(RetryPolicy().timeout_s / 2), Producer(address, config) as producer:
        for _ in range(2):
            with pytest.raises(expected, match=match):
                await producer.publish("t", b"x")
        with pytest.raises(expected, match=match):
            await producer.wait_until_connected()
        assert not producer.health()[0].is_connected


@pytest.mark.parametrize("secret", [b"", b"wrong"])
async def test_a_wrong_secret_fails_at_once(secret: bytes) -> None:
    with AuthServer(grant()) as server:
        async with Embedded(with_lookupd=False, auth_http_address=(server.address,)) as nsq:
            (address,) = nsq.nsqd_tcp_addresses
            await fail_to_publish(address, ClientConfig(auth_secret=secret), AuthError, match="AUTH")


@pytest.mark.conformance(269)
async def test_a_heartbeat_that_nsqd_does_not_agree_to_fails_at_once() -> None:
    with pytest.raises(ValueError, match="heartbeat_interval_ms is 100"):
        ClientConfig(heartbeat_interval_ms=HEARTBEAT_MS)
    unchecked = ClientConfig()
    object.__setattr__(unchecked, "heartbeat_interval_ms", HEARTBEAT_MS)
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        refusal = r"E_BAD_BODY IDENTIFY heartbeat interval \(100\) is invalid"
        await fail_to_publish(address, unchecked, BadRequestError, match=refusal)


@pytest.mark.conformance(270)
async def test_the_address_of_an_http_server_fails_at_once() -> None:
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_http_addresses
        await fail_to_publish(address, ClientConfig(), HandshakeError, match="unexpected HTTP response")


async def test_a_certificate_that_nobody_vouches_for_fails_at_once(tmp_path: Path) -> None:
    async with Embedded(with_lookupd=False, **self_signed(tmp_path, "loner").options()) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        config = ClientConfig(tls=ssl.create_default_context())
        await fail_to_publish(address, config, HandshakeError, match="certificate")


async def test_an_nsqd_that_refuses_us_does_not_keep_messages_from_another() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.read_identify()
        peer.refuse(b"E_BAD_BODY IDENTIFY not like that")
        await peer.wait_until_closed()

    living = Recorder()
    async with scripted_peer(refuse) as first, scripted_peer(living) as second:
        async with Producer([first, second]) as producer:
            await publish_all(producer, numbered(4))
        assert sorted(living.bodies) == numbered(4)


async def test_whoever_was_refused_is_let_in_when_the_reason_is_gone() -> None:
    is_refusing = True
    recorder = Recorder()

    async def script(peer: Peer) -> None:
        if is_refusing:
            await peer.read_identify()
            peer.refuse(b"E_AUTH_FAILED the authorization server is down")
            await peer.wait_until_closed()
        else:
            await recorder(peer)

    async with scripted_peer(script) as address, Producer(address, reconnect_delay=AT_ONCE) as producer:
        with pytest.raises(AuthError):
            await producer.publish("t", b"early")
        is_refusing = False
        await connect_all(producer)
        await producer.publish("t", b"late")
    assert recorder.bodies == [b"late"]


async def test_an_nsqd_that_is_only_down_is_waited_for() -> None:
    async def hang_up(peer: Peer) -> None:
        await peer.read_identify()

    patience = RetryPolicy(timeout_s=0.1)
    async with scripted_peer(hang_up) as address, Producer(address, retry=patience) as producer:
        with pytest.raises(ConnectError, match=r"within 0\.1 s"):
            await producer.publish("t", b"x")


# What an observer is told


@pytest.mark.parametrize(
    ("published", "message_count", "body_bytes"),
    [
        (command.pub("t", b"12345"), 1, 5),
        (command.pub("t", b"\n \n"), 1, 3),
        (command.dpub("t", b"12345", defer_ms=7), 1, 5),
        (command.mpub("t", [b"1", b"22", b"\n"]), 3, 4),
    ],
)
def test_a_command_tells_what_it_publishes(published: Any, message_count: int, body_bytes: int) -> None:
    assert publication_in(published, address="a:1") == Publication("t", "a:1", message_count, body_bytes)


# What the log tells


async def test_an_nsqd_that_cannot_be_reached_is_told_at_once_and_then_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Producer(NOWHERE, reconnect_delay=ReconnectDelay(first_s=15, max_s=15)) as producer:
        for failures in range(1, 10):
            await until(lambda failures=failures: producer.health()[0].failures == failures)  # type: ignore[misc]
            advance(15)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.messages) == 3
    assert caplog.messages[0].startswith(f"cannot connect to nsqd {NOWHERE}: [Errno")
    assert caplog.messages[0].endswith("s, attempt 2")
    assert "trying again in" in caplog.messages[0]


async def test_connections_that_come_go_and_come_again_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="emberq.client.link")
    recorder = Recorder(limit=1)
    async with scripted_peer(recorder) as address:
        async with Producer(address, reconnect_delay=AT_ONCE) as producer:
            await producer.publish("t", b"first")
            recorder.limit = None
            await until(lambda: recorder.connection_count == 2)
            await producer.publish("t", b"second")
        assert [(record.levelname, record.getMessage().partition(": ")[0]) for record in caplog.records] == [
            ("INFO", f"connected to nsqd {address}"),
            ("WARNING", f"lost nsqd {address}"),
            ("INFO", f"connected to nsqd {address} again"),
        ]
