"""What is pushed to statsd, in which datagrams, and when."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.address import AddressError
from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.broker.stats import ChannelStats, ClientStats, LatencySummary, Percentile, TopicStats
from emberq.http.body import PORTION_STEPS
from emberq.nsqd.metrics import MemoryStats
from emberq.nsqd.statsd import Report, StatsdConfig, StatsdPusher, connect_udp, expand_prefix, gap_ns, pack
from tests.support.waiting import PATIENCE_S, turns, until

pytestmark = pytest.mark.loop("movable", "uvloop")

CHANNEL = ChannelStats(
    name="c",
    depth=3,
    backend_depth=1,
    in_flight_count=2,
    deferred_count=4,
    message_count=10,
    requeue_count=5,
    timeout_count=6,
    paused=False,
    zone_local_msg_count=0,
    region_local_msg_count=0,
    global_msg_count=0,
    clients=(ClientStats(), ClientStats()),
)
TOPIC = TopicStats(
    name="t",
    channels=(CHANNEL,),
    depth=7,
    backend_depth=8,
    message_count=10,
    message_bytes=100,
    paused=False,
)
MEMORY = MemoryStats(
    heap_objects=1,
    heap_idle_bytes=2,
    heap_in_use_bytes=3,
    heap_released_bytes=4,
    gc_pause_usec_100=5,
    gc_pause_usec_99=6,
    gc_pause_usec_95=7,
    next_gc_bytes=8,
    gc_total_runs=9,
)


def texts(lines: Iterable[bytes]) -> list[str]:
    decoded = [line.decode() for line in lines]
    assert all(line.endswith("\n") for line in decoded)
    return [line.rstrip("\n") for line in decoded]


# The prefix.


@pytest.mark.parametrize(
    ("prefix", "host", "expanded"),
    [
        ("nsq.%s", "my.host", "nsq.my_host_4151."),
        ("nsq.%s.", "my.host", "nsq.my_host_4151."),
        ("%s.%s", "h", "h_4151.h_4151."),
        ("nsq", "h", "nsq."),
        ("", "h", ""),
        ("nsq.%s", "::1", "nsq.[__1]_4151."),
    ],
)
def test_the_prefix_names_this_nsqd_and_ends_in_a_dot(prefix: str, host: str, expanded: str) -> None:
    assert expand_prefix(prefix, host=host, http_port=4151) == expanded


# The lines.


def test_every_metric_of_a_topic_its_channels_and_memory_is_reported_in_order() -> None:
    assert texts(Report(prefix="nsq.h_1.").lines([TOPIC], MEMORY)) == [
        "nsq.h_1.topic.t.message_count:10|c",
        "nsq.h_1.topic.t.message_bytes:100|c",
        "nsq.h_1.topic.t.depth:7|g",
        "nsq.h_1.topic.t.backend_depth:8|g",
        "nsq.h_1.topic.t.channel.c.message_count:10|c",
        "nsq.h_1.topic.t.channel.c.depth:3|g",
        "nsq.h_1.topic.t.channel.c.backend_depth:1|g",
        "nsq.h_1.topic.t.channel.c.in_flight_count:2|g",
        "nsq.h_1.topic.t.channel.c.deferred_count:4|g",
        "nsq.h_1.topic.t.channel.c.requeue_count:5|c",
        "nsq.h_1.topic.t.channel.c.timeout_count:6|c",
        "nsq.h_1.topic.t.channel.c.clients:2|g",
        "nsq.h_1.mem.heap_objects:1|g",
        "nsq.h_1.mem.heap_idle_bytes:2|g",
        "nsq.h_1.mem.heap_in_use_bytes:3|g",
        "nsq.h_1.mem.heap_released_bytes:4|g",
        "nsq.h_1.mem.gc_pause_usec_100:5|g",
        "nsq.h_1.mem.gc_pause_usec_99:6|g",
        "nsq.h_1.mem.gc_pause_usec_95:7|g",
        "nsq.h_1.mem.next_gc_bytes:8|g",
        "nsq.h_1.mem.gc_runs:9|c",
    ]


def test_percentiles_are_named_by_whole_percent() -> None:
    latency = LatencySummary(5, (Percentile(1.0, 30), Percentile(0.999, 20), Percentile(0.95, 10)))
    topic = replace(TOPIC, e2e=latency, channels=(replace(CHANNEL, e2e=latency),))
    assert [text for text in texts(Report(prefix="").lines([topic], None)) if "e2e" in text] == [
        "topic.t.e2e_processing_latency_100:30|g",
        "topic.t.e2e_processing_latency_100:20|g",
        "topic.t.e2e_processing_latency_95:10|g",
        "topic.t.channel.c.e2e_processing_latency_100:30|g",
        "topic.t.channel.c.e2e_processing_latency_100:20|g",
        "topic.t.channel.c.e2e_processing_latency_95:10|g",
    ]


def counters(lines: Iterable[bytes]) -> dict[str, int]:
    pairs = (text.removesuffix("|c").split(":") for text in texts(lines) if text.endswith("|c"))
    return {name: int(value) for name, value in pairs}


def test_counters_say_what_was_added_since_the_last_push() -> None:
    report = Report(prefix="")
    list(report.lines([TOPIC], MEMORY))
    channel = replace(CHANNEL, message_count=11, requeue_count=7, timeout_count=9)
    topic = replace(TOPIC, message_count=15, message_bytes=160, channels=(channel,))
    assert counters(report.lines([topic], replace(MEMORY, gc_total_runs=9))) == {
        "topic.t.message_count": 5,
        "topic.t.message_bytes": 60,
        "topic.t.channel.c.message_count": 1,
        "topic.t.channel.c.requeue_count": 2,
        "topic.t.channel.c.timeout_count": 3,
        "mem.gc_runs": 0,
    }


def test_a_topic_made_again_under_its_old_name_counts_from_zero() -> None:
    report = Report(prefix="")
    list(report.lines([TOPIC], None))
    again = replace(TOPIC, message_count=2, message_bytes=20, channels=())
    assert counters(report.lines([again], None)) == {"topic.t.message_count": 2, "topic.t.message_bytes": 20}


def test_a_topic_that_was_gone_for_a_push_is_forgotten() -> None:
    report = Report(prefix="")
    list(report.lines([TOPIC], None))
    list(report.lines([], None))
    assert counters(report.lines([TOPIC], None))["topic.t.message_count"] == 10


def test_ephemeral_topics_and_channels_can_be_left_out() -> None:
    ephemeral_channel = replace(CHANNEL, name="e#ephemeral")
    topics = [replace(TOPIC, channels=(CHANNEL, ephemeral_channel)), replace(TOPIC, name="u#ephemeral")]
    everything = texts(Report(prefix="").lines(topics, None))
    lasting = texts(Report(prefix="", with_ephemeral=False).lines(topics, None))
    assert "topic.t.channel.e#ephemeral.depth:3|g" in everything
    assert "topic.u#ephemeral.depth:7|g" in everything
    assert lasting == [text for text in everything if "#ephemeral" not in text]


# Datagrams.


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=40), st.integers(1, 100))
def test_lines_are_packed_whole_in_order_and_tightly(lines: list[bytes], max_bytes: int) -> None:
    waiting = deque(lines)
    for datagram in pack(lines, max_bytes=max_bytes):
        rebuilt = waiting.popleft()
        while waiting and len(rebuilt) + len(waiting[0]) <= max_bytes:
            rebuilt += waiting.popleft()
        assert datagram == rebuilt
    assert not waiting


def test_a_line_that_fits_exactly_does_not_start_a_datagram() -> None:
    assert list(pack([b"aaaa\n", b"bbbb\n", b"c\n"], max_bytes=10)) == [b"aaaa\nbbbb\n", b"c\n"]


def test_a_line_longer_than_a_datagram_travels_alone() -> None:
    assert list(pack([b"a\n", b"long line\n", b"b\n"], max_bytes=5)) == [b"a\n", b"long line\n", b"b\n"]


@pytest.mark.parametrize(
    ("interval_s", "count", "expected_ms"), [(61, 60, 1000), (3, 4, 500), (1, 10, 0), (0.5, 10, 0), (60, 0, 59_000)]
)
def test_datagrams_are_spread_over_the_interval_less_a_second(interval_s: float, count: int, expected_ms: int) -> None:
    gap = gap_ns(interval_ns=round(interval_s * NS_PER_SECOND), datagram_count=count)
    assert gap == expected_ms * NS_PER_MS


# Sending.


class Rig:
    """A pusher with two topics to report, and the statsd daemon it reports to."""

    def __init__(self, *, interval_s: float) -> None:
        self.listen(("127.0.0.1", 0))
        self.is_address_known = True
        self.clock = ManualClock()
        self.timers = Timers()
        self.topics: tuple[TopicStats, ...] = (replace(TOPIC, channels=()), replace(TOPIC, name="u", channels=()))
        self.read_count = 0
        self.pusher = StatsdPusher(
            StatsdConfig(
                address=f"127.0.0.1:{self.receiver.getsockname()[1]}",
                interval_ns=round(interval_s * NS_PER_SECOND),
                max_datagram_bytes=120,  # one topic
                with_memory=False,
            ),
            clock=self.clock,
            timers=self.timers,
            read_topics=self._read_topics,
            memory=lambda: MEMORY,
            connect=self._connect,
        )
        self.pusher.start()

    def _read_topics(self) -> Generator[None, None, tuple[TopicStats, ...]]:
        for _ in self.topics:
            self.read_count += 1
            yield
        return self.topics

    async def _connect(self, address: str) -> asyncio.DatagramTransport:
        if not self.is_address_known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await connect_udp(address)

    def listen(self, address: tuple[str, int]) -> None:
        self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver.setblocking(False)
        self.receiver.bind(address)

    def advance(self, *, ms: float) -> None:
        self.clock.advance(ms=ms)
        self.timers.run_due(self.clock.monotonic_ns())

    async def receive(self) -> bytes:
        loop = asyncio.get_running_loop()
        return await asyncio.wait_for(loop.sock_recv(self.receiver, 65536), PATIENCE_S)

    async def has_received(self) -> bool:
        await turns(10)
        try:
            self.receiver.recv(65536, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def interval_s() -> float:
    return 5


@pytest.fixture
async def rig(interval_s: float) -> AsyncIterator[Rig]:
    """A pusher of which nothing is left afterwards."""
    rig = Rig(interval_s=interval_s)
    yield rig
    await rig.pusher.stop()
    rig.receiver.close()
    rig.advance(ms=3_600_000)
    assert rig.timers.next_due_ns == NEVER


async def test_the_first_push_comes_after_one_interval(rig: Rig) -> None:
    rig.advance(ms=4999)
    assert not await rig.has_received()
    rig.advance(ms=1)
    assert (await rig.receive()).startswith(b"topic.t.message_count:10|c\n")


async def test_datagrams_leave_one_after_the_other(rig: Rig) -> None:
    rig.advance(ms=5000)
    await rig.receive()
    rig.advance(ms=1999)
    assert not await rig.has_received()
    rig.advance(ms=1)
    assert (await rig.receive()).startswith(b"topic.u.message_count:10|c\n")


async def test_a_late_loop_sends_all_that_should_have_left_by_then(rig: Rig) -> None:
    rig.topics = tuple(replace(TOPIC, name=name, channels=()) for name in "abcd")  # a second apart
    rig.advance(ms=5000)
    await rig.receive()
    rig.advance(ms=2500)
    assert (await rig.receive()).startswith(b"topic.b.")
    assert (await rig.receive()).startswith(b"topic.c.")
    assert not await rig.has_received()


async def test_pushes_go_on_with_what_was_added(rig: Rig) -> None:
    rig.advance(ms=5000)
    await rig.receive()
    rig.advance(ms=2000)
    await rig.receive()
    rig.topics = (replace(rig.topics[0], message_count=11), rig.topics[1])
    rig.advance(ms=3000)
    assert (await rig.receive()).startswith(b"topic.t.message_count:1|c\n")


async def test_thousands_of_topics_are_read_and_written_in_portions(rig: Rig) -> None:
    rig.topics = tuple(replace(TOPIC, name=f"t{number}", channels=()) for number in range(10 * PORTION_STEPS))
    rig.advance(ms=5000)
    while rig.read_count < len(rig.topics):
        before = rig.read_count
        await asyncio.sleep(0)
        assert rig.read_count - before <= PORTION_STEPS
    assert (await rig.receive()).startswith(b"topic.t0.")


@pytest.mark.parametrize("interval_s", [1])
async def test_an_interval_of_a_second_or_less_sends_all_at_once(rig: Rig) -> None:
    rig.advance(ms=1000)
    assert (await rig.receive()).startswith(b"topic.t.")
    assert (await rig.receive()).startswith(b"topic.u.")


async def test_a_push_whose_address_is_not_found_is_logged_and_its_counts_go_into_the_next(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "emberq"):
        rig.is_address_known = False
        rig.advance(ms=5000)
        await until(lambda: bool(caplog.records))
        rig.is_address_known = True
        rig.advance(ms=5000)
        assert (await rig.receive()).startswith(b"topic.t.message_count:10|c\n")
    (record,) = caplog.records
    assert record.getMessage().startswith("failed to create UDP socket to statsd(127.0.0.1:")
    assert record.getMessage().endswith("Name or service not known")


@pytest.mark.parametrize("address", ["statsd", "/var/run/statsd.sock", "h:99999", ""])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(AddressError):
        await connect_udp(address)


async def test_a_daemon_that_does_not_listen_is_no_problem(rig: Rig) -> None:
    address = rig.receiver.getsockname()
    rig.receiver.close()
    for _ in range(3):
        rig.advance(ms=5000)
        await turns(10)
        rig.advance(ms=2000)
    rig.listen(address)
    rig.advance(ms=3000)
    assert (await rig.receive()).startswith(b"topic.t.")


async def test_stopping_while_the_address_is_looked_up_sends_nothing(rig: Rig) -> None:
    rig.advance(ms=5000)
    await rig.pusher.stop()
    assert not await rig.has_received()


async def test_stopping_between_two_datagrams_sends_no_more(rig: Rig) -> None:
    rig.advance(ms=5000)
    await rig.receive()
    await rig.pusher.stop()
    rig.advance(ms=5000)
    assert not await rig.has_received()
