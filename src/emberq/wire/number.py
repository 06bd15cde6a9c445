"""Decimal parameters, read as the reference reads them."""

from __future__ import annotations

_TWO_64 = 1 << 64
_CHUNK_DIGITS = 18


def parse_int64(raw: bytes) -> int | None:
    """The number that `raw` spells in digits alone, or None.

    No digits at all is 0. What does not fit 64 bits wraps, and the upper half of the range is negative: so a client
    that sends 2**64 - 1 is told about -1.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    value = 0
    for start in range(0, len(raw), _CHUNK_DIGITS):  # in chunks: a line of digits must not cost quadratic time
        chunk = raw[start : start + _CHUNK_DIGITS]
        value = (value * 10 ** len(chunk) + int(chunk)) % _TWO_64
    return value - _TWO_64 if value >= _TWO_64 >> 1 else value
