from __future__ import annotations

import pytest

from emberq.base.text import format_moment, parse_moment

NOON_NS = 1_763_208_000 * 10**9


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2025-11-15T12:00:00Z", NOON_NS),
        ("2025-11-15t12:00:00z", NOON_NS),
        ("2025-11-15 12:00:00Z", NOON_NS),
        ("2025-11-15T13:30:00+01:30", NOON_NS),
        ("2025-11-15T13:30:00 01:30", NOON_NS),
        ("2025-11-15T04:00:00-08:00", NOON_NS),
        ("2025-11-15T12:00:00.5Z", NOON_NS + 500_000_000),
        ("2025-11-15T12:00:00.000000001Z", NOON_NS + 1),
        ("2025-11-15T12:00:00.0000000019Z", NOON_NS + 1),
        ("1969-12-31T23:59:59.5Z", -500_000_000),
    ],
)
def test_a_moment_is_read_to_the_nanosecond(text: str, time_ns: int) -> None:
    assert parse_moment(text) == time_ns


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "12", "2025-11-15", "2025-11-15T12:00:00", "2025-11-15T12:00Z", "20251115T120000Z",
        "2025-02-30T12:00:00Z", "2025-11-15T24:00:01Z", "2025-11-15T12:00:00.Z", "2025-11-15T12:00:00+1:00",
        " 2025-11-15T12:00:00Z", "2025-11-15T12:00:00Z ", "२०२५-11-15T12:00:00Z",
    ],
)  # fmt: skip
def test_what_is_no_moment_is_none(text: str) -> None:
    assert parse_moment(text) is None


@pytest.mark.parametrize("time_ns", [0, NOON_NS + 1, -1])
def test_a_moment_that_was_written_is_read_again(time_ns: int) -> None:
    assert parse_moment(format_moment(time_ns)) == time_ns


def test_a_moment_is_written_in_utc() -> None:
    assert format_moment(NOON_NS + 250_000_000) == "2025-11-15T12:00:00.250000000Z"
