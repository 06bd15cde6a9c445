"""FIN, REQ and TOUCH of messages that the client does not hold: each is refused, in the order of the commands."""

from __future__ import annotations

import pytest

from emberq.nsqd.subscription import MAX_REFUSED_COUNT
from tests.support.harness import NsqdHarness
from tests.support.raw_client import ERROR, Client

MANY = 5 * MAX_REFUSED_COUNT


@pytest.fixture
def consumer(nsqd: NsqdHarness) -> Client:
    return nsqd.consumer("t", "c", rdy=1)


def fin(number: int) -> bytes:
    return b"FIN %016d\n" % number


def expect_refusals(consumer: Client, count: int) -> None:
    for number in range(count):
        consumer.expect_error(f"E_FIN_FAILED FIN {number:016d} failed ID not in flight")


def test_refusals_come_in_the_order_of_the_commands_and_before_later_answers(consumer: Client) -> None:
    unknown = b"0123456789abcdef"
    consumer.send(b"FIN %b\nREQ %b 0\nTOUCH %b\n%bPUB u\n\0\0\0\1x" % (unknown, unknown, unknown, fin(1)))
    for command, name in (("FIN", unknown), ("REQ", unknown), ("TOUCH", unknown), ("FIN", b"%016d" % 1)):
        consumer.expect_error(f"E_{command}_FAILED {command} {name.decode()} failed ID not in flight")
    consumer.expect_ok()


@pytest.mark.parametrize("count", [1, MANY])
def test_a_client_that_sends_no_more_is_told_before_the_connection_ends(consumer: Client, count: int) -> None:
    consumer.send(b"".join(map(fin, range(count))))
    consumer.half_close()
    expect_refusals(consumer, count)
    consumer.expect_eof()


def test_what_failed_before_an_invalid_command_is_told_first(consumer: Client) -> None:
    consumer.send(fin(0) + b"NONSENSE\n")
    expect_refusals(consumer, 1)
    assert consumer.read_frame().type == ERROR
    consumer.expect_closed()


def test_many_refusals_keep_their_order_and_the_commands_behind_them_wait(consumer: Client) -> None:
    consumer.send(b"".join(map(fin, range(MANY))) + b"PUB u\n\0\0\0\1x")
    expect_refusals(consumer, MANY)
    consumer.expect_ok()


@pytest.mark.parametrize("command", ["REQ {} 0", "TOUCH {}"])
def test_many_commands_of_other_kinds_are_refused_in_order_too(consumer: Client, command: str) -> None:
    lines = [command.format(f"{number:016d}") + "\n" for number in range(MANY)]
    consumer.send("".join(lines).encode() + b"PUB u\n\0\0\0\1x")
    verb = command.split()[0]
    for number in range(MANY):
        consumer.expect_error(f"E_{verb}_FAILED {verb} {number:016d} failed ID not in flight")
    consumer.expect_ok()


def test_a_client_that_leaves_with_many_refusals_to_come_harms_no_other(nsqd: NsqdHarness, consumer: Client) -> None:
    consumer.send(b"".join(map(fin, range(MANY))))
    consumer.reset()
    bystander = nsqd.connect()
    bystander.pub("t", b"x")
    assert nsqd.consumer("t", "c", rdy=1).read_message().body == b"x"
