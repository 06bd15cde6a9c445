"""Bodies that come in several packets: joined right, copied once, and never held twice."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.pieces import GATHERED_BYTES, SMALL_PIECE_BYTES
from emberq.wire.body import SizedBody, check_size, cut_off, read_size, signed
from emberq.wire.command import Auth, Identify, Publish, mpub, pub
from emberq.wire.decoder import CommandDecoder
from emberq.wire.error import FatalError
from emberq.wire.line import CommandLimits
from tests.wire.held import memory_bytes
from tests.wire.playback import as_seen_in_pieces, bodies_of, play
from tests.wire.reference_decoder import transcribe
from tests.wire.streams import examples, in_packets, int32

BODY_BYTES = 1_000_000
NOISE = bytes(number * number % 251 for number in range(200_000))
BIG_COMMANDS = {
    "PUB": pub("t", b"x" * BODY_BYTES),
    "MPUB of one size": mpub("t", [b"x" * 1000] * 1000),
    "MPUB of many sizes": mpub("t", [b"x" * (20 + 7 * number % 1981) for number in range(1000)]),
}
PACKET_SIZES = [64 * 1024, 256_000]

sizes = st.one_of(
    st.integers(0, 40),
    st.integers(SMALL_PIECE_BYTES - 1, SMALL_PIECE_BYTES + 1),
    st.integers(0, 3 * SMALL_PIECE_BYTES),
    st.just(GATHERED_BYTES),
)


@examples(100)
@given(st.lists(st.tuples(sizes, sizes, sizes), max_size=12))
def test_whatever_pieces_a_body_is_kept_in_it_is_the_same_body(pieces: list[tuple[int, int, int]]) -> None:
    body = SizedBody(Identify(), b"IDENTIFY", 1, is_message=False)
    expected = []
    for before, size, behind in pieces:
        packet = NOISE[: before + size + behind]
        body.keep(packet, before, before + size)
        expected.append(packet[before : before + size])
    assert body.joined() == b"".join(expected)
    assert body.arrived_bytes == len(body.joined())


@examples(60)
@given(
    st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    st.lists(st.integers(0, 120_000), max_size=10),
    st.booleans(),
)
def test_large_bodies_mean_the_same_however_they_are_cut(sizes: list[int], cuts: list[int], is_mpub: bool) -> None:
    bodies = [NOISE[size : 2 * size] for size in sizes]
    commands = mpub("t", bodies) if is_mpub else b"".join(pub("t", body) for body in bodies)
    stream = b"  V2" + commands + b"NOP\n"
    cuts = sorted(min(cut, len(stream)) for cut in cuts)
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    limits = CommandLimits()
    assert play(pieces, limits) == as_seen_in_pieces(transcribe(stream, limits), pieces)


@pytest.mark.parametrize("packet_bytes", PACKET_SIZES)
@pytest.mark.parametrize("stream", BIG_COMMANDS.values(), ids=BIG_COMMANDS)
def test_a_large_body_is_copied_once(stream: bytes, packet_bytes: int) -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2")
    assert decoder.next_command() is None
    tracemalloc.start()
    try:
        commands = [decoder.receive(packet) for packet in in_packets(stream, packet_bytes)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    publish = commands.pop()
    assert isinstance(publish, Publish)
    assert set(commands) == {None}
    assert sum(map(len, bodies_of(publish.blob, publish.ends))) > 0.9 * BODY_BYTES
    # The packets, which a socket has made, and the command's own bytes, but no third copy.
    assert peak_bytes < 2.1 * len(stream)


@pytest.mark.parametrize("before", [b"", pub("t", b"x" * 50_000)], ids=["at once", "behind a PUB"])
@pytest.mark.parametrize("stream", BIG_COMMANDS.values(), ids=BIG_COMMANDS)
def test_a_client_that_stalls_makes_the_server_hold_what_has_arrived_and_not_twice_that(
    stream: bytes, before: bytes
) -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2NOP\n")
    decoder.next_command()
    empty_bytes = memory_bytes(decoder)
    for packet in in_packets((before + stream)[: len(before) + len(stream) // 2], 64 * 1024):
        decoder.feed(bytes(packet))
        while decoder.next_command() is not None:
            pass
    assert memory_bytes(decoder) - empty_bytes < 1.15 * (len(stream) // 2)


# Sizes.


@pytest.mark.parametrize("size", [0, 1, 255, 0x01020304, 2**31 - 1, -1, -256, -(2**31)])
def test_a_size_is_read_wherever_it_stands(size: int) -> None:
    read = read_size(b"ab" + int32(size) + b"c", 2)
    assert signed(read) == size
    assert read >= 0


@pytest.mark.parametrize(
    ("size", "is_message", "expected"),
    [
        (11, True, b"E_BAD_MESSAGE PUB message too big 11 > 10"),
        (0, True, b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (2**32 - 1, True, b"E_BAD_MESSAGE PUB invalid message body size -1"),
        (11, False, b"E_BAD_BODY PUB body too big 11 > 10"),
        (0, False, b"E_BAD_BODY PUB invalid body size 0"),
        (2**31, False, b"E_BAD_BODY PUB invalid body size -2147483648"),
    ],
)
def test_a_size_that_no_body_may_have_is_refused(size: int, is_message: bool, expected: bytes) -> None:
    with pytest.raises(FatalError) as refusal:
        check_size(b"PUB", size, limit=10, is_message=is_message)
    assert refusal.value.data == expected


def test_the_smallest_and_the_largest_body_are_taken() -> None:
    for size in (1, 10):
        check_size(b"PUB", size, limit=10, is_message=True)
    with pytest.raises(FatalError, match=r"too big 1 > 0$"):
        check_size(b"PUB", 1, limit=0, is_message=True)


def test_a_stream_that_ends_within_a_body_is_told_what_is_missing() -> None:
    message = SizedBody(Publish(b"PUB", "t", b"", (), 1), b"PUB", 5, is_message=True)
    assert message.eof_error().data == b"E_BAD_MESSAGE PUB failed to read message body"
    secret = SizedBody(Auth(), b"AUTH", 5, is_message=False)
    assert secret.eof_error().data == b"E_BAD_BODY AUTH failed to read body"
    assert cut_off(b"PUB", is_message=True, what=b" size").data == b"E_BAD_MESSAGE PUB failed to read message body size"
    assert cut_off(b"AUTH", is_message=False, what=b" size").data == b"E_BAD_BODY AUTH failed to read body size"


def test_a_packet_that_is_all_body_is_kept_as_it_came() -> None:
    body = SizedBody(Identify(), b"IDENTIFY", 100_000, is_message=False)
    packet = NOISE[:100_000]
    body.keep(packet, 0, len(packet))
    assert body.joined() is packet


# Messages that are received directly.


def begun(body: bytes, first_bytes: int) -> tuple[CommandDecoder, bytes]:
    """A decoder that has been fed so much of a PUB, and the rest of it."""
    decoder = CommandDecoder(CommandLimits(max_msg_size=BODY_BYTES, max_body_size=2 * BODY_BYTES))
    stream = b"  V2" + pub("t", body)
    decoder.feed(stream[:first_bytes])
    assert decoder.next_command() is None
    return decoder, stream[first_bytes:]


@pytest.mark.parametrize("step", [1_000, 100_000, BODY_BYTES])
def test_the_rest_of_a_large_message_is_received_where_it_stays(step: int) -> None:
    body = NOISE * 5
    decoder, rest = begun(body, 300_000)
    while rest:
        room = decoder.room()
        assert room is not None
        assert len(room) == len(rest)
        taken = min(step, len(rest))
        room[:taken] = rest[:taken]
        room.release()
        assert decoder.next_command() is None
        decoder.received(taken)
        rest = rest[taken:]
    command = decoder.next_command()
    assert isinstance(command, Publish)
    assert command.blob == int32(len(body)) + body
    assert (decoder.room(), decoder.next_command()) == (None, None)


def test_what_comes_as_packets_meanwhile_belongs_to_it_too() -> None:
    body = NOISE * 5
    decoder, rest = begun(body, 300_000)
    assert decoder.room() is not None
    decoder.feed(rest)
    command = decoder.next_command()
    assert isinstance(command, Publish)
    assert command.blob == int32(len(body)) + body


def test_a_packet_may_hold_more_than_what_is_missing_of_it() -> None:
    message = int32(len(NOISE)) + NOISE
    body = SizedBody(Publish(b"PUB", "t", b"", (), 1), b"PUB", len(NOISE), is_message=True)
    body.keep(message[:100_000], 0, 100_000)
    assert body.room() is not None
    for start, end in ((100_000, 150_000), (150_000, len(message))):
        packet = b"NOP\n" + message[start:end] + b"NOP\n"
        body.keep(packet, 4, len(packet) - 4)
        assert body.arrived_bytes == end
    assert body.joined() == message


def test_a_message_of_which_a_sixteenth_has_arrived_is_received_directly() -> None:
    size = 16 * 100_000 - 4  # the size itself is 4 bytes
    for arrived_bytes, is_direct in ((99_999, False), (100_000, True)):
        body = SizedBody(Publish(b"PUB", "t", b"", (), 1), b"PUB", size, is_message=True)
        body.keep(NOISE, 0, arrived_bytes)
        assert (body.room() is not None) == is_direct


@pytest.mark.parametrize("first_bytes", [100, 30_000, 60_000])
def test_a_promise_of_many_bytes_is_not_given_memory_for_all_of_them(first_bytes: int) -> None:
    decoder, _ = begun(NOISE * 5, first_bytes)
    assert decoder.room() is None


def test_the_little_that_is_missing_is_not_received_directly() -> None:
    decoder, _ = begun(NOISE * 5, 960_000)
    assert decoder.room() is None


def test_an_mpub_is_not_received_directly() -> None:
    decoder = CommandDecoder(CommandLimits())
    decoder.feed(b"  V2" + BIG_COMMANDS["MPUB of one size"][:500_000])
    assert decoder.next_command() is None
    assert decoder.room() is None
