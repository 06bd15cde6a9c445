"""Durations as NSQ's flags and files write them: `250ms`, `1h15m30.5s`.

A duration is a sum of decimal numbers, each with a unit, behind an optional sign. A number without a unit is an
error (was it seconds or milliseconds?), except a bare `0`. In the program a duration is an `int` of nanoseconds
within 64 bits, so that no sum or comparison is ever rounded.
"""

from __future__ import annotations

import re

NS_PER_UNIT = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # MICRO SIGN, what most keyboards type
    "\u03bcs": 1_000,  # GREEK SMALL LETTER MU, what some input methods type
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}

MAX_NS = (1 << 63) - 1
"""The longest duration, about 292 years: what fits the signed 64 bits that the protocol's peers keep it in."""

_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?(" + "|".join(NS_PER_UNIT) + ")(?![a-z\u00b5\u03bc])")


def parse_duration(text: str) -> int:
    """The nanoseconds that `text` stands for; ValueError if it is no duration or too long."""
    unsigned = text[1:] if text[:1] in ("-", "+") else text
    if unsigned == "0":
        return 0
    total_ns = _sum_of_terms(unsigned)
    if total_ns > MAX_NS:
        raise ValueError("value out of range")
    return -total_ns if text.startswith("-") else total_ns


def _sum_of_terms(text: str) -> int:
    total_ns = 0
    position = 0
    while position < len(text) or position == 0:
        term = _TERM.match(text, position)
        if term is None:
            raise ValueError("parse error")
        whole, fraction, unit = term.group(1), term.group(2) or "", term.group(3)
        if not whole and not fraction:
            raise ValueError("parse error")
        ns_per_unit = NS_PER_UNIT[unit]
        total_ns += int(whole or "0") * ns_per_unit
        if fraction:
            total_ns += int(fraction) * ns_per_unit // 10 ** len(fraction)
        position = term.end()
    return total_ns


def format_duration(duration_ns: int) -> str:
    """The usual spelling: `1h0m0s`, `1m30s`, `1.5s`, `250ms`, `0s`; `parse_duration` reads it back exactly."""
    if duration_ns < 0:
        return "-" + format_duration(-duration_ns)
    if duration_ns == 0:
        return "0s"
    for unit in ("ns", "\u00b5s", "ms"):
        if duration_ns < 1_000 * NS_PER_UNIT[unit]:
            return _decimal(duration_ns, NS_PER_UNIT[unit]) + unit
    minutes, rest_ns = divmod(duration_ns, NS_PER_UNIT["m"])
    seconds = _decimal(rest_ns, NS_PER_UNIT["s"]) + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(value_ns: int, ns_per_unit: int) -> str:
    """`value_ns` in the unit, exactly, without trailing zeros."""
    whole, fraction = divmod(value_ns, ns_per_unit)
    digits = len(str(ns_per_unit)) - 1
    return f"{whole}.{fraction:0{digits}}".rstrip("0").rstrip(".") if fraction else str(whole)
