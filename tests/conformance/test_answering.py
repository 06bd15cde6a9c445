"""FIN, REQ and TOUCH, and what happens to messages that nobody answers (rows 91-108).

The reference looks for overdue messages every 100 ms, so a timeout or a deferral may end up to 100 ms late
(`LATENESS_MS`) but never early.
"""

from __future__ import annotations

import pytest

from tests.support.harness import NsqdHarness
from tests.support.raw_client import Client, Message

MS_NS = 1_000_000
LATENESS_MS = 100
UNKNOWN = Message(timestamp_ns=0, attempts=0, id=b"0123456789abcdef", body=b"")


def deliver(nsqd: NsqdHarness, **identify: int) -> tuple[Client, Message]:
    """A consumer of t/c with a window of one, and the message it just received."""
    consumer = nsqd.consumer("t", "c", rdy=1, **identify)
    nsqd.connect().pub("t", b"hello")
    return consumer, consumer.read_message()


def send_answer(client: Client, verb: str, message_id: bytes) -> None:
    client.command(verb.encode() + b" " + message_id + (b" 0" if verb == "REQ" else b""))


VERBS = ["FIN", "REQ", "TOUCH"]


@pytest.mark.conformance(91, 92)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("message_id", [b"", b"0123456789abcde", b"0123456789abcdef0"], ids=len)
def test_an_id_of_the_wrong_length_is_refused(nsqd: NsqdHarness, verb: str, message_id: bytes) -> None:
    consumer = nsqd.consumer("t", "c")
    send_answer(consumer, verb, message_id)
    consumer.expect_fatal("E_INVALID invalid message ID")


@pytest.mark.conformance(91, 99)
@pytest.mark.parametrize("command", ["FIN", "REQ", "REQ 0123456789abcdef", "TOUCH"])
def test_missing_parameters_are_refused(nsqd: NsqdHarness, command: str) -> None:
    consumer = nsqd.consumer("t", "c")
    consumer.command(command.encode())
    consumer.expect_fatal(f"E_INVALID {command.split()[0]} insufficient number of params")


@pytest.mark.conformance(93)
@pytest.mark.parametrize("verb", VERBS)
def test_answering_an_unknown_message_fails_and_goes_on(nsqd: NsqdHarness, verb: str) -> None:
    consumer = nsqd.consumer("t", "c")
    send_answer(consumer, verb, UNKNOWN.id)
    consumer.expect_error(f"E_{verb}_FAILED {verb} 0123456789abcdef failed ID not in flight")
    assert consumer.frames_until_now() == []


@pytest.mark.conformance(94)
@pytest.mark.parametrize("verb", VERBS)
def test_answering_the_message_of_another_consumer_fails_and_goes_on(nsqd: NsqdHarness, verb: str) -> None:
    _, message = deliver(nsqd)
    thief = nsqd.consumer("t", "c")
    send_answer(thief, verb, message.id)
    thief.expect_error(f"E_{verb}_FAILED {verb} {message.id.decode()} failed client does not own message")
    assert thief.frames_until_now() == []
    assert nsqd.channel("t", "c").in_flight_count == 1


@pytest.mark.conformance(95)
@pytest.mark.parametrize("verb", VERBS)
def test_answering_before_sub_is_refused(client: Client, verb: str) -> None:
    send_answer(client, verb, UNKNOWN.id)
    client.expect_fatal(f"E_INVALID cannot {verb} in current state")


