"""SUB, RDY and CLS: who receives what, and how much at a time (rows 70-84, 89, 90).

RDY is a window, not a credit: messages are pushed while fewer than RDY are in flight to the connection, and the
window stays open until it is changed.
"""

from __future__ import annotations

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.conformance(70)
def test_a_waiting_message_is_delivered(nsqd: NsqdHarness, client: Client) -> None:
    client.pub("t", b"hello")
    message = nsqd.consumer("t", "c", rdy=1).read_message()
    assert (message.body, message.attempts) == (b"hello", 1)
    assert message.timestamp_ns == nsqd.clock.wall_ns()
    assert len(message.id) == 16
    assert message.id == b"%016x" % int(message.id, 16)


@pytest.mark.conformance(71)
def test_every_channel_receives_its_own_copy(nsqd: NsqdHarness, client: Client) -> None:
    consumers = [nsqd.consumer("t", name, rdy=1) for name in ("left", "right")]
    client.pub("t", b"hello")
    left, right = [consumer.read_message() for consumer in consumers]
    assert left == right
    assert (left.body, left.attempts) == (b"hello", 1)


@pytest.mark.conformance(72)
@pytest.mark.parametrize("command", [b"SUB", b"SUB t"])
def test_sub_needs_topic_and_channel(client: Client, command: bytes) -> None:
    client.command(command)
    client.expect_fatal("E_INVALID SUB insufficient number of parameters")


