"""An nsqd that sends what no client asked for: more messages than RDY, bombs, answers to no question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig, ConsumerConfig, RetryPolicy
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer
from emberq.client.error import ConnectionLostError, HandshakeError, NsqError
from emberq.client.producer import Producer
from emberq.client.stream import WRITE_BUFFER_HIGH_BYTES
from emberq.wire import command, frame
from emberq.wire.compression import Codec, DeflateCodec, SnappyCodec
from emberq.wire.frame import WireMessage
from tests.support.scripted_peer import MESSAGE, Peer, message_frame, scripted_peer
from tests.support.waiting import PATIENCE_S, until

MIB = 1024 * 1024
LARGE = message_frame(WireMessage(timestamp_ns=1, attempts=1, id=b"0123456789abcdef", body=bytes(MIB)))
FLOOD = 400
"""Large messages that a hostile nsqd has to send: a consumer that keeps them all shows it."""
SOCKET_MESSAGES = 20
"""Large messages that may be on their way in the buffers of sockets, which the client never read."""


def once(script: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
    """The script for the first connection; when a client comes again, it is let in and hears no more."""
    count = 0

    async def first_only(peer: Peer) -> None:
        nonlocal count
        count += 1
        if count == 1:
            await script(peer)
            return
        await peer.accept()
        await peer.read_line()
        peer.respond(b"OK")
        await peer.wait_until_closed()

    return first_only


def consumer_of(address: str, *, client: ClientConfig | None = None, **settings: Any) -> Consumer:
    """A consumer whose messages are not taken, so that all of them stay where the client keeps them."""
    return Consumer(
        "t",
        "c",
        nsqd_addresses=[address],
        config=ConsumerConfig(max_reconnect_delay_s=0.1, drain_timeout_s=0.1, **settings),
        client_config=client or ClientConfig(heartbeat_interval_ms=1000),
    )


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a user reads; a traceback is none of it."""
    shown = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in shown if record.exc_info] == []
    return [record.getMessage() for record in shown]


async def read_compressed(peer: Peer, codec: Codec) -> bytes:
    """The next line of a client that compresses what it sends."""
    line = b""
    while not line.endswith(b"\n"):
        line += b"".join(codec.decompress(await peer.read_some()))
    return line


# Messages that were not asked for


