"""PUB, MPUB and DPUB over a socket (rows 47-69)."""

from __future__ import annotations

import struct

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client, mpub_body


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


@pytest.fixture
def small_client(start_nsqd: StartNsqd) -> Client:
    """A connection to an nsqd that takes messages of 100 bytes and bodies of 1000."""
    return start_nsqd(max_msg_size=100, max_body_size=1000).connect()


@pytest.mark.conformance(47)
@pytest.mark.parametrize("size", [1, 95, 100])
def test_a_message_up_to_the_limit_is_taken(small_client: Client, size: int) -> None:
    small_client.pub("t", b"x" * size)


@pytest.mark.conformance(48)
def test_a_message_above_the_limit_is_refused(small_client: Client) -> None:
    small_client.command(b"PUB t", b"x" * 105)
    small_client.expect_fatal("E_BAD_MESSAGE PUB message too big 105 > 100")


@pytest.mark.conformance(49)
@pytest.mark.parametrize("size", [0, -5])
@pytest.mark.parametrize("command", ["PUB t", "DPUB t 10"])
def test_a_message_size_below_one_is_refused(client: Client, command: str, size: int) -> None:
    client.send(command.encode() + b"\n" + int32(size))
    client.expect_fatal(f"E_BAD_MESSAGE {command.split()[0]} invalid message body size {size}")


@pytest.mark.conformance(50, 67)
@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB", "DPUB t"])
def test_missing_parameters_are_refused(client: Client, command: str) -> None:
    client.command(command.encode())
    client.expect_fatal(f"E_INVALID {command.split()[0]} insufficient number of parameters")


@pytest.mark.conformance(51)
@pytest.mark.parametrize("command", ["PUB a$", "DPUB a$ 0"])
def test_a_bad_topic_is_refused_before_the_body(client: Client, command: str) -> None:
    client.command(command.encode())
    client.expect_fatal(f'E_BAD_TOPIC {command.split()[0]} topic name "a$" is not valid')


@pytest.mark.conformance(51)
def test_a_bad_topic_is_quoted(client: Client) -> None:
    client.command(b'PUB b\x01\xff\xc3\xa9"\\')
    client.expect_fatal(b'E_BAD_TOPIC PUB topic name "b\\x01\\xff\xc3\xa9\\"\\\\" is not valid')


@pytest.mark.conformance(52)
@pytest.mark.parametrize("command", ["PUB t", "DPUB t 10"])
@pytest.mark.parametrize(("sent", "missing"), [(int32(10) + b"abc", "body"), (b"\x00\x00", "body size")])
def test_a_message_cut_short_is_refused(client: Client, command: str, sent: bytes, missing: str) -> None:
    client.send(command.encode() + b"\n" + sent)
    client.half_close()
    client.expect_fatal(f"E_BAD_MESSAGE {command.split()[0]} failed to read message {missing}")


@pytest.mark.conformance(53)
def test_extra_parameters_are_ignored(client: Client) -> None:
    client.command(b"PUB t and more", b"x")
    client.expect_ok()


@pytest.mark.conformance(54)
def test_a_batch_within_the_limits_is_taken(small_client: Client) -> None:
    small_client.mpub("t", [b"x" * 100] * 5)


@pytest.mark.conformance(55)
def test_a_batch_above_the_body_limit_is_refused(small_client: Client) -> None:
    small_client.command(b"MPUB t", mpub_body([b"x" * 100] * 11))
    small_client.expect_error("E_BAD_BODY MPUB body too big 1148 > 1000")
    small_client.expect_closed()


@pytest.mark.conformance(56)
def test_an_empty_message_in_a_batch_is_refused_by_its_position(client: Client) -> None:
    client.command(b"MPUB t", mpub_body([b"x"] * 5 + [b""]))
    client.expect_fatal("E_BAD_MESSAGE MPUB invalid message(5) body size 0")


@pytest.mark.conformance(57)
def test_a_message_above_the_limit_in_a_batch_is_refused(small_client: Client) -> None:
    small_client.command(b"MPUB t", mpub_body([b"x" * 101] * 2))
    small_client.expect_fatal("E_BAD_MESSAGE MPUB message too big 101 > 100")


@pytest.mark.conformance(58)
@pytest.mark.parametrize("count", [0, -1, 1_048_576])
def test_a_batch_of_an_impossible_count_is_refused(client: Client, count: int) -> None:
    client.command(b"MPUB t", int32(count))
    client.expect_fatal(f"E_BAD_BODY MPUB invalid message count {count}")


@pytest.mark.conformance(59)
@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_below_one_is_refused(client: Client, size: int) -> None:
    client.send(b"MPUB t\n" + int32(size))
    client.expect_fatal(f"E_BAD_BODY MPUB invalid body size {size}")


