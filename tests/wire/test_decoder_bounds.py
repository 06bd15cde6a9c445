"""However long a client goes on, the decoder holds a line and a body, besides the packet last fed, and no more."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from emberq.wire.decoder import MAX_LINE_BYTES, CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import CommandLimits
from tests.wire.held import held_bytes, memory_bytes
from tests.wire.playback import commands_in
from tests.wire.streams import in_packets, int32, sized

LIMITS = CommandLimits(max_msg_size=20_000, max_body_size=60_000)
PACKET_BYTES = 4000
MOST_HELD_BYTES = 2 * MAX_LINE_BYTES + 4 + LIMITS.max_body_size + PACKET_BYTES
"""Two lines: that of the command which is waiting for its body, and that of the last PUB, which is kept."""
ENOUGH_PACKETS = 2 * MOST_HELD_BYTES // PACKET_BYTES
MOST_MESSAGES = (LIMITS.max_body_size - 4) // 5
JUNK = b"x" * 16_000

BEGINNINGS = {
    "a line": b"  V2NOP ",
    "a line behind a command": b"  V2NOP\nNOP ",
    "IDENTIFY": b"  V2IDENTIFY %b\n" % JUNK + int32(60_000),
    "AUTH": b"  V2AUTH\n" + int32(60_000),
    "PUB": b"  V2PUB t %b\n" % JUNK + int32(20_000),
    "PUB behind a PUB": b"  V2PUB t %b\n" % JUNK + sized(b"a") + b"PUB u %b\n" % JUNK + int32(20_000),
    "DPUB": b"  V2DPUB t 0 %b\n" % JUNK + int32(20_000),
    "MPUB of big messages": b"  V2MPUB t\n" + int32(60_000) + int32(2) + int32(20_000),
    "MPUB that understates its size": b"  V2MPUB t\n" + int32(4) + int32(2) + int32(20_000),
}


def most_held_bytes(decoder: CommandDecoder, packets: list[bytes]) -> int:
    """The most that the decoder held on the way to the last packet, or to its error."""
    most = 0
    try:
        for packet in packets:
            decoder.feed(packet)
            list(commands_in(decoder))
            most = max(most, held_bytes(decoder))
    except FatalError:
        pass
    return most


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_whatever_a_client_begins_it_cannot_go_on_for_ever(beginning: bytes) -> None:
    endless = chain(in_packets(beginning, PACKET_BYTES), repeat(b"x" * PACKET_BYTES, ENOUGH_PACKETS))
    assert most_held_bytes(CommandDecoder(LIMITS), list(endless)) <= MOST_HELD_BYTES


@pytest.mark.parametrize("declared", [4, 60_000, 4 + MOST_MESSAGES * 5])
@pytest.mark.parametrize("first_size", [1, 2])
def test_an_mpub_of_tiny_messages_is_held_to_the_limit_of_a_body(declared: int, first_size: int) -> None:
    beginning = b"  V2MPUB t\n" + int32(declared) + int32(MOST_MESSAGES) + sized(b"a" * first_size)
    endless = [beginning, *[sized(b"a") * (PACKET_BYTES // 5)] * ENOUGH_PACKETS]
    assert most_held_bytes(CommandDecoder(LIMITS), endless) <= MOST_HELD_BYTES


@pytest.mark.parametrize("beginning", [b"IDENTIFY\n" + int32(60_000), b"PUB t\n" + int32(20_000)])
def test_a_body_in_tiny_packets_takes_no_more_memory_than_in_big_ones(beginning: bytes) -> None:
    decoder = CommandDecoder(LIMITS)
    decoder.feed(b"  V2" + beginning)
    assert decoder.next_command() is None
    for number in range(9_000):
        decoder.feed(number.to_bytes(2, "big"))
    assert memory_bytes(decoder) < 2 * MOST_HELD_BYTES


def test_an_mpub_of_tiny_messages_takes_little_more_memory_than_its_bytes() -> None:
    decoder = CommandDecoder(LIMITS)
    decoder.feed(b"  V2MPUB t\n" + int32(60_000) + int32(MOST_MESSAGES) + sized(b"aa") + sized(b"a") * 11_000)
    assert decoder.next_command() is None
    assert memory_bytes(decoder) < 3 * MOST_HELD_BYTES


@pytest.mark.parametrize("packet_bytes", [1000, 50_000])
def test_a_connection_that_has_said_all_holds_nothing(packet_bytes: int) -> None:
    decoder = CommandDecoder(LIMITS)
    stream = b"  V2PUB t\n" + sized(b"x" * 20_000)
    for start in range(0, len(stream), packet_bytes):
        decoder.feed(stream[start : start + packet_bytes])
        list(commands_in(decoder))
    assert held_bytes(decoder) < 100
