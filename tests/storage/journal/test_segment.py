"""A segment's header and name."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.nsqd.options import NsqdOptions, journal_settings
from emberq.storage.error import JournalOpenError, JournalWriteError
from emberq.storage.journal.segment import (
    JournalConfig,
    Segment,
    SegmentHeader,
    base_offsets,
    create_segment,
    log_path,
    read_header,
)
from emberq.wire.journal_batch import EncodedBatch

HEADER = SegmentHeader(UUID(int=3), 500, 1234, 480, 490)


def test_a_header_is_what_was_written() -> None:
    content = HEADER.to_bytes()
    assert len(content) == 64
    assert SegmentHeader.from_bytes(content) == HEADER


def test_every_flipped_bit_and_every_truncation_of_a_header_is_detected() -> None:
    content = HEADER.to_bytes()
    for position in range(64):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            assert SegmentHeader.from_bytes(bytes(flipped)) is None
        assert SegmentHeader.from_bytes(content[:position]) is None


def test_a_header_of_a_later_version_is_refused_and_not_taken_for_damage() -> None:
    rest = bytearray(HEADER.to_bytes()[12:])
    rest[0] = 3
    with pytest.raises(JournalOpenError, match="version 3"):
        SegmentHeader.from_bytes(struct.pack("<8sI", b"EMBERQJL", crc32(rest)) + rest)


def test_the_defaults_are_those_of_nsqd() -> None:
    config = JournalConfig()
    assert config == journal_settings(NsqdOptions()).config
    assert (config.segment_bytes, config.retention_ns) == (128 * 1024 * 1024, 24 * 3600 * NS_PER_SECOND)
    assert (config.index_interval_bytes, config.max_producers) == (64 * 1024, 10_000)


def test_segments_are_found_by_their_names(tmp_path: Path) -> None:
    assert log_path(tmp_path, 500).name == "00000000000000000500.log"
    for name in ("00000000000000000500.log", "00000000000000000007.log", "7.log", "x.log", "00000000000000000009.idx"):
        (tmp_path / name).touch()
    assert base_offsets(tmp_path) == [7, 500]


def test_a_name_that_leaves_no_offsets_for_messages_is_none_of_a_segment(tmp_path: Path) -> None:
    for offset in (7, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 10**20 - 1):
        log_path(tmp_path, offset).touch()
    assert base_offsets(tmp_path) == [7, (1 << 62) - 1]


def test_a_new_segment_does_not_replace_an_old_one(tmp_path: Path) -> None:
    segment = create_segment(tmp_path, HEADER, interval_bytes=100)
    assert segment.is_empty
    assert read_header(segment.path) == HEADER
    assert segment.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(JournalWriteError, match="file exists"):
        create_segment(tmp_path, HEADER, interval_bytes=100)
    assert read_header(segment.path) == HEADER


def test_a_segment_whose_header_cannot_be_written_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(fd: int, content: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", is_full)
    with pytest.raises(JournalWriteError, match="no space left"):
        create_segment(tmp_path, HEADER, interval_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_has_no_header(tmp_path: Path) -> None:
    assert read_header(tmp_path / "missing.log") is None


def test_a_segment_whose_file_is_gone_refuses_batches(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "gone.log", base_offset=0, size_bytes=64)
    with pytest.raises(JournalWriteError, match="no such file"):
        segment.append(EncodedBatch([bytes(8)], 8))
