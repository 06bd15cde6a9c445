"""An nsqd that sends Spark's receiver more than it asked for, and strangers at its spool. No Spark runs here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from emberq.client.config import ClientConfig
from emberq.spark.channel_frames import Messages
from emberq.spark.channel_receiver import MAX_UNTAKEN_BYTES, ReceiverConnection
from emberq.spark.channel_spool import Spool
from emberq.spark.journal_offset import Place
from emberq.spark.schema import byte_strings
from emberq.wire import command
from emberq.wire.frame import WireMessage
from tests.support.scripted_peer import MESSAGE, Peer, message_frame, scripted_peer
from tests.support.waiting import until

MIB = 1024 * 1024
LARGE = message_frame(WireMessage(timestamp_ns=1, attempts=1, id=b"0123456789abcdef", body=bytes(MIB)))


async def subscribed(address: str, ends: list[BaseException | None]) -> ReceiverConnection:
    receiving = ReceiverConnection(Place(nsqd=address, topic="t"))
    await receiving.connect(ClientConfig(), on_close=lambda _connection, failure: ends.append(failure))
    await receiving.connection.request(command.sub(topic="t", channel="c"), answer=b"OK")
    return receiving


async def test_a_message_before_rdy_ends_the_connection() -> None:
    ends: list[BaseException | None] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.send(message_frame(MESSAGE))
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        receiving = ReceiverConnection(Place(nsqd=address, topic="t"))
        await receiving.connect(ClientConfig(), on_close=lambda _connection, failure: ends.append(failure))
        receiving.connection.send(command.rdy(0))
        await until(lambda: bool(ends))
    assert "1 messages are not taken yet, and no RDY was above 0" in str(ends[0])
    assert receiving.take() is None


async def test_a_flood_of_messages_ends_the_connection() -> None:
    ends: list[BaseException | None] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.respond(b"OK")
        await peer.read_line()
        await peer.flood(message_frame(MESSAGE) * 1000, times=1000)

    async with scripted_peer(script) as address:
        receiving = await subscribed(address, ends)
        receiving.ask(for_messages=True)
        await until(lambda: bool(ends))
    assert "and no RDY was above 100" in str(ends[0])


async def test_an_nsqd_whose_messages_are_too_large_has_to_wait() -> None:
    ends: list[BaseException | None] = []
    count = 90

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_line()
        peer.respond(b"OK")
        await peer.read_line()
        await peer.flood(LARGE, times=count)
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        receiving = await subscribed(address, ends)
        arrived = [0]

        def note(messages: int) -> None:
            arrived[0] += messages

        receiving.on_arrival = note
        receiving.ask(for_messages=True)
        await until(lambda: arrived[0] > MAX_UNTAKEN_BYTES // MIB - 2)
        await asyncio.sleep(0.2)
        assert arrived[0] < MAX_UNTAKEN_BYTES // MIB + 3
        assert receiving.take() is not None
        await until(lambda: arrived[0] == count)
        assert ends == []
        await receiving.connection.close()


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def test_no_stranger_can_read_a_spool(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    with umask(0o000), Spool(folder) as spool:
        frame = message_frame(MESSAGE)
        spool.append([Messages(Place(nsqd="127.0.0.1:4150", topic="t"), byte_strings([frame]))])
        made = [folder, *folder.iterdir()]
    assert any(path.suffix == ".arrow" for path in made)
    assert [path for path in made if path.stat().st_mode & 0o007] == []
