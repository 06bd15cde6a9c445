"""The short ways: what they take, where they stop, and what they leave to the long way."""

from __future__ import annotations

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.command import FIN_LINE_BYTES, Fin, Publish, Rdy, Req
from emberq.wire.decoder import CommandDecoder
from emberq.wire.line import CommandLimits
from emberq.wire.run import is_fin, take_fins, take_number, take_pubs, take_rdy, take_req
from tests.wire.playback import commands_in
from tests.wire.streams import examples, int32, sized

ID = b"0123456789abcdef"
FIN = b"FIN %b\n" % ID


def numbered_fins(count: int) -> list[bytes]:
    return [b"FIN %016x\n" % number for number in range(count)]


def test_a_packet_that_is_one_fin_is_handed_on_as_it_came() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2SUB t c\n")
    list(commands_in(decoder))
    packet = bytes(bytearray(FIN))
    command = decoder.receive(packet)
    assert isinstance(command, Fin)
    assert command.lines is packet
    assert decoder.next_command() is None


@pytest.mark.parametrize(
    "line",
    [
        b"FIN 0123456789abcde\n\n",
        b"FIN 0123456789abcdef ",
        b"FIN 01234567 9abcdef\n",
        b"FIN 01234567\r9abcdef\n",
        b"FIN\t0123456789abcdef\n",
        b"fin 0123456789abcdef\n",
        b"FIN 0123456789abcd-f\n",
    ],
)
def test_what_is_not_a_plain_fin_is_left_to_the_long_way(line: bytes) -> None:
    assert not is_fin(line)
    assert take_fins(line + FIN, 0) == b""
    assert take_fins(FIN + line, 0) == FIN


@examples(200)
@given(
    st.integers(1, 600),
    st.sampled_from([b"", b"NOP\n", FIN, FIN * 20]),
    st.sampled_from([b"", b"FIN 0", b"NOP\n", b"RDY 1\n", b"FIN 01234567 9abcdef\n" + FIN * 3]),
)
def test_a_run_of_fins_is_taken_in_whole_and_nothing_else(count: int, before: bytes, behind: bytes) -> None:
    run = b"".join(numbered_fins(count))
    assert take_fins(before + run + behind, len(before)) == run


def test_a_run_that_fills_the_packet_is_handed_on_as_it_came() -> None:
    for count in (2, 8, 9, 40, 41, 600):
        packet = FIN * count
        assert take_fins(packet, 0) is packet


def test_a_very_long_run_of_fins_is_taken_in_portions() -> None:
    buffer = FIN * 5000
    first = take_fins(buffer, 0)
    assert 500 <= len(first) // FIN_LINE_BYTES <= 1000
    assert take_fins(buffer, len(first)) == first


@pytest.mark.parametrize("count", [28, 60, 600])
def test_most_of_a_run_is_checked_at_once(count: int) -> None:
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        taken = take_fins(FIN * count, 0)
    finally:
        sys.setprofile(None)
    assert len(taken) == count * FIN_LINE_BYTES
    assert events.count("call") < 20  # of functions in Python; compiled there are none


@pytest.mark.parametrize("odd", [b"FIN 01234567 9abcdef\n", b"FIN 01234567\r9abcdef\n", b"FIN 0123456789a\nFIN \n"])
@pytest.mark.parametrize("position", [1, 3, 4, 5, 11, 12, 13, 30, 200])
def test_no_run_of_fins_holds_an_odd_id(odd: bytes, position: int) -> None:
    fins = numbered_fins(300)
    buffer = b"".join([*fins[:position], odd, *fins[position:]])
    taken = take_fins(buffer, 0)
    assert taken
    assert b"".join(fins[:position]).startswith(taken)


