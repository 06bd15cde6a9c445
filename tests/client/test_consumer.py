"""The consumer: its commands as an nsqd sees them, and its work against a real nsqd."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.connection import Connection
from emberq.client.consumer import Consumer
from emberq.client.error import ClosedError, ConnectError
from emberq.client.message import Message
from emberq.embedded import Embedded
from emberq.wire import command
from tests.client.scripted_nsqd import ERROR, ScriptedNsqd, frame
from tests.support.waiting import PATIENCE_S, turns, until

CONFIG = ConsumerConfig(max_in_flight=5, concurrency=1, backoff_unit_s=0.01, default_requeue_delay_s=0)
QUICK = ClientConfig(output_buffer_timeout_ms=25)


class Script:
    """A handler that does what its message says."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)
        if message.body == b"bad":
            raise ValueError("as told")
        if message.body == b"later":
            message.requeue(0, backoff=False)


@asynccontextmanager
async def scripted(
    handler: Any = None, *, config: ConsumerConfig = CONFIG, nsqd: ScriptedNsqd | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedNsqd, Consumer]]:
    """A consumer that is connected to a scripted nsqd."""
    async with (
        nsqd or ScriptedNsqd() as server,
        Consumer("t", "c", handler, nsqd_addresses=[server.address], config=config, **options) as consumer,
    ):
        yield server, consumer


async def publish(address: str, *bodies: bytes, topic: str = "t") -> None:
    connection = await Connection.open(address, ClientConfig())
    await connection.request(command.mpub(topic, bodies))
    await connection.close()


async def feed(nsqd: ScriptedNsqd, bodies: list[bytes], *expected: list[str]) -> None:
    """Send one message after the other, each when the commands before it have come."""
    commands: list[str] = []
    for body, new in zip([None, *bodies], expected, strict=True):
        if body is not None:
            nsqd.send(body)
        commands += new
        await nsqd.expect(*commands)


@pytest.mark.conformance(265)
async def test_backoff_follows_the_reference_trace() -> None:
    async with scripted(Script()) as (nsqd, _):
        await feed(
            nsqd,
            [b"good", b"good", b"good", b"bad", b"bad", b"good", b"good"],
            ["RDY 5"],
            ["FIN"],
            ["FIN"],
            ["FIN"],
            ["RDY 0", "REQ", "RDY 1"],
            ["RDY 0", "REQ", "RDY 1"],
            ["RDY 0", "FIN", "RDY 1"],
            ["RDY 5", "FIN"],
        )


@pytest.mark.conformance(266)
async def test_requeueing_without_backoff_keeps_the_level() -> None:
    async with scripted(Script(), config=replace(CONFIG, max_in_flight=1)) as (nsqd, _):
        await feed(
            nsqd,
            [b"bad", b"later", b"good"],
            ["RDY 1"],
            ["RDY 0", "REQ", "RDY 1"],
            ["RDY 0", "REQ", "RDY 1"],
            ["FIN"],
        )


@pytest.mark.conformance(267)
async def test_a_consumer_in_backoff_that_reconnects_asks_for_one_message() -> None:
    async with scripted(Script()) as (nsqd, _):
        await feed(nsqd, [b"bad"], ["RDY 5"], ["RDY 0", "REQ", "RDY 1"])
        nsqd.commands.clear()
        nsqd.drop_connections()
        await until(lambda: "RDY 1" in nsqd.commands)
        nsqd.send(b"good")
        await until(lambda: "FIN" in nsqd.commands)
        nsqd.send(b"good")
        await until(lambda: nsqd.commands.count("FIN") == 2)
        assert nsqd.commands == ["IDENTIFY", "SUB", "RDY 1", "RDY 5", "FIN", "FIN"]


@pytest.mark.conformance(268)
async def test_max_in_flight_can_be_changed_and_zero_pauses() -> None:
    async with scripted(Script()) as (nsqd, consumer):
        await feed(nsqd, [b"good"], ["RDY 5"], ["FIN"])
        consumer.set_max_in_flight(0)
        consumer.set_max_in_flight(5)
        await nsqd.expect("RDY 5", "FIN", "RDY 0", "RDY 5")


