"""The consumers of tools: where they get their messages, and how they start and end."""

from __future__ import annotations

import asyncio

import pytest

from emberq.base.program import ToolError
from emberq.base.settings import OptionsError
from emberq.client.consumer import Consumer
from emberq.embedded import EmbeddedThread
from emberq.tools.client_flags import SourceOptions, check_addresses, consume, make_consumer
from tests.support.embedded import Broker, create
from tests.support.waiting import until
from tests.tools.rig import running


class Taker:
    """A pump that finishes what comes, and notes it by topic."""

    def __init__(self, *, failure: Exception | None = None) -> None:
        self.taken: dict[str, list[bytes]] = {}
        self._failure = failure

    async def __call__(self, topic: str, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            self.taken.setdefault(topic, []).extend(batch.bodies)
            if self._failure is not None:
                raise self._failure
            batch.finish()


def consumers_of(options: SourceOptions, *topics: str) -> dict[str, Consumer]:
    return {topic: make_consumer(options, topic=topic, channel="c", tool="nsq_tail") for topic in topics}


async def consume_topics(stop_asked: asyncio.Event, options: SourceOptions, pump: Taker, *topics: str) -> None:
    consumers = consumers_of(options, *topics)
    await consume(consumers, pump, nsqd_addresses=options.nsqd_tcp_address, stop_asked=stop_asked)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (SourceOptions(), "--nsqd-tcp-address or --lookupd-http-address required"),
        (
            SourceOptions(nsqd_tcp_address=("a:1",), lookupd_http_address=("b:1",)),
            "use --nsqd-tcp-address or --lookupd-http-address not both",
        ),
    ],
)
def test_exactly_one_kind_of_address_is_needed(options: SourceOptions, complaint: str) -> None:
    with pytest.raises(OptionsError, match=complaint):
        check_addresses(options)


@pytest.mark.parametrize(
    ("options", "topic", "channel", "complaint"),
    [
        (SourceOptions(nsqd_tcp_address=("a:1",)), "t!", "c", "invalid topic name"),
        (SourceOptions(nsqd_tcp_address=("a:1",)), "t", "c!", "invalid channel name"),
        (SourceOptions(lookupd_http_address=("noport",)), "t", "c", "missing port"),
        (SourceOptions(nsqd_tcp_address=("a:1",), max_in_flight=-1), "t", "c", "max_in_flight is -1"),
    ],
)
async def test_what_cannot_be_consumed_is_refused(
    options: SourceOptions, topic: str, channel: str, complaint: str
) -> None:
    with pytest.raises(OptionsError, match=complaint):
        make_consumer(options, topic=topic, channel=channel, tool="nsq_tail")


async def test_every_topic_is_consumed(broker: Broker) -> None:
    broker.publish("one", [b"1"])
    broker.publish("two", [b"2"])
    options = SourceOptions(nsqd_tcp_address=(broker.tcp_address,))
    taker = Taker()
    async with running(lambda stop: consume_topics(stop, options, taker, "one", "two")):
        await until(lambda: taker.taken == {"one": [b"1"], "two": [b"2"]})


async def test_nsqds_are_found_through_nsqlookupd(nsq: EmbeddedThread) -> None:
    create(nsq, "t", "c")
    Broker(nsq).publish("t", [b"1"])
    options = SourceOptions(lookupd_http_address=tuple(nsq.lookupd_http_addresses))
    taker = Taker()
    async with running(lambda stop: consume_topics(stop, options, taker, "t")):
        await until(lambda: taker.taken == {"t": [b"1"]})


async def test_an_nsqd_that_was_named_and_is_not_there_ends_it(nsq: EmbeddedThread) -> None:
    options = SourceOptions(nsqd_tcp_address=(nsq.nsqd_tcp_addresses[0], "127.0.0.1:1"))
    with pytest.raises(ToolError, match=r"cannot connect to nsqd 127\.0\.0\.1:1"):
        await consume_topics(asyncio.Event(), options, Taker(), "t")


async def test_a_stop_does_not_wait_for_an_nsqd_that_says_nothing() -> None:
    connected = asyncio.Event()
    server = await asyncio.start_server(lambda _reader, _writer: connected.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = SourceOptions(nsqd_tcp_address=(f"127.0.0.1:{port}",))
    async with running(lambda stop: consume_topics(stop, options, Taker(), "t")):
        await connected.wait()
        asked_at_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - asked_at_s < 2, "less than the time for connecting"
    server.close()


async def test_when_one_pump_fails_all_end_and_what_it_held_is_not_finished(broker: Broker) -> None:
    broker.publish("one", [b"1"])
    options = SourceOptions(nsqd_tcp_address=(broker.tcp_address,))
    with pytest.raises(ToolError, match="broken"):
        await consume_topics(asyncio.Event(), options, Taker(failure=ToolError("broken")), "one", "two")
    await until(lambda: broker.user_agents("two", "c") == broker.user_agents("one", "c") == [])
    assert broker.counts("one", "c").unfinished == 1