def test_a_finished_message_is_gone(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    consumer.fin(message)
    assert consumer.frames_until_now() == []
    channel = nsqd.channel("t", "c")
    assert (channel.in_flight_count, channel.depth, channel.clients[0].finish_count) == (0, 0, 1)
    consumer.fin(message)
    consumer.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_many_messages_may_be_finished_in_one_packet(nsqd: NsqdHarness, client: Client, line_end: bytes) -> None:
    consumer = nsqd.consumer("t", "c", rdy=100)
    client.mpub("t", [b"x"] * 100)
    messages = consumer.messages_until_now()
    unknown_in_the_middle = [*messages[:50], UNKNOWN, *messages[50:]]
    consumer.send(b"".join(b"FIN " + message.id + line_end for message in unknown_in_the_middle))
    consumer.expect_error("E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    assert consumer.frames_until_now() == []
    assert nsqd.channel("t", "c").in_flight_count == 0


@pytest.mark.conformance(96)
def test_a_requeued_message_comes_again_at_once(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    consumer.req(message, 0)
    again = consumer.read_message()
    assert again == message._replace(attempts=2)
    assert nsqd.channel("t", "c").requeue_count == 1


@pytest.mark.conformance(97)
def test_a_negative_requeue_timeout_is_refused(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    consumer.req(message, -1)
    consumer.expect_fatal("E_INVALID REQ could not parse timeout -1")


@pytest.mark.conformance(98)
@pytest.mark.nsqd(max_req_timeout_ns=10_000 * MS_NS)
def test_a_requeue_beyond_the_limit_is_clamped(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    consumer.req(message, 20_000)
    assert consumer.messages_until_now() == []
    assert nsqd.channel("t", "c").deferred_count == 1
    nsqd.advance(ms=9_999)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=1 + LATENESS_MS)
    assert consumer.read_message().attempts == 2


@pytest.mark.conformance(100)
def test_an_unanswered_message_times_out(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd, msg_timeout=1000)
    consumer.rdy(0)
    consumer.frames_until_now()
    nsqd.advance(ms=999)
    assert nsqd.channel("t", "c").timeout_count == 0
    nsqd.advance(ms=1 + LATENESS_MS)
    channel = nsqd.channel("t", "c")
    assert (channel.timeout_count, channel.requeue_count, channel.depth) == (1, 0, 1)
    assert channel.clients[0].in_flight_count == 0
    consumer.fin(message)
    consumer.expect_error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")


@pytest.mark.conformance(101)
@pytest.mark.nsqd(msg_timeout_ns=150 * MS_NS)
def test_a_touched_message_has_its_time_again(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    nsqd.advance(ms=75)
    consumer.touch(message)
    assert consumer.frames_until_now() == []
    nsqd.advance(ms=149)
    consumer.fin(message)
    assert consumer.frames_until_now() == []
    channel = nsqd.channel("t", "c")
    assert (channel.timeout_count, channel.in_flight_count, channel.depth) == (0, 0, 0)


@pytest.mark.conformance(102)
@pytest.mark.nsqd(msg_timeout_ns=1000 * MS_NS, max_msg_timeout_ns=2500 * MS_NS)
def test_touch_cannot_reach_beyond_the_longest_timeout(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    for _ in range(4):
        nsqd.advance(ms=600)
        consumer.touch(message)
        assert consumer.frames_until_now() == []
    consumer.rdy(0)
    consumer.frames_until_now()
    nsqd.advance(ms=99)
    assert nsqd.channel("t", "c").timeout_count == 0
    nsqd.advance(ms=1 + LATENESS_MS)
    assert nsqd.channel("t", "c").timeout_count == 1


@pytest.mark.conformance(102)
@pytest.mark.nsqd(msg_timeout_ns=1000 * MS_NS, max_msg_timeout_ns=2500 * MS_NS)
def test_a_message_touched_to_its_limit_does_not_wait_for_younger_ones(nsqd: NsqdHarness) -> None:
    consumer, old = deliver(nsqd)
    for _ in range(2):
        nsqd.advance(ms=900)
        consumer.touch(old)
        consumer.frames_until_now()
    consumer.rdy(2)
    nsqd.connect().pub("t", b"young")
    consumer.read_message()
    consumer.touch(old)  # due at 2500, after the young one in order of answering but before it in time (2800)
    consumer.rdy(0)
    consumer.frames_until_now()
    nsqd.advance(ms=699)
    assert nsqd.channel("t", "c").timeout_count == 0
    nsqd.advance(ms=1 + LATENESS_MS)
    assert nsqd.channel("t", "c").timeout_count == 1
    consumer.fin(old)
    consumer.expect_error(f"E_FIN_FAILED FIN {old.id.decode()} failed ID not in flight")


@pytest.mark.conformance(103)
@pytest.mark.nsqd(msg_timeout_ns=100 * MS_NS)
def test_many_unanswered_messages_all_time_out(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=250)
    nsqd.connect().mpub("t", [b"x"] * 250)
    assert len(consumer.messages_until_now()) == 250
    consumer.rdy(0)
    consumer.frames_until_now()
    nsqd.advance(ms=400)
    channel = nsqd.channel("t", "c")
    assert (channel.in_flight_count, channel.timeout_count, channel.depth) == (0, 250, 250)


@pytest.mark.conformance(104)
def test_messages_of_a_lost_consumer_wait_for_their_timeout(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd, msg_timeout=2000)
    consumer.close()
    heir = nsqd.consumer("t", "c", rdy=1)
    nsqd.advance(ms=1999)
    assert heir.messages_until_now() == []
    nsqd.advance(ms=1 + LATENESS_MS)
    assert heir.read_message() == message._replace(attempts=2)


@pytest.mark.conformance(105, 106)
def test_emptying_a_channel_drops_all_it_holds(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=25)
    client.mpub("t", [b"x"] * 26)
    messages = consumer.messages_until_now()
    consumer.rdy(0)
    consumer.req(messages[-1], 100)
    consumer.frames_until_now()
    before = nsqd.channel("t", "c")
    assert (before.in_flight_count, before.deferred_count, before.depth) == (24, 1, 1)
    nsqd.empty_channel("t", "c")
    after = nsqd.channel("t", "c")
    assert (after.in_flight_count, after.deferred_count, after.depth) == (0, 0, 0)
    assert after.clients[0].in_flight_count == 0
    consumer.fin(messages[0])
    consumer.expect_error(f"E_FIN_FAILED FIN {messages[0].id.decode()} failed ID not in flight")


@pytest.mark.conformance(106)
def test_a_consumer_of_an_emptied_channel_has_its_whole_window_again(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=25)
    client.mpub("t", [b"old"] * 25)
    assert len(consumer.messages_until_now()) == 25
    nsqd.empty_channel("t", "c")
    client.mpub("t", [b"new"] * 25)
    assert [message.body for message in consumer.messages_until_now()] == [b"new"] * 25


@pytest.mark.conformance(107)
def test_a_deferred_message_is_delivered_when_its_time_has_come(nsqd: NsqdHarness, client: Client) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.advance(ms=6000)
    client.dpub("t", 200, b"later")
    nsqd.advance(ms=199)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=1 + LATENESS_MS)
    message = consumer.read_message()
    assert (message.body, message.attempts) == (b"later", 1)


@pytest.mark.conformance(108)
def test_a_deferred_message_on_a_new_channel_is_delivered_within_five_seconds(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    nsqd.connect().dpub("t", 200, b"later")
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=5300)
    assert consumer.read_message().body == b"later"


def test_a_message_requeued_with_a_delay_comes_after_it(nsqd: NsqdHarness) -> None:
    consumer, message = deliver(nsqd)
    consumer.req(message, 500)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=499)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=1 + LATENESS_MS)
    assert consumer.read_message() == message._replace(attempts=2)
