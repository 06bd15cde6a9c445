"""Kinds of arguments of the `emberq` subcommands, for argparse: a value, or a mistake that says what was expected."""

from __future__ import annotations

import argparse

from emberq.base.clock import NS_PER_SECOND
from emberq.base.duration import parse_duration
from emberq.base.printable import quoted
from emberq.wire.name import is_valid_name


def topic_name(text: str) -> str:
    """The name of a topic."""
    return _name(text, "topic")


def channel_name(text: str) -> str:
    """The name of a channel."""
    return _name(text, "channel")


def _name(text: str, kind: str) -> str:
    if not is_valid_name(text):
        rule = "1 to 64 of . _ - a-z A-Z 0-9, perhaps with #ephemeral behind"
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not the name of a {kind}: {rule}")
    return text


def positive_count(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a whole number above 0")
    return int(text)


def duration_s(text: str) -> float:
    """A duration such as 1m30s, in seconds; without a unit it is seconds."""
    try:
        seconds = parse_duration(f"{text}s" if text.replace(".", "", 1).isdigit() else text) / NS_PER_SECOND
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a duration; write 500ms, 90s or 1h30m") from wrong
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{quoted(text)} lies in the past")
    return seconds
