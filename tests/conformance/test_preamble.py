"""The first bytes of a connection, the framing of commands, and names (rows 1-16).

A connection opens with four bytes of magic, which are not answered. Then come command lines of at most 16 KiB, ended
by LF or CR LF, their items separated by exactly one space.
"""

from __future__ import annotations

import pytest

from tests.conftest import StartNsqd
from tests.support.harness import NsqdHarness
from tests.support.raw_client import HEARTBEAT, RESPONSE, Client, Frame
from tests.support.waiting import wait_until

VALID_NAMES = ("test", "test-with_period.", "test#ephemeral", "x" * 64)
INVALID_NAMES = ("test:ephemeral", "#ephemeral", "x" * 65)


@pytest.mark.conformance(1)
def test_a_wrong_magic_is_refused(nsqd: NsqdHarness) -> None:
    client = nsqd.connect(magic=b"XXXX")
    client.expect_fatal("E_BAD_PROTOCOL")


@pytest.mark.conformance(2)
def test_a_silent_connection_stays_open_until_its_read_deadline(nsqd: NsqdHarness, client: Client) -> None:
    nsqd.settle()
    nsqd.advance(ms=29_900)
    assert not client.has_input()
    nsqd.advance(ms=30_000)
    client.expect_heartbeat()
    assert not client.has_input()
    nsqd.advance(ms=200)
    assert set(client.frames_until_eof()) <= {Frame(RESPONSE, HEARTBEAT)}


@pytest.mark.conformance(2)
def test_an_unfinished_magic_may_take_its_time(nsqd: NsqdHarness) -> None:
    client = nsqd.connect(magic=b"  ")
    nsqd.settle()
    nsqd.advance(ms=9_000)  # in NSQ it may take for ever
    assert not client.has_input()
    client.send(b"V2")
    client.pub("t", b"at last")


@pytest.mark.conformance(3)
def test_a_connection_closed_within_its_magic_harms_nobody(nsqd: NsqdHarness) -> None:
    nsqd.connect(magic=b"  ").close()
    half_closed = nsqd.connect(magic=b" ")
    half_closed.half_close()
    half_closed.expect_eof()
    nsqd.connect().pub("t", b"still here")


@pytest.mark.conformance(4, 5)
@pytest.mark.parametrize("lines", [b"\n\n", b"\r\n", b"\n", b" \n"], ids=["two", "crlf", "one", "space"])
def test_an_empty_line_is_an_invalid_command(nsqd: NsqdHarness, client: Client, lines: bytes) -> None:
    client.send(lines)
    client.expect_fatal("E_INVALID invalid command ")
    nsqd.connect().pub("t", b"still here")


@pytest.mark.conformance(6, 7)
@pytest.mark.parametrize("name", ["ASDF", "nop", "PUBX"])
def test_an_unknown_command_is_refused_by_name(client: Client, name: str) -> None:
    client.command(name.encode())
    client.expect_fatal(f"E_INVALID invalid command {name}")


@pytest.mark.conformance(8)
def test_parameters_that_a_command_does_not_know_are_ignored(client: Client) -> None:
    client.send(b"NOP foo bar\r\n")
    assert client.frames_until_now() == []


@pytest.mark.conformance(9)
def test_a_line_longer_than_the_buffer_closes_without_a_word(client: Client) -> None:
    client.send(b"x" * 20_000 + b"\n")
    client.expect_closed()


@pytest.mark.conformance(9)
def test_a_line_that_just_fits_the_buffer_is_read(client: Client) -> None:
    client.send(b"NOP " + b"x" * (16_384 - 5) + b"\n")
    assert client.frames_until_now() == []


@pytest.mark.conformance(10)
def test_an_invalid_command_is_echoed_byte_for_byte(client: Client) -> None:
    client.command(b"\xff\x00")
    client.expect_fatal(b"E_INVALID invalid command \xff\x00")


@pytest.mark.conformance(11)
def test_half_a_command_before_the_end_is_forgotten(client: Client) -> None:
    client.send(b"PUB to")
    client.half_close()
    client.expect_eof()


@pytest.mark.conformance(12)
def test_an_error_that_cannot_be_delivered_ends_the_connection(nsqd: NsqdHarness) -> None:
    consumer = nsqd.consumer("t", "c", rdy=1)
    consumer.send(b"ASDF\n" * 100)
    consumer.reset()
    wait_until(lambda: nsqd.channel("t", "c").client_count == 0)
    nsqd.connect().pub("t", b"still here")


@pytest.mark.conformance(13, 15)
@pytest.mark.parametrize("name", VALID_NAMES)
def test_a_valid_name_serves_for_topic_and_channel(nsqd: NsqdHarness, name: str) -> None:
    nsqd.connect().pub(name, b"x")
    nsqd.connect().sub(name, name)


@pytest.mark.conformance(14, 15, 16)
@pytest.mark.parametrize("name", INVALID_NAMES)
def test_an_invalid_name_is_refused_for_topic_and_channel(nsqd: NsqdHarness, name: str) -> None:
    publisher = nsqd.connect()
    publisher.command(f"PUB {name}".encode(), b"x")
    publisher.expect_fatal(f'E_BAD_TOPIC PUB topic name "{name}" is not valid')
    subscriber = nsqd.connect()
    subscriber.command(f"SUB test {name}".encode())
    subscriber.expect_fatal(f'E_BAD_CHANNEL SUB channel name "{name}" is not valid')


def test_commands_may_arrive_in_any_pieces(start_nsqd: StartNsqd) -> None:
    client = start_nsqd().connect(magic=b"")
    for byte in b"  V2PUB t\n\x00\x00\x00\x05helloNOP\nSUB t c\nRDY 1\n":
        client.send(bytes([byte]))
    client.expect_ok()
    client.expect_ok()
    assert client.read_message().body == b"hello"


def test_commands_may_arrive_all_at_once(nsqd: NsqdHarness) -> None:
    client = nsqd.connect(magic=b"")
    client.send(b"  V2PUB t\n\x00\x00\x00\x05helloNOP\nSUB t c\nPUB t\n\x00\x00\x00\x05worldASDF\n")
    for _ in range(3):
        client.expect_ok()
    client.expect_fatal("E_INVALID invalid command ASDF")
