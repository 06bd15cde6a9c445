"""`--status-every`: how long deliveries took, logged each time there have been so many.

    [aggregate]: finished 250 - 99th: 1.23ms - 95th: 1.00ms - avg: 0.50ms

With more than one address there is a line for each of them as well. Only what succeeded counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emberq.base.clock import NS_PER_MS

FEW = 100
"""With fewer values than this the 99th percentile is just the slowest."""

logger = logging.getLogger(__name__)


class Timing:
    """The durations since the last line."""

    def __init__(self, name: str, *, every: int) -> None:
        self._name = name
        self._every = every
        self._durations_ns: list[int] = []

    def record(self, elapsed_ns: int, *, count: int = 1) -> None:
        """So many deliveries took so long each."""
        self._durations_ns.extend([elapsed_ns] * count)
        while len(self._durations_ns) >= self._every:
            logger.info("%s", status_line(self._name, self._durations_ns[: self._every]))
            del self._durations_ns[: self._every]


class StatusReport:
    """The timing of everything together, and of each address if there are several. `every` 0 turns it off."""

    def __init__(self, addresses: Sequence[str], *, every: int) -> None:
        named = addresses if len(addresses) > 1 else ()
        self._aggregate = Timing("aggregate", every=every) if every > 0 else None
        self._by_address = {address: Timing(address, every=every) for address in named} if every > 0 else {}
        if 0 < every < FEW:
            logger.info(
                "Warning: use more than %d status values for accurate percentiles (configured with %d)", FEW, every
            )

    def record(self, address: str, *, elapsed_ns: int, count: int = 1) -> None:
        """So many deliveries to the address took so long each."""
        if self._aggregate is not None:
            self._aggregate.record(elapsed_ns, count=count)
        if address in self._by_address:
            self._by_address[address].record(elapsed_ns, count=count)


def status_line(name: str, durations_ns: Sequence[int]) -> str:
    """The line for these durations."""
    ordered = sorted(durations_ns)
    mean_ns = sum(ordered) / len(ordered)
    return (
        f"[{name}]: finished {len(ordered)} - 99th: {_ms(_percentile(ordered, 99))}"
        f" - 95th: {_ms(_percentile(ordered, 95))} - avg: {_ms(mean_ns)}"
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """The least value that `percent` of all do not exceed."""
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[rank - 1]


def _ms(duration_ns: float) -> str:
    return f"{duration_ns / NS_PER_MS:.2f}ms"
