"""The decoder against a plain one: any stream, in any pieces, means the same at the same byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.command import MAGIC_V2
from tests.wire.playback import as_seen_in_pieces, play
from tests.wire.reference_decoder import transcribe
from tests.wire.streams import LIMITS, any_streams, damaged_streams, examples, in_pieces, subscribed_streams


@examples(400)
@given(in_pieces(subscribed_streams))
def test_every_command_comes_with_its_last_byte(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert expected.end.data is None
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(800)
@given(in_pieces(any_streams))
def test_every_error_comes_with_the_byte_that_shows_it(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(800)
@given(in_pieces(damaged_streams()))
def test_a_damaged_stream_means_the_same_in_any_pieces(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)


@examples(300)
@given(in_pieces(st.binary(max_size=200).map(lambda noise: MAGIC_V2 + noise)))
def test_random_bytes_are_read_or_refused_and_nothing_else(pieces: list[bytes]) -> None:
    expected = transcribe(b"".join(pieces), LIMITS)
    assert play(pieces, LIMITS) == as_seen_in_pieces(expected, pieces)
