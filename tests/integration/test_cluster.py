"""Three nsqds and two nsqlookupds as real processes, any of which may die at any time and is started again.

Meanwhile there is traffic. Each nsqd has a producer that publishes all the time; what nsqd answered by OK counts as
published, and nothing else does. A consumer knows only the nsqlookupds: it asks both every now and then and connects to
every nsqd they name, again and again if need be. Its duty is to receive all that was published, at least once:

    producer 0 ──> nsqd 0 ──┐
    producer 1 ──> nsqd 1 ──┼──> consumer ──/lookup──> nsqlookupd 0, nsqlookupd 1
    producer 2 ──> nsqd 2 ──┘

The nsqds lose nothing by a kill -9, not even what is in flight: see `LOSES_NOTHING`. None is killed before it has
written down that the topic exists. Whoever is started again gets the ports it had, as its successor would on a real
machine.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Self

import pytest

from tests.integration.listening import ANY_HTTP_PORT, port_of
from tests.support.http_client import HttpClient
from tests.support.nsqd_process import NsqdProcess
from tests.support.nsqlookupd_process import NsqlookupdProcess
from tests.support.raw_client import Client
from tests.support.waiting import wait_until

LOSES_NOTHING = ("--mem-queue-size=0", "--sync-every=1000000", "--sync-timeout=1h")
"""With these an nsqd delivers all it ever had again, when it is killed for the first time: messages go to disk before
they are confirmed, and how far it has read there is not saved. Saving it, as a sync does and reading a file to its end,
gives up the messages that are in flight then, should nsqd be killed right after it."""
NSQD_COUNT = 3
NSQLOOKUPD_COUNT = 2
TOPIC = "orders"
CHANNEL = "billing"
TOMBSTONE_LIFETIMES = ("1s", "1h")
"""Of the two nsqlookupds: one that a test can wait for, one that no test outlasts."""
PUBLISH_PACE_S = 0.005
"""Between two messages of a producer: traffic without end need not be heavy."""
LOOKUP_PACE_S = 0.05
"""Between two questions of the consumer; sixty seconds for one in production."""
RETRY_PACE_S = 0.02
"""Between two attempts to reach an nsqd that was killed."""
MAX_IN_FLIGHT = 10
"""Of the consumer at each nsqd."""
BACKLOG_COUNT = 30
"""Messages that wait at each nsqd when some are killed: more than are in flight, so that some are only on disk."""


class Cluster:
    """The daemons, each known by its number. `running` ends those that run at last."""

    def __init__(self, folder: Path, *, running: ExitStack) -> None:
        self._folder = folder
        self._running = running
        self._incarnations = count(1)
        # Those of a kind start side by side.
        self.nsqlookupds = [self._start_nsqlookupd(number) for number in range(NSQLOOKUPD_COUNT)]
        self._wait_until_serving(self.nsqlookupds)
        self.nsqds = [self._start_nsqd(number, ANY_HTTP_PORT) for number in range(NSQD_COUNT)]
        self._wait_until_serving(self.nsqds)
        self.nsqd_http_ports = [port_of(nsqd, "HTTP") for nsqd in self.nsqds]

    def restart_nsqlookupd(self, number: int) -> None:
        """Start the successor of one that was killed."""
        before = self.nsqlookupds[number]
        after = self._start_nsqlookupd(number, tcp_port=before.tcp_port, http_port=before.http_port)
        self._wait_until_serving([after])
        self.nsqlookupds[number] = after

    def restart_nsqd(self, number: int) -> None:
        """Start the successor of one that was killed, on the same data folder."""
        tcp_address = f"127.0.0.1:{self.nsqds[number].tcp_port}"
        http_address = f"127.0.0.1:{self.nsqd_http_ports[number]}"
        after = self._start_nsqd(number, f"--tcp-address={tcp_address}", f"--http-address={http_address}")
        self._wait_until_serving([after])
        self.nsqds[number] = after

    def create_topic_everywhere(self) -> None:
        """Have the topic and its channel at every nsqd, and wait until consumers could find them."""
        for port in self.nsqd_http_ports:
            http = HttpClient(("127.0.0.1", port))
            assert http.post(f"/topic/create?topic={TOPIC}").status == 200
            assert http.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}").status == 200
        self.wait_until_found(0, 1, 2)

    def tombstone_everywhere(self, number: int) -> None:
        """Hide an nsqd from those who look for the topic."""
        for nsqlookupd in self.nsqlookupds:
            assert nsqlookupd.http.post(f"/topic/tombstone?topic={TOPIC}&node={self._node(number)}").status == 200

    def tombstones_of(self, number: int, nsqlookupd: NsqlookupdProcess) -> list[bool]:
        """What an nsqlookupd says of an nsqd that it lists, for each of its topics."""
        nodes = nsqlookupd.http.get("/nodes").json()["producers"]
        (found,) = (node["tombstones"] for node in nodes if node["tcp_port"] == self.nsqds[number].tcp_port)
        assert isinstance(found, list)
        return found

    def found_through(self, nsqlookupd: NsqlookupdProcess) -> set[int]:
        """The numbers of the nsqds that consumers of the topic are told of."""
        ports = {producer["tcp_port"] for producer in nsqlookupd.producers(TOPIC)}
        return {number for number, nsqd in enumerate(self.nsqds) if nsqd.tcp_port in ports}

    def is_found_everywhere(self, *numbers: int) -> bool:
        """Whether both nsqlookupds tell of these nsqds, and of no others."""
        return all(self.found_through(nsqlookupd) == set(numbers) for nsqlookupd in self.nsqlookupds)

    def wait_until_found(self, *numbers: int) -> None:
        """Return when both nsqlookupds tell of these nsqds, and of no others."""
        wait_until(lambda: self.is_found_everywhere(*numbers))

    def kill_all(self) -> None:
        for nsqlookupd in self.nsqlookupds:
            nsqlookupd.kill()
        for nsqd in self.nsqds:
            nsqd.kill()

    def _node(self, number: int) -> str:
        """The name by which nsqlookupd's operators know an nsqd."""
        return f"127.0.0.1:{self.nsqd_http_ports[number]}"

    def _start_nsqlookupd(self, number: int, *, tcp_port: int = 0, http_port: int = 0) -> NsqlookupdProcess:
        started = NsqlookupdProcess(
            f"--tombstone-lifetime={TOMBSTONE_LIFETIMES[number]}",
            log_path=self._folder / f"nsqlookupd-{next(self._incarnations)}.log",
            tcp_port=tcp_port,
            http_port=http_port,
        )
        self._running.push(started)
        return started

    def _start_nsqd(self, number: int, *listen: str) -> NsqdProcess:
        data_path = self._folder / f"data-{number}"
        data_path.mkdir(exist_ok=True)
        started = NsqdProcess(
            *listen,
            *(f"--lookupd-tcp-address={nsqlookupd.tcp_address}" for nsqlookupd in self.nsqlookupds),
            "--broadcast-address=127.0.0.1",
            *LOSES_NOTHING,
            data_path=data_path,
            log_path=self._folder / f"nsqd-{next(self._incarnations)}.log",
        )
        self._running.push(started)
        return started

    @staticmethod
    def _wait_until_serving(started: Iterable[NsqlookupdProcess | NsqdProcess]) -> None:
        for daemon in started:
            daemon.__enter__()  # its end is in `running` already, should another of them fail


