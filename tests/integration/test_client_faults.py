"""A producer and a consumer while everything around them fails: nsqd, nsqlookupd, the network, the handler itself.

Each test publishes, lets something happen, and demands the same at the end: every message that was confirmed has been
handled at least once, nsqd is asked for as many messages as ever (RDY is back), and after `stop` there is no task, no
thread and no process left. Times are a thirtieth of the usual ones: a heartbeat each second instead of each half
minute, so a handler that is busy for three seconds stands for one that is busy for ninety.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emberq.client import (
    ClientConfig,
    Consumer,
    ConsumerConfig,
    HandlersIn,
    Message,
    Observer,
    Producer,
    ReconnectDelay,
)
from tests.conftest import StartNsqdProcess
from tests.integration.faulty_network import FaultyNetwork
from tests.integration.listening import ANY_HTTP_PORT, port_of
from tests.support.handler_threads import handler_threads
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.process_handlers import burn, misbehave_at_first
from tests.support.publishing import Publishing, numbered, publish_all
from tests.support.waiting import PATIENCE_S, until

TOPIC, CHANNEL = "t", "c"
HEARTBEAT_MS = 1000
MAX_IN_FLIGHT = 20
KILL_COUNT = 3
BUSY_S = 3.0
"""Three heartbeats, of which nsqd lets only one pass without an answer; and longer than it waits for messages."""

CLIENT = ClientConfig(
    heartbeat_interval_ms=HEARTBEAT_MS, output_buffer_timeout_ms=25, msg_timeout_ms=1000, request_timeout_s=2.0
)
CONSUMER = ConsumerConfig(
    max_in_flight=MAX_IN_FLIGHT,
    max_attempts=0,
    default_requeue_delay_s=0,
    backoff_unit_s=0.01,
    max_backoff_s=0.1,
    max_reconnect_delay_s=0.2,
    lookupd_poll_interval_s=0.1,
)
SOON = ReconnectDelay(first_s=0.05, max_s=0.2)

LOSES_NOTHING = ("--journal", "--journal-sync=never")
"""With these an nsqd that is killed, however often, delivers again all that it was not told to be finished, once it has
written down that its topic and channel exist. So whatever is missing in the end was lost by the client. (It need not
sync: nobody cuts the power.)"""


class Watch(Observer):
    """Counts lost connections."""

    def __init__(self) -> None:
        self.lost_count = 0

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        self.lost_count += failure is not None


class Record:
    """What has been handled, in this process."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def in_loop(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.bodies.append(message.body)

    def in_thread(self, message: Message) -> None:
        self.bodies.append(message.body)


@asynccontextmanager
async def consuming(handler: Any, config: ConsumerConfig = CONSUMER, **options: Any) -> AsyncIterator[Consumer]:
    """A consumer, and nothing left of it at the end."""
    tasks, threads = asyncio.all_tasks(), handler_threads()
    async with Consumer(TOPIC, CHANNEL, handler, config=config, **({"client_config": CLIENT} | options)) as consumer:
        yield consumer
    assert consumer.statistics().addresses == ()
    await until(lambda: asyncio.all_tasks() <= tasks, show=lambda: asyncio.all_tasks() - tasks)
    await until(lambda: handler_threads() <= threads)
    assert multiprocessing.active_children() == []


async def expect_all(consumer: Consumer, handled: Callable[[], set[bytes]], published: set[bytes]) -> None:
    """Wait until all that was published is handled and answered."""
    await until(lambda: published <= handled(), show=lambda: sorted(published - handled()))
    await until(lambda: not consumer.statistics().in_flight)


async def expect_full_rdy(nsqd: NsqdProcess) -> None:
    """Wait until nsqd is asked for as many messages as the consumer can have."""
    http = HttpClient(("127.0.0.1", port_of(nsqd, "HTTP")))

    def is_full() -> bool:
        (topic,) = http.get(f"/stats?format=json&topic={TOPIC}").json()["topics"]
        clients = [client for channel in topic["channels"] for client in channel["clients"]]
        return [client["ready_count"] for client in clients] == [MAX_IN_FLIGHT]

    await until(lambda: asyncio.to_thread(is_full))


def address_of(nsqd: NsqdProcess) -> str:
    return f"127.0.0.1:{nsqd.tcp_port}"


def place_of(kind: str) -> HandlersIn:
    return HandlersIn.PROCESSES if kind == "process" else HandlersIn.THREADS


