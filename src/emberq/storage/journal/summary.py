"""The .idx file of a segment: its index, its latest publish time, and the last batch of each producer.

It holds what would otherwise take a reading of the whole segment:

    0   magic "EMBERQIX"       8   crc32 of all that follows, seeded as those of batches    12  version: uint32
    16  uuid of the journal    32  base offset: int64   40  next offset: int64
    48  bytes of the segment that this file covers: int64
    56  latest publish time in them: int64
    64  count of index entries: uint32                  68  count of producers: int32, -1 = not known
    72  offsets, then positions, then times of the entries: int64 each (see `segment`)
    ..  ids of the producers: 16 bytes each, the one that was silent longest first
    ..  sequences, then base offsets, then counts of their last batches: int64 each

It is made when the segment begins, when it is sealed, and when the journal is closed. A segment only grows, so what the
file says of its beginning stays true: after a clean stop nothing is left to read. It is not fsynced, because it can be
made anew: when it is missing, or damaged, or covers more than the segment holds. A file that was made anew just to find
an offset does not know the producers, because those follow from earlier segments too.

A file that knows the producers vouches for everything before its end: no batch there is read again when the journal is
opened. So it is only written when all of that is on the disk.

The last batch of each producer is kept so that a batch sent again is not stored again. A producer that wants this takes
a random id of 16 bytes and numbers its batches in ascending order; gaps are allowed. It sends them in that order, over
one connection at a time. When it does not know whether a batch arrived, it sends the same batch with the same number
again: a number that is not larger than the last one stored means "stored already".

The table of producers is a part of the journal: batches carry id and number, so it is rebuilt from them, and the .idx
files make this short. It is bounded; the producers that were silent longest are forgotten first. The order in which
they are forgotten follows from the log alone, so a rebuilt table is the same table.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from emberq.base.file import replace_file
from emberq.storage.error import DamagedSummaryError, os_error_text
from emberq.storage.journal.scan import END_OF_OFFSETS, Damage, Scan
from emberq.storage.journal.segment import Segment, SparseIndex
from emberq.wire.journal_batch import JournalBatch, seed_of
from emberq.wire.parameter import PRODUCER_ID_BYTES, ProducerSequence

log = logging.getLogger("emberq.storage")


# Producers.


class LastBatch(NamedTuple):
    """The last batch of a producer: its number, and where it is."""

    sequence: int
    base_offset: int
    message_count: int

    @property
    def next_offset(self) -> int:
        """The offset behind its last message."""
        return self.base_offset + self.message_count


class ProducerTable:
    """The last batch of each producer. Owned by one journal."""

    def __init__(self, *, max_producers: int) -> None:
        self._max_producers = max_producers
        self._last: dict[bytes, LastBatch] = {}  # in the order of their last batches, the oldest first

    def __len__(self) -> int:
        return len(self._last)

    def items(self) -> Iterator[tuple[bytes, LastBatch]]:
        """Ids and last batches, the producer that was silent longest first."""
        return iter(self._last.items())

    def last(self, producer_id: bytes) -> LastBatch | None:
        """The last batch of this producer."""
        return self._last.get(producer_id)

    def stored_already(self, producer: ProducerSequence) -> LastBatch | None:
        """The producer's last batch if that is this one or a later one, else None."""
        last = self._last.get(producer.producer_id)
        return last if last is not None and producer.sequence <= last.sequence else None

    def record(self, producer_id: bytes, batch: LastBatch) -> None:
        """This batch has been stored."""
        self._last.pop(producer_id, None)
        self._last[producer_id] = batch
        if len(self._last) > self._max_producers:
            del self._last[next(iter(self._last))]


# The file.

MAGIC = b"EMBERQIX"
VERSION = 1

_PREFIX = struct.Struct("<8sI")
_HEADER = struct.Struct("<I16sqqqqIi")
_ENTRY_BYTES = 3 * 8
_PRODUCER_BYTES = PRODUCER_ID_BYTES + 3 * 8
_UNKNOWN = -1

Producers = list[tuple[bytes, LastBatch]]


class Summary(NamedTuple):
    """The content of the file."""

    base_offset: int
    next_offset: int
    covered_bytes: int
    sparse_index: SparseIndex
    producers: Producers | None


def encode(summary: Summary, *, journal: UUID) -> bytes:
    """The bytes of the file."""
    index, producers = summary.sparse_index, summary.producers
    assert summary.base_offset <= summary.next_offset
    assert len(index.offsets) == len(index.positions) == len(index.times)
    rows = producers or []
    content = b"".join(
        (
            _HEADER.pack(
                VERSION,
                journal.bytes,
                summary.base_offset,
                summary.next_offset,
                summary.covered_bytes,
                index.latest_ns,
                len(index.offsets),
                _UNKNOWN if producers is None else len(producers),
            ),
            index.offsets.tobytes(),
            index.positions.tobytes(),
            index.times.tobytes(),
            *(producer_id for producer_id, _ in rows),
            *(array("q", [last[field] for _, last in rows]).tobytes() for field in range(3)),
        )
    )
    return _PREFIX.pack(MAGIC, crc32(content, seed_of(journal))) + content


