"""Numbered publishes over real sockets: stored once, however often they come, across connections and restarts."""

from __future__ import annotations

import json

import pytest

from tests.conftest import StartNsqd
from tests.support.auth_server import AuthServer, entry, grant
from tests.support.harness import NsqdHarness
from tests.support.http_client import HttpClient
from tests.support.raw_client import Client, mpub_body

pytestmark = pytest.mark.nsqd(journal=True)

PRODUCER = "5f0c0000000000000000000000000abc"
OTHER = "5f0c0000000000000000000000000abd"


def producer(nsqd: NsqdHarness, producer_id: str = PRODUCER) -> Client:
    client = nsqd.connect()
    assert client.identify(emberq_producer_id=producer_id)["emberq_idempotent"] is True
    return client


def pub(client: Client, sequence: int, body: bytes, *, topic: str = "t") -> None:
    client.command(b"PUB %b %d" % (topic.encode(), sequence), body)
    client.expect_ok()


def mpub(client: Client, sequence: int, *bodies: bytes) -> None:
    client.command(b"MPUB t %d" % sequence, mpub_body(bodies))
    client.expect_ok()


def bodies(nsqd: NsqdHarness, topic: str = "t") -> list[str]:
    """What is in the topic's journal."""
    answer = HttpClient(nsqd.http_address).get(f"/topic/peek?topic={topic}&offset=0&count=100")
    return [message["body"] for message in json.loads(answer.body)["messages"]]


# V2.


def test_a_batch_sent_again_is_confirmed_and_stored_once(nsqd: NsqdHarness) -> None:
    client = producer(nsqd)
    mpub(client, 1, b"a", b"b")
    mpub(client, 1, b"a", b"b")
    pub(client, 2, b"c")
    pub(client, 2, b"c")
    assert bodies(nsqd) == ["a", "b", "c"]
    assert nsqd.topic("t").message_count == 3


def test_a_batch_sent_again_over_another_connection_is_stored_once(nsqd: NsqdHarness) -> None:
    mpub(producer(nsqd), 1, b"a")
    again = producer(nsqd)
    mpub(again, 1, b"a")
    mpub(again, 2, b"b")
    assert bodies(nsqd) == ["a", "b"]


def test_a_batch_sent_again_after_a_restart_is_stored_once(nsqd: NsqdHarness) -> None:
    mpub(producer(nsqd), 7, b"a")
    nsqd.restart()
    again = producer(nsqd)
    mpub(again, 7, b"a")
    mpub(again, 8, b"b")
    assert bodies(nsqd) == ["a", "b"]


def test_producers_do_not_know_of_each_other(nsqd: NsqdHarness) -> None:
    mpub(producer(nsqd), 1, b"a")
    mpub(producer(nsqd, OTHER), 1, b"b")
    assert bodies(nsqd) == ["a", "b"]


def test_topics_do_not_know_of_each_other(nsqd: NsqdHarness) -> None:
    client = producer(nsqd)
    pub(client, 1, b"a", topic="t")
    pub(client, 1, b"b", topic="u")
    assert (bodies(nsqd), bodies(nsqd, "u")) == (["a"], ["b"])


def test_numbered_and_other_publishes_are_stored_and_confirmed_in_their_order(nsqd: NsqdHarness) -> None:
    client = producer(nsqd)
    client.send(
        b"PUB t\n\0\0\0\x01a" + b"PUB t 1\n\0\0\0\x01b" + b"PUB t\n\0\0\0\x01c" + b"PUB t 1\n\0\0\0\x01b" + b"NOP\n"
    )
    for _ in range(4):
        client.expect_ok()
    assert bodies(nsqd) == ["a", "b", "c"]


def test_without_an_agreement_a_number_means_nothing(nsqd: NsqdHarness, client: Client) -> None:
    pub(client, 1, b"a")
    pub(client, 1, b"a")
    assert bodies(nsqd) == ["a", "a"]


@pytest.mark.nsqd(journal=False)
def test_a_classic_topic_has_no_memory_of_numbers(nsqd: NsqdHarness) -> None:
    client = producer(nsqd)
    pub(client, 1, b"a")
    pub(client, 1, b"a")
    assert nsqd.topic("t").message_count == 2


def test_a_numbered_publish_counts_as_published_by_the_client(nsqd: NsqdHarness) -> None:
    client = producer(nsqd)
    mpub(client, 1, b"a", b"b")
    assert [stats.pub_counts for stats in nsqd.producers()] == [(("t", 2),)]


def test_a_numbered_publish_that_cannot_be_stored_is_refused_and_may_come_again(nsqd: NsqdHarness) -> None:
    nsqd.create_topic("t")
    nsqd.call(lambda: setattr(nsqd.broker.gate, "reason", "disk space low"))
    client = producer(nsqd)
    client.command(b"PUB t 1", b"a")
    client.expect_fatal("E_PUB_FAILED PUB failed disk space low")
    nsqd.call(lambda: setattr(nsqd.broker.gate, "reason", None))
    pub(producer(nsqd), 1, b"a")
    assert bodies(nsqd) == ["a"]


def test_numbered_publishes_are_authorized(start_nsqd: StartNsqd) -> None:
    with AuthServer(grant(entry(topic="^t$"))) as server:
        nsqd = start_nsqd(journal=True, auth_http_address=(server.address,))
        client = producer(nsqd)
        client.command(b"AUTH", b"secret")
        client.read_response()
        pub(client, 1, b"a")
        client.command(b"PUB other 2", b"a")
        client.expect_fatal('E_UNAUTHORIZED AUTH failed for PUB on "other" ""')
