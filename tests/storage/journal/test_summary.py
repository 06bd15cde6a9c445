"""The .idx file: its bytes, and damage to them."""

from __future__ import annotations

import struct
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest

from emberq.storage.error import DamagedSummaryError
from emberq.storage.journal.segment import BEFORE_ALL_TIME, Segment, SegmentHeader, SparseIndex, create_segment
from emberq.storage.journal.summary import (
    LastBatch,
    Producers,
    ProducerTable,
    Summary,
    decode,
    encode,
    load_summary,
    save_summary,
    summarize,
)
from emberq.wire import journal_batch
from emberq.wire.journal_batch import Bodies, seed_of
from emberq.wire.parameter import ProducerSequence

JOURNAL = UUID(int=7)


def sample(*, producers: Producers | None) -> Summary:
    index = SparseIndex(interval_bytes=100)
    index.add(offset=5, position=64, timestamp_ns=70)
    index.add(offset=9, position=200, timestamp_ns=80)
    return Summary(5, 12, 300, index, producers)


def drawn(*, count: int, producers: bytes) -> bytes:
    content = struct.pack("<I16sqqqqIi", 1, JOURNAL.bytes, 5, 12, 300, 80, 2, count)
    content += struct.pack("<qqqqqq", 5, 9, 64, 200, BEFORE_ALL_TIME, 70) + producers
    return b"EMBERQIX" + struct.pack("<I", crc32(content, seed_of(JOURNAL))) + content


TWO: Producers = [(b"p" * 16, LastBatch(3, 5, 2)), (b"q" * 16, LastBatch(1, 7, 5))]
TWO_DRAWN = b"p" * 16 + b"q" * 16 + struct.pack("<qqqqqq", 3, 1, 5, 7, 2, 5)


@pytest.mark.parametrize(
    ("producers", "content"),
    [
        (TWO, drawn(count=2, producers=TWO_DRAWN)),
        ([], drawn(count=0, producers=b"")),
        (None, drawn(count=-1, producers=b"")),
    ],
)
def test_the_bytes_are_those_of_the_drawing(producers: Producers | None, content: bytes) -> None:
    assert encode(sample(producers=producers), journal=JOURNAL) == content
    found = decode(content, journal=JOURNAL, interval_bytes=100)
    assert (found.base_offset, found.next_offset, found.covered_bytes) == (5, 12, 300)
    assert found.producers == producers
    assert found.sparse_index.latest_ns == 80
    assert encode(found, journal=JOURNAL) == content


def test_every_flipped_bit_and_every_truncation_is_detected() -> None:
    content = drawn(count=2, producers=TWO_DRAWN)
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(DamagedSummaryError):
            decode(bytes(flipped), journal=JOURNAL, interval_bytes=100)
        with pytest.raises(DamagedSummaryError):
            decode(content[:position], journal=JOURNAL, interval_bytes=100)


def test_the_summary_of_another_journal_or_version_is_not_taken() -> None:
    with pytest.raises(DamagedSummaryError):
        decode(drawn(count=0, producers=b""), journal=UUID(int=8), interval_bytes=100)
    content = bytearray(drawn(count=0, producers=b""))
    struct.pack_into("<I", content, 12, 2)
    struct.pack_into("<I", content, 8, crc32(content[12:], seed_of(JOURNAL)))
    with pytest.raises(DamagedSummaryError, match="version 2"):
        decode(bytes(content), journal=JOURNAL, interval_bytes=100)


def test_a_length_that_does_not_fit_is_damage_even_if_the_crc_does() -> None:
    for producers in (TWO_DRAWN + b"?", TWO_DRAWN[:-1]):
        with pytest.raises(DamagedSummaryError, match="length"):
            decode(drawn(count=2, producers=producers), journal=JOURNAL, interval_bytes=100)


@pytest.mark.parametrize(("base_offset", "size_bytes", "trusted"), [(5, 300, True), (5, 299, False), (6, 300, False)])
def test_a_summary_must_fit_its_segment(tmp_path: Path, base_offset: int, size_bytes: int, trusted: bool) -> None:
    segment = Segment(tmp_path / "x.log", base_offset=base_offset, size_bytes=size_bytes)
    assert load_summary(segment, journal=JOURNAL, interval_bytes=100) is None
    save_summary(segment, sample(producers=TWO), journal=JOURNAL)
    assert (load_summary(segment, journal=JOURNAL, interval_bytes=100) is not None) == trusted
    assert segment.summary_path.stat().st_mode & 0o777 == 0o600


def test_a_summary_that_cannot_be_written_is_only_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = Segment(tmp_path / "missing" / "x.log", base_offset=5, size_bytes=300)
    save_summary(segment, sample(producers=TWO), journal=JOURNAL)
    assert "was not written" in caplog.text


# Made anew from a segment.


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Three batches: one of `p`, one of no producer, one of `q`."""
    made = create_segment(tmp_path, SegmentHeader(JOURNAL, 5, 0, 5, 5), interval_bytes=100)
    offset = made.base_offset
    for time_ns, count, producer in ((70, 2, b"p"), (90, 1, None), (80, 3, b"q")):
        made.append(
            journal_batch.encode(
                Bodies.of([b"body"] * count),
                base_offset=offset,
                timestamp_ns=time_ns,
                seed=seed_of(JOURNAL),
                producer=None if producer is None else ProducerSequence(producer * 16, offset + 100),
            )
        )
        offset += count
    return made


def test_a_summary_made_anew_says_what_is_in_the_segment(segment: Segment) -> None:
    summary = summarize(segment, seed=seed_of(JOURNAL), interval_bytes=1)
    assert (summary.base_offset, summary.next_offset, summary.covered_bytes) == (5, 11, segment.size_bytes)
    index = summary.sparse_index
    assert list(index.offsets) == [5, 7, 8]
    assert index.positions[0] == 64
    assert list(index.times) == [BEFORE_ALL_TIME, 70, 90]
    assert index.latest_ns == 90
    assert summary.producers is None


def test_a_summary_made_anew_brings_the_producers_up_to_its_end(segment: Segment) -> None:
    before = ProducerTable(max_producers=10)
    before.record(b"o" * 16, LastBatch(1, 2, 3))
    before.record(b"p" * 16, LastBatch(4, 4, 1))
    summary = summarize(segment, seed=seed_of(JOURNAL), interval_bytes=100, producers=before)
    assert summary.producers == [
        (b"o" * 16, LastBatch(1, 2, 3)),
        (b"p" * 16, LastBatch(105, 5, 2)),
        (b"q" * 16, LastBatch(108, 8, 3)),
    ]
