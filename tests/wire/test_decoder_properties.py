"""The decoder against a plain one: any stream, in any pieces, means the same, and shows it at the same byte."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from emberq.wire.command import MAGIC_V2
from emberq.wire.decoder import MAX_LINE_BYTES, CommandDecoder
from emberq.wire.error import FatalError
from tests.wire.held import held_bytes
from tests.wire.playback import as_seen_in_pieces, commands_in, feed_and_take, play
from tests.wire.reference_decoder import transcribe
from tests.wire.streams import (
    LIMITS,
    any_streams,
    damaged_streams,
    examples,
    in_pieces,
    int32,
    sized,
    subscribed_streams,
)


@examples(250)
@given(in_pieces(subscribed_streams))
def test_every_command_comes_with_its_last_byte(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert expected.end.data is None
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(500)
@given(in_pieces(any_streams))
def test_every_error_comes_with_the_byte_that_shows_it(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(300)
@given(in_pieces(damaged_streams()))
def test_a_damaged_stream_means_the_same_in_any_pieces(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    found = play(pieces, LIMITS)
    assert found.commands == expected.commands
    assert (found.end.data, found.end.topic) == (expected.end.data, expected.end.topic)


@examples(300)
@given(in_pieces(damaged_streams()))
@example([b"  V2MPUB t\n" + int32(14) + int32(2) + sized(b"a") + int32(0)])
def test_damage_is_noticed_with_the_byte_that_shows_it(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(200)
@given(in_pieces(st.binary(max_size=200).map(lambda noise: MAGIC_V2 + noise)))
def test_random_bytes_are_read_or_refused(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(150)
@given(in_pieces(any_streams))
def test_receiving_is_feeding_and_taking(pieces: list[bytes]) -> None:
    assert play(pieces, LIMITS) == play(pieces, LIMITS, receive=feed_and_take)


@examples(100)
@given(in_pieces(damaged_streams()))
def test_no_more_is_held_than_a_line_and_a_body_besides_the_last_packet(pieces: list[bytes]) -> None:
    def check(decoder: CommandDecoder, piece: bytes) -> None:
        assert held_bytes(decoder) <= 2 * MAX_LINE_BYTES + 4 + LIMITS.max_body_size + len(piece)

    play(pieces, LIMITS, after_each=check)


@examples(150)
@given(in_pieces(damaged_streams()))
@example([b"  V2SUB t c\nRDY x\nNOP\n"])
@example([b"  V2MPUB t\n" + int32(50) + int32(4) + sized(b"a") + sized(b"bb") + int32(0)])
def test_an_error_is_final(pieces: list[bytes]) -> None:
    decoder = CommandDecoder(LIMITS)
    try:
        for piece in pieces:
            decoder.feed(piece)
            list(commands_in(decoder))
    except FatalError as wrong:
        with pytest.raises(FatalError, match=f"^{re.escape(str(wrong))}$"):
            decoder.next_command()