# REQ, RDY and their numbers.


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"0\n", (0, 2)),
        (b"90000\nNOP\n", (90000, 6)),
        (b"007\n", (7, 4)),
        (b"9" * 18 + b"\n", (10**18 - 1, 19)),
        (b"9" * 19 + b"\n", (0, -1)),
        (b"\n", (0, -1)),
        (b"1", (0, -1)),
        (b"", (0, -1)),
        (b"1 \n", (0, -1)),
        (b"1\r\n", (0, -1)),
        (b"-1\n", (0, -1)),
        (b"1:\n", (0, -1)),
        (b"1/\n", (0, -1)),
    ],
)
def test_a_plain_number_is_digits_up_to_the_end_of_the_line(sent: bytes, expected: tuple[int, int]) -> None:
    assert take_number(sent, 0) == expected
    number, end = take_number(b"RDY " + sent, 4)
    assert (number, end) == (expected[0], expected[1] + 4 if expected[1] > 0 else -1)


def test_a_plain_req_is_taken_wherever_it_stands() -> None:
    line = b"REQ %b 1500\n" % ID
    assert take_req(line, 0) == (Req(ID, 1500), len(line))
    assert take_req(FIN + line + FIN, len(FIN)) == (Req(ID, 1500), len(FIN + line))


@pytest.mark.parametrize(
    "line",
    [
        b"REQ %b\n" % ID,
        b"REQ %b \n" % ID,
        b"REQ %b 0" % ID,
        b"REQ %b\t0\n" % ID,
        b"REQ 01234567 9abcdef 0\n",
        b"REQ 0123456789abcde 0\n",
        b"REQ %b0 0\n" % ID,
        b"RDY 5\n",
        b"R",
    ],
)
def test_what_is_not_a_plain_req_is_left_to_the_long_way(line: bytes) -> None:
    assert take_req(line, 0) == (None, 0)


def test_a_plain_rdy_is_taken_and_nothing_else() -> None:
    assert take_rdy(b"NOP\nRDY 12\nRDY 3\n", 4) == (12, 11)
    for other in (b"RDY\n", b"RDY \n", b"RDY", b"RDX 1\n", b"REQ 1\n"):
        assert take_rdy(other, 0) == (0, -1)


def test_answers_of_all_kinds_in_one_packet_stay_in_their_order() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2SUB t c\n" + FIN + b"REQ %b 0\n" % ID + FIN * 6 + b"RDY 7\n" + b"REQ %b 9\n" % ID + FIN)
    _, *found = commands_in(decoder)
    assert found == [Fin(FIN), Req(ID, 0), Fin(FIN * 6), Rdy(7), Req(ID, 9), Fin(FIN)]


# PUB.


def taken_pubs(buffer: bytes) -> tuple[Publish | None, int]:
    return take_pubs(buffer, 0, line=b"PUB t\n", topic="t", max_msg_size=10)


def test_a_run_of_pubs_ends_where_one_is_not_whole_or_not_like_the_others() -> None:
    pubs = b"PUB t\n" + sized(b"a") + b"PUB t\n" + sized(b"bb")
    expected = Publish(b"PUB", "t", sized(b"a") + sized(b"bb"), array("I", [5, 11]), 2)
    for behind in (
        b"",
        b"PUB",
        b"PUB t\n",
        b"PUB t\n\0\0\0",
        b"PUB t\n" + int32(3) + b"cc",
        b"PUB t\n" + int32(0),
        b"PUB t\n" + int32(-1),
        b"PUB t\n" + sized(b"x" * 11),
        b"PUB tt\n" + sized(b"c"),
        b"NOP\n",
    ):
        assert taken_pubs(pubs + behind) == (expected, len(pubs))


def test_a_pub_alone_may_be_of_the_largest_size() -> None:
    for size in (1, 10):
        pub = b"PUB t\n" + sized(b"x" * size)
        assert taken_pubs(pub) == (Publish(b"PUB", "t", sized(b"x" * size), (4 + size,), 1), len(pub))


def test_a_pub_that_is_not_whole_is_left_to_the_long_way() -> None:
    for message in (b"", b"\0\0\0", int32(1), int32(0), int32(-1), sized(b"x" * 11)):
        assert taken_pubs(b"PUB t\n" + message) == (None, 0)