@pytest.mark.conformance(73, 74)
@pytest.mark.parametrize(
    ("command", "error"),
    [
        (b"SUB a$ c", 'E_BAD_TOPIC SUB topic name "a$" is not valid'),
        (b"SUB t c$", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
        (b"SUB t  c", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        (b"SUB  t c", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    ],
)
def test_sub_refuses_bad_names(client: Client, command: bytes, error: str) -> None:
    client.command(command)
    client.expect_fatal(error)


@pytest.mark.conformance(75)
def test_a_connection_subscribes_once(client: Client) -> None:
    client.sub("t", "c")
    client.command(b"SUB t d")
    client.expect_fatal("E_INVALID cannot SUB in current state")


@pytest.mark.conformance(76, 90)
@pytest.mark.parametrize("command", ["RDY 1", "CLS"])
def test_what_needs_a_subscription_is_refused_before_it(client: Client, command: str) -> None:
    client.command(command.encode())
    client.expect_fatal(f"E_INVALID cannot {command.split()[0]} in current state")


@pytest.mark.conformance(77)
def test_rdy_beyond_the_limit_is_refused(start_nsqd: StartNsqd) -> None:
    consumer = start_nsqd(max_rdy_count=50).consumer("t", "c")
    consumer.rdy(50)
    assert consumer.frames_until_now() == []
    consumer.rdy(51)
    consumer.expect_fatal("E_INVALID RDY count 51 out of range 0-50")


@pytest.mark.conformance(78, 79)
@pytest.mark.parametrize(
    ("count", "error"),
    [
        ("-1", "could not parse count -1"),
        ("x", "could not parse count x"),
        ("18446744073709551615", "count -1 out of range 0-2500"),
    ],
)
def test_rdy_refuses_what_is_not_a_count(nsqd: NsqdHarness, count: str, error: str) -> None:
    consumer = nsqd.consumer("t", "c")
    consumer.command(f"RDY {count}".encode())
    consumer.expect_fatal(f"E_INVALID RDY {error}")


@pytest.mark.conformance(80)
@pytest.mark.parametrize(("command", "window"), [(b"RDY", 1), (b"RDY ", 0), (b"RDY 2 and more", 2)])
def test_rdy_defaults_to_one_and_an_empty_count_is_none(nsqd: NsqdHarness, command: bytes, window: int) -> None:
    consumer = nsqd.consumer("t", "c")
    consumer.command(command)
    nsqd.connect().mpub("t", numbered(5))
    assert len(consumer.messages_until_now()) == window


@pytest.mark.conformance(81)
def test_rdy_is_a_window_that_fin_moves(nsqd: NsqdHarness, client: Client) -> None:
    client.mpub("t", numbered(5))
    consumer = nsqd.consumer("t", "c", rdy=2)
    first, second = consumer.messages_until_now()
    assert {first.body, second.body} < set(numbered(5))
    consumer.fin(first)
    (third,) = consumer.messages_until_now()
    assert third.body not in {first.body, second.body}


@pytest.mark.conformance(82)
def test_rdy_zero_stops_the_flow(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=2)
    client.pub("t", b"before")
    message = consumer.read_message()
    consumer.rdy(0)
    consumer.fin(message)
    assert consumer.messages_until_now() == []
    client.pub("t", b"after")
    assert consumer.messages_until_now() == []
    consumer.rdy(1)
    assert consumer.read_message().body == b"after"


@pytest.mark.conformance(83)
@pytest.mark.nsqd(max_channel_consumers=1)
def test_a_channel_takes_no_more_consumers_than_allowed(nsqd: NsqdHarness) -> None:
    nsqd.consumer("t", "c")
    second = nsqd.connect()
    second.command(b"SUB t c")
    second.expect_fatal("E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1")
    nsqd.consumer("t", "d")


@pytest.mark.nsqd(requeue_on_disconnect=True)
def test_what_a_lost_connection_held_can_be_requeued_at_once(nsqd: NsqdHarness) -> None:
    nsqd.create_channel("t", "c")
    nsqd.connect().mpub("t", numbered(10))
    crashed = nsqd.consumer("t", "c", rdy=10)
    held = [crashed.read_message() for _ in range(10)]
    crashed.fin(held[3])
    crashed.close()
    other = nsqd.consumer("t", "c", rdy=20)
    again = [other.read_message() for _ in range(9)]
    assert {message.id for message in again} == {message.id for message in held} - {held[3].id}
    assert {message.attempts for message in again} == {2}


@pytest.mark.conformance(84)
@pytest.mark.nsqd(max_rdy_count=10_000)
def test_a_sampling_consumer_discards_the_rest(nsqd: NsqdHarness) -> None:
    producer = nsqd.connect()
    nsqd.create_channel("t", "c")
    for _ in range(10):
        producer.mpub("t", numbered(1000))
        nsqd.advance(ms=2)  # a millisecond has 4096 message ids
    consumer = nsqd.consumer("t", "c", rdy=10_000, sample_rate=42)
    received = len(consumer.messages_until_now())
    channel = nsqd.channel("t", "c")
    assert 3700 < received < 4700
    assert (channel.in_flight_count, channel.depth) == (received, 0)


@pytest.mark.conformance(89)
def test_cls_ends_the_flow_but_not_the_answers(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    client.mpub("t", [b"first", b"second"])
    message = consumer.read_message()
    consumer.command(b"CLS")
    assert consumer.read_response() == b"CLOSE_WAIT"
    consumer.rdy(5)
    consumer.fin(message)
    assert consumer.frames_until_now() == []
    channel = nsqd.channel("t", "c")
    assert (channel.in_flight_count, channel.depth) == (0, 1)
    consumer.command(b"CLS")
    consumer.expect_fatal("E_INVALID cannot CLS in current state")


def test_ready_consumers_of_a_channel_share_its_messages(nsqd: NsqdHarness, client: Client) -> None:
    consumers = [nsqd.consumer("t", "c", rdy=5) for _ in range(2)]
    for consumer in consumers:
        consumer.frames_until_now()
    client.mpub("t", numbered(10))
    bodies = [message.body for consumer in consumers for message in consumer.messages_until_now()]
    assert sorted(bodies) == numbered(10)


def test_a_fatal_error_follows_the_messages_sent_before_it(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=10)
    client.pub("t", b"hello")
    consumer.command(b"RDY x")
    assert consumer.read_message().body == b"hello"
    consumer.expect_fatal("E_INVALID RDY could not parse count x")