async def test_rdy_stays_within_what_the_server_allows() -> None:
    async with scripted(Script(), nsqd=ScriptedNsqd(max_rdy_count=3)) as (nsqd, _):
        await nsqd.expect("RDY 3")


async def test_the_retry_policy_decides_when_a_message_comes_back() -> None:
    asked: list[tuple[bytes, type[BaseException]]] = []

    def policy(message: Message, error: BaseException) -> float:
        asked.append((message.body, type(error)))
        return 0

    async with scripted(Script(), retry_delay_s=policy) as (nsqd, _):
        await feed(nsqd, [b"bad"], ["RDY 5"], ["RDY 0", "REQ", "RDY 1"])
        assert asked == [(b"bad", ValueError)]


async def test_a_handler_that_meets_a_cancelled_task_has_failed_and_the_next_message_is_handled() -> None:
    async def handle(message: Message) -> None:
        if message.body == b"bad":
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

    async with scripted(handle) as (nsqd, _):
        await feed(nsqd, [b"bad", b"good"], ["RDY 5"], ["RDY 0", "REQ", "RDY 1"], ["RDY 5", "FIN"])


async def test_messages_that_take_long_are_touched_if_asked_for() -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await release.wait()

    clock, nsqd = ManualClock(), ScriptedNsqd(msg_timeout_ms=40)
    async with scripted(handle, nsqd=nsqd, config=replace(CONFIG, auto_touch=True), clock=clock):
        nsqd.send()
        await began.wait()
        for count in (1, 2, 3):
            clock.advance(ms=30)
            await until(lambda count=count: nsqd.commands.count("TOUCH") >= count)  # type: ignore[misc]
        release.set()
        await until(lambda: "FIN" in nsqd.commands)


async def test_an_error_that_is_not_fatal_leaves_the_connection_open() -> None:
    async with scripted(Script()) as (nsqd, consumer):
        nsqd.replies["FIN"] = frame(ERROR, b"E_FIN_FAILED FIN 01 failed ID not in flight")
        await feed(nsqd, [b"good", b"good"], ["RDY 5"], ["FIN"], ["FIN"])
        assert consumer.statistics().addresses == (nsqd.address,)


async def test_stopping_lets_running_handlers_finish() -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        began.set()
        await release.wait()

    async with scripted(handle) as (nsqd, consumer):
        nsqd.send()
        await began.wait()
        stopping = asyncio.create_task(consumer.stop())
        await until(lambda: "CLS" in nsqd.commands)
        release.set()
        await stopping
        await nsqd.expect("RDY 5", "CLS", "FIN")


async def test_stopping_gives_up_on_handlers_that_hang() -> None:
    cancelled = False
    began = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal cancelled
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    async with scripted(handle) as (nsqd, consumer):
        nsqd.send()
        await began.wait()
        await consumer.stop(drain_timeout_s=0.01)
        assert cancelled
        await nsqd.expect("RDY 5", "CLS", "REQ")
        assert nsqd.lines[-1].endswith(" 0")  # at once, to another consumer


@pytest.mark.parametrize("drain_timeout_s", [0.0, 0.01])
async def test_what_a_loop_has_taken_and_not_answered_in_time_goes_back_at_once(drain_timeout_s: float) -> None:
    async with Embedded(with_lookupd=False) as nsq:
        await publish(nsq.nsqd_tcp_addresses[0], b"taken")
        async with Consumer("t", "c", nsqd_addresses=nsq.nsqd_tcp_addresses) as consumer:
            message = await anext(consumer)
            await consumer.stop(drain_timeout_s=drain_timeout_s)
        message.finish()  # too late, and of no effect
        async with Consumer("t", "c", nsqd_addresses=nsq.nsqd_tcp_addresses) as other:
            again = await anext(other)
            assert (again.body, again.attempts) == (b"taken", 2)
            again.finish()


