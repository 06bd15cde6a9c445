"""All segments of a journal, in order.

Each segment ends where the next one begins, and the last one where the journal ends. So offsets that no batch holds
(damaged, or never given to a message) belong to the segment before them, and whoever reads it notices.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from uuid import UUID

from emberq.storage.journal.batch import seed_of
from emberq.storage.journal.index import SparseIndex
from emberq.storage.journal.segment import Segment
from emberq.storage.journal.summary import load_summary, save_summary, summarize

log = logging.getLogger("emberq.storage")

MAX_OPEN_SEGMENTS = 8
"""Sealed segments that keep their descriptor and their index: enough for channels that read in different places, few
enough that a thousand topics stay within what a process may open."""


class Segments:
    """The segments of one journal; the last one is the active one. Owned by the journal, lent to its reader."""

    def __init__(self, segments: list[Segment], *, journal: UUID, next_offset: int, interval_bytes: int) -> None:
        self.journal = journal
        self.seed = seed_of(journal)
        self.next_offset = next_offset
        """The offset that the next message will get."""
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        self._interval_bytes = interval_bytes
        self._open: dict[int, Segment] = {}  # sealed ones that are open, by base offset; used least recently first

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def first(self) -> Segment:
        """The oldest one."""
        return self._all[0]

    @property
    def active(self) -> Segment:
        """The one that is written to."""
        return self._all[-1]

    @property
    def total_bytes(self) -> int:
        """The size of all of them."""
        return sum(segment.size_bytes for segment in self._all)

    def holding(self, offset: int) -> Segment:
        """The segment in which to look for `offset`, which is not before the first."""
        return self._all[bisect_right(self._bases, offset) - 1]

    def end_offset(self, segment: Segment) -> int:
        """Where the next segment begins, or the journal ends."""
        following = bisect_right(self._bases, segment.base_offset)
        return self._bases[following] if following < len(self._bases) else self.next_offset

    def add(self, segment: Segment) -> None:
        """Seal the active segment and let this one follow it."""
        sealed = self.active
        if sealed.index is not None:
            sealed.latest_ns = sealed.index.latest_ns
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.opened(sealed)

    def remove_first(self) -> Segment:
        """Take the oldest one out; never the active one."""
        segment = self._all.pop(0)
        del self._bases[0]
        self._open.pop(segment.base_offset, None)
        self._let_go(segment)
        return segment

    def opened(self, segment: Segment) -> Segment:
        """The segment, with the promise that it stays open for this call; others may be closed for it."""
        if segment is not self.active:
            self._open.pop(segment.base_offset, None)
            self._open[segment.base_offset] = segment
            if len(self._open) > MAX_OPEN_SEGMENTS:
                self._let_go(self._open.pop(next(iter(self._open))))
        return segment

    def close_sealed(self) -> None:
        """Let go of everything but the active segment."""
        for segment in self._open.values():
            self._let_go(segment)
        self._open.clear()

    def index(self, segment: Segment) -> SparseIndex:
        """The index of a segment: the one in memory, the one in its file, or a new one."""
        if segment.index is None:
            segment.index = self._load_index(self.opened(segment))
        return segment.index

    def latest_ns(self, segment: Segment) -> int:
        """The latest publish time in a segment."""
        if segment.latest_ns is not None:
            return segment.latest_ns
        latest_ns = self.index(segment).latest_ns
        if segment is not self.active:
            segment.latest_ns = latest_ns
        return latest_ns

    def _load_index(self, segment: Segment) -> SparseIndex:
        found = load_summary(segment, journal=self.journal, interval_bytes=self._interval_bytes)
        if found is not None and found.covered_bytes == segment.size_bytes:
            return found.sparse_index
        log.warning("the index of %s is missing or damaged and is made anew", segment.path)
        made = summarize(
            segment, seed=self.seed, end_offset=self.end_offset(segment), interval_bytes=self._interval_bytes
        )
        save_summary(segment, made, journal=self.journal)
        return made.sparse_index

    @staticmethod
    def _let_go(segment: Segment) -> None:
        segment.close()
        segment.index = None
