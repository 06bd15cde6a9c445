"""RDY: how many messages each connection of a consumer may have in flight.

A consumer with `limit` messages to ask for and N connections shares them out. Nothing here does I/O: every method that
changes the shares returns the RDY commands to send, in the order to send them (what goes down goes first, so that the
sum on the wire never exceeds the limit, not even for a moment).

All connections get the same, as far as it goes and as far as the server allows. What is left over is given out one by
one, in an order of merit:

    limit ≥ N    the remainder goes to the connections that brought the most messages since the last tick; a tie leaves
                 it where it is. An idle nsqd gives its extra one up at the next tick.

    limit < N    some have RDY 1, the others wait. At each tick a connection loses its turn when it was silent for
                 `idle_ns`, or when it had the turn for `turn_ns`, and those that waited longest come next:

                     1. connections with a turn that is not over
                     2. those that wait, the one whose last turn began the earliest first
                     3. those whose turn is over, the latest comer first
                     4. those that fell silent, the latest comer first

                 So a connection waits at most until all those before it had their turns: none starves, and with fewer
                 waiting than turns that end, none is stopped for nothing.

Backoff is the same thing with a limit of 0 (pause) or 1 (probe).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from emberq.base.clock import NS_PER_SECOND, Clock

NEVER = -1


@dataclass(slots=True, eq=False)
class Share:
    """What one connection has. Owned by its `RdyTable`; the two counters below are the consumer's to advance."""

    cap: int
    """The server's max_rdy_count; to ask for more is fatal."""
    rdy: int = 0
    granted_ns: int = NEVER
    """When RDY last rose from 0."""
    turn_began_ns: int = NEVER
    """The same, or when the turn was last prolonged."""
    last_message_ns: int = NEVER
    message_count: int = 0
    """Messages since the last tick."""

    def received(self, count: int, *, now_ns: int) -> None:
        """Take note of messages that came."""
        self.message_count += count
        self.last_message_ns = now_ns


class RdyChange(NamedTuple):
    """`RDY rdy` is to be sent to the connection of this share."""

    share: Share
    rdy: int


def fair_counts(limit: int, caps: Sequence[int]) -> list[int]:
    """`limit` shared out as evenly as the caps allow; what is left over goes to the first ones that have room."""
    level = _water_level(limit, caps)
    counts = [min(cap, level) for cap in caps]
    spare = limit - sum(counts)
    for index, cap in enumerate(caps):
        if spare <= 0:
            break
        if cap > level:
            counts[index] += 1
            spare -= 1
    return counts


def _water_level(limit: int, caps: Sequence[int]) -> int:
    """The highest level at which each connection can have that much, or its cap, within the limit."""
    remaining = limit
    for index, cap in enumerate(sorted(caps)):
        sharers = len(caps) - index
        if cap * sharers > remaining:
            return remaining // sharers
        remaining -= cap
    return max(caps, default=0)


class RdyTable:
    """The shares of all connections of a consumer, which owns it."""

    def __init__(
        self,
        limit: int,
        *,
        clock: Clock,
        idle_ns: int = 10 * NS_PER_SECOND,
        turn_ns: int = 30 * NS_PER_SECOND,
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._idle_ns = idle_ns
        self._turn_ns = turn_ns
        self._shares: list[Share] = []

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def total(self) -> int:
        """The sum of all RDYs; never above the limit."""
        return sum(share.rdy for share in self._shares)

    def join(self, *, cap: int) -> tuple[Share, list[RdyChange]]:
        """A new connection; the others make room for it first."""
        share = Share(max(cap, 1))
        self._shares.append(share)
        return share, self._share_out()

    def leave(self, share: Share) -> list[RdyChange]:
        """A connection is gone, or will be asked for nothing more; the others get what it had."""
        self._shares.remove(share)
        share.rdy = 0
        return self._share_out()

    def set_limit(self, limit: int) -> list[RdyChange]:
        """Ask for more or less; 0 stops everything."""
        self._limit = limit
        return self._share_out()

    def tick(self) -> list[RdyChange]:
        """Move what not all can have to the connections that are due for it. Called at regular intervals."""
        if self._is_scarce:
            changes = self._next_turns()
        else:
            changes = self._apply(sorted(self._shares, key=lambda share: (-share.message_count, -share.rdy)))
        for share in self._shares:
            share.message_count = 0
        return changes

    @property
    def _is_scarce(self) -> bool:
        return self._limit < len(self._shares)

    def _share_out(self) -> list[RdyChange]:
        """Between ticks: a connection with much keeps it; the one that waited longest comes next."""
        return self._apply(sorted(self._shares, key=lambda share: (-share.rdy, share.granted_ns)))

    def _next_turns(self) -> list[RdyChange]:
        now_ns = self._clock.monotonic_ns()
        over = [share for share in self._shares if share.rdy > 0 and self._is_turn_over(share, now_ns)]
        changes = self._apply(sorted(self._shares, key=lambda share: self._merit(share, now_ns)))
        for share in over:
            if share.rdy > 0:  # no connection was waiting for it
                share.turn_began_ns = now_ns
        return changes

    def _merit(self, share: Share, now_ns: int) -> tuple[int, int]:
        if share.rdy == 0:
            return 2, share.granted_ns
        if self._is_idle(share, now_ns):
            return 4, -share.granted_ns
        if self._is_turn_over(share, now_ns):
            return 3, -share.granted_ns
        return 1, share.granted_ns

    def _is_turn_over(self, share: Share, now_ns: int) -> bool:
        return now_ns - share.turn_began_ns >= self._turn_ns

    def _is_idle(self, share: Share, now_ns: int) -> bool:
        return now_ns - max(share.turn_began_ns, share.last_message_ns) >= self._idle_ns

    def _apply(self, ranked: Sequence[Share]) -> list[RdyChange]:
        counts = fair_counts(self._limit, [share.cap for share in ranked])
        changes = [RdyChange(share, count) for share, count in zip(ranked, counts, strict=True) if count != share.rdy]
        changes.sort(key=lambda change: change.rdy > change.share.rdy)  # what goes down goes first
        self._record(changes)
        return changes

    def _record(self, changes: Iterable[RdyChange]) -> None:
        now_ns = self._clock.monotonic_ns()
        for share, count in changes:
            if share.rdy == 0:
                share.granted_ns = share.turn_began_ns = now_ns
            share.rdy = count
