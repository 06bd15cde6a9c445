"""Kinds of arguments."""

from __future__ import annotations

import argparse

import pytest

from emberq.cli.argument import channel_name, duration_s, positive_count, topic_name


def test_names_are_checked() -> None:
    assert topic_name("orders.dead#ephemeral") == "orders.dead#ephemeral"
    with pytest.raises(argparse.ArgumentTypeError, match='"no topic" is not the name of a topic'):
        topic_name("no topic")
    with pytest.raises(argparse.ArgumentTypeError, match="channel"):
        channel_name("")


def test_counts_are_above_zero() -> None:
    assert positive_count("12") == 12
    for wrong in ("0", "-1", "1.5", "x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="above 0"):
            positive_count(wrong)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("1h30m", 5400.0), ("250ms", 0.25), ("5", 5.0), ("0.5", 0.5)]
)
def test_durations_have_units_or_are_seconds(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration_s(text)
