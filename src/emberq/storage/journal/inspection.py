"""Looking at journals from outside: which there are, whether they are sound, and what is in them.

    find_journals    the journals in a data folder
    survey           what one holds, and how far its channels have come
    verify           every byte, checked
    dump             its messages

All of them only read, and nsqd need not be stopped. Of a journal that is being written to they show a moment that has
passed: the end of the last segment may be a batch of which only a part is there yet, which `verify` reports as a torn
tail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from emberq.base.file import OS_FILES, Files
from emberq.storage.error import DamagedCursorError, JournalOpenError, StorageError, os_error_text
from emberq.storage.journal import recovery as identity_file
from emberq.storage.journal.cursor_log import load_logged_cursor
from emberq.storage.journal.folder import FOLDER_SUFFIX, cursor_paths
from emberq.storage.journal.recovery import JournalIdentity
from emberq.storage.journal.scan import BLOCK_BYTES, END_OF_OFFSETS, Damage, Scan
from emberq.storage.journal.segment import BatchPlace, Segment, base_offsets, log_path, read_header
from emberq.storage.journal.summary import load_summary
from emberq.wire.journal_batch import JournalBatch, seed_of

_ANY_INTERVAL = 1
"""Index entries are only compared here, never added."""


# Verify and dump.


class Severity(Enum):
    """How bad a finding is."""

    NOTE = "note"
    """It mends itself when the journal is opened or read."""
    LOSS = "loss"
    """Messages are gone."""


class Finding(NamedTuple):
    """Something that is not as it should be."""

    severity: Severity
    path: Path
    position: int
    text: str


class VerifyProgress(NamedTuple):
    """How far `verify` has come."""

    done_bytes: int
    total_bytes: int
    batches: int
    messages: int


class JournalRow(NamedTuple):
    """One message, as `dump` shows it."""

    offset: int
    timestamp_ns: int
    due_ns: int
    body: bytes


@dataclass(slots=True)
class _Count:
    done_bytes: int = 0
    batches: int = 0
    messages: int = 0


def verify(directory: Path, *, fs: Files = OS_FILES) -> Iterator[Finding | VerifyProgress]:
    """Read everything and check it. Findings as they come up, `VerifyProgress` about once per megabyte and at the end.

    JournalOpenError if the folder is no journal, or cannot be read.
    """
    try:
        yield from _verify(directory, fs=fs)
    except OSError as error:
        raise JournalOpenError(os_error_text("read", directory, error)) from error


def dump(directory: Path, *, offset: int = 0, fs: Files = OS_FILES) -> Iterator[JournalRow | Damage]:
    """All messages from `offset` on, and a `Damage` in the place of those that cannot be read.

    JournalOpenError if the folder is no journal, or cannot be read.
    """
    try:
        for found in _found_from(directory, offset, fs=fs):
            if isinstance(found, Damage):
                yield found
            else:
                yield from _rows(found, first=max(0, offset - found.base_offset))
    except OSError as error:
        raise JournalOpenError(os_error_text("read", directory, error)) from error


def _verify(directory: Path, *, fs: Files) -> Iterator[Finding | VerifyProgress]:
    journal, bases = _journal_of(directory, fs=fs)
    if identity_file.load(directory, fs=fs) is None:
        yield Finding(Severity.NOTE, directory / identity_file.FILE_NAME, 0, "missing or damaged")
    segments = [_segment(directory, base, fs=fs) for base in bases]
    total_bytes = sum(segment.size_bytes for segment in segments)
    count = _Count()
    for segment, following in pairwise([*segments, None]):
        if segment is not None:
            for found in _verify_segment(segment, following, journal=journal, count=count):
                yield found or VerifyProgress(count.done_bytes, total_bytes, count.batches, count.messages)
    yield VerifyProgress(total_bytes, total_bytes, count.batches, count.messages)


def _verify_segment(
    segment: Segment, following: Segment | None, *, journal: UUID, count: _Count
) -> Iterator[Finding | None]:
    """The findings in one segment; None where it is time to show progress."""
    header = read_header(segment.path, fs=segment.fs)
    if header is None or (header.journal, header.base_offset) != (journal, segment.base_offset):
        yield Finding(Severity.NOTE, segment.path, 0, "the header is damaged or of another journal")
    end_offset = _end_before(following, journal=journal)
    entries, fault = _index_entries(segment, is_sealed=following is not None, journal=journal)
    yield from _verify_batches(segment, entries, journal=journal, end_offset=end_offset, count=count)
    if following is not None and end_offset < following.base_offset:
        skipped = f"offsets {end_offset} to {following.base_offset - 1} are skipped"
        text = f"{skipped}: the journal moved on after an unclean stop"
        yield Finding(Severity.NOTE, segment.path, segment.size_bytes, text)
    if fault is None and entries:
        position, offset = next(iter(entries.items()))
        fault = f"no batch with offset {offset} begins at position {position}"
    if fault is not None:
        yield Finding(Severity.NOTE, segment.summary_path, 0, fault)


def _verify_batches(
    segment: Segment, entries: dict[int, int], *, journal: UUID, end_offset: int, count: _Count
) -> Iterator[Finding | None]:
    """The findings in its batches; removes the index entries that are right, or that damage hides."""
    scan = _scan(segment, journal=journal, end_offset=end_offset)
    done_before, shown = count.done_bytes, count.done_bytes
    is_last = end_offset == END_OF_OFFSETS
    try:
        for found in scan:
            count.done_bytes = done_before + scan.position
            if isinstance(found, Damage):
                for position in [position for position in entries if found.position <= position < found.end]:
                    del entries[position]
                yield _finding(
                    segment, found, is_tail=is_last and found.end == segment.size_bytes, end_offset=end_offset
                )
            else:
                count.batches += 1
                count.messages += found.count
                if entries.get(scan.position - found.length) == found.base_offset:
                    del entries[scan.position - found.length]
            if count.done_bytes - shown >= BLOCK_BYTES:
                shown = count.done_bytes
                yield None
    finally:
        segment.close()
    count.done_bytes = done_before + segment.size_bytes
    if not is_last and scan.offset < end_offset:
        text = f"offsets {scan.offset} to {end_offset - 1} are in no batch"
        yield Finding(Severity.LOSS, segment.path, segment.size_bytes, text)


def _end_before(following: Segment | None, *, journal: UUID) -> int:
    """Where the offsets before a segment end. Those between there and its own belong to no message that is kept."""
    if following is None:
        return END_OF_OFFSETS
    header = read_header(following.path, fs=following.fs)
    if header is None or (header.journal, header.base_offset) != (journal, following.base_offset):
        return following.base_offset
    return following.base_offset if header.after_offset is None else header.after_offset


def _index_entries(segment: Segment, *, is_sealed: bool, journal: UUID) -> tuple[dict[int, int], str | None]:
    """The entries of the .idx file, by position, and what is wrong with it: a sealed segment should have one."""
    summary = load_summary(segment, journal=journal, interval_bytes=_ANY_INTERVAL)
    if summary is None:
        return {}, "missing or damaged" if is_sealed or segment.fs.exists(segment.summary_path) else None
    index = summary.sparse_index
    return dict(zip(index.positions, index.offsets, strict=True)), None


def _finding(segment: Segment, damage: Damage, *, is_tail: bool, end_offset: int) -> Finding:
    if damage.first_offset >= end_offset:  # a crash has interrupted a cut, as the next segment tells
        text = f"{damage.end - damage.position} bytes behind offset {end_offset - 1} are cut off at the next start"
        return Finding(Severity.NOTE, segment.path, damage.position, text)
    if is_tail and damage.is_incomplete:
        text = f"a torn tail of {damage.end - damage.position} bytes: {damage.reason}"
        return Finding(Severity.NOTE, segment.path, damage.position, text)
    if is_tail:
        text = f"{damage.reason}: the last {damage.end - damage.position} bytes are lost, and cut off at the next start"
        return Finding(Severity.LOSS, segment.path, damage.position, text)
    lost = f"offsets {damage.first_offset} to {damage.next_offset - 1} are lost"
    return Finding(Severity.LOSS, segment.path, damage.position, f"{damage.reason}: {lost}")


def _found_from(directory: Path, offset: int, *, fs: Files) -> Iterator[JournalBatch | Damage]:
    journal, bases = _journal_of(directory, fs=fs)
    segments = [_segment(directory, base, fs=fs) for base in bases]
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        end_offset = _end_before(following, journal=journal)
        if end_offset <= offset:
            continue
        scan = _scan(segment, journal=journal, end_offset=end_offset)
        scan.pass_before(offset)
        try:
            for found in scan:
                is_cut = isinstance(found, Damage) and found.first_offset >= end_offset
                if found.next_offset > offset and not is_cut:
                    yield found
        finally:
            segment.close()


def _rows(batch: JournalBatch, *, first: int) -> Iterator[JournalRow]:
    for index in range(first, batch.count):
        timestamp_ns = batch.timestamp_ns if batch.times_ns is None else batch.times_ns[index]
        due_ns = 0 if batch.due_ns is None else batch.due_ns[index]
        yield JournalRow(batch.base_offset + index, timestamp_ns, due_ns, batch.body(index))


def _journal_of(directory: Path, *, fs: Files) -> tuple[UUID, list[int]]:
    """Which journal is in the folder, and the base offsets of its segments."""
    if not fs.is_folder(directory):
        raise JournalOpenError(f"{directory} is no folder")
    bases = base_offsets(directory, fs=fs)
    found = identity_file.load(directory, fs=fs)
    if found is not None:
        return found.uuid, bases
    for base in bases:
        header = read_header(log_path(directory, base), fs=fs)
        if header is not None:
            return header.journal, bases
    raise JournalOpenError(f"{directory} is no journal")


def _segment(directory: Path, base_offset: int, *, fs: Files) -> Segment:
    path = log_path(directory, base_offset)
    return Segment(path, base_offset=base_offset, size_bytes=fs.file_size(path), read_only=True, fs=fs)


def _scan(segment: Segment, *, journal: UUID, end_offset: int) -> Scan:
    return Scan(
        segment.descriptor(),
        seed=seed_of(journal),
        start=segment.start,
        end_position=segment.size_bytes,
        end_offset=end_offset,
        fs=segment.fs,
    )


# Find and survey.

MAX_DEPTH = 3
"""How deep below a folder journals are looked for: `emberq up` keeps them in <folder>/nsqd-<number>/<topic>.journal."""

_HEADERS_BYTES = 4096
"""Read at a time when only headers matter: large batches are passed over, small ones come several at once."""


class ChannelPlace(NamedTuple):
    """How far a channel has come in a journal."""

    channel: str
    low_water: int
    """Everything before it is acknowledged."""
    lag: int
    """How many messages are not acknowledged."""


class JournalOverview(NamedTuple):
    """What a journal holds, and how far its channels have come."""

    path: Path
    identity: JournalIdentity
    first_offset: int
    next_offset: int
    size_bytes: int
    segment_count: int
    channels: list[ChannelPlace]
    """By name. A cursor that is damaged is not among them; its channel starts at the oldest message."""

    @property
    def topic(self) -> str:
        return (self.path.name or self.path.resolve().name).removesuffix(FOLDER_SUFFIX)


def is_journal(directory: Path, *, fs: Files = OS_FILES) -> bool:
    """Whether this folder is a journal: it has a journal.json or segments."""
    return fs.exists(directory / identity_file.FILE_NAME) or (
        fs.is_folder(directory) and bool(base_offsets(directory, fs=fs))
    )


def find_journals(path: Path) -> list[Path]:
    """The folders of all journals at or below `path`, sorted. JournalOpenError if it cannot be read."""
    try:
        return sorted(_found_below(path, depth=MAX_DEPTH))
    except OSError as error:
        raise JournalOpenError(os_error_text("read", path, error)) from error


def _found_below(path: Path, *, depth: int) -> Iterator[Path]:
    if path.name.endswith(FOLDER_SUFFIX) or is_journal(path):
        yield path
    elif depth:
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _found_below(child, depth=depth - 1)


def survey(directory: Path, *, fs: Files = OS_FILES) -> JournalOverview:
    """What is in the journal's folder. JournalOpenError if it is no journal, or cannot be read."""
    try:
        return _survey(directory, fs=fs)
    except OSError as error:
        raise JournalOpenError(os_error_text("read", directory, error)) from error


