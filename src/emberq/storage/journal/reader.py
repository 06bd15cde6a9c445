"""All segments of a journal in order, and reading from them.

A channel reads batches, /journal/read sends stretches of a file as they are, and both can find the offset of a moment.

Each segment ends where the next one begins, and the last one where the journal ends. So offsets that no batch holds
(damaged, or never given to a message) belong to the segment before them, and its readers notice. Where the journal has
moved on to a new epoch, the next segment says so, and the gap is no damage.

A channel reads on from where its last read ended. So the places where reads ended are remembered for a while, and a
sequential reader needs no search. Other reads go by the index of the segment, and from there by batch headers.

What may take long is done in another thread. `JournalView` is the journal at one moment, with descriptors of its own:
searches for a caller that can wait go there. A channel cannot wait. If the index of a large segment is lost, or damage
hides the next batch among very many places where one may begin, a JournalBusyError tells it to come again. The index is
made anew meanwhile, by another thread; the search goes on where it was, a portion at a time. And if the disk has still
to be waited for, the system is asked to read ahead, and the channel comes again when that is done.

Damage is never passed over silently: it is logged once, counted, and handed to the caller as a `Gap`. A file that
cannot be opened is something else, and an OSError.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from emberq.storage.error import JournalBusyError, JournalColdError, JournalError, os_error_text
from emberq.storage.journal.scan import BLOCK_BYTES, Damage, Scan, UnfinishedSearch
from emberq.storage.journal.segment import BatchPlace, Segment, SparseIndex, read_header
from emberq.storage.journal.summary import load_summary, save_summary, summarize
from emberq.wire.journal_batch import JournalBatch, seed_of

log = logging.getLogger("emberq.storage")


# Segments.

MAX_OPEN_SEGMENTS = 8
"""Sealed segments that keep their descriptor and their index: enough for channels that read in different places, few
enough for a thousand topics in one process."""
SOON_READ_BYTES = 4 * 1024 * 1024
"""A segment of this size is read in less than ten milliseconds, so its index may be made anew where it is needed."""


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
        self.start: Callable[[Callable[[], None]], object] | None = None
        """Runs work in another thread; None: what takes long is done here."""
        self._in_making: set[int] = set()  # the base offsets of segments whose index is made anew in another thread

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
        if self.start is not None and segment.size_bytes > SOON_READ_BYTES:
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
        if self.start is None or base_offset in self._in_making:
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

        self.start(work)

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
        segment.path, base_offset=segment.base_offset, size_bytes=segment.size_bytes, read_only=True, fs=segment.fs
    )
    copy.latest_ns = segment.latest_ns
    copy.index = segment.index.copy() if is_active and segment.index is not None else segment.index
    return copy


# Reading.

MAX_REMEMBERED_PLACES = 256
"""If more channels than this of one topic lag, each in another place, they search for their place at each read."""
MAX_REMEMBERED_GAPS = 1024
"""Beyond this many, damage is logged again at each read."""
MAX_UNFINISHED_SEARCHES = 4
"""Searches behind damage that channels wait for; of more than this the oldest begins anew."""
SEARCH_PORTIONS = 2
"""How many portions of a search are done at a time, a few milliseconds each, where others wait."""


MOVED_ON = "skipped after an unclean stop"
"""The reason of a gap that is no damage: no message has these offsets, or none has them any more."""


AHEAD_BYTES = 1024 * 1024
"""So much the system is asked to read before it is needed, for a channel that does not wait for the disk."""
MAX_TRIES = 100
"""How often such a channel comes again for the same place. If it is still not in memory, the channel waits: this disk
is very slow, or the file system never tells."""
MAX_AWAITED_PLACES = 256


class Gap(NamedTuple):
    """Offsets from `first_offset` up to, not including, `next_offset` that cannot be read."""

    first_offset: int
    next_offset: int
    reason: str


class Chunk(NamedTuple):
    """The result of one read. The next one begins at `next_offset`."""

    batches: list[JournalBatch]
    """In order. The first one holds the offset asked for and may begin before it."""
    next_offset: int
    """Larger than the offset asked for, except at the end of the journal."""
    gaps: list[Gap]
    """What is missing between the offset asked for and `next_offset`."""


class Extent(NamedTuple):
    """A stretch of a segment's file that holds whole batches and nothing else."""

    path: Path
    position: int
    length: int
    base_offset: int
    """The first batch begins with this offset; if it is behind the one asked for, the offsets between are lost."""
    next_offset: int


