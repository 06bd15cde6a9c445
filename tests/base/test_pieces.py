"""Pieces of a body: whatever they are, the whole is the same, and takes little more memory than its bytes."""

from __future__ import annotations

from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.pieces import GATHERED_BYTES, SMALL_PIECE_BYTES, Pieces
from tests.wire.held import memory_bytes

NOISE = bytes(number * number % 251 for number in range(200_000))

sizes = st.one_of(
    st.integers(0, 40), st.integers(SMALL_PIECE_BYTES - 1, SMALL_PIECE_BYTES + 1), st.just(GATHERED_BYTES)
)


def gathered(parts: list[bytes | memoryview]) -> Pieces:
    pieces = Pieces()
    for part in parts:
        pieces.add(part)
    return pieces


@given(st.lists(st.tuples(sizes, st.booleans()), max_size=12))
def test_the_whole_is_the_same_whatever_the_pieces(cuts: list[tuple[int, bool]]) -> None:
    parts = [memoryview(NOISE)[:size] if is_view else NOISE[:size] for size, is_view in cuts]
    whole = b"".join(parts)
    pieces, file = gathered(parts), BytesIO()
    assert pieces.joined() == whole
    assert pieces.take() == whole
    assert pieces.joined() == b""
    gathered(parts).move_to(file)
    assert file.getvalue() == whole


@pytest.mark.parametrize("size", [20, 200_000])
def test_what_came_as_one_is_not_copied(size: int) -> None:
    packet = NOISE[:size]
    assert gathered([packet]).take() is packet


def test_tiny_pieces_take_little_more_memory_than_their_bytes() -> None:
    pieces = Pieces()
    for start in range(0, len(NOISE), 20):
        pieces.add(NOISE[start : start + 20])
    assert memory_bytes(pieces) < 1.2 * len(NOISE)
    pieces.clear()
    assert memory_bytes(pieces) < 1000
