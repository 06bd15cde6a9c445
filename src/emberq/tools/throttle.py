"""Holds a flow of messages down to a rate, with a bucket of tokens.

A message takes a token. Tokens come at the rate, evenly, and at most a second's worth is kept: whoever was slow may
catch up for that long, no more.
"""

from __future__ import annotations

from emberq.base.clock import NS_PER_SECOND, Clock


class Throttle:
    """A rate in messages a second, which must be above zero."""

    def __init__(self, rate: int, *, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = 1.0
        self._filled_at_ns = clock.monotonic_ns()

    def take(self, wanted: int) -> int:
        """How many of `wanted` messages may go now."""
        now_ns = self._clock.monotonic_ns()
        earned = (now_ns - self._filled_at_ns) / NS_PER_SECOND * self._rate
        self._filled_at_ns = now_ns
        self._tokens = min(self._tokens + earned, float(self._rate))
        granted = min(wanted, int(self._tokens))
        self._tokens -= granted
        return granted

    @property
    def wait_s(self) -> float:
        """How long after the last `take` there will be a token."""
        return max(0.0, (1.0 - self._tokens) / self._rate)
