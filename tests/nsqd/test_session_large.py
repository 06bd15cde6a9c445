"""Messages of a megabyte over real sockets: they are received where they stay."""

from __future__ import annotations

import pytest

from emberq.wire import command
from tests.support.harness import NsqdHarness

BODY = bytes(number * number % 251 for number in range(200_000)) * 5

pytestmark = pytest.mark.nsqd(max_msg_size=2_000_000)


@pytest.mark.parametrize("first_bytes", [1, 100, 300_000, 999_000])
def test_a_large_message_arrives_whole_however_it_is_sent(nsqd: NsqdHarness, first_bytes: int) -> None:
    client = nsqd.connect()
    stream = command.pub("t", BODY)
    client.send(stream[:first_bytes])
    nsqd.settle()
    client.send(stream[first_bytes:])
    client.expect_ok()
    assert nsqd.consumer("t", "c", rdy=1).read_message().body == BODY


def test_commands_go_on_behind_a_large_message(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    bodies = [BODY, b"small", BODY[:-1], b"", BODY]
    client.send(b"".join(command.pub("t", body) if body else b"NOP\n" for body in bodies))
    for _ in range(4):
        client.expect_ok()
    consumer = nsqd.consumer("t", "c", rdy=4)
    assert sorted(message.body for message in consumer.read_messages(4)) == sorted(filter(None, bodies))


def test_a_large_message_that_is_deferred(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    client.send(b"DPUB t 100\n" + command.pub("t", BODY)[6:])
    client.expect_ok()
    consumer = nsqd.consumer("t", "c", rdy=1)
    assert consumer.messages_until_now() == []
    nsqd.advance(ms=100)
    assert consumer.read_message().body == BODY


def test_a_connection_that_is_cut_within_a_large_message_leaves_nothing(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    client.send(command.pub("t", BODY)[:500_000])
    nsqd.settle()
    client.close()
    nsqd.connect().pub("t", b"next")
    assert nsqd.consumer("t", "c", rdy=2).messages_until_now()[0].body == b"next"