class Worker:
    """Something that is done over and over in a thread of its own. A context manager that ends it."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        """Runs in the thread until `_stopping` is set."""
        raise NotImplementedError


class Producer(Worker):
    """Publishes one message after the other to one nsqd, and waits for the answer to each."""

    def __init__(self, *, number: int, port: int) -> None:
        super().__init__()
        self._number = number
        self._port = port
        self._serial = count()
        self.published: list[bytes] = []
        """The bodies for which nsqd answered OK. One whose answer was lost may arrive too, but need not."""

    def _work(self) -> None:
        while not self._stopping.wait(RETRY_PACE_S):
            with suppress(OSError, EOFError):  # nsqd is down; the next turn may find it up again
                self._publish_until_disconnected()

    def _publish_until_disconnected(self) -> None:
        with closing(Client(("127.0.0.1", self._port))) as client:
            while not self._stopping.wait(PUBLISH_PACE_S):
                body = b"%d-%d" % (self._number, next(self._serial))
                client.pub(TOPIC, body)
                self.published.append(body)


class Consumer(Worker):
    """Asks the nsqlookupds where the topic is, subscribes there, and finishes all that comes."""

    def __init__(self, nsqlookupds: list[NsqlookupdProcess]) -> None:
        super().__init__()
        self._nsqlookupds = nsqlookupds  # the cluster's own list, in which successors appear
        self._clients: dict[int, Client] = {}  # by the port of the nsqd
        self.received: set[bytes] = set()
        self.may_receive = threading.Event()
        """While it is not set, the consumer does nothing at all."""
        self.may_receive.set()

    def _work(self) -> None:
        next_lookup_s = 0.0
        while not self._stopping.is_set():
            if not self.may_receive.wait(RETRY_PACE_S):
                continue
            if time.monotonic() >= next_lookup_s:
                self._look_up()
                next_lookup_s = time.monotonic() + LOOKUP_PACE_S
            self._receive()
        for client in self._clients.values():
            client.close()

    def _look_up(self) -> None:
        found: set[int] = set()
        for nsqlookupd in list(self._nsqlookupds):
            with suppress(OSError, HTTPException):  # down: the other one knows the same
                found |= {producer["tcp_port"] for producer in nsqlookupd.producers(TOPIC)}
        for port in found - self._clients.keys():
            with suppress(OSError, EOFError):  # just killed, and not missed yet
                self._clients[port] = _subscribed(port)

    def _receive(self) -> None:
        ports = {client.socket: port for port, client in self._clients.items()}
        readable, _, _ = select.select(list(ports), [], [], LOOKUP_PACE_S)
        for one in readable:
            port = ports[one]
            client = self._clients[port]
            try:
                message = client.read_message()
                self.received.add(message.body)
                client.fin(message)
            except (OSError, EOFError):
                client.close()
                del self._clients[port]


def _subscribed(port: int) -> Client:
    client = Client(("127.0.0.1", port))
    try:
        client.sub(TOPIC, CHANNEL)
        client.rdy(MAX_IN_FLIGHT)
    except (OSError, EOFError):
        client.close()
        raise
    return client


class Traffic:
    """A producer for each nsqd and one consumer. A context manager that ends them."""

    def __init__(self, cluster: Cluster) -> None:
        self._producers = [Producer(number=number, port=nsqd.tcp_port) for number, nsqd in enumerate(cluster.nsqds)]
        self._consumer = Consumer(cluster.nsqlookupds)
        self._running = ExitStack()

    def __enter__(self) -> Self:
        for worker in (self._consumer, *self._producers):
            self._running.enter_context(worker)
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.close()

    @contextmanager
    def backlog(self) -> Iterator[None]:
        """Within, the consumer stands still, and messages that it has not received wait at every nsqd."""
        self._consumer.may_receive.clear()
        goals = [len(producer.published) + BACKLOG_COUNT for producer in self._producers]

        def has_piled_up() -> bool:
            return all(len(producer.published) >= goal for producer, goal in zip(self._producers, goals, strict=True))

        wait_until(has_piled_up)
        yield
        self._consumer.may_receive.set()

    def wait_for_new_messages(self, *numbers: int) -> None:
        """Return when something has been published to, and received from, each of these nsqds from here on."""
        published_counts = {number: len(self._producers[number].published) for number in numbers}

        def has_arrived(number: int, published_count: int) -> bool:
            return not self._consumer.received.isdisjoint(self._producers[number].published[published_count:])

        wait_until(lambda: all(has_arrived(number, before) for number, before in published_counts.items()))

    def finish(self) -> None:
        """Publish no more, and return when everything that was published has been received."""
        for producer in self._producers:
            producer.__exit__()
        published = {body for producer in self._producers for body in producer.published}
        with suppress(AssertionError):
            wait_until(lambda: published <= self._consumer.received)
        missing = sorted(published - self._consumer.received)
        assert missing == [], f"{len(missing)} of {len(published)} messages are lost"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The whole cluster, without a topic."""
    with ExitStack() as running:
        yield Cluster(tmp_path, running=running)


