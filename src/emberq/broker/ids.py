"""Message ids, in the layout of the reference.

    bits 63..22   pseudo-milliseconds: (now in ns >> 20) - EPOCH, 1.048576 ms each
    bits 21..12   node id
    bits 11..0    sequence number within the pseudo-millisecond

The reference waits when a pseudo-millisecond is used up or the clock went back. Ours takes the next pseudo-millisecond
instead, ahead of the clock if it must: ids stay unique and increasing, and nobody waits.
"""

from __future__ import annotations

_EPOCH = 1_288_834_974_288
_SEQUENCES = 1 << 12
MAX_NODE_ID = 1023


class IdSource:
    """Makes the ids of one topic."""

    def __init__(self, node_id: int) -> None:
        if not 0 <= node_id <= MAX_NODE_ID:
            raise ValueError(f"node id {node_id} is not in 0..{MAX_NODE_ID}")
        self._node_bits = node_id << 12
        self._tick = 0
        self._next_sequence = 0

    def reserve(self, count: int, wall_ns: int) -> int:
        """The first of `count` (at most 4096) consecutive ids, all of one pseudo-millisecond."""
        tick = (wall_ns >> 20) - _EPOCH
        if tick <= self._tick:
            tick = self._tick if self._next_sequence + count <= _SEQUENCES else self._tick + 1
        if tick > self._tick:
            self._tick = tick
            self._next_sequence = 0
        first_sequence = self._next_sequence
        self._next_sequence += count
        return tick << 22 | self._node_bits | first_sequence
