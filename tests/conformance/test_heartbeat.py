"""Heartbeats keep a connection alive, and their absence ends it (rows 109-112).

The server sends `_heartbeat_` every interval (half of the client timeout unless negotiated) and closes a connection
from which no command came for two intervals, or to which nothing could be written for one.
"""

from __future__ import annotations

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import ERROR, HEARTBEAT, RESPONSE, Client, Frame
from tests.support.waiting import wait_until

MS_NS = 1_000_000


@pytest.mark.conformance(109)
@pytest.mark.nsqd(client_timeout_ns=200 * MS_NS)
def test_a_heartbeat_comes_every_half_client_timeout(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c")
    nsqd.advance(ms=99)
    assert not consumer.has_input()
    nsqd.advance(ms=1)
    consumer.expect_heartbeat()


@pytest.mark.conformance(110)
@pytest.mark.nsqd(client_timeout_ns=200 * MS_NS)
def test_answered_heartbeats_keep_the_connection(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c")
    for _ in range(5):
        nsqd.advance(ms=100)
        consumer.expect_heartbeat()
        consumer.nop()
        nsqd.settle()
    assert consumer.frames_until_now() == []


@pytest.mark.conformance(111)
@pytest.mark.nsqd(client_timeout_ns=150 * MS_NS)
def test_unanswered_heartbeats_end_the_connection(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c")
    nsqd.advance(ms=149)
    consumer.expect_heartbeat()
    assert not consumer.has_input()
    nsqd.advance(ms=2)
    assert set(consumer.frames_until_eof()) <= {Frame(RESPONSE, HEARTBEAT)}
    assert nsqd.channel("t", "c").client_count == 0


@pytest.mark.conformance(112)
def test_a_producer_that_answers_its_heartbeats_goes_on(nsqd: NsqdHarness, client: Client) -> None:
    client.identify(heartbeat_interval=1000)
    client.pub("t", b"first")
    for _ in range(4):
        nsqd.advance(ms=1000)
        client.expect_heartbeat()
        client.nop()
        nsqd.settle()
    nsqd.advance(ms=100)
    for _ in range(10):
        client.pub("t", b"more")
    assert nsqd.topic("t").message_count == 11


def test_a_negotiated_interval_takes_the_place_of_the_default(nsqd: NsqdHarness, client: Client) -> None:
    client.identify(heartbeat_interval=1000)
    nsqd.advance(ms=999)
    assert not client.has_input()
    nsqd.advance(ms=1)
    client.expect_heartbeat()
    nsqd.advance(ms=1000)
    assert set(client.frames_until_eof()) <= {Frame(RESPONSE, HEARTBEAT)}


def test_the_deadline_covers_the_body_of_a_command(nsqd: NsqdHarness, client: Client) -> None:
    client.identify(heartbeat_interval=1000)
    client.send(b"PUB t\n\x00\x00\x00\x05he")
    nsqd.settle()
    nsqd.advance(ms=1500)
    client.expect_heartbeat()
    client.send(b"l")
    nsqd.settle()
    nsqd.advance(ms=600)
    cut_short = Frame(ERROR, b"E_BAD_MESSAGE PUB failed to read message body")
    assert set(client.frames_until_eof()) <= {Frame(RESPONSE, HEARTBEAT), cut_short}
    assert not nsqd.has_topic("t")


def test_a_consumer_that_does_not_read_is_cut_off_by_the_write_deadline(nsqd: NsqdHarness, client: Client) -> None:
    stuck = nsqd.connect(receive_buffer_bytes=4096)
    stuck.identify(heartbeat_interval=1000)
    stuck.sub("t", "c")
    stuck.rdy(2500)
    for _ in range(40):
        client.mpub("t", [b"x" * 100_000] * 5)
    nsqd.advance(ms=900)
    assert nsqd.channel("t", "c").client_count == 1
    stuck.nop()
    nsqd.settle()
    nsqd.advance(ms=1200)  # the kernel may have passed something on after the socket became full
    wait_until(lambda: nsqd.channel("t", "c").client_count == 0)
