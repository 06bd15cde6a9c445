"""Those who guess passwords.

After a few wrong passwords from one address further tries from there are refused for a while, right ones too: a guesser
must not learn which was right. The wait is short enough for somebody who merely forgot. Many machines may guess one
name, so tries for a name are counted too; but far more are allowed, or anybody could lock its owner out.
"""

from __future__ import annotations

from dataclasses import dataclass

from emberq.base.clock import NS_PER_SECOND, Clock

MAX_FAILURES_OF_ADDRESS = 5
MAX_FAILURES_OF_NAME = 100
WINDOW_NS = 60 * NS_PER_SECOND
"""So much time must pass since the last wrong password."""
MAX_REMEMBERED = 10_000
"""Addresses and names; of more, those that failed longest ago are forgotten."""


@dataclass(slots=True)
class _Failures:
    count: int
    last_ns: int


class Throttle:
    """Counts failures, the newest at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def allows(self, *, address: str, name: str) -> bool:
        """Whether a try may be made from an address, for a name."""
        by_address, by_name = _keys(address, name)
        return self._count(by_address) < MAX_FAILURES_OF_ADDRESS and self._count(by_name) < MAX_FAILURES_OF_NAME

    def _count(self, key: str) -> int:
        failures = self._failures.get(key)
        if failures is None or self._clock.monotonic_ns() - failures.last_ns > WINDOW_NS:
            return 0
        return failures.count

    def failed(self, *, address: str, name: str) -> None:
        """A wrong password."""
        now_ns = self._clock.monotonic_ns()
        for key in _keys(address, name):
            count = self._count(key)
            self._failures.pop(key, None)
            self._failures[key] = _Failures(count + 1, now_ns)
        while len(self._failures) > MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, *, address: str, name: str) -> None:
        """A right one."""
        for key in _keys(address, name):
            self._failures.pop(key, None)


def _keys(address: str, name: str) -> tuple[str, str]:
    return f"address {address}", f"name {name}"
