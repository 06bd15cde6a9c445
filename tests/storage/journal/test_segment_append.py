"""Writing to a segment: each batch is there as a whole, or leaves no trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from emberq.storage.error import JournalWriteError
from emberq.storage.journal.segment import Segment, SegmentHeader, create_segment
from emberq.wire.journal_batch import EncodedBatch
from tests.storage.journal.rig import open_files

HEADER = SegmentHeader(UUID(int=3), 500, 1234, 480, 490)


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return create_segment(tmp_path, HEADER, interval_bytes=100)


def batch(letter: bytes, *, length: int = 24) -> EncodedBatch:
    """Not a batch that could be read; a segment does not look into it."""
    return EncodedBatch([letter * 8, letter * (length - 8)], length)


def fails(*_: object) -> int:
    raise OSError(errno.EIO, "Input/output error")


def content(segment: Segment) -> bytes:
    """What stands behind the header."""
    return segment.path.read_bytes()[64:]


def test_batches_follow_each_other(segment: Segment) -> None:
    assert (segment.start.offset, segment.start.position) == (500, 64)
    assert [segment.append(batch(letter)) for letter in (b"a", b"b")] == [64, 88]
    assert segment.append(batch(b"c", length=8)) == 112
    assert (segment.size_bytes, segment.is_empty) == (120, False)
    assert content(segment) == b"a" * 24 + b"b" * 24 + b"c" * 8


def test_a_segment_opens_its_file_when_needed_and_lets_go_of_it(segment: Segment) -> None:
    assert open_files(segment.path.parent) == 1
    segment.close()
    assert open_files(segment.path.parent) == 0
    segment.append(batch(b"a"))
    fd = segment.descriptor()
    assert segment.descriptor() == fd
    assert open_files(segment.path.parent) == 1
    segment.close()
    segment.close()
    assert open_files(segment.path.parent) == 0
    assert segment.append(batch(b"b")) == 88


def test_a_segment_opened_for_reading_cannot_be_written_to(segment: Segment) -> None:
    reading = Segment(segment.path, base_offset=500, size_bytes=64, read_only=True)
    with pytest.raises(JournalWriteError, match="bad file descriptor"):
        reading.append(batch(b"a"))
    assert content(segment) == b""


@pytest.mark.parametrize("taken_bytes", [0, 7, 8, 23])
def test_a_batch_that_the_system_takes_in_parts_is_completed(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, taken_bytes: int
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(parts)[:taken_bytes], at))
    segment.append(batch(b"a"))
    segment.append(batch(b"b"))
    assert content(segment) == b"a" * 24 + b"b" * 24


def test_a_failed_write_is_cut_off_at_once(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    segment.append(batch(b"a"))
    pwrite = os.pwrite
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", lambda fd, parts, at: pwrite(fd, b"".join(parts)[:10], at))
        broken.setattr(os, "pwrite", fails)
        with pytest.raises(JournalWriteError, match="input/output error"):
            segment.append(batch(b"b"))
    assert content(segment) == b"a" * 24
    assert segment.append(batch(b"c")) == 88


def test_what_could_not_be_cut_off_is_cut_off_once_before_the_next_batch(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, ftruncate = os.pwrite, os.ftruncate

    def takes_and_fails(fd: int, parts: list[bytes], position: int) -> int:
        pwrite(fd, b"".join(parts), position)
        return fails()

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", takes_and_fails)
        broken.setattr(os, "ftruncate", fails)
        with pytest.raises(JournalWriteError):
            segment.append(batch(b"x", length=48))
    assert content(segment) == b"x" * 48
    cuts: list[int] = []

    def seen_ftruncate(fd: int, length: int) -> None:
        cuts.append(length)
        ftruncate(fd, length)

    monkeypatch.setattr(os, "ftruncate", seen_ftruncate)
    segment.append(batch(b"a"))
    segment.append(batch(b"b"))
    assert content(segment) == b"a" * 24 + b"b" * 24
    assert cuts == [64]
