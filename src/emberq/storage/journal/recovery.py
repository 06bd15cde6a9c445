"""Opening a journal: which one it is, what is in it, and what an unclean stop left undone.

journal.json says which journal this is:

    {"format":2,"uuid":"0b5f...","created":"2025-01-31T12:00:00Z"}
    {"format":2,"uuid":"0b5f...","created":"2025-01-31T12:00:00Z","reserved":1048576,"boot":"6d1c..."}

A journal that is deleted and made again is another journal with another uuid: offsets that readers and channels
remember mean nothing in it. Every segment repeats the uuid, so a lost file can be replaced.

Where to begin. An .idx file that knows the producers is only written when everything before its end is on the disk. So
all that lies before the newest of them is sound, and after a clean stop that is everything. What lies behind it is
read, batch by batch, through as many segments as there are.

Holes. A power failure leaves pages that were not synced in any order: a batch may be gone while a later one is there.
The later one was never confirmed, or the first one would be on the disk. And a producer that sends the first one again
must not be told that it is stored, because a later number is. So the journal ends at the first hole, whatever is
behind it.

    BBBBBBBBBBBB.BBBBBBBBBB|BBBB.....BBBB            B: a batch    .: none
                ^ damage   ^    ^ hole: the end
                           synced, as a batch behind it says

Damage. Each batch, and each segment, says how far the journal was synced when it was written. A hole before that point
is no torn write but damage: it stays, is reported, and readers pass over it.

What is left is written again. After a failed sync the operating system takes pages for written that are not, and no
later sync would bring them to the disk. So the part that no batch calls synced is written anew, to the same place, and
synced, before anything is promised on it.

Moving on. If what was cut off, or vanished without a trace, may have been seen by a reader, its offsets must not be
given to other messages: the journal goes on behind all of them, in a new segment that says so. It is on the disk before
anything is cut, so a crash meanwhile leaves no doubt about what was to be cut. How far offsets may have been given is
known from the bytes that are cut off; and where messages are seen before they are synced, from `reserved`: offsets are
reserved in advance, many at a time. Only a failure of the machine loses what was written, so nothing is skipped if the
machine has not been started since (`boot`).

Bad sectors. What the disk cannot read is damage, or a hole, like anything else that is no batch. It is left as it is
where the disk does not let it be written or cut either.

No room. On a disk that is full, or that takes no writes, a journal is opened read-only: its files stay as they are, and
in memory it ends where it would end after a recovery. Consumers drain it. It takes messages when it was opened again,
with room.

A last file that is no segment of this journal is set aside as `.bad`, never deleted. Leftovers of files that were being
replaced are removed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.file import (
    OS_FILES,
    UNREADABLE_PIECE_BYTES,
    Files,
    is_medium_error,
    lacks_room,
    read_around,
    remove_temporary_files,
    replace_file,
    write_fully,
)
from emberq.storage.error import JournalError, JournalOpenError, os_error_text
from emberq.storage.journal.scan import BLOCK_BYTES, Damage, Scan
from emberq.storage.journal.segment import (
    END_OF_BASE_OFFSETS,
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
from emberq.storage.journal.summary import ProducerTable, Summary, load_summary, save_summary
from emberq.storage.journal.tail import Tail
from emberq.wire.journal_batch import seed_of

# journal.json.

FILE_NAME = "journal.json"
_REPLACED = (FILE_NAME, ".idx", ".mark")
"""How the names of the files end that are replaced as a whole."""
FORMAT = 2
"""Format 1, in which batches do not say what was synced, is read and becomes format 2."""
RESERVED_COUNT = 1 << 20
"""So many offsets are reserved at a time: it takes a sync, and a power failure leaves as many unused."""


class JournalIdentity(NamedTuple):
    """Which journal this is, and which offsets may have been given."""

    uuid: UUID
    created: str
    reserved: int | None = None
    """No message has this offset or one behind it; None: messages are only seen when they are on the disk."""
    boot: str = ""
    """Which start of the machine that was."""
    format: int = FORMAT


def identity_now(uuid: UUID, *, now_ns: int) -> JournalIdentity:
    """The identity of a journal that is created now."""
    moment = datetime.fromtimestamp(now_ns // NS_PER_SECOND, UTC)
    return JournalIdentity(uuid, moment.strftime("%Y-%m-%dT%H:%M:%SZ"))


def save(directory: Path, identity: JournalIdentity, *, fs: Files = OS_FILES) -> None:
    """Replace the file; it is on the disk when this returns. OSError if that fails."""
    document: dict[str, object] = {"format": FORMAT, "uuid": str(identity.uuid), "created": identity.created}
    if identity.reserved is not None:
        document |= {"reserved": identity.reserved, "boot": identity.boot}
    content = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    replace_file(directory / FILE_NAME, content, fs=fs)
    fs.sync_folder(directory)


def load(directory: Path, *, fs: Files = OS_FILES) -> JournalIdentity | None:
    """The identity; None if the file is missing or damaged. JournalOpenError for a format of the future."""
    try:
        document = json.loads(fs.read_file(directory / FILE_NAME))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    match document:
        case {"format": int(version), "uuid": str(uuid), "created": str(created)}:
            if not 1 <= version <= FORMAT:
                raise JournalOpenError(f"{directory} is a journal of format {version}, this version reads {FORMAT}")
            reserved, boot = document.get("reserved"), document.get("boot")
            if isinstance(reserved, int) and not 0 <= reserved < END_OF_BASE_OFFSETS:
                return None
            try:
                return JournalIdentity(
                    UUID(uuid),
                    created,
                    reserved if isinstance(reserved, int) else None,
                    boot if isinstance(boot, str) else "",
                    version,
                )
            except ValueError:
                return None
    return None


# Opening.


@dataclass(slots=True)
class RecoveryReport:
    """What opening a journal found and did. A sound journal has an empty report."""

    cut_bytes: int = 0
    """How much was cut off the end."""
    moved_on: tuple[int, int] | None = None
    """The offsets from the first up to the second are skipped: messages that had them are lost, if there were any."""
    damage: list[Damage] = field(default_factory=list)
    """Damage in the part that was read."""
    repairs: list[str] = field(default_factory=list)
    """Everything else, in words for the log."""


@dataclass(slots=True)
class Recovered:
    """What a journal starts with. All of it is on the disk, unless it is read-only."""

    identity: JournalIdentity
    segments: list[Segment]
    next_offset: int
    producers: ProducerTable
    report: RecoveryReport
    read_only: str | None = None
    """Why nothing can be written: the disk has no room."""


def recover(directory: Path, config: JournalConfig, *, clock: Clock, fs: Files = OS_FILES) -> Recovered:
    """Open or make the journal in `directory`; read-only if the disk has no room for what is to be written.

    JournalOpenError if that cannot be done. Then nothing is open.
    """
    if sys.byteorder != "little":
        raise JournalOpenError("journals are little-endian and used in place; this machine is not")
    try:
        return _Recovery(directory, config, clock=clock, fs=fs).run()
    except JournalOpenError as failure:
        if not lacks_room(failure) or not fs.is_folder(directory):
            raise
        with suppress(JournalOpenError):
            found = _Recovery(directory, config, clock=clock, fs=fs, is_read_only=True).run()
            found.read_only = str(failure)
            return found
        raise


class _Recovery:
    """The steps of opening one journal."""

    def __init__(
        self, directory: Path, config: JournalConfig, *, clock: Clock, fs: Files, is_read_only: bool = False
    ) -> None:
        self._directory = directory
        self._is_read_only = is_read_only
        """Whether the files stay as they are."""
        self._opened: list[Segment] = []
        self._config = config
        self._clock = clock
        self._fs = fs
        self._report = RecoveryReport()
        self._producers = ProducerTable(max_producers=config.max_producers)

    def run(self) -> Recovered:
        """All of them. JournalOpenError if one fails; then no file is left open."""
        try:
            return self._recover()
        except BaseException as failure:
            for segment in self._opened:
                segment.close()
            if isinstance(failure, OSError):
                raise JournalOpenError(os_error_text("open", self._directory, failure)) from failure
            if isinstance(failure, JournalError) and not isinstance(failure, JournalOpenError):
                raise JournalOpenError(str(failure)) from failure
            raise

    def _recover(self) -> Recovered:
        self._make_directory()
        bases = base_offsets(self._directory, fs=self._fs)
        identity = self._identity(bases)
        segments, least_offset = self._own_segments(bases, journal=identity.uuid)
        if self._is_read_only:
            next_offset = self._find_end(segments, journal=identity.uuid)
            return Recovered(identity, segments, next_offset, self._producers, self._report)
        if segments:
            next_offset = self._recover_end(segments, identity, least_offset=least_offset)
        else:
            next_offset = max(least_offset, self._reserved_before(identity))
            segments.append(self._new_segment(identity.uuid, base_offset=next_offset, after_offset=next_offset))
            if next_offset > least_offset:
                self._report.moved_on = (least_offset, next_offset)
        assert segments[-1].size_bytes >= SEGMENT_HEADER_BYTES
        assert segments[-1].base_offset <= next_offset
        identity = self._reserve(identity, next_offset=next_offset)
        # All names at once: those made and removed here, and those of a process that died before it could sync them.
        self._fs.sync_folder(self._directory)
        return Recovered(identity, segments, next_offset, self._producers, self._report)

    # -- the folder --------------------------------------------------------------------------------------------

    def _make_directory(self) -> None:
        fs = self._fs
        if self._is_read_only:
            return
        if not fs.is_folder(self._directory):
            fs.create_folder(self._directory)  # not those above it: the data folder must exist
        remove_temporary_files(self._directory, lambda name: name.endswith(_REPLACED), fs=fs)

    def _identity(self, bases: list[int]) -> JournalIdentity:
        """The identity in journal.json; if there is none, a new one, with the uuid of the segments if there are any."""
        found = load(self._directory, fs=self._fs)
        if found is not None:
            believed = self._believed(found, bases)
            if (found.format < FORMAT or believed != found) and not self._is_read_only:
                save(self._directory, believed, fs=self._fs)  # before a batch that older versions take for damage
            elif not bases and not self._is_read_only:
                # The process that made it may have died before it synced its name. A segment without it is no one's.
                self._fs.sync_folder(self._directory)
            return believed
        headers = (read_header(log_path(self._directory, base), fs=self._fs) for base in bases)
        known = next((header for header in headers if header is not None), None)
        if bases and known is None:
            raise JournalOpenError(f"{self._directory} holds segments, but nothing in it tells of which journal")
        if known is not None:
            self._report.repairs.append(f"{FILE_NAME} was missing or damaged and is made anew")
        made = identity_now(known.journal if known else uuid4(), now_ns=self._clock.wall_ns())
        if not self._is_read_only:
            # The folder above comes first: journal.json says that this one is there for good.
            self._fs.sync_folder(self._directory.parent)
            save(self._directory, made, fs=self._fs)
        return made

    def _believed(self, found: JournalIdentity, bases: list[int]) -> JournalIdentity:
        """What journal.json says, unless all segments are of another journal: it has no checksum, and they have."""
        uuids: set[UUID] = set()
        for base in bases:
            header = read_header(log_path(self._directory, base), fs=self._fs)
            if header is not None:
                uuids.add(header.journal)
                if len(uuids) > 1 or header.journal == found.uuid:
                    return found
        if not uuids:
            return found
        self._report.repairs.append(f"{FILE_NAME} named another journal than all segments do, and is made anew")
        return found._replace(uuid=uuids.pop())

    def _reserve(self, identity: JournalIdentity, *, next_offset: int) -> JournalIdentity:
        """Reserve offsets if messages are seen before they are synced, and give up a reservation if they are not."""
        boot = self._fs.boot_id()
        if not self._config.shows_unsynced:
            wanted = identity._replace(reserved=None, boot="")
        elif identity.reserved is not None and identity.reserved > next_offset and identity.boot == boot:
            wanted = identity
        else:
            wanted = identity._replace(reserved=next_offset + RESERVED_COUNT, boot=boot)
        if wanted != identity:
            save(self._directory, wanted, fs=self._fs)
        return wanted

    # -- segments ----------------------------------------------------------------------------------------------

    def _own_segments(self, bases: list[int], *, journal: UUID) -> tuple[list[Segment], int]:
        """The segments of this journal, and the offset behind which the names of those set aside are."""
        segments = [self._segment(base) for base in bases]
        least_offset = 0
        while segments and self._is_strange(segments[-1], journal=journal):
            least_offset = max(least_offset, segments[-1].base_offset)
            self._set_aside(segments.pop())
        return self._without_cut_off(segments, journal=journal), least_offset

    def _without_cut_off(self, segments: list[Segment], *, journal: UUID) -> list[Segment]:
        """Remove the rest of what an earlier recovery was cutting off when it was interrupted.

        It had made the segment that follows first. Where that says that the offsets before it end, no other begins.
        """
        header = read_header(segments[-1].path, fs=self._fs) if segments else None
        if header is None or header.journal != journal or header.after_offset is None:
            return segments
        end_offset = header.after_offset
        cut_off = [segment for segment in segments[:-1] if segment.base_offset > end_offset]
        for segment in reversed(cut_off):
            segment.close()
            if not self._is_read_only:
                self._remove(segment)
        return [segment for segment in segments if segment not in cut_off]

    def _segment(self, base_offset: int) -> Segment:
        path = log_path(self._directory, base_offset)
        segment = Segment(
            path,
            base_offset=base_offset,
            size_bytes=self._fs.file_size(path),
            read_only=self._is_read_only,
            descriptors=self._config.descriptors,
            fs=self._fs,
        )
        self._opened.append(segment)
        return segment

    def _is_strange(self, segment: Segment, *, journal: UUID) -> bool:
        """Whether neither its header nor a batch in it is of this journal."""
        header = read_header(segment.path, fs=self._fs)
        if header is not None and (header.journal, header.base_offset) == (journal, segment.base_offset):
            return False
        scan = Scan(
            segment.descriptor(),
            seed=seed_of(journal),
            start=segment.start,
            end_position=segment.size_bytes,
            fs=self._fs,
        )
        return all(isinstance(found, Damage) for found in scan)

    def _set_aside(self, segment: Segment) -> None:
        """A file in the last segment's place that holds nothing of this journal makes way."""
        segment.close()
        if self._is_read_only:
            return
        if segment.size_bytes <= SEGMENT_HEADER_BYTES:
            self._fs.unlink(segment.path)
            self._report.repairs.append(f"{segment.path.name} had just been begun and is made anew")
        else:
            self._fs.rename(segment.path, _free_name(segment.path.with_suffix(".bad"), fs=self._fs))
            self._report.repairs.append(f"{segment.path.name} is no segment of this journal and is set aside")
        self._fs.unlink(segment.summary_path, missing_ok=True)

    def _new_segment(self, journal: UUID, *, base_offset: int, after_offset: int) -> Segment:
        """A segment that is on the disk, as everything before `after_offset` is already."""
        header = SegmentHeader(journal, base_offset, self._clock.wall_ns(), after_offset, after_offset)
        config = self._config
        segment = create_segment(
            self._directory,
            header,
            interval_bytes=config.index_interval_bytes,
            descriptors=config.descriptors,
            fs=self._fs,
        )
        self._opened.append(segment)
        self._fs.sync(segment.descriptor())
        self._fs.sync_folder(self._directory)  # what it replaces may be cut off next
        return segment

    # -- the end of the journal --------------------------------------------------------------------------------

    def _recover_end(self, segments: list[Segment], identity: JournalIdentity, *, least_offset: int) -> int:
        """Bring what was not synced into order, in the files and in the list; return the next offset."""
        journal = identity.uuid
        number, start = self._sound_until(segments, journal=journal)
        tail = Tail(segments, number, start, journal=journal, producers=self._producers, config=self._config)
        self._report.damage = tail.damage
        next_offset = tail.end_offset
        base_offset = max(next_offset, least_offset, tail.least_offset, self._reserved_before(identity))
        self._mend_header(tail, journal=journal)
        if tail.is_clean and base_offset == next_offset:
            if segments[-1].is_empty:
                self._write_again(tail)  # the process that made it may have died, or failed, before it was synced
            return next_offset
        self._write_again(tail)
        new = None
        if base_offset > next_offset:
            new = self._new_segment(journal, base_offset=base_offset, after_offset=next_offset)
            self._report.moved_on = (next_offset, base_offset)
        self._cut(tail, journal=journal)
        segments[:] = tail.kept
        self._save_summaries(tail, journal=journal)
        for sealed in segments if new is not None else segments[:-1]:
            sealed.close()
            sealed.index = None
        if new is not None:
            segments.append(new)
            empty = SparseIndex(interval_bytes=self._config.index_interval_bytes)
            summary = Summary(base_offset, base_offset, new.size_bytes, empty, list(self._producers.items()))
            save_summary(new, summary, journal=journal)
        return base_offset

    def _find_end(self, segments: list[Segment], *, journal: UUID) -> int:
        """As `_recover_end`, in the list alone; the files stay as they are."""
        if not segments:
            raise JournalOpenError(f"{self._directory} holds no segment, and there is no room for one")
        number, start = self._sound_until(segments, journal=journal)
        tail = Tail(segments, number, start, journal=journal, producers=self._producers, config=self._config)
        self._report.damage = tail.damage
        for segment in tail.removed:
            segment.close()
        for segment, position in tail.trims:
            segment.size_bytes = position
        segments[:] = tail.kept
        for sealed in segments[:-1]:
            sealed.close()
            sealed.index = None
        return tail.end_offset

    def _sound_until(self, segments: list[Segment], *, journal: UUID) -> tuple[int, BatchPlace]:
        """The newest segment whose .idx file knows the producers, and the place that it knows of."""
        interval_bytes = self._config.index_interval_bytes
        for number in reversed(range(len(segments))):
            segment = segments[number]
            known = load_summary(segment, journal=journal, interval_bytes=interval_bytes)
            if known is not None and known.producers is not None:
                for producer_id, last in known.producers:
                    self._producers.record(producer_id, last)
                segment.index = known.sparse_index
                return number, BatchPlace(known.next_offset, known.covered_bytes)
        return 0, segments[0].start

    def _reserved_before(self, identity: JournalIdentity) -> int:
        """The offset behind all that may have been given, if the machine has failed since; else 0."""
        if identity.reserved is None or (identity.boot and identity.boot == self._fs.boot_id()):
            return 0
        return identity.reserved

    def _mend_header(self, tail: Tail, *, journal: UUID) -> None:
        """Write the header of a segment that belongs to this journal by its name and its batches.

        It need not be synced: if it is lost again, it is written again.
        """
        last = tail.kept[-1]
        header = read_header(last.path, fs=self._fs)
        if header is not None and (header.journal, header.base_offset) == (journal, last.base_offset):
            return
        base_offset = last.base_offset
        made = SegmentHeader(
            journal, base_offset, self._clock.wall_ns(), min(tail.synced_offset, base_offset), base_offset
        )
        try:
            self._write(last, made.to_bytes(), position=0)
        except OSError as error:
            if not is_medium_error(error):
                raise
            self._report.repairs.append(f"the header of {last.path.name} can be neither read nor written")
        else:
            self._report.repairs.append(f"the header of {last.path.name} was damaged and is written anew")

    def _write_again(self, tail: Tail) -> None:
        """Write everything that no batch calls synced anew, to where it is, and bring it to the disk."""
        for segment, start, end in tail.unsynced():
            for position in range(start, end, BLOCK_BYTES):
                size_bytes = min(BLOCK_BYTES, end - position)
                block, unreadable = read_around(segment.descriptor(), size_bytes, position=position, fs=self._fs)
                for part_position, part in _readable_parts(block, position, unreadable):
                    self._write(segment, part, position=part_position)
            self._fs.sync_data(segment.descriptor())

    def _write(self, segment: Segment, content: bytes, *, position: int) -> None:
        _, error = write_fully(segment.descriptor(), content, position=position, fs=self._fs)
        if error is not None:
            raise error

    def _cut(self, tail: Tail, *, journal: UUID) -> None:
        """Remove what does not count."""
        self._report.cut_bytes = tail.cut_bytes
        if not tail.cut_bytes:
            return
        for segment in reversed(tail.removed):
            segment.close()
            self._remove(segment)
        for segment, position in tail.trims:
            known = load_summary(segment, journal=journal, interval_bytes=self._config.index_interval_bytes)
            if known is None or known.covered_bytes > position:
                self._fs.unlink(segment.summary_path, missing_ok=True)  # it might seem right when the segment has grown
            self._truncate(segment, position)
            segment.size_bytes = position

    def _remove(self, segment: Segment) -> None:
        self._fs.unlink(segment.summary_path, missing_ok=True)
        self._fs.unlink(segment.path)

    def _truncate(self, segment: Segment, position: int) -> None:
        try:
            self._fs.truncate(segment.descriptor(), position)
        except OSError as error:
            # A bad sector is not cut in two. What it is in stays, and readers find damage: the journal is beyond it.
            if not is_medium_error(error) or self._report.moved_on is None:
                raise
            self._report.repairs.append(f"{segment.path.name} cannot be cut at {position}, where it cannot be read")
        self._fs.sync(segment.descriptor())

    def _save_summaries(self, tail: Tail, *, journal: UUID) -> None:
        """Write the .idx files of what was read: the next start begins behind it.

        The names of the segments reach the disk first. An .idx file that outlived a power cut without the segment
        behind its own would make the messages of that segment look lost, although they were never confirmed.
        """
        self._fs.sync_folder(self._directory)
        for segment, summary in tail.summaries():
            save_summary(segment, summary, journal=journal, durable=True)  # it may replace one that is still needed


def _readable_parts(block: bytes, position: int, unreadable: list[int]) -> Iterator[tuple[int, bytes]]:
    """The parts of a block at `position` that could be read, each with its own position."""
    start = position
    for piece in unreadable:
        if piece > start:
            yield start, block[start - position : piece - position]
        start = piece + UNREADABLE_PIECE_BYTES
    if start < position + len(block):
        yield start, block[start - position :]


def _free_name(path: Path, *, fs: Files) -> Path:
    """The path, or if a file has that name already, one with a number behind it."""
    number = 0
    free = path
    while fs.exists(free):
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