async def test_a_consumer_that_was_not_started_says_so_where_it_would_wait_for_ever() -> None:
    consumer = Consumer("t", "c", nsqd_addresses="127.0.0.1:1")
    for waiting in (anext(consumer), anext(consumer.batches()), consumer.wait_stopped()):
        with pytest.raises(RuntimeError, match="has not been started"):
            await waiting
    await consumer.stop()
    await consumer.wait_stopped()


async def test_a_handler_that_would_wait_for_its_own_end_is_told_so() -> None:
    async def handle(message: Message) -> None:
        with pytest.raises(RuntimeError, match="its own end"):
            await consumer.stop()
        stopping.append(asyncio.create_task(consumer.stop()))

    stopping: list[asyncio.Task[None]] = []
    async with scripted(handle) as (nsqd, consumer):
        nsqd.send()
        await consumer.wait_stopped()
        assert nsqd.commands[2:] == ["RDY 5", "FIN", "CLS"]


async def test_a_consumer_can_be_stopped_while_it_starts() -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.replies["SUB"] = b""
        consumer = Consumer("t", "c", Script(), nsqd_addresses=[nsqd.address], config=CONFIG)
        starting = asyncio.create_task(consumer.start())
        await until(lambda: "SUB" in nsqd.commands)
        await consumer.stop()
        nsqd.respond(b"OK")
        await starting
        assert consumer.statistics().addresses == ()
        assert "RDY 5" not in nsqd.commands


async def test_what_was_not_yielded_yet_goes_back_when_the_consumer_stops() -> None:
    async with scripted() as (nsqd, consumer):
        for _ in range(3):
            nsqd.send()
        await until(lambda: consumer.statistics().received == 3)
        (await anext(consumer)).finish()
        await consumer.stop()
        assert sorted(nsqd.commands[2:]) == ["CLS", "FIN", "RDY 0", "RDY 5", "REQ", "REQ"]
        assert nsqd.commands.index("RDY 0") < nsqd.commands.index("REQ"), "or they would come again at once"
        assert [message async for message in consumer] == []


def test_a_consumer_with_a_handler_cannot_be_iterated() -> None:
    consumer = Consumer("t", "c", Script(), nsqd_addresses=["127.0.0.1:1"])
    with pytest.raises(RuntimeError, match="handler"):
        aiter(consumer)


@pytest.mark.parametrize(("topic", "channel", "addresses"), [("a b", "c", ["h:1"]), ("t", "", ["h:1"]), ("t", "c", [])])
def test_mistakes_show_when_a_consumer_is_made(topic: str, channel: str, addresses: list[str]) -> None:
    with pytest.raises(ValueError, match=r"not a valid|neither"):
        Consumer(topic, channel, nsqd_addresses=addresses)


async def test_every_message_is_handled_by_a_coroutine_function() -> None:
    async with Embedded() as nsq:
        await publish(nsq.nsqd_tcp_addresses[0], *(b"%d" % number for number in range(500)))
        script = Script()
        async with Consumer("t", "c", script, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=QUICK):
            await until(lambda: len(script.bodies) == 500)
        assert sorted(map(int, script.bodies)) == list(range(500))


async def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_the_loop() -> None:
    release, threads = threading.Event(), set[int]()

    def handle(message: Message) -> None:
        threads.add(threading.get_ident())
        assert release.wait(PATIENCE_S)
        message.finish()

    async with Embedded() as nsq:
        await publish(nsq.nsqd_tcp_addresses[0], *[b"x"] * 8)
        consumer = Consumer("t", "c", handle, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=QUICK)
        async with consumer:
            await until(lambda: len(threads) == 8)
            assert threading.get_ident() not in threads
            assert consumer.statistics().in_flight == 8
            release.set()
            await until(lambda: consumer.statistics().in_flight == 0)


async def test_messages_can_be_taken_one_by_one() -> None:
    async with Embedded() as nsq:
        await publish(nsq.nsqd_tcp_addresses[0], b"a", b"b", b"c")
        taken = []
        async with Consumer("t", "c", nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=QUICK) as consumer:
            async for message in consumer:
                taken.append(message.body)
                message.finish()
                if len(taken) == 3:
                    break
        assert sorted(taken) == [b"a", b"b", b"c"]


