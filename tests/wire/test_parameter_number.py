"""Decimal parameters: digits alone, and 64 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.wire.decoder import MAX_LINE_BYTES
from emberq.wire.parameter import parse_int64
from tests.wire.streams import examples


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"", 0),
        (b"0", 0),
        (b"2500", 2500),
        (b"0000000000000000000000000000012", 12),
        (b"9223372036854775807", 2**63 - 1),
        (b"9223372036854775808", -(2**63)),
        (b"18446744073709551615", -1),
        (b"18446744073709551616", 0),
        (b"18446744073709551617", 1),
        (b"340282366920938463463374607431768211455", -1),
    ],
)
def test_a_number_wraps_at_64_bits(raw: bytes, value: int) -> None:
    assert parse_int64(raw) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"-1",
        b"+1",
        b"-",
        b"0x1",
        b" 1",
        b"1 ",
        b"1\r",
        b"1_000",
        b"1.0",
        b"1e3",
        b"x",
        b"\xd9\xa3",
        "²".encode(),
        b"\x00",
    ],
)
def test_anything_but_digits_is_no_number(raw: bytes) -> None:
    assert parse_int64(raw) is None


@examples(300)
@given(st.integers(0, 2**200), st.integers(0, 40))
def test_any_number_of_digits_is_read_modulo_64_bits(number: int, zeros: int) -> None:
    expected = int.from_bytes((number % 2**64).to_bytes(8, "big"), "big", signed=True)
    assert parse_int64(b"0" * zeros + b"%d" % number) == expected


def test_a_whole_line_of_digits_is_read() -> None:
    assert parse_int64(b"9" * MAX_LINE_BYTES) == -1  # 10**n is a multiple of 2**64 for every n from 64 on