def written_down(folder: Path) -> set[bytes]:
    """What handlers in other processes have handled."""
    return {path.name.encode() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "handled"
    path.mkdir()
    return path


@pytest.fixture
def nsqd_process(start_nsqd_process: StartNsqdProcess) -> NsqdProcess:
    return start_nsqd_process(ANY_HTTP_PORT)


# The broker


@pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
async def test_nsqd_is_killed_and_restarted_under_load_again_and_again(
    start_nsqd_process: StartNsqdProcess, kind: str
) -> None:
    nsqd = start_nsqd_process(ANY_HTTP_PORT, *LOSES_NOTHING)
    address = address_of(nsqd)
    record = Record()
    async with (
        consuming(getattr(record, kind), nsqd_addresses=[address]) as consumer,
        Producer(address, CLIENT, reconnect_delay=SOON) as producer,
    ):
        publishing = Publishing(producer, TOPIC)
        for _ in range(KILL_COUNT):
            goal = len(record.bodies) + 200
            await until(lambda goal=goal: len(record.bodies) >= goal)  # type: ignore[misc]
            await asyncio.to_thread(nsqd.wait_until_known_on_disk, TOPIC, CHANNEL)
            nsqd.kill()
            nsqd = await asyncio.to_thread(
                start_nsqd_process, f"--tcp-address={address}", ANY_HTTP_PORT, *LOSES_NOTHING
            )
        await publishing.stop()
        await expect_all(consumer, lambda: set(record.bodies), publishing.confirmed)
        await expect_full_rdy(nsqd)


async def test_nsqlookupd_is_down_and_then_nsqd_as_well(tmp_path: Path, start_nsqd_process: StartNsqdProcess) -> None:
    async def work(running: AsyncExitStack) -> None:
        lookupd = running.enter_context(NsqlookupdProcess(log_path=tmp_path / "nsqlookupd-1.log"))
        flags = (f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1", *LOSES_NOTHING)
        nsqd = start_nsqd_process(ANY_HTTP_PORT, *flags)
        address = address_of(nsqd)
        record = Record()
        async with (
            consuming(record.in_loop, lookupd_addresses=[lookupd.http_address]) as consumer,
            Producer(address, CLIENT, reconnect_delay=SOON) as producer,
        ):
            publishing = Publishing(producer, TOPIC)
            await until(lambda: len(record.bodies) > 50)
            lookupd.kill()
            goal = len(record.bodies) + 100
            await until(lambda: len(record.bodies) > goal)
            await asyncio.to_thread(nsqd.wait_until_known_on_disk, TOPIC, CHANNEL)
            nsqd.kill()
            nsqd = await asyncio.to_thread(start_nsqd_process, f"--tcp-address={address}", ANY_HTTP_PORT, *flags)
            successor = NsqlookupdProcess(
                log_path=tmp_path / "nsqlookupd-2.log", tcp_port=lookupd.tcp_port, http_port=lookupd.http_port
            )
            await asyncio.to_thread(running.enter_context, successor)
            await publishing.stop()
            await expect_all(consumer, lambda: set(record.bodies), publishing.confirmed)
            await expect_full_rdy(nsqd)

    async with AsyncExitStack() as running:
        await work(running)


async def test_a_connection_is_half_open(nsqd_process: NsqdProcess) -> None:
    record, watch = Record(), Watch()
    async with (
        FaultyNetwork(nsqd_process.tcp_port) as network,
        consuming(
            record.in_loop, nsqd_addresses=[network.address], client_config=replace(CLIENT, observer=watch)
        ) as consumer,
        Producer(network.address, CLIENT, reconnect_delay=SOON) as producer,
    ):
        publishing = Publishing(producer, TOPIC)
        await until(lambda: len(record.bodies) > 50)
        network.freeze()
        goal = len(record.bodies) + 100
        await until(lambda: len(record.bodies) > goal)
        await publishing.stop()
        await expect_all(consumer, lambda: set(record.bodies), publishing.confirmed)
        assert watch.lost_count >= 1
        await expect_full_rdy(nsqd_process)


async def test_a_broker_that_answers_slowly_is_waited_for(nsqd_process: NsqdProcess) -> None:
    record, watch = Record(), Watch()
    patient = ClientConfig(output_buffer_timeout_ms=25, observer=watch)
    async with FaultyNetwork(nsqd_process.tcp_port) as network:
        network.delay_s = 0.2
        async with (
            consuming(record.in_loop, nsqd_addresses=[network.address], client_config=patient) as consumer,
            Producer(network.address, patient) as producer,
        ):
            await publish_all(producer, numbered(60))
            await expect_all(consumer, lambda: set(record.bodies), set(numbered(60)))
            assert len(record.bodies) == 60
            assert watch.lost_count == 0
            await expect_full_rdy(nsqd_process)


async def test_a_broker_that_answers_too_slowly_is_tried_again(nsqd_process: NsqdProcess) -> None:
    record = Record()
    async with (
        FaultyNetwork(nsqd_process.tcp_port) as network,
        consuming(record.in_loop, nsqd_addresses=[network.address]) as consumer,
        Producer(network.address, replace(CLIENT, request_timeout_s=0.2), reconnect_delay=SOON) as producer,
    ):
        await producer.publish(TOPIC, b"before")
        connection_count = network.connection_count
        network.delay_s = 1.0
        publishing = asyncio.create_task(publish_all(producer, numbered(20)))
        await until(lambda: network.connection_count > connection_count)
        network.delay_s = 0.0
        await publishing
        await expect_all(consumer, lambda: set(record.bodies), {b"before", *numbered(20)})
        await expect_full_rdy(nsqd_process)


# The handler


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("coroutine", "raise"),
        ("coroutine", "hang"),
        ("thread", "raise"),
        ("thread", "hang"),
        ("process", "raise"),
        ("process", "hang"),
        ("process", "be killed"),
    ],
)
async def test_handlers_raise_hang_or_crash_at_the_first_attempt(
    nsqd_process: NsqdProcess, folder: Path, kind: str, how: str
) -> None:
    record = Record()
    release = threading.Event()

    def is_to_obey(message: Message) -> bool:
        return message.attempts == 1 and not message.body.startswith(b"good")

    async def in_loop(message: Message) -> None:
        if is_to_obey(message):
            if how == "raise":
                raise KeyError("as told")
            await asyncio.Event().wait()
        record.bodies.append(message.body)

    def in_thread(message: Message) -> None:
        if is_to_obey(message):
            if how == "raise":
                raise KeyError("as told")
            release.wait(PATIENCE_S)
        record.bodies.append(message.body)

    in_process = functools.partial(misbehave_at_first, str(folder), how)
    handler = {"coroutine": in_loop, "thread": in_thread, "process": in_process}[kind]
    config = replace(CONSUMER, concurrency=4, handler_timeout_s=0.5, handlers_in=place_of(kind), auto_touch=True)
    bad, good = numbered(6), [b"good-%d" % number for number in range(10)]
    async with (
        consuming(handler, config, nsqd_addresses=[address_of(nsqd_process)]) as consumer,
        Producer(address_of(nsqd_process), CLIENT) as producer,
    ):
        await publish_all(producer, bad)
        await expect_all(consumer, lambda: set(record.bodies) | written_down(folder), set(bad))
        await publish_all(producer, good)  # each success is a step out of backoff
        await expect_all(consumer, lambda: set(record.bodies) | written_down(folder), set(good))
        await expect_full_rdy(nsqd_process)
        release.set()