def decode(content: bytes, *, journal: UUID, interval_bytes: int) -> Summary:
    """The summary in these bytes. DamagedSummaryError if they are not the summary of a segment of this journal."""
    if len(content) < _PREFIX.size + _HEADER.size:
        raise DamagedSummaryError("too short")
    magic, crc = _PREFIX.unpack_from(content)
    if magic != MAGIC or crc != crc32(memoryview(content)[_PREFIX.size :], seed_of(journal)):
        raise DamagedSummaryError("the crc does not fit the contents")
    version, _, base_offset, next_offset, covered_bytes, latest_ns, entries, producers = _HEADER.unpack_from(
        content, _PREFIX.size
    )
    if version != VERSION:
        raise DamagedSummaryError(f"version {version}")
    at = _PREFIX.size + _HEADER.size
    if len(content) != at + entries * _ENTRY_BYTES + max(producers, 0) * _PRODUCER_BYTES:
        raise DamagedSummaryError("the length does not fit the contents")
    index = SparseIndex(interval_bytes=interval_bytes)
    for column in (index.offsets, index.positions, index.times):
        column.frombytes(content[at : at + 8 * entries])
        at += 8 * entries
    index.latest_ns = latest_ns
    rows = None if producers == _UNKNOWN else _decode_producers(content[at:], count=producers)
    return Summary(base_offset, next_offset, covered_bytes, index, rows)


def summarize(
    segment: Segment,
    *,
    seed: int,
    interval_bytes: int,
    end_offset: int = END_OF_OFFSETS,
    producers: ProducerTable | None = None,
) -> Summary:
    """Read a whole segment for its summary; `producers` as they were before it are brought up to its end."""
    index = SparseIndex(interval_bytes=interval_bytes)
    scan = Scan(
        segment.descriptor(),
        seed=seed,
        start=segment.start,
        end_position=segment.size_bytes,
        end_offset=end_offset,
        fs=segment.fs,
    )
    for found in scan:
        if not isinstance(found, Damage):
            note_batch(found, position=scan.position - found.length, index=index, producers=producers)
    known = None if producers is None else list(producers.items())
    return Summary(segment.base_offset, scan.offset, segment.size_bytes, index, known)


def note_batch(
    batch: JournalBatch, *, position: int, index: SparseIndex, producers: ProducerTable | None = None
) -> None:
    """Add a batch that was found in a segment to its index and to the producers."""
    index.add(offset=batch.base_offset, position=position, timestamp_ns=batch.timestamp_ns)
    if producers is not None and batch.producer is not None:
        producer_id, sequence = batch.producer
        producers.record(producer_id, LastBatch(sequence, batch.base_offset, batch.count))


def save_summary(segment: Segment, summary: Summary, *, journal: UUID, durable: bool = False) -> str | None:
    """Replace the file; a crash leaves the old one, the new one or, unless it is to be durable, a damaged one.

    Why that failed, which is logged.
    """
    try:
        replace_file(segment.summary_path, encode(summary, journal=journal), durable=durable, fs=segment.fs)
    except OSError as error:
        reason = os_error_text("write", segment.summary_path, error)
        log.warning("an index was not written - %s", reason)
        return reason
    return None


@dataclass(slots=True)
class UnsavedSummary:
    """The content of an .idx file, to be written when everything before `end_offset` is on the disk."""

    end_offset: int
    segment: Segment
    summary: Summary
    is_saved: bool = False
    failure: str | None = None
    """Why it could not be written."""

    def save(self, *, journal: UUID, is_needed: bool) -> bool:
        """Write the file; whether that was done. One that replaces another, which is needed, must not be damaged."""
        durable = is_needed and self.segment.fs.exists(self.segment.summary_path)
        self.failure = save_summary(self.segment, self.summary, journal=journal, durable=durable)
        self.is_saved = self.failure is None
        return self.is_saved


def load_summary(segment: Segment, *, journal: UUID, interval_bytes: int) -> Summary | None:
    """The summary of a segment; None if there is none to be trusted."""
    try:
        content = segment.fs.read_file(segment.summary_path)
        summary = decode(content, journal=journal, interval_bytes=interval_bytes)
    except (OSError, DamagedSummaryError):
        return None
    if summary.base_offset != segment.base_offset or summary.covered_bytes > segment.size_bytes:
        return None
    return summary


def _decode_producers(content: bytes, *, count: int) -> Producers:
    ids = [content[at : at + PRODUCER_ID_BYTES] for at in range(0, count * PRODUCER_ID_BYTES, PRODUCER_ID_BYTES)]
    numbers = array("q")
    numbers.frombytes(content[count * PRODUCER_ID_BYTES :])
    columns = (numbers[field * count : (field + 1) * count] for field in range(3))
    return list(zip(ids, map(LastBatch, *columns), strict=True))
