"""The end of a journal after an unclean stop: what is there, where the first hole is, and how far it was synced.

A module of its own, because it only reads: it decides what `recovery` then does to the files. The rules stand there.

The walk goes from a place up to which everything is sound, through all segments behind it. What it finds behind a hole
waits, until a batch or a segment says that the journal was synced beyond the hole: then the hole is damage, and what
waits counts. What still waits at the end does not, because the journal ends at the hole.

A segment that begins an epoch says where the one before it ends. Should there be more before it than that, a crash has
interrupted the cut, which is to be made good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from emberq.storage.journal.scan import END_OF_OFFSETS, Damage, Scan
from emberq.storage.journal.segment import (
    SEGMENT_HEADER_BYTES,
    BatchPlace,
    JournalConfig,
    Segment,
    SegmentHeader,
    SparseIndex,
    read_header,
)
from emberq.storage.journal.summary import LastBatch, ProducerTable, Summary
from emberq.wire.journal_batch import seed_of
from emberq.wire.parameter import ProducerSequence

_MIN_MESSAGE_BYTES = 4
"""What even an empty message takes in a batch: its position."""


class _Batch(NamedTuple):
    """A batch that was found in the segment with this number."""

    number: int
    position: int
    end_position: int
    base_offset: int
    message_count: int
    timestamp_ns: int
    producer: ProducerSequence | None


class _Begin(NamedTuple):
    """The segment with this number begins."""

    number: int


class _Hole(NamedTuple):
    """There is no batch where one should be."""

    number: int
    damage: Damage


class Tail:
    """What the walk found. The producers are those of the batches that count."""

    def __init__(
        self,
        segments: list[Segment],
        first: int,
        start: BatchPlace,
        *,
        journal: UUID,
        producers: ProducerTable,
        config: JournalConfig,
    ) -> None:
        """Read everything from the place `start` in the segment with the number `first` on. OSError if that fails."""
        self.damage: list[Damage] = []
        """Holes that are no torn writes."""
        self.synced_offset = start.offset
        """Everything before it was on the disk, as something behind it says."""
        self._segments = list(segments)
        self._first = first
        self._start = start
        self._journal = journal
        self._producers = producers
        self._config = config
        self._headers = [self._header(segment) for segment in segments[first:]]
        self._ends = self._told_ends()
        self._waiting: deque[_Batch | _Begin | _Hole] = deque()
        """Found behind a hole; begins with that hole."""
        self._number, self.end_position, self.end_offset = first, start.position, start.offset
        """Where the journal ends: in which segment, at which position and offset."""
        self._left_over: set[int] = set()
        """Segments that a cut, which was interrupted, was to remove."""
        self._trims: dict[int, int] = {}
        """Where segments are to be cut, by number."""
        self._summaries: list[tuple[Segment, Summary]] = []
        self._walk()

    # -- what was found ----------------------------------------------------------------------------------------

    @property
    def kept(self) -> list[Segment]:
        """The segments that stay. The last one is where the journal ends."""
        numbers = range(self._first, self._number + 1)
        return [
            *self._segments[: self._first],
            *(self._segments[number] for number in numbers if number not in self._left_over),
        ]

    @property
    def removed(self) -> list[Segment]:
        """The segments that go."""
        return [self._segments[number] for number in self._removed_numbers()]

    @property
    def trims(self) -> list[tuple[Segment, int]]:
        """The segments of which a part goes, and where each is cut."""
        return [(self._segments[number], position) for number, position in sorted(self._trims.items())]

    @property
    def cut_bytes(self) -> int:
        """How much goes."""
        trimmed = sum(segment.size_bytes - position for segment, position in self.trims)
        return trimmed + sum(segment.size_bytes for segment in self.removed)

    @property
    def is_clean(self) -> bool:
        """Whether nothing lies behind the place where the walk began: the journal was stopped."""
        is_at_start = (self.end_position, self.end_offset) == (self._start.position, self._start.offset)
        return is_at_start and self._number == self._first and not self.cut_bytes

    @property
    def least_offset(self) -> int:
        """The offset behind all that may have been given to messages in what goes; 0 if none can have been seen."""
        hole = self._waiting[0] if self._waiting else None
        if not isinstance(hole, _Hole):
            return 0
        later = [number for number in self._removed_numbers() if number not in self._left_over]
        if hole.damage.is_incomplete and not later:
            return 0  # it was being written
        lost_bytes = self._segments[hole.number].size_bytes - hole.damage.position
        bounds = [hole.damage.first_offset + lost_bytes // _MIN_MESSAGE_BYTES]
        for number in later:
            segment = self._segments[number]
            bounds.append(segment.base_offset + segment.size_bytes // _MIN_MESSAGE_BYTES)
        return max(bounds)

    def unsynced(self) -> Iterator[tuple[Segment, int, int]]:
        """The parts of segments that stay and were not called synced: from where to where."""
        numbers = [number for number in range(self._first, self._number + 1) if number not in self._left_over]
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            segment = self._segments[number]
            end_offset = self.end_offset if following is None else self._segments[following].base_offset
            end = self._trims.get(number, segment.size_bytes)
            if segment.base_offset >= self.synced_offset:
                yield segment, 0, end
            elif end_offset > self.synced_offset:
                place = None if segment.index is None else segment.index.before_offset(self.synced_offset)
                yield segment, SEGMENT_HEADER_BYTES if place is None else place.position, end

    def summaries(self) -> Iterator[tuple[Segment, Summary]]:
        """The contents of .idx files for everything that was read."""
        yield from self._summaries
        yield self.kept[-1], self._summary(self._number, end_position=self.end_position)

    # -- the walk ----------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        segments = self._segments
        if segments[self._first].index is None:
            segments[self._first].index = SparseIndex(interval_bytes=self._config.index_interval_bytes)
        self._left_over = {
            number for number in range(self._first, len(segments)) if segments[number].base_offset > self._ends[number]
        }
        numbers = [number for number in range(self._first, len(segments)) if number not in self._left_over]
        offset = self._start.offset
        for number, following in zip(numbers, [*numbers[1:], None], strict=True):
            if number != self._first:
                self._begin(number, offset=offset)
            end_offset = END_OF_OFFSETS if following is None else segments[following].base_offset
            offset = self._read(number, end_offset=min(end_offset, self._ends[number]))
        self._end()

    def _header(self, segment: Segment) -> SegmentHeader | None:
        header = read_header(segment.path, fs=segment.fs)
        is_own = header is not None and (header.journal, header.base_offset) == (self._journal, segment.base_offset)
        return header if is_own else None

    def _told_ends(self) -> dict[int, int]:
        """Where each segment ends at the latest, as the headers of later ones tell."""
        ends: dict[int, int] = {}
        end = END_OF_OFFSETS
        for number in reversed(range(self._first, len(self._segments))):
            ends[number] = end
            header = self._headers[number - self._first]
            if header is not None and header.after_offset is not None:
                end = min(end, header.after_offset)
        return ends

    def _begin(self, number: int, *, offset: int) -> None:
        """Go from the segment before, which ends at `offset`, to this one."""
        header, base_offset = self._headers[number - self._first], self._segments[number].base_offset
        if header is None:
            is_joined = offset == base_offset
        elif header.after_offset is None or header.synced_offset is None:
            is_joined = True  # version 1 does not say where the one before it ends, and took it for synced
            self._learn(base_offset)
        else:
            is_joined = offset == header.after_offset
            self._learn(header.synced_offset)
        if not is_joined:
            before = max(other for other in range(self._first, number) if other not in self._left_over)
            end = self._segments[before].size_bytes
            self._add(_Hole(before, Damage(end, end, offset, base_offset, "no batch holds these offsets")))
        self._add(_Begin(number))

    def _read(self, number: int, *, end_offset: int) -> int:
        """Read one segment; return the offset at which it ends."""
        segment = self._segments[number]
        scan = Scan(
            segment.descriptor(),
            seed=seed_of(self._journal),
            start=self._start if number == self._first else segment.start,
            end_position=segment.size_bytes,
            end_offset=end_offset,
            fs=segment.fs,
        )
        told_end = self._ends[number]
        while scan.offset < told_end and (found := scan.next()) is not None:
            if isinstance(found, Damage):
                self._add(_Hole(number, found._replace(file=segment.path.name)))
                continue
            synced_offset = found.synced_offset
            self._learn(found.base_offset if synced_offset is None else synced_offset)
            start = scan.position - found.length
            self._add(
                _Batch(number, start, scan.position, found.base_offset, found.count, found.timestamp_ns, found.producer)
            )
        if scan.position < segment.size_bytes:
            self._trims[number] = scan.position
        return scan.offset

    def _learn(self, synced_offset: int) -> None:
        """Everything before this offset was on the disk."""
        if synced_offset > self.synced_offset:
            self.synced_offset = synced_offset
            self._take()

    def _add(self, found: _Batch | _Begin | _Hole) -> None:
        self._waiting.append(found)
        self._take()

    def _take(self) -> None:
        """Take in what waits, up to the next hole that may be the end."""
        while self._waiting:
            found = self._waiting[0]
            if isinstance(found, _Hole):
                if found.damage.first_offset >= self.synced_offset:
                    return
                self.damage.append(found.damage)
            elif isinstance(found, _Begin):
                self._take_segment(found.number)
            else:
                self._take_batch(found)
            self._waiting.popleft()

    def _take_segment(self, number: int) -> None:
        before = self._segments[self._number]
        if self._number != self._first or self._start.position < before.size_bytes:
            end_position = self._trims.get(self._number, before.size_bytes)
            self._summaries.append((before, self._summary(self._number, end_position=end_position)))
        segment = self._segments[number]
        segment.index = SparseIndex(interval_bytes=self._config.index_interval_bytes)
        self._number, self.end_position, self.end_offset = number, SEGMENT_HEADER_BYTES, segment.base_offset

    def _take_batch(self, batch: _Batch) -> None:
        index = self._segments[batch.number].index
        assert index is not None
        index.add(offset=batch.base_offset, position=batch.position, timestamp_ns=batch.timestamp_ns)
        if batch.producer is not None:
            producer_id, sequence = batch.producer
            self._producers.record(producer_id, LastBatch(sequence, batch.base_offset, batch.message_count))
        self.end_position = batch.end_position
        self.end_offset = batch.base_offset + batch.message_count

    def _end(self) -> None:
        """The journal ends at the hole that is left, if one is."""
        if not self._waiting:
            return
        hole = self._waiting[0]
        assert isinstance(hole, _Hole)
        assert hole.number == self._number
        self.end_position, self.end_offset = hole.damage.position, hole.damage.first_offset
        for number in self._removed_numbers():
            self._trims.pop(number, None)
        if self.end_position < self._segments[self._number].size_bytes:
            self._trims[self._number] = self.end_position

    def _removed_numbers(self) -> list[int]:
        numbers = range(self._first, len(self._segments))
        return [number for number in numbers if number > self._number or number in self._left_over]

    def _summary(self, number: int, *, end_position: int) -> Summary:
        segment = self._segments[number]
        assert segment.index is not None
        producers = list(self._producers.items())
        return Summary(segment.base_offset, self.end_offset, end_position, segment.index, producers)
