"""Durations are read and written as NSQ's users know them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.text import MAX_NS, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("+0", 0),
        ("0s", 0),
        ("1ns", 1),
        ("2us", 2_000),
        ("2µs", 2_000),
        ("2μs", 2_000),
        ("250ms", 250_000_000),
        ("1s", 1_000_000_000),
        ("+5s", 5_000_000_000),
        ("-5s", -5_000_000_000),
        ("1m", 60_000_000_000),
        ("1h", 3_600_000_000_000),
        ("1h15m30.5s", 4_530_500_000_000),
        ("1m1m", 120_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("1.0000000019s", 1_000_000_001),
        ("0.1ns", 0),
        ("9223372036854775807ns", MAX_NS),
    ],
)
def test_a_duration_is_a_sum_of_numbers_with_units(text: str, expected_ns: int) -> None:
    assert parse_duration(text) == expected_ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "-",
        "+",
        "s",
        ".s",
        ".",
        "1",
        "3.3",
        "1 s",
        " 1s",
        "1s ",
        "1S",
        "1d",
        "1sec",
        "1s5",
        "--1s",
        "1e3s",
        "٣s",
    ],
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="parse error"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9223372036854775808ns", "3000000h", "-3000000h"])
def test_a_duration_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="value out of range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (250_000_000, "250ms"),
        (999_999_999, "999.999999ms"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (305_001_000_000, "5m5.001s"),
        (900_000_000_000, "15m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (4_530_500_000_000, "1h15m30.5s"),
        (-1_500_000_000, "-1.5s"),
    ],
)
def test_a_duration_is_shown_in_its_usual_spelling(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@given(st.integers(min_value=-MAX_NS, max_value=MAX_NS))
def test_what_is_shown_is_read_back_exactly(duration_ns: int) -> None:
    assert parse_duration(format_duration(duration_ns)) == duration_ns
