"""What a disk queue is configured with."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

LENGTH_BYTES = 4
"""The length field before each record, which the record limits do not include."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """The limits of one queue. The defaults are those of nsqd."""

    max_bytes_per_file: int = 100 * 1024 * 1024
    min_record_bytes: int = 26
    """A message with an empty body: 8 bytes of timestamp, 2 of attempts, 16 of id."""
    max_record_bytes: int = 1024 * 1024 + 26
    sync_every: int = 2500
    """Sync after so many records written and read; 0: after every operation; negative: by the timeout alone."""
    sync_timeout_ns: int = 2_000_000_000

    def refused_size(self, ends: Sequence[int]) -> int | None:
        """The size of a record in a batch that could not be read back; None if there is no such record."""
        if isinstance(ends, range):
            sizes = {ends[0]}
        else:
            shortest = min(map(operator.sub, ends, chain((0,), ends)))
            longest = max(map(operator.sub, ends, chain((0,), ends)))
            sizes = {shortest, longest}
        for size in sizes:
            if not self.min_record_bytes <= size - LENGTH_BYTES <= self.max_record_bytes:
                return size - LENGTH_BYTES
        return None
