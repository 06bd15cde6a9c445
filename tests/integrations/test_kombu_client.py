"""The NSQ client of a Kombu connection, without Kombu."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from emberq.client import ConnectError, RequestTimeoutError
from emberq.embedded import EmbeddedThread
from emberq.integrations.kombu_client import Arrival, BrokerSettings, QueueClient, nsq_name
from emberq.wire.parameter import is_valid_name
from tests.support.embedded import Broker
from tests.support.waiting import PATIENCE_S, wait_until

StartClient = Callable[..., QueueClient]


@pytest.fixture
def start_client(nsq: EmbeddedThread) -> Iterator[StartClient]:
    with ExitStack() as running:

        def start() -> QueueClient:
            settings = BrokerSettings(
                nsqd_addresses=nsq.nsqd_tcp_addresses, nsqd_http_addresses=nsq.nsqd_http_addresses
            )
            return running.enter_context(closing(QueueClient(settings)))

        yield start


def next_arrival(client: QueueClient) -> Arrival:
    """The next message. A sign without one is of an earlier message, which was taken before its sign came."""
    while (arrival := client.take()) is None:
        assert client.wait(PATIENCE_S)
    return arrival


@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize("name", ["celery", "celery@web-1.celery.pidbox", "x" * 64, "ä" * 300, "jobs#ephemeral", ""])
def test_any_name_becomes_one_that_nsq_takes(name: str, ephemeral: bool) -> None:
    made = nsq_name(name, ephemeral=ephemeral)
    assert is_valid_name(made)
    assert not ephemeral or made.endswith("#ephemeral")


def test_a_name_that_nsq_takes_stays() -> None:
    assert nsq_name("orders.paid_2-x") == "orders.paid_2-x"


def test_names_that_are_cut_stay_apart() -> None:
    assert len({nsq_name(name) for name in ("a:b", "a-b", "a@b", "x" * 65, "x" * 66)}) == 5


def test_nothing_comes_before_it_is_asked_for(start_client: StartClient, broker: Broker) -> None:
    client = start_client()
    subscription = client.subscribe("jobs", topic="jobs", channel="celery")
    client.publish("jobs", b"one")
    client.publish("jobs", b"two")
    wait_until(lambda: broker.counts("jobs", "celery").waiting == 2)
    client.set_max_in_flight(subscription, 1)
    first = next_arrival(client)
    assert broker.counts("jobs", "celery") == (1, 1, 0, 0)
    assert client.take() is None
    first.message.finish()
    second = next_arrival(client)
    second.message.finish()
    assert {first.message.body, second.message.body} == {b"one", b"two"}


def test_what_was_not_taken_goes_back_at_once(start_client: StartClient, broker: Broker) -> None:
    client, other = start_client(), start_client()
    subscription = client.subscribe("jobs", topic="jobs", channel="celery")
    client.publish("jobs", b"one")
    client.set_max_in_flight(subscription, 10)
    assert client.wait(PATIENCE_S)
    client.unsubscribe(subscription)
    other.set_max_in_flight(other.subscribe("jobs", topic="jobs", channel="celery"), 10)
    arrival = next_arrival(other)
    arrival.message.finish()
    assert arrival.message.attempts == 2


def test_several_messages_wake_once_and_are_all_taken(start_client: StartClient) -> None:
    client = start_client()
    for number in range(20):
        client.publish("jobs", b"%d" % number)
    client.set_max_in_flight(client.subscribe("jobs", topic="jobs", channel="celery"), 50)
    taken: list[bytes] = []
    while len(taken) < 20:
        assert client.wait(PATIENCE_S)
        while (arrival := client.take()) is not None:
            taken.append(arrival.message.body)
            arrival.message.finish()
    assert sorted(taken, key=int) == [b"%d" % number for number in range(20)]
    wait_until(lambda: client.take() is None and not client.wait(0))  # the last sign may come behind its messages


def test_a_queue_is_counted_emptied_and_deleted(start_client: StartClient, broker: Broker) -> None:
    client = start_client()
    broker.queue("jobs", "celery", [b"one", b"two"])
    assert client.depth("jobs") == 2
    client.empty("jobs", channel="celery")
    assert client.depth("jobs") == 0
    client.delete("jobs")
    assert broker.message_count("jobs") == 0
    assert client.depth("jobs") == 0
    client.empty("jobs", channel="celery")  # nothing is there to be emptied


def test_an_nsqd_that_cannot_be_reached_is_an_error() -> None:
    settings = BrokerSettings(nsqd_addresses=["127.0.0.1:1"], connect_timeout_s=0.3)
    with closing(QueueClient(settings)) as client, pytest.raises((ConnectError, RequestTimeoutError)):
        client.connect()