async def test_batches_are_never_larger_than_asked_for() -> None:
    async with Embedded() as nsq:
        await publish(nsq.nsqd_tcp_addresses[0], *(b"%d" % number for number in range(100)))
        sizes = []
        async with Consumer("t", "c", nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=QUICK) as consumer:
            async for batch in consumer.batches(max_size=30, max_wait_s=0.2):
                sizes.append(len(batch))
                batch.finish()
                if sum(sizes) == 100:
                    break
        assert sizes == [30, 30, 30, 10]


async def test_nsqds_are_found_through_nsqlookupd_and_all_of_them_are_consumed() -> None:
    async with Embedded(nsqd_count=3) as nsq:
        for address in nsq.nsqd_tcp_addresses:
            await publish(address, address.encode())
        script = Script()
        config = ConsumerConfig(lookupd_poll_interval_s=0.05)
        consumer = Consumer(
            "t", "c", script, lookupd_addresses=nsq.lookupd_http_addresses, config=config, client_config=QUICK
        )
        async with consumer:
            await until(lambda: len(script.bodies) == 3)
        assert {body.decode() for body in script.bodies} == set(nsq.nsqd_tcp_addresses)


async def test_with_more_nsqds_than_max_in_flight_all_are_served() -> None:
    async with Embedded(nsqd_count=3, with_lookupd=False) as nsq:
        for address in nsq.nsqd_tcp_addresses:
            await publish(address, address.encode())
        script = Script()
        config = ConsumerConfig(
            max_in_flight=1, low_rdy_idle_timeout_s=0.03, low_rdy_timeout_s=0.1, rdy_redistribute_interval_s=0.01
        )
        consumer = Consumer("t", "c", script, nsqd_addresses=nsq.nsqd_tcp_addresses, config=config, client_config=QUICK)
        async with consumer:
            await until(lambda: len(script.bodies) == 3)


async def test_an_nsqd_that_comes_later_or_comes_back_is_connected_to() -> None:
    nsqd = ScriptedNsqd()
    async with nsqd:
        pass  # now it has a port on which nobody listens
    async with Consumer("t", "c", Script(), nsqd_addresses=[nsqd.address], config=CONFIG) as consumer:
        assert consumer.statistics().addresses == ()
        for _ in range(2):
            nsqd.commands.clear()
            async with nsqd:
                await nsqd.expect("RDY 5")
                nsqd.send(b"good")
                await nsqd.expect("RDY 5", "FIN")


async def test_a_handler_that_blocks_its_thread_does_not_hold_up_heartbeats() -> None:
    began, release = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        began.set()
        assert release.wait(PATIENCE_S)

    async with scripted(handle) as (nsqd, _):
        nsqd.send()
        await until(began.is_set)
        nsqd.respond(b"_heartbeat_")
        await nsqd.expect("RDY 5", "NOP")
        release.set()
        await nsqd.expect("RDY 5", "NOP", "FIN")


@pytest.mark.parametrize("reply", [b"", frame(ERROR, b"E_UNAUTHORIZED not now"), b"\xff" * 16])
async def test_an_nsqd_that_does_not_let_us_subscribe_is_asked_again(reply: bytes) -> None:
    async with ScriptedNsqd() as nsqd:
        nsqd.replies["SUB"] = reply
        client_config = ClientConfig(request_timeout_s=0.05)
        consumer = Consumer(
            "t", "c", Script(), nsqd_addresses=[nsqd.address], config=CONFIG, client_config=client_config
        )
        async with consumer:
            await until(lambda: nsqd.commands.count("SUB") >= 2)
            del nsqd.replies["SUB"]
            await until(lambda: nsqd.commands[-1] == "RDY 5")


async def test_without_any_nsqlookupd_the_known_nsqds_are_consumed() -> None:
    async with scripted(Script(), lookupd_addresses=["127.0.0.1:1"]) as (nsqd, _):
        await feed(nsqd, [b"good"], ["RDY 5"], ["FIN"])


