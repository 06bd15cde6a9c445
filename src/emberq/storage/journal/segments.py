"""All segments of a journal in order: which holds an offset, which are open, and their indexes.

Each segment ends where the next one begins, and the last one where the journal ends. So offsets that no batch holds
(damaged, or never given to a message) belong to the segment before them, and its readers notice. Where the journal has
moved on to a new epoch, the next segment says so, and the gap is no damage.

What takes long is done in another thread, with copies of the segments (`detached`) whose files give way to syncs
(`Files.patient`): publishers wait for a sync, and a sync would wait for everything that a reader has asked the disk for
before. So lost indexes are made anew.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from uuid import UUID

from emberq.storage.error import JournalBusyError
from emberq.storage.journal.commit import Work
from emberq.storage.journal.segment import Segment, SparseIndex, read_header
from emberq.storage.journal.summary import load_summary, save_summary, summarize
from emberq.wire.journal_batch import seed_of

log = logging.getLogger("emberq.storage")

MAX_OPEN_SEGMENTS = 8
"""Sealed segments that keep their descriptor and their index: enough for channels that read in different places, few
enough for a thousand topics in one process."""
SOON_READ_BYTES = 4 * 1024 * 1024
"""A segment of this size is read in less than ten milliseconds, so its index may be made anew where it is needed."""


class Segments:
    """The segments of one journal; the last one is the active one. Owned by the journal, lent to its reader."""

    def __init__(
        self,
        segments: list[Segment],
        *,
        journal: UUID,
        next_offset: int,
        interval_bytes: int,
        start_reading: Callable[[Work], object] | None = None,
    ) -> None:
        """`start_reading` is that of `Workers`; without it, what takes long is done where it is asked for."""
        self.journal = journal
        self.seed = seed_of(journal)
        self.next_offset = next_offset
        """The offset that the next message will get."""
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        self._interval_bytes = interval_bytes
        self._open: dict[int, Segment] = {}  # sealed ones that are open, by base offset; used least recently first
        self._start_reading = start_reading
        self._in_making: set[int] = set()  # the base offsets of segments whose index is made anew in another thread

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def has_worker(self) -> bool:
        """Whether another thread does what takes long."""
        return self._start_reading is not None

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

    def told_end(self, segment: Segment) -> int:
        """Where the offsets of a sealed segment end, as the next one says: before its own, if it begins an epoch."""
        following = self._all[bisect_right(self._bases, segment.base_offset)]
        header = read_header(following.path, fs=following.fs)
        after_offset = None if header is None else header.after_offset
        return following.base_offset if after_offset is None else after_offset

    def add(self, segment: Segment) -> None:
        """Seal the active segment and let this one follow it."""
        sealed = self.active
        assert segment.base_offset >= self.next_offset
        assert segment.base_offset > sealed.base_offset
        if sealed.index is not None:
            sealed.latest_ns = sealed.index.latest_ns
        self._all.append(segment)
        self._bases.append(segment.base_offset)
        self.opened(sealed)

    def remove_first(self) -> Segment:
        """Take the oldest one out; never the active one."""
        assert len(self._all) > 1
        segment = self._all.pop(0)
        del self._bases[0]
        self._open.pop(segment.base_offset, None)
        self._let_go(segment)
        return segment

    def put_back(self, oldest: list[Segment]) -> None:
        """Take in again what was taken out last."""
        self._all[:0] = oldest
        self._bases[:0] = [segment.base_offset for segment in oldest]

    def opened(self, segment: Segment) -> Segment:
        """The segment, which stays open until the next call; others may be closed for it."""
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
        if self._start_reading is not None and segment.size_bytes > SOON_READ_BYTES:
            self._make_index_soon(segment)
            raise JournalBusyError(f"the index of {segment.path} is being made anew")
        return self._make_index(segment)

    def _make_index(self, segment: Segment) -> SparseIndex:
        log.warning("the index of %s is missing or damaged and is made anew", segment.path)
        made = summarize(
            segment, seed=self.seed, end_offset=self.end_offset(segment), interval_bytes=self._interval_bytes
        )
        save_summary(segment, made, journal=self.journal)
        return made.sparse_index

    def _make_index_soon(self, segment: Segment) -> None:
        """Let another thread write the .idx file, unless one does so already."""
        base_offset = segment.base_offset
        if self._start_reading is None or base_offset in self._in_making:
            return
        self._in_making.add(base_offset)
        apart = self.detached()

        def work() -> None:
            try:
                apart._make_index(apart.opened(apart.holding(base_offset)))
            except OSError as error:
                log.warning("the index of %s was not made - %s", segment.path, error)
            finally:
                apart.close_sealed()
                self._in_making.discard(base_offset)  # the next reader finds the file, or tries again

        self._start_reading(work)

    def detached(self) -> Segments:
        """The same segments as they are now, with descriptors of their own: for another thread."""
        copies = [_copied(segment, is_active=segment is self.active) for segment in self._all]
        return Segments(copies, journal=self.journal, next_offset=self.next_offset, interval_bytes=self._interval_bytes)

    @staticmethod
    def _let_go(segment: Segment) -> None:
        segment.close()
        segment.index = None


def _copied(segment: Segment, *, is_active: bool) -> Segment:
    copy = Segment(
        segment.path,
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        read_only=True,
        fs=segment.fs.patient,
    )
    copy.latest_ns = segment.latest_ns
    copy.index = segment.index.copy() if is_active and segment.index is not None else segment.index
    return copy