class JournalReader:
    """Reads from the segments of one journal. Owned by the journal, as are the segments."""

    def __init__(self, segments: Segments) -> None:
        self.gaps: dict[int, Gap] = {}
        """The damage that reads came across, by first offset."""
        self._segments = segments
        self._unfinished: dict[tuple[int, int], Scan] = {}
        """Scans within a search, by the segment's base offset and the position; the oldest first."""
        self._places: dict[int, tuple[int, BatchPlace]] = {}
        """Where reads ended, by offset, each with the base offset of its segment; the oldest first."""
        self._awaited: dict[tuple[int, int], int] = {}
        """What the disk is to bring, by the segment's base offset and the position: how often it was asked for."""

    def read(self, offset: int, *, max_bytes: int, may_wait: bool = True) -> Chunk:
        """The batches from the one that holds `offset` on: at least one, then as many as fit into `max_bytes`.

        JournalBusyError if they are to be read later; unless it `may_wait`, JournalColdError if they are not in memory.
        """
        segments = self._segments
        if offset >= segments.next_offset:
            return Chunk([], offset, [])
        gaps: list[Gap] = []
        first_offset = segments.first.base_offset
        if offset < first_offset:
            gaps.append(Gap(offset, first_offset, "removed by retention"))
            offset = first_offset
            if offset == segments.next_offset:
                return Chunk([], offset, gaps)
        segment = segments.holding(offset)
        scan = self._resumed(self._scan_from(segment, offset, block_bytes=max_bytes), segment)
        if not may_wait:
            self._require_in_memory(segment, scan.position, max_bytes)
        batches: list[JournalBatch] = []
        while not batches or scan.next_is_loaded():
            try:
                found = scan.next()
            except UnfinishedSearch:
                self._keep_unfinished(segment, scan)
                if scan.offset > offset:
                    break  # what was found so far is something
                raise JournalBusyError(f"{segment.path}: the next batch behind damage is searched for") from None
            if found is None:
                break
            if isinstance(found, Damage):
                self._note_damage(found, segment, gaps, offset=offset)
            elif found.next_offset > offset:
                batches.append(found)
        next_offset = self._end_of_read(scan, segment, gaps, offset=offset)
        assert offset < next_offset <= segments.next_offset
        return Chunk(batches, next_offset, gaps)

    def _require_in_memory(self, segment: Segment, position: int, size: int) -> None:
        """JournalColdError unless what is read next is in memory. The disk is asked for that, and for what follows."""
        fs, fd = segment.fs, self._segments.opened(segment).descriptor()
        place = (segment.base_offset, position)
        tries = self._awaited.pop(place, 0)
        if fs.is_in_memory(fd, min(size, segment.size_bytes - position), position):
            fs.will_read(fd, size, position + AHEAD_BYTES)
        elif tries < MAX_TRIES:
            if not tries:
                fs.will_read(fd, size + AHEAD_BYTES, position)
            self._awaited[place] = tries + 1
            if len(self._awaited) > MAX_AWAITED_PLACES:
                del self._awaited[next(iter(self._awaited))]
            raise JournalColdError(f"{segment.path}: the disk has not brought position {position} yet")

    def locate(self, offset: int, *, max_bytes: int, end_offset: int) -> Extent | None:
        """Where the batches from the one that holds `offset` on lie in a file; None if there are none.

        Whole batches of one segment that end at or before `end_offset`: at least one, then as many as fit into
        `max_bytes`. Only the first batch is checked. A reader that finds damage behind it asks again for the offset
        where the damage began.
        """
        offset = max(offset, self._segments.first.base_offset)
        while offset < end_offset:
            segment = self._segments.holding(offset)
            scan = self._scan_from(segment, offset, block_bytes=BLOCK_BYTES)
            first = self._first_good(scan, segment, offset=offset)
            if first is not None:
                start = scan.position - first.length
                if first.next_offset > end_offset:
                    return None
                self._pass_within(scan, segment, end_position=start + max_bytes, end_offset=end_offset)
                self._remember(segment.base_offset, BatchPlace(scan.offset, scan.position))
                assert start < scan.position <= segment.size_bytes
                assert first.next_offset <= scan.offset <= end_offset
                return Extent(segment.path, start, scan.position - start, first.base_offset, scan.offset)
            offset = self._segments.end_offset(segment)
        return None

    def offset_at(self, time_ns: int) -> int:
        """The first offset that was published at or after `time_ns`; the end of the journal if none was."""
        segments = self._segments
        for segment in segments:
            if segments.latest_ns(segment) >= time_ns:
                found = self._offset_within(segment, time_ns)
                if found is not None:
                    return found
        return segments.next_offset

    def learn(self, view: JournalView) -> None:
        """Take over what a view has come across: damage, and the places where its reads ended."""
        for first_offset, gap in view.gaps.items():
            if len(self.gaps) < MAX_REMEMBERED_GAPS:
                self.gaps.setdefault(first_offset, gap)
        for segment_offset, place in view._places.values():
            if place.offset not in self._places:
                self._remember(segment_offset, place)

    # -- scanning ----------------------------------------------------------------------------------------------

    def _scan_from(self, segment: Segment, offset: int, *, block_bytes: int) -> Scan:
        """A scan at the batch that holds `offset`, or before damage that hides it."""
        remembered = self._places.get(offset)
        if remembered is not None and remembered[0] == segment.base_offset:
            scan = self._scan(segment, remembered[1], block_bytes=block_bytes)
        elif offset == segment.base_offset:
            scan = self._scan(segment, segment.start, block_bytes=block_bytes)
        else:
            place = self._segments.index(segment).before_offset(offset)
            scan = self._scan(segment, place, block_bytes=block_bytes)
            scan.pass_before(offset)
        return scan

    def _resumed(self, scan: Scan, segment: Segment) -> Scan:
        """The scan that is within a search from the same position, if there is one; else this one."""
        unfinished = self._unfinished.pop((segment.base_offset, scan.position), None)
        if unfinished is not None:
            unfinished.use(self._segments.opened(segment).descriptor())
            return unfinished
        if self._segments.start is not None:
            scan.max_portions = SEARCH_PORTIONS
        return scan

    def _keep_unfinished(self, segment: Segment, scan: Scan) -> None:
        self._unfinished[segment.base_offset, scan.position] = scan
        if len(self._unfinished) > MAX_UNFINISHED_SEARCHES:
            del self._unfinished[next(iter(self._unfinished))]

    def _scan(self, segment: Segment, place: BatchPlace | None, *, block_bytes: int) -> Scan:
        segments = self._segments
        return Scan(
            segments.opened(segment).descriptor(),
            seed=segments.seed,
            start=place or segment.start,
            end_position=segment.size_bytes,
            end_offset=segments.end_offset(segment),
            block_bytes=block_bytes,
            fs=segment.fs,
        )

    def _first_good(self, scan: Scan, segment: Segment, *, offset: int) -> JournalBatch | None:
        """The first batch of the scan that reaches beyond `offset`."""
        gaps: list[Gap] = []
        while (found := scan.next()) is not None:
            if isinstance(found, Damage):
                self._note_damage(found, segment, gaps, offset=offset)
            elif found.next_offset > offset:
                return found
        return None

    def _pass_within(self, scan: Scan, segment: Segment, *, end_position: int, end_offset: int) -> None:
        """Move the scan on by whole batches, up to both ends; most of the way by the index."""
        place = self._segments.index(segment).before_position(end_position)
        if place is not None and place.position > scan.position and place.offset <= end_offset:
            scan.position, scan.offset = place.position, place.offset
        while (header := scan.next_header()) is not None:
            if scan.position + header.length > end_position or header.next_offset > end_offset:
                break
            scan.pass_header(header)

    def _offset_within(self, segment: Segment, time_ns: int) -> int | None:
        place = self._segments.index(segment).before_time(time_ns)
        scan = self._scan(segment, place, block_bytes=BLOCK_BYTES)
        while (found := scan.next()) is not None:
            if not isinstance(found, Damage) and found.timestamp_ns >= time_ns:
                return found.base_offset + _first_index_at(found, time_ns)
        return None

    # -- bookkeeping -------------------------------------------------------------------------------------------

    def _end_of_read(self, scan: Scan, segment: Segment, gaps: list[Gap], *, offset: int) -> int:
        """Where the next read begins: behind the last batch, or with the next segment if this one is at its end."""
        if scan.position < segment.size_bytes:
            self._remember(segment.base_offset, BatchPlace(scan.offset, scan.position))
            return scan.offset
        end_offset = self._segments.end_offset(segment)
        if scan.offset < end_offset:
            self._note_rest(scan, segment, gaps, offset=offset)
        elif segment is self._segments.active:
            self._remember(segment.base_offset, BatchPlace(scan.offset, scan.position))
        return end_offset

    def _note_rest(self, scan: Scan, segment: Segment, gaps: list[Gap], *, offset: int) -> None:
        """The segment ends before the next one begins: because the journal moved on, or because something is lost."""
        end_offset = self._segments.end_offset(segment)
        if self._segments.told_end(segment) == scan.offset:
            gaps.append(Gap(max(scan.offset, offset), end_offset, MOVED_ON))
        else:
            rest = Damage(scan.position, scan.position, scan.offset, end_offset, "no batch holds these offsets")
            self._note(rest, gaps, offset=offset)

    def _note_damage(self, damage: Damage, segment: Segment, gaps: list[Gap], *, offset: int) -> None:
        """Note damage in a segment. Offsets that the journal skipped behind it are no part of it."""
        end_offset = self._segments.end_offset(segment)
        if segment is self._segments.active or damage.next_offset < end_offset:
            self._note(damage, gaps, offset=offset)
            return
        lost_end = max(damage.first_offset, self._segments.told_end(segment))
        self._note(damage._replace(next_offset=lost_end), gaps, offset=offset)
        if lost_end < end_offset:
            gaps.append(Gap(max(lost_end, offset), end_offset, MOVED_ON))

    def _note(self, damage: Damage, gaps: list[Gap], *, offset: int) -> None:
        """Add the damage to the caller's gaps, as far as it lies behind `offset`; log and count it once."""
        if damage.first_offset == damage.next_offset:
            return
        if damage.next_offset > offset:
            gaps.append(Gap(max(damage.first_offset, offset), damage.next_offset, damage.reason))
        if any(gap.first_offset <= damage.first_offset < gap.next_offset for gap in self.gaps.values()):
            return
        if len(self.gaps) < MAX_REMEMBERED_GAPS:
            self.gaps[damage.first_offset] = Gap(damage.first_offset, damage.next_offset, damage.reason)
        path = self._segments.holding(damage.first_offset).path
        log.error("journal %s: %s", path.parent, damage._replace(file=path.name))

    def _remember(self, segment_offset: int, place: BatchPlace) -> None:
        self._places.pop(place.offset, None)
        self._places[place.offset] = (segment_offset, place)
        if len(self._places) > MAX_REMEMBERED_PLACES:
            del self._places[next(iter(self._places))]


