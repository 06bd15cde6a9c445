"""The segments of a journal in order."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from emberq.storage.journal.segment import Segment, SegmentHeader, create_segment
from emberq.storage.journal.segments import MAX_OPEN_SEGMENTS, Segments
from tests.storage.journal.rig import open_files

JOURNAL = UUID(int=3)


def made(folder: Path, *bases: int) -> list[Segment]:
    return [create_segment(folder, SegmentHeader(JOURNAL, base, 0, base, base), interval_bytes=100) for base in bases]


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    return Segments(made(tmp_path, 0, 10, 25), journal=JOURNAL, next_offset=40, interval_bytes=100)


def test_an_offset_belongs_to_the_segment_that_begins_before_it(segments: Segments) -> None:
    bases = [segments.holding(offset).base_offset for offset in (0, 9, 10, 24, 25, 39, 40)]
    assert bases == [0, 0, 10, 10, 25, 25, 25]


def test_a_segment_ends_where_the_next_one_begins(segments: Segments) -> None:
    assert [segments.end_offset(segment) for segment in segments] == [10, 25, 40]
    segments.next_offset = 50
    assert segments.end_offset(segments.active) == 50
    assert segments.total_bytes == 3 * 64


def test_the_oldest_segment_can_be_taken_out(segments: Segments) -> None:
    assert segments.remove_first().base_offset == 0
    assert segments.first.base_offset == 10
    assert segments.holding(12).base_offset == 10
    assert len(segments) == 2


def test_few_sealed_segments_are_open_at_a_time(tmp_path: Path) -> None:
    segments = Segments(made(tmp_path, *range(0, 300, 10)), journal=JOURNAL, next_offset=300, interval_bytes=100)
    for segment in segments:
        segments.opened(segment).descriptor()
    assert open_files(tmp_path) == MAX_OPEN_SEGMENTS + 1
    segments.close_sealed()
    assert open_files(tmp_path) == 1
    segments.active.close()
