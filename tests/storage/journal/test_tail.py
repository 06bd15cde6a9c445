"""What a walk over the end of a journal decides: segments are made by hand, with and without what they should hold."""

from __future__ import annotations

from uuid import UUID

import pytest

from emberq.storage.journal.segment import JournalConfig, Segment, SegmentHeader, create_segment
from emberq.storage.journal.summary import ProducerTable
from emberq.storage.journal.tail import Tail
from emberq.wire.journal_batch import Bodies, encode, seed_of
from tests.crash.simulated_files import ROOT, SimulatedFiles
from tests.storage.journal.rig import producer

JOURNAL = UUID(int=5)
BODY = b"." * 24
BATCH_BYTES = 64 + 8 + 24 + 8


class Builder:
    """Segments in a folder, one message a batch."""

    def __init__(self) -> None:
        self.fs = SimulatedFiles()
        self.segments: list[Segment] = []
        self.producers = ProducerTable(max_producers=10)

    def segment(self, base_offset: int, *, synced: int = 0, after: int | None = None) -> Segment:
        """A new segment behind the others."""
        header = SegmentHeader(JOURNAL, base_offset, 1, synced, base_offset if after is None else after)
        self.segments.append(create_segment(ROOT, header, interval_bytes=1, fs=self.fs))
        return self.segments[-1]

    def batch(self, offset: int, *, synced: int = 0) -> None:
        """A batch at the end of the last segment."""
        self.segments[-1].append(
            encode(
                Bodies.of([BODY]),
                base_offset=offset,
                timestamp_ns=offset,
                seed=seed_of(JOURNAL),
                producer=producer(b"p", offset),
                synced_offset=synced,
            )
        )

    def hole(self) -> None:
        """Zeros in the place of a batch."""
        segment = self.segments[-1]
        self.fs.write(segment.descriptor(), bytes(BATCH_BYTES), segment.size_bytes)
        segment.size_bytes += BATCH_BYTES

    def walk(self) -> Tail:
        return Tail(
            self.segments,
            0,
            self.segments[0].start,
            journal=JOURNAL,
            producers=self.producers,
            config=JournalConfig(index_interval_bytes=1),
        )

    @property
    def last_sequence(self) -> int | None:
        last = self.producers.last(producer(b"p", 0).producer_id)
        return None if last is None else last.sequence


@pytest.fixture
def builder() -> Builder:
    return Builder()


def bases(segments: list[Segment]) -> list[int]:
    return [segment.base_offset for segment in segments]


def test_a_journal_without_holes_ends_where_its_files_end(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.batch(1)
    builder.segment(2, synced=1)
    builder.batch(2, synced=1)
    tail = builder.walk()
    assert (tail.end_offset, tail.synced_offset, builder.last_sequence) == (3, 1, 2)
    assert bases(tail.kept) == [0, 2]
    assert (tail.removed, tail.trims, tail.damage, tail.cut_bytes, tail.least_offset) == ([], [], [], 0, 0)
    assert not tail.is_clean


def test_what_is_called_synced_need_not_be_written_again(builder: Builder) -> None:
    builder.segment(0)
    for offset in range(4):
        builder.batch(offset, synced=offset)
    (part,) = builder.walk().unsynced()
    assert part == (builder.segments[0], 64 + 3 * BATCH_BYTES, 64 + 4 * BATCH_BYTES)


def test_a_segment_that_may_not_be_on_the_disk_at_all_is_written_again_with_its_header(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    empty = builder.segment(1, synced=1)
    assert list(builder.walk().unsynced()) == [(empty, 0, 64)]


def test_the_journal_ends_at_the_first_hole(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.hole()
    builder.batch(2, synced=1)
    builder.segment(3, synced=1)
    builder.batch(3, synced=1)
    tail = builder.walk()
    assert (tail.end_offset, builder.last_sequence) == (1, 0)
    assert (bases(tail.kept), bases(tail.removed)) == ([0], [3])
    assert tail.trims == [(builder.segments[0], 64 + BATCH_BYTES)]
    assert tail.cut_bytes == 2 * BATCH_BYTES + 64 + BATCH_BYTES
    assert tail.least_offset > 3  # the offsets that were cut off may have been seen


def test_a_hole_before_the_synced_point_is_damage(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.hole()
    builder.batch(2)  # does not know yet
    builder.batch(3, synced=2)
    tail = builder.walk()
    assert (tail.end_offset, builder.last_sequence) == (4, 3)
    assert [damage[2:4] for damage in tail.damage] == [(1, 2)]
    assert (tail.trims, tail.least_offset) == ([], 0)


def test_damage_is_told_from_the_hole_behind_it(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.hole()
    builder.batch(2, synced=2)
    builder.hole()
    builder.batch(4, synced=2)
    tail = builder.walk()
    assert (tail.end_offset, builder.last_sequence) == (3, 2)
    assert [damage[2:4] for damage in tail.damage] == [(1, 2)]
    assert tail.trims == [(builder.segments[0], 64 + 3 * BATCH_BYTES)]


def test_a_segment_that_ends_too_early_is_a_hole(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.segment(2)
    builder.batch(2)
    tail = builder.walk()
    assert (tail.end_offset, bases(tail.removed), tail.trims) == (1, [2], [])


def test_a_segment_that_begins_an_epoch_is_no_hole(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.segment(100, after=1)
    builder.batch(100)
    tail = builder.walk()
    assert (tail.end_offset, bases(tail.kept), tail.damage) == (101, [0, 100], [])


def test_a_batch_that_was_being_written_has_been_seen_by_no_reader(builder: Builder) -> None:
    segment = builder.segment(0)
    builder.batch(0)
    builder.batch(1)
    segment.size_bytes -= 8
    builder.fs.truncate(segment.descriptor(), segment.size_bytes)
    tail = builder.walk()
    assert (tail.end_offset, tail.cut_bytes, tail.least_offset) == (1, BATCH_BYTES - 8, 0)


def test_a_cut_that_was_interrupted_is_made_good(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.hole()
    builder.batch(2)
    builder.segment(3)
    builder.batch(3)
    builder.segment(100, synced=1, after=1)  # so much was done of the cut
    builder.batch(100, synced=1)
    tail = builder.walk()
    assert (tail.end_offset, builder.last_sequence) == (101, 100)
    assert (bases(tail.kept), bases(tail.removed)) == ([0, 100], [3])
    assert tail.trims == [(builder.segments[0], 64 + BATCH_BYTES)]
    assert tail.least_offset == 0


def test_the_summaries_know_the_producers_at_the_end_of_each_segment(builder: Builder) -> None:
    builder.segment(0)
    builder.batch(0)
    builder.segment(1)
    builder.batch(1)
    found = [(segment.base_offset, summary) for segment, summary in builder.walk().summaries()]
    assert [(base, summary.next_offset, summary.covered_bytes) for base, summary in found] == [
        (0, 1, 64 + BATCH_BYTES),
        (1, 2, 64 + BATCH_BYTES),
    ]
    assert [summary.producers[0][1].sequence for _, summary in found if summary.producers] == [0, 1]


def test_nothing_behind_a_place_that_is_sound_is_a_clean_stop(builder: Builder) -> None:
    builder.segment(0)
    tail = builder.walk()
    assert tail.is_clean