class JournalView(JournalReader):
    """A journal as it is at one moment, for one other thread, which closes it. What it learns goes back: `learn`."""

    def __init__(self, reader: JournalReader, *, directory: Path, synced_offset: int) -> None:
        super().__init__(reader._segments.detached())
        self.synced_offset = synced_offset
        """Everything before it is on the disk."""
        self.gaps = dict(reader.gaps)
        self._places = dict(reader._places)
        self._directory = directory

    @property
    def first_offset(self) -> int:
        """The oldest offset that was kept."""
        return self._segments.first.base_offset

    def read(self, offset: int, *, max_bytes: int, may_wait: bool = True) -> Chunk:
        """As `JournalReader.read`. JournalError if a file cannot be read at all, or is gone."""
        with self._failing_as_journal_error():
            return super().read(offset, max_bytes=max_bytes, may_wait=may_wait)

    def located(self, offset: int, *, max_bytes: int) -> Extent | None:
        """As `JournalReader.locate`, up to what was on the disk. JournalError as for `read`."""
        with self._failing_as_journal_error():
            return self.locate(offset, max_bytes=max_bytes, end_offset=self.synced_offset)

    def offset_at(self, time_ns: int) -> int:
        """As `JournalReader.offset_at`. JournalError as for `read`."""
        with self._failing_as_journal_error():
            return super().offset_at(time_ns)

    def close(self) -> None:
        """Let go of the files."""
        for segment in self._segments:
            segment.close()

    @contextmanager
    def _failing_as_journal_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(os_error_text("read", self._directory, error)) from error


def _first_index_at(batch: JournalBatch, time_ns: int) -> int:
    """Which message of the batch is the first that was published at or after `time_ns`."""
    times_ns = batch.times_ns if batch.times_ns is not None else ()
    return next((index for index, published_ns in enumerate(times_ns) if published_ns >= time_ns), 0)
