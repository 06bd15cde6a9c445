"""Staying connected to an nsqd that fails, and trusting it again."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from emberq.client.error import PublishRefused
from emberq.client.producer import Producer
from emberq.client.retry import ReconnectDelay
from tests.client.publishing import AT_ONCE, NEVER_AGAIN, Recorder, connect_all, numbered, publish_all
from tests.client.scenario import advance, run, until
from tests.client.scripted_peer import Peer, scripted_peer


def test_an_nsqd_that_cannot_store_is_passed_over() -> None:
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            await peer.accept()
            await peer.read_publication()
            peer.refuse(b"E_PUB_FAILED PUB failed exiting")

        living = Recorder()
        async with scripted_peer(script) as first, scripted_peer(living) as second:
            async with Producer([first, second], reconnect_delay=NEVER_AGAIN) as producer:
                await connect_all(producer)
                await publish_all(producer, numbered(4))
                assert isinstance(producer.health()[0].last_failure, PublishRefused)
            assert sorted(living.bodies) == numbered(4)

    run(scenario())


def test_an_nsqd_that_failed_is_tried_with_one_message_before_it_gets_more() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_message_waits_for_the_connection_to_come_back() -> None:
    async def scenario() -> None:
        recorder = Recorder(limit=1)
        async with scripted_peer(recorder) as address:
            async with Producer(address, reconnect_delay=AT_ONCE) as producer:
                await producer.publish("t", b"first")
                recorder.limit = None
                await until(lambda: recorder.connection_count == 2)
                await producer.publish("t", b"second")
            assert recorder.bodies == [b"first", b"second"]

    run(scenario())


def test_reconnecting_is_put_off_longer_each_time() -> None:
    async def scenario() -> None:
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
        delays = [later - earlier for earlier, later in pairwise(attempts)]
        assert [round(delay_s, -1) for delay_s in delays] == [10, 20, 40]

    run(scenario())
