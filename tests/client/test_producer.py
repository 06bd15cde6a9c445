"""Publishing: to real nsqds, and to some that fail in every way they can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from emberq.client.config import ClientConfig, RetryPolicy
from emberq.client.connection import Connection
from emberq.client.error import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    MessageTooLargeError,
    RequestTimeoutError,
)
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from emberq.wire import command
from emberq.wire.frame import MessageFields
from tests.support.loop import advance
from tests.support.publishing import AT_ONCE, NEVER_AGAIN, Mute, Recorder, connect_all, numbered, publish_all
from tests.support.scripted_peer import Peer, scripted_peer
from tests.support.waiting import turns, until

ONCE = RetryPolicy(max_attempts=1)


async def consume(address: str, topic: str, *, count: int) -> list[bytes]:
    """Messages of a topic until there are so many different ones; one that was published again may come again."""
    arrived: list[bytes] = []

    def take(connection: Connection, messages: list[MessageFields]) -> None:
        arrived.extend(message[3] for message in messages)
        connection.send(command.fin([message[2] for message in messages]))

    connection = await Connection.open(address, ClientConfig(output_buffer_size=-1), on_messages=take)
    await connection.request(command.sub(topic=topic, channel="c"))
    connection.send(command.rdy(min(count, connection.answer.max_rdy_count)))
    await until(lambda: len(set(arrived)) >= count)
    await connection.close()
    return arrived


# A real nsqd


@pytest.mark.loop("movable", "uvloop")
async def test_what_is_published_can_be_consumed() -> None:
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        async with Producer(address) as producer:
            await producer.publish("t", b"one")
            await producer.publish_many("t", [b"two", b"three"])
            await producer.publish_deferred("t", b"four", delay_s=0.001)
        assert sorted(await consume(address, "t", count=4)) == [b"four", b"one", b"three", b"two"]


async def test_a_deferred_message_comes_later() -> None:
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        async with Producer(address) as producer:
            await producer.publish_deferred("t", b"late", delay_s=0.2)
            await producer.publish("t", b"early")
            assert await consume(address, "t", count=2) == [b"early", b"late"]


async def test_a_thousand_messages_under_way_at_a_time_all_arrive_in_order() -> None:
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        async with Producer(address) as producer:
            await connect_all(producer)
            await publish_all(producer, numbered(1000))
        assert await consume(address, "t", count=1000) == numbered(1000)


@pytest.mark.conformance(271)
async def test_each_of_ten_publications_at_a_time_is_confirmed_to_whoever_made_it() -> None:
    async with Embedded(with_lookupd=False) as nsq, Producer(nsq.nsqd_tcp_addresses) as producer:
        tasks = {name: asyncio.create_task(producer.publish("t", b"x"), name=str(name)) for name in range(10)}
        confirmed, pending = await asyncio.wait(tasks.values())
        assert not pending
        assert sorted(int(task.get_name()) for task in confirmed) == list(range(10))
        assert all(task.exception() is None for task in confirmed)


async def test_a_message_that_nsqd_refuses_raises_at_once_and_harms_no_other() -> None:
    async with Embedded(with_lookupd=False, max_msg_size=10) as nsq:
        async with Producer(nsq.nsqd_tcp_addresses, reconnect_delay=AT_ONCE) as producer:
            await connect_all(producer)
            bodies = [b"before", b"much too long", b"behind"]
            outcomes = await asyncio.gather(*(producer.publish("t", body) for body in bodies), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), MessageTooLargeError, type(None)]
        assert await consume(nsq.nsqd_tcp_addresses[0], "t", count=2) == [b"before", b"behind"]


async def test_no_publisher_notices_when_one_of_two_nsqds_stops() -> None:
    async with (
        Embedded(with_lookupd=False, nsqd_count=2) as nsq,
        Producer(nsq.nsqd_tcp_addresses, reconnect_delay=AT_ONCE) as producer,
    ):
        await connect_all(producer)
        publishing = [asyncio.create_task(publish_all(producer, numbered(500))) for _ in range(4)]
        await asyncio.sleep(0)
        await nsq.nsqds[0].stop()
        await asyncio.gather(*publishing)
        await publish_all(producer, numbered(100))
        assert [health.is_connected for health in producer.health()] == [False, True]


async def test_every_message_is_there_after_nsqd_restarted_under_load(tmp_path: Path) -> None:
    confirmed: list[bytes] = []

    async def publish_one_by_one(producer: Producer, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            await producer.publish("t", body)
            confirmed.append(body)

    async with AsyncExitStack() as stack:
        async with Embedded(with_lookupd=False, data_path=tmp_path) as nsq:
            (address,) = nsq.nsqd_tcp_addresses
            producer = await stack.enter_async_context(Producer(address, reconnect_delay=AT_ONCE))
            bodies = numbered(800)
            workers = [asyncio.create_task(publish_one_by_one(producer, bodies[start::8])) for start in range(8)]
            await until(lambda: len(confirmed) >= 100)
        assert len(confirmed) < 800
        async with Embedded(with_lookupd=False, data_path=tmp_path, tcp_address=address):
            await asyncio.gather(*workers)
            await producer.close()
            assert set(await consume(address, "t", count=800)) == set(bodies)


# Several nsqds


async def test_nsqds_take_turns() -> None:
    recorders = [Recorder() for _ in range(3)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(scripted_peer(recorder)) for recorder in recorders]
        async with Producer(addresses) as producer:
            await connect_all(producer)
            await publish_all(producer, numbered(300))
        assert [len(recorder.bodies) for recorder in recorders] == [100, 100, 100]


async def test_what_a_dying_nsqd_did_not_confirm_goes_to_another() -> None:
    dying, living = Recorder(limit=20), Recorder()
    async with scripted_peer(dying) as first, scripted_peer(living) as second:
        async with Producer([first, second], reconnect_delay=NEVER_AGAIN) as producer:
            await connect_all(producer)
            await publish_all(producer, numbered(100))
            health = producer.health()[0]
        assert set(dying.bodies) | set(living.bodies) == set(numbered(100))
        assert len(dying.bodies) == 20
        assert (health.is_connected, health.failures) == (False, 1)
        assert isinstance(health.last_failure, ConnectionError)


async def test_what_a_slow_nsqd_did_not_confirm_in_time_goes_to_another() -> None:
    mute, living = Mute(), Recorder()
    async with scripted_peer(mute) as first, scripted_peer(living) as second:
        config = ClientConfig(request_timeout_s=10)
        async with Producer([first, second], config, reconnect_delay=NEVER_AGAIN) as producer:
            await connect_all(producer)
            publishing = asyncio.create_task(publish_all(producer, [b"a", b"b"]))
            await until(lambda: bool(mute.bodies and living.bodies))
            advance(10)
            await publishing
            assert [health.is_connected for health in producer.health()] == [False, True]
        assert sorted(living.bodies) == [b"a", b"b"]


# Giving up


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_when_the_attempts_are_used_up_the_last_failure_is_raised(max_attempts: int) -> None:
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        if len(received) == max_attempts:
            await peer.wait_until_closed()  # it is not let in again, and so stays disconnected
            return
        await peer.accept()
        received.append(await peer.read_publication())

    retry = RetryPolicy(max_attempts=max_attempts)
    async with (
        scripted_peer(script) as address,
        Producer(address, retry=retry, reconnect_delay=AT_ONCE) as producer,
    ):
        with pytest.raises(ConnectionLostError) as raised:
            await producer.publish("t", b"x")
        assert received == [b"x"] * max_attempts
        assert raised.value.__notes__ == [f"given up after attempt {max_attempts}"]
        await until(lambda: not producer.health()[0].is_connected)


async def test_when_no_nsqd_can_be_reached_in_time_the_reason_is_told() -> None:
    async with scripted_peer(Recorder()) as address:
        pass
    async with Producer(address, retry=RetryPolicy(timeout_s=30)) as producer:
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        waiting = asyncio.create_task(producer.wait_until_connected())
        await until(lambda: producer.health()[0].failures > 0)
        advance(30)
        for task in (publishing, waiting):
            with pytest.raises(ConnectError, match="within 30 s") as raised:
                await task
            assert isinstance(raised.value.__cause__, ConnectError)


async def test_a_message_can_be_given_up_by_its_publisher() -> None:
    mute = Mute()
    async with scripted_peer(mute) as address, Producer(address) as producer:
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: bool(mute.bodies))
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


async def test_an_nsqd_that_never_answers_uses_up_the_time_for_a_message() -> None:
    mute = Mute()
    async with scripted_peer(mute) as address:
        config, retry = ClientConfig(request_timeout_s=10), RetryPolicy(timeout_s=15)
        async with Producer(address, config, retry=retry, reconnect_delay=AT_ONCE) as producer:
            await connect_all(producer)
            publishing = asyncio.create_task(producer.publish("t", b"x"))
            await until(lambda: len(mute.bodies) == 1)
            advance(10)
            await until(lambda: len(mute.bodies) == 2)
            advance(5)
            with pytest.raises(RequestTimeoutError):
                await publishing


# Closing


async def test_closing_waits_for_what_is_under_way() -> None:
    confirm = asyncio.Event()
    received = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.accept()
        await peer.read_publication()
        received.set()
        await confirm.wait()
        peer.respond(b"OK")
        await peer.wait_until_closed()

    async with scripted_peer(script) as address:
        producer = Producer(address)
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await received.wait()
        closing = asyncio.create_task(producer.close())
        await turns()
        assert not closing.done()
        assert not publishing.done()
        with pytest.raises(ClosedError):
            await producer.publish("t", b"too late")
        confirm.set()
        await closing
        await publishing


async def test_closing_gives_up_on_what_is_not_confirmed_in_time() -> None:
    mute = Mute()
    async with scripted_peer(mute) as address:
        producer = Producer(address, ClientConfig(request_timeout_s=100))
        publishing = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: bool(mute.bodies))
        closing = asyncio.create_task(producer.close(timeout_s=20))
        await asyncio.sleep(0)
        advance(20)
        await closing
        with pytest.raises(ClosedError):
            await publishing


async def test_closing_gives_up_on_what_waits_for_a_connection() -> None:
    async with scripted_peer(Recorder()) as address:
        pass
    producer = Producer(address)
    publishing = asyncio.create_task(producer.publish("t", b"x"))
    await until(lambda: producer.health()[0].failures > 0)
    await producer.close(timeout_s=0)
    with pytest.raises(ClosedError):
        await publishing


async def test_closing_twice_or_unused_is_harmless() -> None:
    producer = Producer("127.0.0.1:1")
    await producer.close()
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.publish("t", b"x")


# Batches, and what is wrong before it is sent


async def test_a_batch_above_the_limit_is_split() -> None:
    recorder = Recorder()
    async with scripted_peer(recorder) as address, Producer(address, max_batch_bytes=30) as producer:
        await producer.publish_many("t", [b"a" * 6, b"b" * 6, b"c" * 6, b"d" * 6, b"e" * 100, b"f"])
    counts = [int.from_bytes(body[:4], "big") for body in recorder.bodies]
    assert counts == [3, 1, 1, 1]


async def test_an_empty_batch_is_published_at_once() -> None:
    async with Producer("127.0.0.1:1") as producer:
        await producer.publish_many("t", [])


async def test_what_is_plainly_wrong_is_not_sent() -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(ValueError, match="not a valid topic name"):
            await producer.publish("a b", b"x")
        with pytest.raises(ValueError, match="empty"):
            await producer.publish("t", b"")
        with pytest.raises(ValueError, match="empty"):
            await producer.publish_many("t", [b"x", b""])
        with pytest.raises(ValueError, match="delay_s"):
            await producer.publish_deferred("t", b"x", delay_s=-1)


def test_a_producer_needs_an_address() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Producer([])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"addresses": "http://nsqd:4151"}, ValueError, "write 'nsqd:4150'"),
        ({"addresses": None}, TypeError, "addresses is None"),
        ({"config": "127.0.0.1:4250"}, TypeError, "several addresses go into a list"),
        ({"config": {}}, TypeError, "config is a dict; it must be a ClientConfig"),
        ({"retry": 5}, TypeError, "retry is 5; it must be a RetryPolicy"),
        ({"reconnect_delay": 5.0}, TypeError, "it must be a ReconnectDelay"),
        ({"max_batch_bytes": 0}, ValueError, "max_batch_bytes is 0"),
    ],
)
def test_a_slip_in_the_arguments_is_refused_with_the_right_spelling(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Producer(**{"addresses": "127.0.0.1:4150", **arguments})


@pytest.mark.parametrize("body", ["text", 7, None, {"a": 1}])
async def test_what_is_not_bytes_is_refused_with_a_word_on_encoding(body: Any) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(TypeError, match="a message is bytes; encode it"):
            await producer.publish("t", body)
        with pytest.raises(TypeError, match="a message is bytes; encode it"):
            await producer.publish_deferred("t", body, delay_s=1)
        with pytest.raises(TypeError, match=r"body 1 is .*a message is bytes; encode it"):
            await producer.publish_many("t", [b"x", body])


@pytest.mark.parametrize("bodies", [b"one", "one", 7, None])
async def test_one_message_is_no_list_of_them(bodies: Any) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises(TypeError, match="one message goes to publish"):
            await producer.publish_many("t", bodies)


@pytest.mark.parametrize("delay_s", ["1", float("nan"), float("inf"), -0.1, None])
async def test_a_delay_that_is_none_is_refused(delay_s: Any) -> None:
    async with Producer("127.0.0.1:1") as producer:
        with pytest.raises((TypeError, ValueError), match="delay_s is"):
            await producer.publish_deferred("t", b"x", delay_s=delay_s)


async def test_bytes_come_in_several_kinds_and_messages_in_any_iterable() -> None:
    recorder = Recorder()
    async with scripted_peer(recorder) as address, Producer(address) as producer:
        await producer.publish("t", bytearray(b"one"))  # type: ignore[arg-type]
        await producer.publish("t", memoryview(b"two"))  # type: ignore[arg-type]
        await producer.publish_many("t", (body for body in (b"three", b"four")))
        await producer.publish_deferred("t", b"five", delay_s=timedelta(seconds=1))
    assert recorder.bodies[:2] == [b"one", b"two"]
    assert [name in recorder.bodies[2] for name in (b"three", b"four")] == [True, True]
    assert recorder.bodies[3] == b"five"


# Bounds and figures


async def test_no_more_than_max_pending_are_under_way_and_all_get_their_turn() -> None:
    mute = Mute()
    async with scripted_peer(mute) as address, Producer(address, max_pending=3) as producer:
        await connect_all(producer)
        publishing = [asyncio.create_task(producer.publish("t", body)) for body in numbered(5)]
        await until(lambda: len(mute.bodies) == 3)
        await turns()
        assert (producer.health()[0].pending_count, len(mute.bodies)) == (3, 3)
        publishing[0].cancel()
        await until(lambda: len(mute.bodies) == 4)
        await producer.close(timeout_s=0)
        outcomes = await asyncio.gather(*publishing, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] + [ClosedError] * 4
    assert mute.bodies == numbered(4)


async def test_publishers_that_never_pause_do_not_keep_others_from_their_turn() -> None:
    recorder = Recorder()
    counts = [0] * 6

    async def publish(number: int) -> None:
        while min(counts) < 5:
            await producer.publish("t", b"%d" % number)
            counts[number] += 1

    async with scripted_peer(recorder) as address, Producer(address, max_pending=2) as producer:
        await asyncio.gather(*map(publish, range(6)))
    assert max(counts) <= 6


def test_a_bound_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_pending"):
        Producer("127.0.0.1:4150", max_pending=-1)


async def test_timeouts_and_late_answers_are_counted() -> None:
    peers: list[Peer] = []
    bodies: list[bytes] = []

    async def answer_late(peer: Peer) -> None:
        await peer.accept()
        peers.append(peer)
        while True:
            bodies.append(await peer.read_publication())

    config = ClientConfig(request_timeout_s=10)
    async with scripted_peer(answer_late) as address, Producer(address, config, retry=ONCE) as producer:
        impatient = asyncio.create_task(producer.publish("t", b"given up"))
        await until(lambda: len(bodies) == 1)
        impatient.cancel()
        await turns()
        peers[0].respond(b"OK")
        await until(lambda: producer.health()[0].late_answers == 1)
        late = asyncio.create_task(producer.publish("t", b"too late"))
        await until(lambda: len(bodies) == 2)
        advance(10)
        with pytest.raises(RequestTimeoutError):
            await late
        health = producer.health()[0]
        assert (health.timeouts, health.late_answers) == (1, 1)


async def test_a_failover_is_told_once_with_topic_address_and_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="emberq.client")
    dying, living = Recorder(limit=1), Recorder()
    async with (
        scripted_peer(dying) as first,
        scripted_peer(living) as second,
        Producer([first, second], reconnect_delay=NEVER_AGAIN) as producer,
    ):
        await connect_all(producer)
        await publish_all(producer, numbered(50))
    (told,) = [record for record in caplog.records if "not confirmed" in record.getMessage()]
    assert told.levelname == "INFO"
    assert told.getMessage().startswith(f"a message for topic t was not confirmed: {first}: ")
    assert told.getMessage().endswith(f"; sent again to nsqd {second}, attempt 2 of 5")