async def test_no_message_is_lost_when_nsqd_is_restarted_under_load(tmp_path: Path) -> None:
    script = Script()
    async with AsyncExitStack() as stack:
        async with Embedded(data_path=tmp_path, with_lookupd=False) as nsq:
            address = nsq.nsqd_tcp_addresses[0]
            await publish(address, *(b"%d" % number for number in range(1000)))
            consumer = Consumer("t", "c", script, nsqd_addresses=[address], client_config=QUICK)
            await stack.enter_async_context(consumer)
            await until(lambda: len(script.bodies) > 100)
        async with Embedded(data_path=tmp_path, with_lookupd=False, tcp_address=address):
            await publish(address, *(b"%d" % number for number in range(1000, 2000)))
            await until(lambda: set(map(int, script.bodies)) == set(range(2000)))
            await consumer.stop()


# Slips


async def test_a_connection_is_told_once_it_is_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="emberq.client")
    async with scripted(Script()) as (nsqd, _):
        await nsqd.expect("RDY 5")
        lines = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
        assert lines == [f"connected to nsqd {nsqd.address}, t/c"]


@pytest.mark.parametrize("spelling", ["{}", " {} ", "tcp://{}", "tcp://{}/"])
async def test_one_address_will_do_where_several_may_stand(spelling: str) -> None:
    async with ScriptedNsqd() as nsqd, Consumer("t", "c", nsqd_addresses=spelling.format(nsqd.address)) as consumer:
        assert consumer.statistics().addresses == (nsqd.address,)


@pytest.mark.parametrize("spelling", ["{}", "http://{}", "http://{}/", "{}/", " {}"])
async def test_a_topic_is_found_however_the_address_of_nsqlookupd_is_spelled(spelling: str) -> None:
    async with Embedded() as nsq:
        (nsqd,), (lookupd,) = nsq.nsqd_tcp_addresses, nsq.lookupd_http_addresses
        await publish(nsqd, b"x")
        config = ConsumerConfig(lookupd_poll_interval_s=0.05)
        async with Consumer("t", "c", lookupd_addresses=spelling.format(lookupd), config=config) as consumer:
            message = await anext(consumer)
            message.finish()


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"topic": "no topic"}, ValueError, "'no topic' is not a valid topic name: 1 to 64 of"),
        ({"topic": b"t"}, TypeError, "the topic is b't'; it must be a str"),
        ({"channel": ""}, ValueError, "'' is not a valid channel name"),
        ({"channel": None}, TypeError, "the channel is None"),
        ({"nsqd_addresses": "localhost"}, ValueError, "write 'localhost:4150'"),
        ({"nsqd_addresses": None}, TypeError, "nsqd_addresses is None"),
        ({"lookupd_addresses": "tcp://lookup:4160"}, ValueError, "write 'lookup:4161'"),
        ({"nsqd_addresses": []}, ValueError, "neither nsqd nor nsqlookupd"),
        ({"config": ClientConfig()}, TypeError, "config is a ClientConfig; it must be a ConsumerConfig"),
        ({"config": {"max_in_flight": 5}}, TypeError, "config is a dict"),
        ({"client_config": ConsumerConfig()}, TypeError, "client_config is a ConsumerConfig"),
    ],
)
def test_a_slip_in_the_arguments_is_refused_with_the_right_spelling(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Consumer(**{"topic": "t", "channel": "c", "nsqd_addresses": ["127.0.0.1:4150"], **arguments})


async def test_numbers_that_make_no_sense_are_refused_where_they_are_given() -> None:
    async with scripted() as (_, consumer):
        with pytest.raises(TypeError, match="max_in_flight is '10'; it must be an int"):
            consumer.set_max_in_flight("10")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="max_in_flight is -1"):
            consumer.set_max_in_flight(-1)
        with pytest.raises(ValueError, match="max_size is 0"):
            consumer.batches(max_size=0)
        with pytest.raises(ValueError, match="max_wait_s"):
            consumer.batches(max_wait_s=-1)


async def test_a_consumer_that_was_not_started_says_so_instead_of_waiting_for_ever() -> None:
    consumer = Consumer("t", "c", nsqd_addresses="127.0.0.1:4150")
    with pytest.raises(RuntimeError, match="async with"):
        await anext(consumer)
    with pytest.raises(RuntimeError, match="async with"):
        await anext(consumer.batches())


