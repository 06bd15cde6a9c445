"""Bodies that come in several packets: joined right, copied once, and never held twice."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.body import GATHERED_BYTES, SMALL_PIECE_BYTES, SizedBody
from emberq.wire.command import Identify, Publish, mpub, pub
from emberq.wire.decoder import CommandDecoder
from emberq.wire.line import CommandLimits
from tests.wire.held import memory_bytes
from tests.wire.playback import as_seen_in_pieces, bodies_of, play
from tests.wire.reference_decoder import transcribe
from tests.wire.streams import examples, in_packets

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
