"""Text: durations, moments, patterns of names, quoting, masked secrets.

A duration is written as NSQ's flags and files write it: `250ms`, `1h15m30.5s`. It is a sum of decimal numbers, each
with a unit, behind an optional sign. A number without a unit is an error (was it seconds or milliseconds?), except a
bare `0`. In the program a duration is an `int` of nanoseconds within 64 bits, so that no sum or comparison is ever
rounded.

A moment is written as in RFC 3339, to the nanosecond, which datetime cannot hold: `2026-11-15T09:30:00Z`,
`2026-11-15 10:30:00.25+01:00`.

Operators choose topics, channels and nodes by a pattern, in which `*` stands for any characters and `?` for one. It
becomes a regular expression (`glob_expression`).

Text from outside is made fit for one line of a terminal or a log (`one_line`, `quoted`). Names, addresses and bodies of
errors come from clients and files; one of them may hold a line feed or a terminal escape. All text from outside goes
through here before it is shown, so that a line always is one line.

An address may hold a secret: `http://user:password@host/path?token=abc`. Not every user of the API may know it. So the
part before the `@` and the values of the query are replaced (`masked`).
"""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime, timedelta

from emberq.base.clock import NS_PER_SECOND

# Durations.

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

# The patterns of this module are compiled when they are first used, by `re` itself: every client loads it.
_TERM = r"([0-9]*)(?:\.([0-9]*))?(" + "|".join(NS_PER_UNIT) + ")(?![a-z\u00b5\u03bc])"


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
        term = re.match(_TERM, text[position:])
        if term is None:
            raise ValueError("parse error")
        whole, fraction, unit = term.group(1), term.group(2) or "", term.group(3)
        if not whole and not fraction:
            raise ValueError("parse error")
        ns_per_unit = NS_PER_UNIT[unit]
        total_ns += int(whole or "0") * ns_per_unit
        if fraction:
            total_ns += int(fraction) * ns_per_unit // 10 ** len(fraction)
        position += term.end()
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


# Moments.

_MOMENT = (
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt ](?P<time>\d\d:\d\d:\d\d)"
    r"(\.(?P<fraction>\d{1,9})\d*)?"
    r"(?P<zone>[Zz]|[+\- ]\d\d:\d\d)"
)
"""The blank before a zone is the plus of a query string that was not escaped."""
_FRACTION_DIGITS = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str) -> int | None:
    """Nanoseconds since the Unix epoch; None if `text` is no moment."""
    found = re.fullmatch(_MOMENT, text, re.ASCII)
    if found is None:
        return None
    zone = "Z" if found["zone"] in "Zz" else found["zone"].replace(" ", "+")
    try:
        moment = datetime.fromisoformat(f"{found['date']}T{found['time']}{zone}")
    except ValueError:
        return None  # the 30th of February
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * NS_PER_SECOND + int((found["fraction"] or "").ljust(_FRACTION_DIGITS, "0"))


def format_moment(time_ns: int) -> str:
    """The moment in UTC: `2026-11-15T09:30:00.250000000Z`."""
    seconds, fraction_ns = divmod(time_ns, NS_PER_SECOND)
    return f"{(_EPOCH + timedelta(seconds=seconds)).strftime('%Y-%m-%dT%H:%M:%S')}.{fraction_ns:09d}Z"


# Patterns.


def glob_expression(pattern: str) -> str:
    """A pattern as a regular expression for whole names, which Python and Prometheus read alike."""
    spelled = {"*": ".*", "?": "."}
    return "".join(spelled.get(char) or (char if char.isalnum() or char in "_-:" else f"\\{char}") for char in pattern)


# Text from outside.


def one_line(text: str) -> str:
    r"""`text` with everything unprintable written as an escape (`\n`, `\x1b`, `\u2028`)."""
    if text.isprintable():  # nearly always, and it costs one pass in C
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def quoted(text: str) -> str:
    """`text` between double quotes, for an error that says what it was given."""
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def forget_output() -> None:
    """Drop what is still buffered for a closed standard output, or Python would complain of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Secrets.

_USER_INFO = r"(^|//|[=,])[^/=,\s]*@"
_QUERY_VALUE = r"([?&][^=&#\s]*=)[^&#,\s]*"


def masked(text: str) -> str:
    """`text` without the secrets of the addresses in it."""
    return re.sub(_QUERY_VALUE, r"\1***", re.sub(_USER_INFO, r"\1***@", text))
