"""A publisher that sends ahead gets to read all answers, and the refusal behind them, before the connection ends."""

from __future__ import annotations

import pytest

from emberq.wire import command
from tests.support.harness import NsqdHarness
from tests.support.raw_client import ERROR, RESPONSE, Frame
from tests.support.waiting import wait_until

AHEAD = command.pub("t", bytes(1000)) * 2000
"""2 MB: more than nsqd reads from a socket at a time."""


@pytest.mark.nsqd(max_msg_size=10_000)
def test_what_was_sent_ahead_does_not_take_the_answers_from_the_client(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    client.send(command.pub("t", b"one") + command.pub("t", b"two") + command.pub("t", bytes(10_001)) + AHEAD)
    nsqd.settle()
    frames = client.frames_until_eof()
    assert frames[:2] == [Frame(RESPONSE, b"OK")] * 2
    assert [frame.type for frame in frames[2:]] == [ERROR]
    assert frames[2].data.startswith(b"E_BAD_MESSAGE")
    client.send(AHEAD)  # no one reads it, but it is no error yet
    assert nsqd.topic("t").message_count == 2
    client.close()
    wait_until(lambda: len(nsqd.nsqd._context.sessions) == 0)


@pytest.mark.nsqd(max_msg_size=10_000)
def test_a_publisher_that_does_not_leave_is_cut_off(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    client.pub("t", b"one")
    client.send(command.pub("t", bytes(10_001)))
    client.expect_fatal("E_BAD_MESSAGE PUB message too big 10001 > 10000")
    assert len(nsqd.nsqd._context.sessions) == 1
    nsqd.advance(ms=1_001)
    wait_until(lambda: len(nsqd.nsqd._context.sessions) == 0)


def test_a_client_that_has_published_nothing_is_gone_at_once(nsqd: NsqdHarness) -> None:
    client = nsqd.connect()
    client.send(b"WHAT\n")
    client.expect_fatal("E_INVALID invalid command WHAT")
    wait_until(lambda: len(nsqd.nsqd._context.sessions) == 0)


def test_a_consumer_that_is_refused_gives_back_what_it_held_at_once(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    consumer.command(b"SUB t c")
    consumer.expect_fatal("E_INVALID cannot SUB in current state")
    wait_until(lambda: len(nsqd.nsqd._context.sessions) == 0)
