"""Numbers as NSQ's JSON encoder writes them."""

from __future__ import annotations


def shortest(value: float) -> float:
    """A whole number without a fraction: 1, where Python would write 1.0."""
    return int(value) if value.is_integer() else value