@pytest.fixture
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """Traffic that has reached every nsqd, and its disk."""
    with Traffic(cluster) as running:
        running.wait_for_new_messages(0, 1, 2)
        for nsqd in cluster.nsqds:
            nsqd.wait_until_recoverable(TOPIC, CHANNEL)
        yield running


def test_every_message_arrives_although_each_nsqd_is_killed_in_turn(cluster: Cluster, traffic: Traffic) -> None:
    for number, others in ((0, (1, 2)), (1, (0, 2)), (2, (0, 1))):
        with traffic.backlog():
            cluster.nsqds[number].kill()
        cluster.wait_until_found(*others)
        traffic.wait_for_new_messages(*others)
        cluster.restart_nsqd(number)
        cluster.wait_until_found(0, 1, 2)  # it registers with both by itself
        traffic.wait_for_new_messages(0, 1, 2)
    traffic.finish()


def test_every_message_arrives_although_each_nsqlookupd_is_killed_in_turn(cluster: Cluster, traffic: Traffic) -> None:
    for number in range(NSQLOOKUPD_COUNT):
        cluster.nsqlookupds[number].kill()
        traffic.wait_for_new_messages(0, 1, 2)
        cluster.restart_nsqlookupd(number)
        cluster.wait_until_found(0, 1, 2)  # from every nsqd it learns anew what it had forgotten
        assert cluster.nsqlookupds[number].http.get(f"/channels?topic={TOPIC}").json() == {"channels": [CHANNEL]}
    traffic.wait_for_new_messages(0, 1, 2)
    traffic.finish()