def _survey(directory: Path, *, fs: Files) -> JournalOverview:
    identity = identity_file.load(directory, fs=fs)
    bases = base_offsets(directory, fs=fs)
    if identity is None or not bases:
        raise JournalOpenError(f"{directory} is no journal")
    segments = [_segment(directory, base, fs=fs) for base in bases]
    last = segments[-1]
    next_offset = _end_of(last, identity)
    return JournalOverview(
        path=directory,
        identity=identity,
        first_offset=bases[0],
        next_offset=next_offset,
        size_bytes=sum(segment.size_bytes for segment in segments),
        segment_count=len(bases),
        channels=_places(directory, identity, next_offset=next_offset, fs=fs),
    )


def _end_of(segment: Segment, identity: JournalIdentity) -> int:
    """The offset behind the last whole batch, by headers, from where the .idx file leaves off."""
    known = load_summary(segment, journal=identity.uuid, interval_bytes=_ANY_INTERVAL)
    start = segment.start if known is None else BatchPlace(known.next_offset, known.covered_bytes)
    try:
        scan = Scan(
            segment.descriptor(),
            seed=seed_of(identity.uuid),
            start=start,
            end_position=segment.size_bytes,
            block_bytes=_HEADERS_BYTES,
            fs=segment.fs,
        )
        scan.pass_before(END_OF_OFFSETS)
        while scan.next() is not None:  # damage, or a tail that is torn or being written
            scan.pass_before(END_OF_OFFSETS)
    finally:
        segment.close()
    return scan.offset


def _places(directory: Path, identity: JournalIdentity, *, next_offset: int, fs: Files) -> list[ChannelPlace]:
    places = []
    for channel, path in sorted(cursor_paths(directory, fs=fs).items()):
        try:
            cursor = load_logged_cursor(path, journal=identity.uuid, fs=fs)
        except DamagedCursorError:
            continue
        except StorageError as error:
            raise JournalOpenError(str(error)) from error
        if cursor is not None:
            places.append(ChannelPlace(channel, cursor.low_water, cursor.count_unacknowledged(next_offset)))
    return places
