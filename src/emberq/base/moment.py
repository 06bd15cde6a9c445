"""Moments as RFC 3339 writes them, to the nanosecond, which datetime cannot hold.

2026-11-15T09:30:00Z    2026-11-15 10:30:00.25+01:00
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from emberq.base.clock import NS_PER_SECOND

_MOMENT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt ](?P<time>\d\d:\d\d:\d\d)"
    r"(\.(?P<fraction>\d{1,9})\d*)?"
    r"(?P<zone>[Zz]|[+\- ]\d\d:\d\d)",
    re.ASCII,
)
"""The blank before a zone is the plus of a query string that somebody did not escape."""
_FRACTION_DIGITS = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str) -> int | None:
    """Nanoseconds since the Unix epoch; None if `text` is no moment."""
    found = _MOMENT.fullmatch(text)
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
    """The same backwards, in UTC: `2026-11-15T09:30:00.250000000Z`."""
    seconds, fraction_ns = divmod(time_ns, NS_PER_SECOND)
    return f"{(_EPOCH + timedelta(seconds=seconds)).strftime('%Y-%m-%dT%H:%M:%S')}.{fraction_ns:09d}Z"