def test_every_message_arrives_although_all_daemons_are_killed_at_once(cluster: Cluster, traffic: Traffic) -> None:
    with traffic.backlog():
        cluster.kill_all()
    for number in range(NSQD_COUNT):
        cluster.restart_nsqd(number)
    for number in range(NSQLOOKUPD_COUNT):
        cluster.restart_nsqlookupd(number)
    cluster.wait_until_found(0, 1, 2)
    traffic.wait_for_new_messages(0, 1, 2)
    traffic.finish()


def test_consumers_find_an_nsqd_that_comes_back_while_one_nsqlookupd_is_down(
    cluster: Cluster, traffic: Traffic
) -> None:
    with traffic.backlog():
        cluster.nsqlookupds[0].kill()
        cluster.nsqds[1].kill()
    cluster.restart_nsqd(1)
    traffic.wait_for_new_messages(0, 1, 2)
    traffic.finish()


def test_a_tombstoned_node_is_found_again_when_the_tombstone_expires_or_the_node_restarts(cluster: Cluster) -> None:
    expiring, lasting = cluster.nsqlookupds
    cluster.create_topic_everywhere()
    tombstoned_at_s = time.monotonic()
    cluster.tombstone_everywhere(1)
    hidden = cluster.found_through(expiring) == {0, 2} and cluster.tombstones_of(1, expiring) == [True]
    assert hidden or time.monotonic() - tombstoned_at_s >= 1.0, "not before its time, should the machine be so slow"
    wait_until(lambda: cluster.found_through(expiring) == {0, 1, 2})
    assert time.monotonic() - tombstoned_at_s >= 1.0
    assert cluster.found_through(lasting) == {0, 2}
    assert cluster.tombstones_of(1, lasting) == [True]
    cluster.nsqds[1].wait_until_known_on_disk(TOPIC, CHANNEL)
    cluster.nsqds[1].kill()
    cluster.restart_nsqd(1)
    cluster.wait_until_found(0, 1, 2)
    assert [cluster.tombstones_of(1, nsqlookupd) for nsqlookupd in (expiring, lasting)] == [[False], [False]]