@pytest.mark.parametrize("has_answer", [False, True], ids=["before the answer", "beside the answer"])
async def test_a_message_before_rdy_is_an_error_in_one_line(caplog: pytest.LogCaptureFixture, has_answer: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.read_line() == b"SUB t c"
        peer.send(message_frame(MESSAGE) + (frame.OK if has_answer else b""))
        await peer.wait_until_closed()

    async with scripted_peer(once(script)) as address, consumer_of(address) as consumer:
        await until(lambda: consumer.statistics().addresses == (address,))
        assert consumer.statistics().received == 0
    assert any("a message before any was asked for" in line for line in warnings_in(caplog))


@pytest.mark.loop("movable", "uvloop")
@pytest.mark.parametrize("kind", ["plain", "snappy", "deflate"])
async def test_a_flood_of_messages_is_cut_off_by_what_was_asked_for(
    caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    sent: list[int] = []
    codecs: dict[str, Callable[[], Codec]] = {"snappy": SnappyCodec, "deflate": lambda: DeflateCodec(1)}

    async def script(peer: Peer) -> None:
        if kind == "plain":
            await peer.accept()
            assert await peer.read_line() == b"SUB t c"
            peer.respond(b"OK")
            assert await peer.read_line() == b"RDY 1"
            sent.append(await peer.flood(LARGE, times=FLOOD))
        else:
            codec = codecs[kind]()
            await peer.accept(**{kind: True})
            peer.send(codec.compress(frame.OK))
            assert await read_compressed(peer, codec) == b"SUB t c\n"
            peer.send(codec.compress(frame.OK))
            assert await read_compressed(peer, codec) == b"RDY 1\n"
            bomb = codec.compress(LARGE * (FLOOD // 4))
            sent.append(await peer.flood(bomb, times=1))
        await peer.wait_until_closed()

    client = ClientConfig(snappy=kind == "snappy", deflate=kind == "deflate")
    async with scripted_peer(once(script)) as address, consumer_of(address, client=client, max_in_flight=1) as consumer:
        await until(lambda: any("messages are unanswered, and no RDY was above 1" in line for line in caplog.messages))
        statistics = consumer.statistics()
        assert statistics.received < 64
        if kind == "plain":
            await until(lambda: bool(sent))
            assert sent[0] < statistics.received + SOCKET_MESSAGES
    warnings_in(caplog)


async def test_a_flood_of_large_messages_is_read_only_as_far_as_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    """It is no more than was asked for, so nsqd is made to wait, and goes on when messages are answered."""
    sent: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.read_line() == b"SUB t c"
        peer.respond(b"OK")
        assert await peer.read_line() == b"RDY 100"
        sent.append(await peer.flood(LARGE, times=80))
        await peer.wait_until_closed()

    async with (
        scripted_peer(script) as address,
        consumer_of(address, max_in_flight=100, max_in_flight_bytes=4 * MIB) as consumer,
    ):
        await until(lambda: any("has to wait" in line for line in caplog.messages))
        await asyncio.sleep(0.2)
        assert consumer.statistics().received < 8
        assert not sent
        taken = 0
        async for message in consumer:
            assert consumer.statistics().in_flight < 8
            message.finish()
            taken += 1
            if taken == 80:
                break
        assert consumer.statistics().addresses == (address,)
    assert not any("lost nsqd" in line for line in warnings_in(caplog))


async def test_a_client_that_lets_nsqd_wait_still_gives_signs_of_life() -> None:
    alive = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.read_line() == b"SUB t c"
        peer.respond(b"OK")
        assert await peer.read_line() == b"RDY 100"
        peer.send(LARGE * 3)
        assert await peer.read_line() == b"NOP"
        alive.set()
        await peer.wait_until_closed()

    async with (
        scripted_peer(script) as address,
        consumer_of(address, max_in_flight=100, max_in_flight_bytes=MIB) as consumer,
    ):
        await alive.wait()
        await asyncio.sleep(1.2)  # silence of two heartbeats, which is not nsqd's
        assert consumer.statistics().addresses == (address,)
        async for message in consumer:
            message.finish()
            if consumer.statistics().received == 3 and not consumer.statistics().in_flight:
                break


async def test_an_nsqd_that_has_not_heard_of_a_lower_rdy_is_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.read_line() == b"SUB t c"
        peer.respond(b"OK")
        assert await peer.read_line() == b"RDY 50"
        assert await peer.read_line() == b"RDY 1"
        peer.send(message_frame(MESSAGE) * 50)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address, consumer_of(address, max_in_flight=50) as consumer:
        consumer.set_max_in_flight(1)
        await until(lambda: consumer.statistics().received == 50)
        assert consumer.statistics().addresses == (address,)


async def test_a_message_with_an_id_that_is_no_text_is_handled_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    odd = WireMessage(timestamp_ns=1, attempts=1, id=b"\xff\n\x1b[2J" + bytes(10), body=b"x")
    answered = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.respond(b"OK")
        await peer.read_line()
        peer.send(message_frame(odd))
        await peer.read_line()
        answered.set()
        await peer.wait_until_closed()

    async def fail(_message: object) -> bool:
        return False

    async with scripted_peer(script) as address:
        config = ConsumerConfig(drain_timeout_s=0.1)
        async with Consumer("t", "c", fail, nsqd_addresses=[address], config=config):
            await answered.wait()
    assert not any(character in line for line in warnings_in(caplog) for character in "\n\x1b")


# Answers that were not asked for


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message_frame(MESSAGE), "a message, and none was subscribed to"),
        (frame.OK, "answers no question"),
        (frame.error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"), "answers no command"),
        (frame.FRAME_HEADER.pack(1 << 30, frame.MESSAGE), "bytes and type 2"),
        (frame.FRAME_HEADER.pack(1 << 20, frame.RESPONSE), "bytes and type 0"),
        (frame.FRAME_HEADER.pack(1 << 20, frame.ERROR), "bytes and type 1"),
    ],
    ids=["message", "answer", "failed FIN", "endless message", "endless answer", "endless error"],
)
async def test_a_producer_leaves_an_nsqd_that_sends_what_it_has_no_reason_to(
    caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await asyncio.sleep(0.05)
        peer.send(data)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address, Producer([address]):
        await until(lambda: any(reason in line for line in caplog.messages))
    warnings_in(caplog)


async def test_a_publish_is_confirmed_by_ok_alone() -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()
        peer.respond(b"CLOSE_WAIT")
        await peer.wait_until_closed()

    async with (
        scripted_peer(script) as address,
        Producer([address], retry=RetryPolicy(max_attempts=1, timeout_s=5)) as producer,
    ):
        with pytest.raises(ConnectionLostError, match="b'CLOSE_WAIT' instead of OK"):
            await producer.publish("t", b"x")


async def test_an_error_of_many_lines_is_shown_in_one(caplog: pytest.LogCaptureFixture) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()
        peer.refuse(b"E_INVALID \x1b[2J\nERROR: forged line\n" + b"x" * 200_000)
        await peer.wait_until_closed()

    async with (
        scripted_peer(script) as address,
        Producer([address], retry=RetryPolicy(max_attempts=1, timeout_s=5)) as producer,
    ):
        with pytest.raises(NsqError) as raised:
            await producer.publish("t", b"x")
    for line in [*warnings_in(caplog), str(raised.value)]:
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 2000


async def test_heartbeats_that_are_not_read_do_not_pile_up(tmp_path: Path) -> None:
    """Over a Unix socket, whose buffers are small: what the client keeps for an nsqd that does not read shows soon."""
    count, answers = 500_000, bytearray()

    async def script(peer: Peer) -> None:
        await peer.accept()
        assert await peer.flood(frame.HEARTBEAT * 1000, times=count // 1000) == count // 1000
        await asyncio.sleep(0.2)
        while data := await peer.read_some():
            answers.extend(data)

    async with scripted_peer(script, unix_path=str(tmp_path / "nsqd.sock")) as address:
        connection = await Connection.open(address, ClientConfig())
        await until(lambda: len(answers) > WRITE_BUFFER_HIGH_BYTES // 2, timeout_s=3 * PATIENCE_S)
        await connection.close()
        await until(lambda: not connection.is_open)
    assert len(answers) < count * len(command.NOP) * 3 // 4


@pytest.mark.parametrize("kind", ["snappy", "deflate"])
async def test_a_bomb_during_the_handshake_is_read_only_as_far_as_it_is_asked_for(kind: str) -> None:
    """What stands for 64 MiB comes in the packet of the answer to IDENTIFY."""

    async def script(peer: Peer) -> None:
        codec = SnappyCodec() if kind == "snappy" else DeflateCodec(1)
        await peer.accept(**{kind: True})
        for _ in range(16):
            peer.send(codec.compress(bytes(4 * MIB)))
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        with pytest.raises(HandshakeError, match="an answer of 0 bytes"):
            await Connection.open(address, ClientConfig(snappy=kind == "snappy", deflate=kind == "deflate"))


# What nsqd says in its answer to IDENTIFY


@pytest.mark.parametrize(
    "answer",
    [
        {"deflate": True, "deflate_level": 99},
        {"deflate": True, "snappy": True},
        {"msg_timeout": 0},
        {"msg_timeout": -1},
        {"msg_timeout": 10**400},
        {"max_rdy_count": -5},
        {"version": "x" * 300_000},
        {"version": 7},
    ],
    ids=lambda answer: str(answer)[:60],
)
async def test_an_answer_to_identify_that_cannot_be_is_refused_in_one_line(answer: dict[str, object]) -> None:
    async def script(peer: Peer) -> None:
        await peer.accept(**answer)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        with pytest.raises(HandshakeError) as raised:
            await Connection.open(address, ClientConfig())
    assert len(str(raised.value)) < 2000


async def test_an_answer_to_identify_that_is_nested_too_deeply_is_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.read_identify()
        peer.respond(b'{"a":' + b"[" * 200_000)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        with pytest.raises(HandshakeError, match="makes no sense"):
            await Connection.open(address, ClientConfig())
