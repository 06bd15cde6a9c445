"""Which producer has sent which batch last, so that a batch sent again is not stored again.

A producer that wants this takes a random id of 16 bytes and numbers its batches in ascending order; gaps are allowed.
It sends them in that order, over one connection at a time. When it does not know whether a batch arrived, it sends the
same batch with the same number again: a number that is not larger than the last one stored means "stored already".

The table is a part of the journal: batches carry id and number, so it is rebuilt from them (see `summary` for the
snapshots that make this short). It is bounded; the producers that were silent longest are forgotten first. The order in
which they are forgotten follows from the log alone, so a rebuilt table is the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from emberq.wire.producer import ProducerSequence


class LastBatch(NamedTuple):
    """The last batch of a producer: its number, and where it is."""

    sequence: int
    base_offset: int
    message_count: int

    @property
    def next_offset(self) -> int:
        """The offset behind its last message."""
        return self.base_offset + self.message_count


class ProducerTable:
    """The last batch of each producer. Owned by one journal."""

    def __init__(self, *, max_producers: int) -> None:
        self._max_producers = max_producers
        self._last: dict[bytes, LastBatch] = {}  # in the order of their last batches, the oldest first

    def __len__(self) -> int:
        return len(self._last)

    def items(self) -> Iterator[tuple[bytes, LastBatch]]:
        """All of them, the one that was silent longest first."""
        return iter(self._last.items())

    def last(self, producer_id: bytes) -> LastBatch | None:
        """The last batch of this producer."""
        return self._last.get(producer_id)

    def stored_already(self, producer: ProducerSequence) -> LastBatch | None:
        """The producer's last batch if that is this one or a later one, else None."""
        last = self._last.get(producer.producer_id)
        return last if last is not None and producer.sequence <= last.sequence else None

    def record(self, producer_id: bytes, batch: LastBatch) -> None:
        """This batch has been stored."""
        self._last.pop(producer_id, None)
        self._last[producer_id] = batch
        if len(self._last) > self._max_producers:
            del self._last[next(iter(self._last))]
