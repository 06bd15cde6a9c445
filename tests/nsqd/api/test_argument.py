"""Arguments of requests: which complaint comes first, and how it is spelled."""

from __future__ import annotations

import pytest

from emberq.http.message import HttpError, parse_query
from emberq.nsqd.api.argument import is_wanted, parse_integer, required_topic, valid_channel, valid_topic


def test_a_topic_that_is_present_but_empty_is_not_missing() -> None:
    assert required_topic(parse_query("topic=")) == ""
    with pytest.raises(HttpError, match="INVALID_TOPIC"):
        valid_topic(parse_query("topic="))
    with pytest.raises(HttpError, match="MISSING_ARG_TOPIC"):
        valid_topic(parse_query("channel=c"))


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("", "MISSING_ARG_TOPIC"),
        ("channel=a$", "MISSING_ARG_TOPIC"),
        ("topic=a$", "INVALID_ARG_TOPIC"),
        ("topic=t", "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=a$", "INVALID_ARG_CHANNEL"),
        ("topic=t&channel=%C3%A9", "INVALID_ARG_CHANNEL"),
    ],
)
def test_the_topic_is_looked_at_before_the_channel(query: str, complaint: str) -> None:
    with pytest.raises(HttpError, match=f"^{complaint}$") as refused:
        valid_channel(parse_query(query))
    assert refused.value.status == 400


def test_an_ephemeral_channel_is_named_with_an_escape() -> None:
    assert valid_channel(parse_query("topic=t&channel=c%23ephemeral")) == ("t", "c#ephemeral")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("+7", 7), ("-7", -7), ("007", 7), ("9" * 19, 10**19 - 1)])
def test_integers_are_decimal_digits_with_an_optional_sign(text: str, number: int) -> None:
    assert parse_integer(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "0x10", " 1", "1 ", "1_000", "\u0663", "--1", "1" * 20, "1" * 5000])
def test_other_spellings_are_no_integers(text: str) -> None:
    assert parse_integer(text) is None


@pytest.mark.parametrize(
    ("query", "wanted"), [("", True), ("x", True), ("x=yes", True), ("x=1", True), ("x=false", False), ("x=0", False)]
)
def test_a_switch_is_on_unless_it_is_turned_off(query: str, wanted: bool) -> None:
    assert is_wanted(parse_query(query), "x") is wanted