@pytest.mark.conformance(60)
def test_a_bad_topic_of_a_batch_repeats_the_code(client: Client) -> None:
    client.command(b"MPUB a$")
    client.expect_fatal('E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a$" is not valid')


@pytest.mark.conformance(61)
def test_the_counts_in_a_batch_overrule_a_declared_size_too_small(nsqd: NsqdHarness, client: Client) -> None:
    client.send(b"MPUB t\n" + int32(4) + mpub_body([b"one", b"two"]))
    client.expect_ok()
    assert nsqd.topic("t").depth == 2


@pytest.mark.conformance(62)
def test_the_counts_in_a_batch_overrule_a_declared_size_too_large(nsqd: NsqdHarness, client: Client) -> None:
    client.send(b"MPUB t\n" + int32(100) + mpub_body([b"one", b"two"]) + b"NOP\nXX\n")
    client.expect_ok()
    client.expect_fatal("E_INVALID invalid command XX")
    assert nsqd.topic("t").depth == 2


@pytest.mark.conformance(63)
def test_an_invalid_batch_leaves_an_empty_topic(nsqd: NsqdHarness, client: Client) -> None:
    client.command(b"MPUB new", mpub_body([b"good", b""]))
    client.expect_fatal("E_BAD_MESSAGE MPUB invalid message(1) body size 0")
    topic = nsqd.topic("new")
    assert (topic.depth, topic.message_count) == (0, 0)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\x00", "E_BAD_BODY MPUB failed to read body size"),
        (int32(100) + b"\x00", "E_BAD_BODY MPUB failed to read message count"),
        (int32(100) + int32(2) + int32(1) + b"x", "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
        (int32(100) + int32(2) + int32(5) + b"x", "E_BAD_MESSAGE MPUB failed to read message body"),
    ],
)
def test_a_batch_cut_short_is_refused(client: Client, sent: bytes, error: str) -> None:
    client.send(b"MPUB t\n" + sent)
    client.half_close()
    client.expect_fatal(error)


@pytest.mark.conformance(64)
def test_a_deferred_message_waits_in_the_channel(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.create_channel("t", "c")
    client.dpub("t", 1000, b"later")
    nsqd.advance(ms=25)
    channel = nsqd.channel("t", "c")
    assert (channel.deferred_count, channel.message_count, channel.depth) == (1, 1, 0)


@pytest.mark.conformance(65)
@pytest.mark.parametrize("defer_ms", [3_600_001, 3_600_100])
def test_a_deferral_beyond_the_limit_is_refused(client: Client, defer_ms: int) -> None:
    client.command(b"DPUB t %d" % defer_ms, b"x")
    client.expect_fatal(f"E_INVALID DPUB timeout {defer_ms} out of range 0-3600000")


@pytest.mark.conformance(65)
def test_a_deferral_at_the_limit_is_taken(client: Client) -> None:
    client.dpub("t", 3_600_000, b"x")


@pytest.mark.conformance(66)
@pytest.mark.parametrize("defer", ["x", "-1", "+1", "0x1", "1.5"])
def test_a_deferral_that_is_no_number_is_refused(client: Client, defer: str) -> None:
    client.command(f"DPUB t {defer}".encode(), b"x")
    client.expect_fatal(f"E_INVALID DPUB could not parse timeout {defer}")


@pytest.mark.conformance(68)
def test_a_deferral_of_zero_is_no_deferral(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().dpub("t", 0, b"now")
    assert consumer.read_message().body == b"now"


@pytest.mark.conformance(69)
def test_a_consumer_may_publish_even_while_it_is_closing(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c")
    consumer.pub("other", b"subscribed")
    consumer.command(b"CLS")
    assert consumer.read_response() == b"CLOSE_WAIT"
    consumer.pub("other", b"closing")
    consumer.mpub("other", [b"closing", b"still"])
    assert nsqd.topic("other").message_count == 4


def test_ids_rise_and_never_repeat(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=2500)
    for _ in range(10):  # more than a moment has ids for
        client.mpub("t", [b"x"] * 500)
    ids: list[bytes] = []
    for _ in range(2):
        messages = consumer.read_messages(2500)
        ids += [message.id for message in messages]
        consumer.send(b"".join(b"FIN " + message.id + b"\n" for message in messages))
    assert ids == sorted(set(ids))


def test_counters_count_messages_and_body_bytes(nsqd: NsqdHarness, client: Client) -> None:
    client.pub("t", b"123")
    client.mpub("t", [b"1", b"22"])
    topic = nsqd.topic("t")
    assert (topic.message_count, topic.message_bytes, topic.depth) == (3, 6, 3)
