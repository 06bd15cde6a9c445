"""What a consumer tells about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A snapshot."""

    addresses: tuple[str, ...]
    """The nsqds that are connected."""
    in_flight: int
    received: int
    given_up: int
    backoff_level: int
