"""What a statsd daemon receives (rows 273 to 275)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from emberq.base.clock import NS_PER_SECOND
from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.waiting import PATIENCE_S

INTERVAL_S = 3


class StatsdDaemon:
    """Receives pushes. What comes last in each tells that it is complete."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE_S)
        self._next_push_ms = INTERVAL_S * 1000
        self.address = "{}:{}".format(*self._socket.getsockname())

    def close(self) -> None:
        self._socket.close()

    def next_push(self, nsqd: NsqdHarness) -> list[bytes]:
        """Move time to the next push, and over the time in which its datagrams leave; all of them."""
        nsqd.advance(ms=self._next_push_ms)
        datagrams = [self._socket.recv(65_536)]
        nsqd.advance(ms=(INTERVAL_S - 1) * 1000)
        self._next_push_ms = 1000
        while b".mem.gc_runs:" not in datagrams[-1]:
            datagrams.append(self._socket.recv(65_536))
        return datagrams


@pytest.fixture
def statsd() -> Iterator[StatsdDaemon]:
    daemon = StatsdDaemon()
    yield daemon
    daemon.close()


@pytest.fixture
def nsqd(start_nsqd: StartNsqd, statsd: StatsdDaemon) -> NsqdHarness:
    return start_nsqd(
        statsd_address=statsd.address,
        statsd_interval_ns=INTERVAL_S * NS_PER_SECOND,
        broadcast_address="my.host",
        broadcast_http_port=14151,
        e2e_processing_latency_percentile=(1.0, 0.999, 0.95),
    )


def metrics(datagrams: list[bytes]) -> list[tuple[str, str]]:
    """Name and value of every line, in order."""
    lines = b"".join(datagrams).decode().splitlines()
    return [(name, value) for name, _, value in (line.partition(":") for line in lines)]


@pytest.mark.conformance(273)
def test_datagrams_are_small_and_their_keys_name_node_topic_and_metric(nsqd: NsqdHarness, statsd: StatsdDaemon) -> None:
    nsqd.create_channel("tt", "ch")
    nsqd.connect().pub("tt", b"hello")
    datagrams = statsd.next_push(nsqd)
    assert len(datagrams) > 1
    assert all(len(datagram) <= 508 and datagram.endswith(b"\n") for datagram in datagrams)
    pushed = metrics(datagrams)
    assert pushed[:4] == [
        ("nsq.my_host_14151.topic.tt.message_count", "1|c"),
        ("nsq.my_host_14151.topic.tt.message_bytes", "5|c"),
        ("nsq.my_host_14151.topic.tt.depth", "0|g"),
        ("nsq.my_host_14151.topic.tt.backend_depth", "0|g"),
    ]
    assert ("nsq.my_host_14151.topic.tt.channel.ch.depth", "1|g") in pushed
    assert ("nsq.my_host_14151.topic.tt.channel.ch.clients", "0|g") in pushed
    assert pushed[-1][0] == "nsq.my_host_14151.mem.gc_runs"


@pytest.mark.conformance(274)
def test_percentiles_are_named_by_whole_percent(nsqd: NsqdHarness, statsd: StatsdDaemon) -> None:
    consumer = nsqd.consumer("tt", "ch", rdy=1)
    nsqd.connect().pub("tt", b"hello")
    message = consumer.read_message()
    nsqd.advance(ms=500)
    consumer.fin(message)
    nsqd.settle()
    pushed = [(name, value) for name, value in metrics(statsd.next_push(nsqd)) if "e2e" in name]
    node = "nsq.my_host_14151.topic.tt"
    assert [name for name, _ in pushed] == [
        f"{node}.e2e_processing_latency_100",
        f"{node}.e2e_processing_latency_100",
        f"{node}.e2e_processing_latency_95",
        f"{node}.channel.ch.e2e_processing_latency_100",
        f"{node}.channel.ch.e2e_processing_latency_100",
        f"{node}.channel.ch.e2e_processing_latency_95",
    ]
    for _, value in pushed:
        latency_ns, kind = value.split("|")
        assert kind == "g"
        assert int(latency_ns) == pytest.approx(500_000_000, rel=0.01)


@pytest.mark.conformance(275)
def test_the_second_push_has_the_differences_of_counters(nsqd: NsqdHarness, statsd: StatsdDaemon) -> None:
    nsqd.create_channel("tt", "ch")
    producer = nsqd.connect()
    for body in (b"one", b"two", b"three"):
        producer.pub("tt", body)
    first = dict(metrics(statsd.next_push(nsqd)))
    producer.pub("tt", b"four")
    second = dict(metrics(statsd.next_push(nsqd)))
    topic = "nsq.my_host_14151.topic.tt"
    assert (first[f"{topic}.message_count"], second[f"{topic}.message_count"]) == ("3|c", "1|c")
    assert (first[f"{topic}.message_bytes"], second[f"{topic}.message_bytes"]) == ("11|c", "4|c")
    assert (first[f"{topic}.channel.ch.depth"], second[f"{topic}.channel.ch.depth"]) == ("3|g", "4|g")
