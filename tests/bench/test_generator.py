"""The load generator against our nsqd, and against a server that follows a script."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from bench import certificate, frame
from bench.connection import Address, create_channel
from bench.crew import Tally
from bench.failure import LoadFailure
from bench.generator import Generator, Generators, Order
from bench.server import Binary, Server
from tests.bench.support import needs_compiler

pytestmark = needs_compiler

MESSAGES = 400
CHANNEL = "c"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Binary(path=Path(sys.executable).parent / "nsqd").serve(certificate.tls_flags()) as server:
        yield server


def order(server: Server, work: str, topic: str, **settings: int | str) -> Order:
    return Order(work, {"address": "{}:{}".format(*server.address), "topic": topic, **settings})


def run(*orders: Order) -> list[Tally]:
    with Generators(orders) as generators:
        generators.assemble()
        return generators.work()


def filled(server: Server, topic: str, **settings: int | str) -> Tally:
    create_channel(server.address, topic=topic, channel=CHANNEL)
    (tally,) = run(order(server, "publish", topic, **{"messages": MESSAGES, "batch": 40, "window": 4, **settings}))
    return tally


def consumed(server: Server, topic: str, **settings: int | str) -> Tally:
    (tally,) = run(order(server, "consume", topic, channels=CHANNEL, messages=MESSAGES, **settings))
    return tally


def skip_unless_built_with(server: Server, codec: str) -> None:
    """TLS and deflate need the headers of OpenSSL and zlib."""
    try:
        run(order(server, "churn", "tried", messages=1, **{codec: 1}))
    except LoadFailure as failure:
        if "was built without" in str(failure):
            pytest.skip(str(failure))
        raise


def test_bodies_are_of_mixed_sizes_and_the_same_in_every_run(server: Server) -> None:
    first, second = filled(server, "sizes_1"), filled(server, "sizes_2")
    assert first.published == MESSAGES
    assert first.body_bytes == second.body_bytes
    assert 20 * MESSAGES < first.body_bytes < 2000 * MESSAGES
    assert filled(server, "sizes_3", min=200, max=200).body_bytes == 200 * MESSAGES


@pytest.mark.parametrize("fin", ["packet", "each", "shuffled"])
def test_all_that_was_published_is_consumed(server: Server, fin: str) -> None:
    published = filled(server, f"fin_{fin}")
    tally = consumed(server, f"fin_{fin}", fin=fin, connections=2)
    assert (tally.delivered, tally.body_bytes) == (MESSAGES, published.body_bytes)


@pytest.mark.parametrize("codec", ["tls", "snappy", "deflate"])
@pytest.mark.parametrize("content", ["text", "random"])
def test_a_connection_may_be_encrypted_or_compressed(server: Server, codec: str, content: str) -> None:
    skip_unless_built_with(server, codec)
    topic = f"{codec}_{content}"
    published = filled(server, topic, content=content, **{codec: 1})
    assert consumed(server, topic, fin="each", **{codec: 1}).body_bytes == published.body_bytes


def test_compression_may_lie_on_tls(server: Server) -> None:
    skip_unless_built_with(server, "tls")
    published = filled(server, "both", content="text", tls=1, snappy=1)
    assert consumed(server, "both", tls=1, snappy=1).body_bytes == published.body_bytes


def test_a_requeued_delivery_comes_again(server: Server) -> None:
    filled(server, "requeued")
    assert consumed(server, "requeued", requeue_percent=20).delivered > MESSAGES


def test_single_messages_wait_for_their_answers_which_are_timed(server: Server) -> None:
    tally = filled(server, "singles", batch=0, window=1, connections=3)
    assert tally.published == tally.latency_ms["count"] == MESSAGES


def test_topics_are_served_by_turns(server: Server) -> None:
    for index in range(3):
        create_channel(server.address, topic=f"turns_{index}", channel=CHANNEL)
    run(order(server, "publish", "turns", messages=600, batch=10, topics=3))
    (tally,) = run(order(server, "consume", "turns_2", channels=CHANNEL, messages=200))
    assert tally.delivered == 200


def test_deferred_messages_come_when_they_are_due(server: Server) -> None:
    published = filled(server, "deferred", batch=0, window=1, due_in_ms=500)
    tally = consumed(server, "deferred", from_first=1)
    assert tally.started_s >= published.started_s + 0.499  # timers count milliseconds
    assert tally.body_bytes == published.body_bytes


def test_the_way_of_a_message_is_timed_by_what_its_body_says(server: Server) -> None:
    create_channel(server.address, topic="paced", channel=CHANNEL)
    consumer, _ = run(
        order(server, "consume", "paced", channels=CHANNEL, messages=MESSAGES, timed=1),
        order(server, "publish", "paced", messages=MESSAGES, rate=4000),
    )
    assert consumer.latency_ms["count"] == MESSAGES * 85 // 100
    assert 0 < consumer.latency_ms["p50"] <= consumer.latency_ms["max"]


def test_messages_that_are_kept_stay_in_flight_while_the_work_holds(server: Server) -> None:
    filled(server, "kept")
    with Generator(order(server, "consume", "kept", channels=CHANNEL, messages=MESSAGES, keep_every=40)) as generator:
        generator.await_word("ready")
        generator.go()
        generator.await_word("held")
        generator.go()
        assert generator.tally().delivered == MESSAGES


def test_fins_that_come_too_late_are_refused(server: Server) -> None:
    filled(server, "late", batch=0, messages=5)
    late = order(server, "late", "late", channels=CHANNEL, messages=5, connections=10, msg_timeout_ms=1000)
    with Generator(late) as generator:
        generator.await_word("ready")
        generator.go()
        generator.await_word("held")
        generator.go()
        assert 0 < generator.tally().refused <= 5


@pytest.mark.parametrize("kind", ["plain", "cut", "tls", "snappy", "deflate"])
def test_connections_come_and_go(server: Server, kind: str) -> None:
    if kind in ("tls", "deflate"):
        skip_unless_built_with(server, kind)
    settings = {} if kind == "plain" else {kind: 1}
    (tally,) = run(order(server, "churn", "churned", messages=30, connections=10, **settings))
    assert tally.timed == 30


def test_a_bystander_publishes_until_it_is_told_to_stop(server: Server) -> None:
    with Generator(order(server, "bystander", "bystander")) as generator:
        generator.await_word("ready")
        generator.go()
        generator.go()
        tally = generator.tally()
    assert tally.latency_ms.get("count", 0) == tally.published


def test_a_refused_command_ends_the_run_with_what_nsqd_said(server: Server) -> None:
    with pytest.raises(LoadFailure, match="nsqd answered E_BAD_TOPIC"):
        run(order(server, "publish", "bad$topic", messages=1))


def test_a_setting_that_a_work_does_not_have_is_refused(server: Server) -> None:
    with pytest.raises(LoadFailure, match="no setting nonsense=1"):
        run(order(server, "publish", "t", messages=1, nonsense=1))


def message(number: int, *, attempts: int = 1) -> bytes:
    data = bytes(8) + attempts.to_bytes(2, "big") + b"%016x" % number + b"a body of twenty byte"
    return frame.HEADER.pack(len(data) + 4, frame.MESSAGE) + data


@contextmanager
def scripted_nsqd(deliveries: bytes) -> Iterator[tuple[Address, list[bytes]]]:
    """Serves one connection: the handshake, then prepared bytes on RDY, then CLOSE_WAIT on CLS."""
    heard: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as commands, suppress(OSError):
            commands.readline()  # the magic and IDENTIFY
            commands.read(int.from_bytes(commands.read(4), "big"))
            client.sendall(frame.response(b"{}"))
            commands.readline()  # SUB
            client.sendall(frame.OK_FRAME)
            commands.readline()  # RDY
            client.sendall(deliveries)
            for command in commands:
                heard.append(command)
                if command == b"CLS\n":
                    client.sendall(frame.response(b"CLOSE_WAIT"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname(), heard
        thread.join()


def consume_from(address: Address, messages: int, **settings: int | str) -> Tally:
    fixed: dict[str, int | str] = {"topic": "t", "channels": "c", "messages": messages}
    (tally,) = run(Order("consume", {"address": "{}:{}".format(*address), **fixed, **settings}))
    return tally


def fin(number: int) -> bytes:
    return b"FIN %016x\n" % number


def test_every_message_is_finished_and_then_the_consumer_takes_its_leave() -> None:
    with scripted_nsqd(b"".join(message(number) for number in range(500))) as (address, heard):
        assert consume_from(address, 500).delivered == 500
    assert heard == [*(fin(number) for number in range(500)), b"CLS\n"]


def test_shuffled_fins_come_in_another_order_but_all_of_them() -> None:
    fins = [fin(number) for number in range(3000)]
    with scripted_nsqd(b"".join(message(number) for number in range(3000))) as (address, heard):
        consume_from(address, 3000, fin="shuffled")
    *others, last = heard
    assert last == b"CLS\n"
    assert others != fins
    assert sorted(others) == fins


def test_a_heartbeat_among_the_messages_is_answered() -> None:
    deliveries = message(1) + frame.response(b"_heartbeat_") + message(2)
    with scripted_nsqd(deliveries) as (address, heard):
        assert consume_from(address, 2).delivered == 2
    assert sorted(heard) == [b"CLS\n", fin(1), fin(2), b"NOP\n"]


@pytest.mark.parametrize(
    ("deliveries", "words"),
    [
        (message(1) + message(2) + message(3), "delivered more than was published"),
        (message(1) + message(2, attempts=2), "did not come for the first time"),
        (message(1) + frame.HEADER.pack(16, frame.ERROR) + b"E_FIN_FAILED", "E_FIN_FAILED"),
        (message(1) + frame.HEADER.pack(3, frame.MESSAGE), "a frame of 3 bytes"),
    ],
)
def test_what_does_not_belong_there_ends_the_run(deliveries: bytes, words: str) -> None:
    with scripted_nsqd(deliveries) as (address, _), pytest.raises(LoadFailure, match=words):
        consume_from(address, 2)
