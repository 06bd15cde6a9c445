"""Reading from the segments of a journal.

A channel reads batches, /journal/read sends stretches of a file as they are, and both can find the offset of a moment.

A channel reads on from where its last read ended. So the places where reads ended are remembered for a while, and a
sequential reader needs no search. Other reads go by the index of the segment, and from there by batch headers.

What may take long is done in another thread. `JournalView` is the journal at one moment, with descriptors of its own:
searches for a caller that can wait go there. A channel cannot wait. If the index of a large segment is lost, or damage
hides the next batch among very many places where one may begin, a JournalBusyError tells it to come again. The index is
made anew meanwhile, by another thread; the search goes on where it was, a portion at a time.

A replay of gigabytes must not hold up others, who wait for their turn of the event loop and for the disk. So a channel
that lags reads only what is in memory. What is not, another thread brings there first, and what follows, too:

    loop                   | read A, deliver A   || read B, deliver B   || read C, deliver C   ...
    thread     | bring A |   | bring B, C |         | bring D |            | bring E |         ...

It is two parts ahead: then a sync to which it gives way, or a turn of the loop that comes late, holds up only one of
the two.

Where publishers wait for syncs they are in a hurry, and the loop is to have short turns. So the thread hands over what
it has read, and the loop need not read it once more. The thread also checks large batches, because that does not need
the interpreter. To check small ones, or to decode any, would: the loop and its publishers would wait for it again and
again. All this takes more time in total than if the loop did it, so where nobody is in a hurry, the loop does.

Damage is never passed over silently: it is logged once, counted, and handed to the caller as a `Gap`. A file that
cannot be opened is something else, and an OSError.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from emberq.base.file import PATIENT_BYTES, SYNCS, Files
from emberq.storage.error import ColdPart, JournalBusyError, JournalColdError, JournalError, os_error_text
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.scan import BLOCK_BYTES, Damage, Scan, UnfinishedSearch
from emberq.storage.journal.segment import BatchPlace, Segment
from emberq.storage.journal.segments import Segments
from emberq.wire.journal_batch import CHECKED_FROM, HEADER_BYTES, JournalBatch, header_at

log = logging.getLogger("emberq.storage")


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


ONE_BATCH = 1
"""As `max_bytes`: no batch is so small, and the first is read whatever its size."""


class LoadedPart(NamedTuple):
    """A stretch of a segment's file that has been read."""

    path: Path
    position: int
    block: bytes
    checked_bytes: int
    """The batches within so many bytes have been checked."""


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

    def read(self, offset: int, *, max_bytes: int, may_wait: bool = True, loaded: LoadedPart | None = None) -> Chunk:
        """The batches from the one that holds `offset` on: at least one, then as many as fit into `max_bytes`.

        JournalBusyError if they are to be read later; unless it `may_wait`, JournalColdError if they are not in memory.
        They need not be read if they are in what is `loaded` already.
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
        if not may_wait:
            _refuse(self._cold_way_to(segment, offset))
        scan = self._resumed(self._scan_from(segment, offset, block_bytes=max_bytes), segment)
        if loaded is not None and (loaded.path, loaded.position) == (segment.path, scan.position):
            scan.preload(loaded.block, checked_bytes=loaded.checked_bytes)
        if not may_wait and not scan.next_is_loaded():
            _refuse(self._cold_part_at(segment, scan.position, max_bytes=max_bytes))
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

    def cold_part(self, offset: int, *, max_bytes: int) -> ColdPart | None:
        """What a read that goes on at `offset` would wait for; None if that is in memory, or not known."""
        part = self.part_at(offset, max_bytes=max_bytes)
        if part is None:
            return None
        return self._cold_part_at(self._segments.holding(offset), part.position, max_bytes=max_bytes)

    def part_at(self, offset: int, *, max_bytes: int) -> ColdPart | None:
        """The next `max_bytes` of a read that goes on at `offset`, in memory or not; None if it is not known where."""
        segments = self._segments
        if offset >= segments.next_offset:
            return None
        segment = segments.holding(offset)
        base_offset, place = self._places.get(offset, (segment.base_offset, segment.start))
        if base_offset != segment.base_offset or place.offset != offset:
            return None
        return ColdPart(segment.path, place.position, min(max_bytes, segment.size_bytes - place.position))

    def _cold_way_to(self, segment: Segment, offset: int) -> ColdPart | None:
        """What is searched for the batch that holds `offset`, if not all of it is in memory."""
        if offset == segment.base_offset or offset in self._places:
            return None  # there is no search
        index = self._segments.index(segment)
        start, end = index.before_offset(offset) or segment.start, index.behind_offset(offset)
        size = (segment.size_bytes if end is None else end.position) - start.position
        is_there = segment.fs.is_in_memory(self._segments.opened(segment).descriptor(), size, start.position)
        return None if is_there else ColdPart(segment.path, start.position, size)

    def _cold_part_at(self, segment: Segment, position: int, *, max_bytes: int) -> ColdPart | None:
        """What is not in memory of the next `max_bytes`, or of the batch there, if that is larger."""
        fd, fs = self._segments.opened(segment).descriptor(), segment.fs
        room = segment.size_bytes - position
        size = min(max_bytes, room)
        if fs.is_in_memory(fd, size, position):
            start = fs.read(fd, HEADER_BYTES, position)
            length = header_at(memoryview(start)).length if len(start) == HEADER_BYTES else 0
            if not size < length <= room or fs.is_in_memory(fd, length, position):
                return None
            size = length
        return ColdPart(segment.path, position, size)

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
        if self._segments.has_worker:
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

    def read(self, offset: int, *, max_bytes: int, may_wait: bool = True, loaded: LoadedPart | None = None) -> Chunk:
        """As `JournalReader.read`. JournalError if a file cannot be read at all, or is gone."""
        with self._failing_as_journal_error():
            return super().read(offset, max_bytes=max_bytes, may_wait=may_wait, loaded=loaded)

    def located(self, offset: int, *, max_bytes: int) -> Extent | None:
        """As `JournalReader.locate`, up to what was on the disk. JournalError as for `read`."""
        with self._failing_as_journal_error():
            return self.locate(offset, max_bytes=max_bytes, end_offset=self.synced_offset)

    def offset_at(self, time_ns: int) -> int:
        """As `JournalReader.offset_at`. JournalError as for `read`."""
        with self._failing_as_journal_error():
            return super().offset_at(time_ns)

    def close(self) -> None:
        """Let go of the files. They are opened again when they are needed."""
        for segment in self._segments:
            segment.close()

    @contextmanager
    def _failing_as_journal_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise JournalError(os_error_text("read", self._directory, error)) from error


# Reading ahead.

PARTS_AHEAD = 2
"""How many reads ahead of the channel the other thread is."""
MAX_BROUGHT = 16
"""Parts that were read ahead and not taken since: the channel has gone, or was sent elsewhere."""
MAX_LOADED_BYTES = 1024 * 1024
"""A part that is larger than this, because it is one large batch, is only brought into memory, not kept."""
LARGE_BATCH_BYTES = 16 * 1024
"""To check a batch of this size takes longer than to hand the interpreter to another thread and back."""


class _Job(NamedTuple):
    part: ColdPart
    handed_bytes: int = 0
    """How much of it to hand over: so much, or the first batch if that is larger. 0: only bring it into memory."""


class _Brought(NamedTuple):
    part: ColdPart
    loaded: LoadedPart | None


class ReadAhead:
    """Has another thread read what channels take next. Owned by the journal, in whose thread all runs but `_work`.

    The other thread opens files by `fs`.
    """

    def __init__(self, reader: JournalReader, *, seed: int, workers: Workers, fs: Files) -> None:
        self._reader = reader
        self._seed = seed
        self._workers = workers
        self._fs = fs
        self._wanted: dict[int, _Job] = {}
        """What to read, by the offset that is there; the first first. That one is under way if `_is_reading`."""
        self._told: dict[int, dict[Callable[[], None], None]] = {}
        """Which channels wait for it."""
        self._is_reading = False
        self._brought: dict[int, _Brought] = {}
        """What was read and not taken since, by offset; the oldest first."""

    def read(self, offset: int, *, max_bytes: int, told: Callable[[], None]) -> Chunk:
        """As `JournalReader.read`. JournalColdError if it is not in memory, or not handed over yet.

        Then `told` is called when it is.
        """
        job = self._wanted.get(offset)
        if job is not None and job.handed_bytes:
            self._told.setdefault(offset, {})[told] = None
            raise JournalColdError(f"{job.part.path}: position {job.part.position} is being read", job.part)
        brought = self._brought.pop(offset, None)
        loaded = None if brought is None else brought.loaded
        try:
            chunk = self._reader.read(offset, max_bytes=max_bytes, may_wait=False, loaded=loaded)
        except JournalColdError as cold:
            if brought is None or not brought.part.holds(cold.part):
                self._want(offset, _Job(cold.part))
                if offset in self._wanted:  # else there is no other thread, and it was brought at once
                    self._told.setdefault(offset, {})[told] = None
                    raise
            # Else it cannot be read, or memory is so short that it has gone again. The channel has waited long enough.
            chunk = self._reader.read(offset, max_bytes=max_bytes)
        if chunk.batches and max_bytes > ONE_BATCH and chunk.next_offset not in self._brought:
            self._want_following(chunk.next_offset, max_bytes=max_bytes)
        return chunk

    def _want_following(self, offset: int, *, max_bytes: int) -> None:
        if SYNCS.are_expected:
            part = self._reader.part_at(offset, max_bytes=MAX_LOADED_BYTES)
            handed_bytes = max_bytes
        else:
            part = self._reader.cold_part(offset, max_bytes=PARTS_AHEAD * max_bytes)
            handed_bytes = 0
        if part is not None:
            self._want(offset, _Job(part, handed_bytes))

    def give_up(self) -> None:
        """The journal is closed, or another one takes its place."""
        self._wanted.clear()
        self._told.clear()
        self._brought.clear()

    def _want(self, offset: int, job: _Job) -> None:
        self._wanted.setdefault(offset, job)
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_reading and self._wanted:
            self._is_reading = True
            offset, job = next(iter(self._wanted.items()))
            self._workers.start_reading(lambda: self._work(offset, job))

    def _done(self, offset: int, brought: _Brought) -> None:
        self._is_reading = False
        if self._wanted.pop(offset, None) is not None:  # else it was given up meanwhile
            self._brought[offset] = brought
            if len(self._brought) > MAX_BROUGHT:
                del self._brought[next(iter(self._brought))]
        self._go_on()
        for told in self._told.pop(offset, ()):
            told()

    # -- in the other thread -----------------------------------------------------------------------------------

    def _work(self, offset: int, job: _Job) -> None:
        brought = _Brought(job.part, None)
        try:
            with suppress(OSError):  # the channel meets it when it reads there
                brought = self._bring(job)
        finally:
            self._workers.hand_back(lambda: self._done(offset, brought))

    def _bring(self, job: _Job) -> _Brought:
        path, position, length = job.part
        fd = self._fs.open(path, os.O_RDONLY)
        try:
            if job.handed_bytes:
                block = self._load(fd, job)
                loaded = LoadedPart(path, position, block, self._checked_bytes(memoryview(block)))
                return _Brought(ColdPart(path, position, len(block)), loaded)
            if not self._fs.is_in_memory(fd, length, position):
                for start in range(position, position + length, PATIENT_BYTES):
                    self._fs.read(fd, min(PATIENT_BYTES, position + length - start), start)
            return _Brought(job.part, None)
        finally:
            self._fs.close(fd)

    def _load(self, fd: int, job: _Job) -> bytes:
        position, length = job.part.position, job.part.length
        start = self._fs.read(fd, HEADER_BYTES, position)
        batch_bytes = header_at(memoryview(start)).length if len(start) == HEADER_BYTES else 0
        size = batch_bytes if job.handed_bytes < batch_bytes <= length else min(job.handed_bytes, length)
        return self._fs.read(fd, size, position)

    def _checked_bytes(self, block: memoryview) -> int:
        """How much of the block, from its beginning on, is large batches that are sound."""
        end = 0
        while len(block) - end >= HEADER_BYTES:
            header = header_at(block[end:])
            if header.length < LARGE_BATCH_BYTES or header.fault(room_bytes=len(block) - end) is not None:
                break
            crc = self._seed
            for start in range(end + CHECKED_FROM, end + header.length, PATIENT_BYTES):
                SYNCS.give_way()
                crc = crc32(block[start : min(start + PATIENT_BYTES, end + header.length)], crc)
            if crc != header.crc:
                break  # the reader finds out, and what to do about it
            end += header.length
        return end


def _refuse(cold: ColdPart | None) -> None:
    if cold is not None:
        raise JournalColdError(f"{cold.path}: position {cold.position} is not in memory", cold)


def _first_index_at(batch: JournalBatch, time_ns: int) -> int:
    """Which message of the batch is the first that was published at or after `time_ns`."""
    times_ns = batch.times_ns if batch.times_ns is not None else ()
    return next((index for index, published_ns in enumerate(times_ns) if published_ns >= time_ns), 0)
