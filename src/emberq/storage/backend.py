"""The queue behind the memory of a topic or channel: its interface, its limits, and the one that keeps nothing."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol


class Records(NamedTuple):
    """Some messages as they lie on disk, back to back:

        | length: int32 BE | payload | length | payload | ...
                                     ^ends[0]           ^ends[1]

    `ends[i]` is where record i ends in `blob`, so `ends[-1] == len(blob)`. It is a `range` whenever all records have
    one size; then all of them can be handled at once.
    """

    blob: bytes
    ends: Sequence[int]


class Backend(Protocol):
    """A first-in, first-out queue of records. Owned by one thread."""

    @property
    def depth(self) -> int:
        """How many records wait."""
        ...

    def open(self) -> None:
        """Go on with what an earlier run left."""
        ...

    def put(self, records: Records) -> None:
        """Append the records, or raise DiskWriteError, which tells how many of them were stored."""
        ...

    def take(self, *, max_count: int, max_bytes: int) -> Records | None:
        """Remove and return the next records: at least one, perhaps fewer than allowed, None if there are none."""
        ...

    def peek(self, *, max_count: int) -> Records | None:
        """The next records, without removing them; perhaps fewer than allowed."""
        ...

    def sync(self) -> None:
        """Return when everything put so far is on the disk and what was dropped is gone, or raise SyncError."""
        ...

    def empty(self) -> None:
        """Drop all records, now; their files go soon."""
        ...

    def close(self) -> None:
        """Keep the records for a later run, soon, and let go of all resources."""
        ...

    def delete(self) -> None:
        """Drop all records and let go of all resources, now; their files go soon."""
        ...


class NullQueue:
    """The backend of ephemeral topics and channels: what does not fit into memory is dropped."""

    depth = 0

    def open(self) -> None:
        pass

    def put(self, records: Records) -> None:
        pass

    def take(self, *, max_count: int, max_bytes: int) -> Records | None:  # noqa: ARG002 - the Backend interface
        return None

    def peek(self, *, max_count: int) -> Records | None:  # noqa: ARG002 - the Backend interface
        return None

    def sync(self) -> None:
        pass

    def empty(self) -> None:
        pass

    def close(self) -> None:
        pass

    def delete(self) -> None:
        pass


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
    _found_good: list[Sequence[int]] = field(default_factory=list, compare=False, repr=False)
    """The batch that was looked at last, if it was good: a publish brings it to each channel in turn."""

    def refused_size(self, ends: Sequence[int]) -> int | None:
        """The size of a record in a batch that could not be read back; None if there is no such record."""
        if isinstance(ends, range):
            return self._first_refused({ends[0]})
        if not any(good is ends for good in self._found_good):
            shortest = min(map(operator.sub, ends, chain((0,), ends)))
            longest = max(map(operator.sub, ends, chain((0,), ends)))
            refused = self._first_refused({shortest, longest})
            if refused is not None:
                return refused
            self._found_good[:] = [ends]
        return None

    def _first_refused(self, sizes: set[int]) -> int | None:
        for size in sizes:
            if not self.min_record_bytes <= size - LENGTH_BYTES <= self.max_record_bytes:
                return size - LENGTH_BYTES
        return None
