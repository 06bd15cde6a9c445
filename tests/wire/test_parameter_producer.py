"""Ids and numbers of producers are taken as they are, or not at all."""

from __future__ import annotations

import pytest

from emberq.wire.parameter import MAX_SEQUENCE, parse_producer_id, parse_sequence


def test_an_id_is_32_hexadecimal_digits() -> None:
    assert parse_producer_id("00112233445566778899aAbBcCdDeEfF") == bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("text", ["", "00", "0" * 32, "g" * 32, "1" * 31, "1" * 33, "1" * 31 + " ", "१" * 32])
def test_anything_else_is_no_id(text: str) -> None:
    assert parse_producer_id(text) is None


@pytest.mark.parametrize(
    ("raw", "sequence"), [(b"0", 0), (b"007", 7), (b"%d" % MAX_SEQUENCE, MAX_SEQUENCE), (b"0" * 19, 0)]
)
def test_a_number_is_digits(raw: bytes, sequence: int) -> None:
    assert parse_sequence(raw) == sequence


@pytest.mark.parametrize("raw", [b"", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"x", b"%d" % (MAX_SEQUENCE + 1), b"9" * 20])
def test_anything_else_is_no_number(raw: bytes) -> None:
    assert parse_sequence(raw) is None