async def test_handlers_hang_without_a_timeout_of_their_own(nsqd_process: NsqdProcess) -> None:
    """nsqd takes the messages back, and other handlers get them."""

    record = Record()

    async def handle(message: Message) -> None:
        if message.attempts == 1:
            await asyncio.Event().wait()
        record.bodies.append(message.body)

    config = replace(CONSUMER, concurrency=MAX_IN_FLIGHT, drain_timeout_s=0.1)
    async with consuming(handle, config, nsqd_addresses=[address_of(nsqd_process)]):
        async with Producer(address_of(nsqd_process), CLIENT) as producer:
            await publish_all(producer, numbered(6))
        await until(lambda: set(record.bodies) == set(numbered(6)))
        await expect_full_rdy(nsqd_process)


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_handlers_keep_the_cpu_busy_for_long_and_heartbeats_are_answered_meanwhile(
    nsqd_process: NsqdProcess, folder: Path, kind: str
) -> None:
    attempts: list[int] = []
    watch = Watch()

    def in_thread(message: Message) -> None:
        attempts.append(message.attempts)
        end_s = time.monotonic() + BUSY_S
        while time.monotonic() < end_s:
            pass
        (folder / message.body.decode()).touch()

    in_process = functools.partial(burn, str(folder), BUSY_S)
    config = replace(CONSUMER, concurrency=1, auto_touch=True, handlers_in=place_of(kind))
    async with consuming(
        in_thread if kind == "thread" else in_process,
        config,
        nsqd_addresses=[address_of(nsqd_process)],
        client_config=replace(CLIENT, msg_timeout_ms=2000, observer=watch),
    ) as consumer:
        async with Producer(address_of(nsqd_process), CLIENT) as producer:
            await publish_all(producer, numbered(2))  # the second waits for the first, and is touched as well
        await expect_all(consumer, lambda: written_down(folder), set(numbered(2)))
        assert watch.lost_count == 0
        assert consumer.statistics().received == 2
        await expect_full_rdy(nsqd_process)
    assert set(attempts) <= {1}


async def test_a_coroutine_keeps_the_event_loop_itself_busy_for_long(nsqd_process: NsqdProcess) -> None:
    """Then nobody can answer heartbeats: nsqd gives the connection up, and all begins anew."""

    record = Record()

    async def handle(message: Message) -> None:
        if message.attempts == 1:
            time.sleep(BUSY_S)
        record.bodies.append(message.body)

    async with consuming(
        handle, replace(CONSUMER, concurrency=1), nsqd_addresses=[address_of(nsqd_process)]
    ) as consumer:
        async with Producer(address_of(nsqd_process), CLIENT) as producer:
            await publish_all(producer, numbered(2))
        await expect_all(consumer, lambda: set(record.bodies), set(numbered(2)))
        await expect_full_rdy(nsqd_process)
