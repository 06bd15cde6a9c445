"""Opening a journal: which one it is, what is in it, and what a crash left undone.

journal.json says which journal this is:

    {"format":1,"uuid":"0b5f...","created":"2025-01-31T12:00:00Z"}

A journal that is deleted and made again is another journal with another uuid: offsets that readers and channels
remember mean nothing in it. Every segment repeats the uuid, so a lost file can be replaced.

Only the last segment can have been written to when the process or the machine died, so only that one is read, and of it
only what its .idx file does not cover. Bytes behind its last good batch are a batch that was being written: no
publisher was told that it is stored, and it is cut off. Damage with a good batch behind it is no torn write; it stays
where it is and is reported, and readers find the gap.

A last file that is no segment of this journal is set aside as `.bad`, never deleted. Leftovers of files that were being
replaced are removed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.file import OS_FILES, Files, replace_file, write_fully
from emberq.storage.error import JournalError, JournalOpenError, os_error_text
from emberq.storage.journal.scan import Damage, Scan
from emberq.storage.journal.segment import (
    MAX_AT_RISK_SEGMENTS,
    SEGMENT_HEADER_BYTES,
    BatchPlace,
    JournalConfig,
    Segment,
    SegmentHeader,
    SparseIndex,
    base_offsets,
    create_segment,
    log_path,
    read_header,
)
from emberq.storage.journal.summary import ProducerTable, Summary, load_summary, note_batch, save_summary, summarize
from emberq.wire.journal_batch import seed_of

# journal.json.

FILE_NAME = "journal.json"
FORMAT = 1


class JournalIdentity(NamedTuple):
    """Which journal this is."""

    uuid: UUID
    created: str


def identity_now(uuid: UUID, *, now_ns: int) -> JournalIdentity:
    """The identity of a journal that is created now."""
    moment = datetime.fromtimestamp(now_ns // NS_PER_SECOND, UTC)
    return JournalIdentity(uuid, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


def save(directory: Path, identity: JournalIdentity, *, fs: Files = OS_FILES) -> None:
    """Replace the file, fsynced; the caller syncs the folder. OSError if that fails."""
    document = {"format": FORMAT, "uuid": str(identity.uuid), "created": identity.created}
    content = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    replace_file(directory / FILE_NAME, content, fs=fs)


def load(directory: Path, *, fs: Files = OS_FILES) -> JournalIdentity | None:
    """The identity; None if the file is missing or damaged. JournalOpenError for a format of the future."""
    try:
        document = json.loads(fs.read_file(directory / FILE_NAME))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    match document:
        case {"format": int(version), "uuid": str(uuid), "created": str(created)}:
            if version != FORMAT:
                raise JournalOpenError(f"{directory} is a journal of format {version}, this version reads {FORMAT}")
            try:
                return JournalIdentity(UUID(uuid), created)
            except ValueError:
                return None
    return None


# Opening.


@dataclass(slots=True)
class RecoveryReport:
    """What opening a journal found and did. A sound journal has an empty report."""

    cut_bytes: int = 0
    """The size of the torn tail that was cut off the last segment."""
    damage: list[Damage] = field(default_factory=list)
    """Damage in the middle of the part of the last segment that was read."""
    repairs: list[str] = field(default_factory=list)
    """Everything else, in words for the log."""


@dataclass(slots=True)
class Recovered:
    """What a journal starts with."""

    identity: JournalIdentity
    segments: list[Segment]
    next_offset: int
    producers: ProducerTable
    report: RecoveryReport


def recover(directory: Path, config: JournalConfig, *, clock: Clock, fs: Files = OS_FILES) -> Recovered:
    """Open or make the journal in `directory`. JournalOpenError if that cannot be done."""
    if sys.byteorder != "little":
        raise JournalOpenError("journals are little-endian and used in place; this machine is not")
    try:
        return _Recovery(directory, config, clock=clock, fs=fs).run()
    except OSError as error:
        raise JournalOpenError(os_error_text("open", directory, error)) from error
    except JournalOpenError:
        raise
    except JournalError as error:
        raise JournalOpenError(str(error)) from error


class _Recovery:
    """The steps of opening one journal."""

    def __init__(self, directory: Path, config: JournalConfig, *, clock: Clock, fs: Files) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self._fs = fs
        self._report = RecoveryReport()

    def run(self) -> Recovered:
        self._make_directory()
        bases = base_offsets(self._directory, fs=self._fs)
        identity = self._identity(bases)
        segments = [self._segment(base) for base in bases]
        if not segments:
            segments.append(self._new_segment(identity.uuid, base_offset=0))
        producers = ProducerTable(max_producers=self._config.max_producers)
        active, next_offset = self._open_last(segments[:-1], segments[-1], producers, journal=identity.uuid)
        assert active.size_bytes >= SEGMENT_HEADER_BYTES
        assert active.base_offset <= next_offset
        return Recovered(identity, [*segments[:-1], active], next_offset, producers, self._report)

    # -- the folder --------------------------------------------------------------------------------------------

    def _make_directory(self) -> None:
        fs = self._fs
        if not fs.is_folder(self._directory):
            fs.create_folder(self._directory)  # not those above it: the data folder must exist
            fs.sync_folder(self._directory.parent)
        for name in fs.names(self._directory):
            if name.endswith(".tmp"):
                fs.unlink(self._directory / name)

    def _identity(self, bases: list[int]) -> JournalIdentity:
        """The identity in journal.json; if there is none, a new one, with the uuid of the segments if there are any."""
        found = load(self._directory, fs=self._fs)
        if found is not None:
            return found
        headers = (read_header(log_path(self._directory, base), fs=self._fs) for base in bases)
        known = next((header for header in headers if header is not None), None)
        if bases and known is None:
            raise JournalOpenError(f"{self._directory} holds segments, but nothing in it tells of which journal")
        if known is not None:
            self._report.repairs.append(f"{FILE_NAME} was missing or damaged and is made anew")
        made = identity_now(known.journal if known else uuid4(), now_ns=self._clock.wall_ns())
        save(self._directory, made, fs=self._fs)
        self._fs.sync_folder(self._directory)
        return made

    def _segment(self, base_offset: int) -> Segment:
        path = log_path(self._directory, base_offset)
        return Segment(path, base_offset=base_offset, size_bytes=self._fs.file_size(path), fs=self._fs)

    def _new_segment(self, journal: UUID, *, base_offset: int) -> Segment:
        header = SegmentHeader(journal, base_offset, self._clock.wall_ns())
        segment = create_segment(self._directory, header, interval_bytes=self._config.index_interval_bytes, fs=self._fs)
        self._fs.sync(segment.descriptor())
        self._fs.sync_folder(self._directory)
        return segment

    # -- the last segment --------------------------------------------------------------------------------------

    def _open_last(
        self, sealed: list[Segment], last: Segment, producers: ProducerTable, *, journal: UUID
    ) -> tuple[Segment, int]:
        """The active segment, cut to whole batches, and the offset behind it."""
        header = read_header(last.path, fs=self._fs)
        known = load_summary(last, journal=journal, interval_bytes=self._config.index_interval_bytes)
        if known is not None and known.producers is not None:
            start = BatchPlace(known.next_offset, known.covered_bytes)
            last.index = known.sparse_index
            _load(producers, known)
        else:
            self._fs.unlink(
                last.summary_path, missing_ok=True
            )  # or it might seem right again when the segment has grown
            start = last.start
            last.index = SparseIndex(interval_bytes=self._config.index_interval_bytes)
            self._producers_behind(sealed, producers, journal=journal)
        found_bytes = last.size_bytes
        next_offset = self._walk(last, last.index, producers, start=start, seed=seed_of(journal))
        if header is None or (header.journal, header.base_offset) != (journal, last.base_offset):
            if last.is_empty:
                return self._replace(last, journal=journal, found_bytes=found_bytes), last.base_offset
            self._rewrite_header(last, journal=journal)
        self._cut(last, found_bytes=found_bytes)
        if self._config.fsync and found_bytes != start.position:
            self._sync([*sealed[-MAX_AT_RISK_SEGMENTS:], last])
        return last, next_offset

    def _sync(self, segments: list[Segment]) -> None:
        """Bring to the disk what the operating system may still hold after a crash of the process alone."""
        for segment in segments:
            self._fs.sync_data(segment.descriptor())
            segment.close()
        self._fs.sync_folder(self._directory)

    def _walk(
        self, last: Segment, index: SparseIndex, producers: ProducerTable, *, start: BatchPlace, seed: int
    ) -> int:
        """Take note of all batches; end the segment behind the last one and return the offset behind it."""
        scan = Scan(last.descriptor(), seed=seed, start=start, end_position=last.size_bytes, fs=self._fs)
        damage: list[Damage] = []
        last.size_bytes = start.position
        next_offset = start.offset
        for found in scan:
            if isinstance(found, Damage):
                damage.append(found)
                continue
            note_batch(found, position=scan.position - found.length, index=index, producers=producers)
            last.size_bytes, next_offset = scan.position, scan.offset
        self._report.damage = [part for part in damage if part.end <= last.size_bytes]
        return next_offset

    def _cut(self, last: Segment, *, found_bytes: int) -> None:
        if last.size_bytes == found_bytes:
            return
        self._report.cut_bytes = found_bytes - last.size_bytes
        self._fs.truncate(last.descriptor(), last.size_bytes)

    def _rewrite_header(self, last: Segment, *, journal: UUID) -> None:
        """Mend the header of a segment that belongs to this journal by its name and its batches."""
        content = SegmentHeader(journal, last.base_offset, self._clock.wall_ns()).to_bytes()
        _, error = write_fully(last.descriptor(), content, position=0, fs=self._fs)
        if error is not None:
            raise error
        self._fs.sync_data(last.descriptor())
        self._report.repairs.append(f"the header of {last.path.name} was damaged and is written anew")

    def _replace(self, last: Segment, *, journal: UUID, found_bytes: int) -> Segment:
        """A file in the last segment's place that holds nothing of this journal makes way for a new one."""
        last.close()
        if found_bytes <= SEGMENT_HEADER_BYTES:
            self._fs.unlink(last.path)
            self._report.repairs.append(f"{last.path.name} had just been begun and is made anew")
        else:
            self._fs.rename(last.path, _free_name(last.path.with_suffix(".bad"), fs=self._fs))
            self._report.repairs.append(f"{last.path.name} is no segment of this journal and is set aside")
        self._fs.unlink(last.summary_path, missing_ok=True)
        return self._new_segment(journal, base_offset=last.base_offset)

    # -- producers ---------------------------------------------------------------------------------------------

    def _producers_behind(self, sealed: list[Segment], producers: ProducerTable, *, journal: UUID) -> None:
        """Fill the table with what it was at the end of the sealed segments: from the newest .idx file that knows the
        producers, and from the segments behind it, whose own files are then made anew."""
        interval_bytes = self._config.index_interval_bytes
        unknown: list[Segment] = []
        for segment in reversed(sealed):
            known = load_summary(segment, journal=journal, interval_bytes=interval_bytes)
            if known is not None and known.producers is not None and known.covered_bytes == segment.size_bytes:
                _load(producers, known)
                break
            unknown.append(segment)
        for segment in reversed(unknown):
            made = summarize(segment, seed=seed_of(journal), interval_bytes=interval_bytes, producers=producers)
            save_summary(segment, made, journal=journal)
            segment.close()
            self._report.repairs.append(f"{segment.summary_path.name} was missing or damaged and is made anew")


def _load(producers: ProducerTable, summary: Summary) -> None:
    for producer_id, last in summary.producers or ():
        producers.record(producer_id, last)


def _free_name(path: Path, *, fs: Files) -> Path:
    """The path, or if a file has that name already, one with a number behind it."""
    number = 0
    free = path
    while fs.exists(free):
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