# What a consumer tells about itself


async def test_waiting_until_connected_ends_with_the_first_connection() -> None:
    nsqd = ScriptedNsqd()
    async with nsqd:
        pass  # its port is known now, and nothing listens there
    config = replace(CONFIG, max_reconnect_delay_s=0.01)
    async with Consumer("t", "c", nsqd_addresses=nsqd.address, config=config) as consumer:
        with pytest.raises(ConnectError, match=r"t/c: no nsqd was connected to within 0.01 s"):
            await consumer.wait_until_connected(timeout_s=0.01)
        waiting = asyncio.create_task(consumer.wait_until_connected(timeout_s=PATIENCE_S))
        async with nsqd:
            await waiting
            await consumer.wait_until_connected()
            assert consumer.statistics().addresses == (nsqd.address,)
            await consumer.stop()


async def test_waiting_until_connected_ends_when_the_consumer_is_stopped() -> None:
    async with Consumer("t", "c", nsqd_addresses="127.0.0.1:1") as consumer:
        waiting = asyncio.create_task(consumer.wait_until_connected())
        await turns()
        await consumer.stop()
        with pytest.raises(ClosedError):
            await waiting
    with pytest.raises(RuntimeError, match="has not been started"):
        await Consumer("t", "c", nsqd_addresses="127.0.0.1:1").wait_until_connected()


async def test_answers_that_come_too_late_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as (nsqd, consumer):
        nsqd.send()
        nsqd.send()
        for _ in range(2):
            (await anext(consumer)).finish()
        nsqd.fail(b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight")
        nsqd.fail(b"E_FIN_FAILED FIN 0000000000000002 failed ID not in flight")
        await until(lambda: consumer.statistics().late_answers == 2)
    (told,) = [record for record in caplog.records if "too late" in record.getMessage()]
    assert told.levelname == "WARNING"
    assert told.getMessage().startswith(f"nsqd {nsqd.address}, t/c: E_FIN_FAILED FIN 0000000000000001 failed")


async def test_messages_that_time_out_before_they_are_taken_are_counted() -> None:
    clock = ManualClock()
    async with scripted(clock=clock) as (nsqd, consumer):
        nsqd.send(b"stale")
        await until(lambda: consumer.statistics().in_flight == 1)
        clock.advance(seconds=61)
        nsqd.send(b"fresh")
        await until(lambda: consumer.statistics().received == 2)
        message = await anext(consumer)
        assert message.body == b"fresh"
        message.finish()
        assert consumer.statistics().timed_out == 1
        nsqd.drop_connections()
        await until(lambda: not consumer.statistics().addresses)
        assert consumer.statistics().timed_out == 1


async def test_a_lost_connection_is_told_once_with_all_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="emberq.client")
    async with scripted() as (nsqd, consumer):
        nsqd.send()
        await anext(consumer)
        nsqd.drop_connections()
        await until(lambda: len([line for line in caplog.messages if line.startswith("connected")]) == 2)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    address = nsqd.address
    assert [line for line in lines if address in line[1]][:2] == [
        ("DEBUG", f"connecting to nsqd {address}, t/c"),
        ("INFO", f"connected to nsqd {address}, t/c"),
    ]
    (lost,) = [text for level, text in lines if level == "WARNING"]
    assert lost.startswith(f"lost nsqd {address}, t/c: ")
    assert "; 1 messages were unanswered; trying again in 0." in lost


async def test_backing_off_and_coming_back_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="emberq.client.consumer")
    async with scripted(Script()) as (nsqd, consumer):
        nsqd.send(b"bad")
        await until(lambda: "RDY 1" in nsqd.commands)  # the pause is over, and one message is tried
        nsqd.send(b"good")
        await until(lambda: consumer.statistics().backoff_level == 0)
    assert [line for line in caplog.messages if line.startswith("t/c")] == [
        "t/c backs off for 0.020 s, level 1",
        "t/c is back at full speed: handlers succeed again",
    ]
