"""When a message leaves the server (rows 85-88).

Messages to a consumer that could take more are held back to leave together: until the buffer is full, until
output_buffer_timeout has passed, until some other frame is sent, or until the consumer's window is full.
"""

from __future__ import annotations

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import HEARTBEAT, MESSAGE, RESPONSE, Client, Frame

BUFFER_BYTES = 256 * 1024


@pytest.mark.conformance(85)
@pytest.mark.nsqd(max_output_buffer_size=512 * 1024)
def test_a_message_smaller_than_the_buffer_waits_for_the_buffer_timeout(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10, output_buffer_size=BUFFER_BYTES, output_buffer_timeout=500)
    nsqd.settle()
    body = b"x" * (BUFFER_BYTES - 1024)
    nsqd.connect().pub("t", body)
    nsqd.advance(ms=499)
    assert not consumer.has_input()
    nsqd.advance(ms=1)
    assert consumer.read_message().body == body


@pytest.mark.conformance(86)
def test_without_a_buffer_timeout_a_message_leaves_with_the_heartbeat(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10, output_buffer_timeout=-1, heartbeat_interval=3000)
    nsqd.settle()
    client.pub("t", b"hello")
    nsqd.advance(ms=2900)
    assert not consumer.has_input()
    nsqd.advance(ms=100)
    first, second = consumer.read_frame(), consumer.read_frame()
    assert (first.type, second) == (MESSAGE, Frame(RESPONSE, HEARTBEAT))


@pytest.mark.conformance(87)
def test_without_a_buffer_a_message_leaves_at_once(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10, output_buffer_size=-1)
    client.pub("t", b"hello")
    assert consumer.read_message().body == b"hello"


@pytest.mark.conformance(88)
def test_the_last_message_of_a_window_leaves_at_once(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    client.pub("t", b"hello")
    assert consumer.read_message().body == b"hello"


def test_a_full_buffer_leaves_at_once(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1000, output_buffer_size=1024)
    nsqd.settle()
    client.mpub("t", [b"x" * 100] * 20)
    assert consumer.read_message().body == b"x" * 100


def test_any_answer_takes_the_held_messages_along(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10)
    nsqd.settle()
    client.pub("t", b"hello")
    consumer.command(b"PUB other", b"x")
    assert consumer.read_frame().type == MESSAGE
    consumer.expect_ok()


def test_closing_the_window_releases_the_held_messages(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10)
    nsqd.settle()
    client.pub("t", b"hello")
    consumer.rdy(0)
    assert consumer.read_message().body == b"hello"
