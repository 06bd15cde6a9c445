"""The journal of one topic: a log of messages, each with an offset that is its own for ever.

    00000000000000000000.log   00000000000000183250.log   00000000000000366500.log
    BBBBBBBBBBBBBBBBBBBBBBBB   BBBBBBBBBBBBBBBBBBBBBBBB   BBBBBBBBBBB             B: a batch
    ^ first_offset             sealed, never changes      active    ^ synced_offset
                                                                      ^ next_offset

Appending. Messages that arrive together are one batch, one system call, all or nothing: an append that fails leaves no
trace, and the next one may succeed. Offsets are consecutive and never given twice.

Syncing. `begin_sync` makes a job for a thread, `finish_sync` takes note of its end (see `commit`, which calls both). A
failed sync ends all appending until the journal is opened again; reading goes on. On a disk without room a journal is
opened read-only, and `reopen` makes it one to be written to (see `recovery`).

Reading. Whole batches, checked, in blocks; what cannot be read is reported and passed over (see `reader`).

Retention. The oldest segments go when they are too old, or too much (see `retention`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from emberq.base.clock import Clock
from emberq.base.file import OS_FILES, Files
from emberq.storage.error import JournalError, JournalOpenError, JournalSyncError, JournalWriteError, os_error_text
from emberq.storage.journal.commit import AwaitedSyncs, CommitJob, Durability, Workers
from emberq.storage.journal.reader import Chunk, Extent, Gap, JournalReader, JournalView, ReadAhead
from emberq.storage.journal.recovery import RESERVED_COUNT, JournalIdentity, Recovered, RecoveryReport, recover
from emberq.storage.journal.recovery import save as save_identity
from emberq.storage.journal.retention import Retention
from emberq.storage.journal.scan import END_OF_OFFSETS
from emberq.storage.journal.segment import (
    JournalConfig,
    SegmentHeader,
    SparseIndex,
    create_segment,
    read_header,
)
from emberq.storage.journal.segments import Segments
from emberq.storage.journal.summary import LastBatch, Summary, UnsavedSummary, save_summary
from emberq.wire.journal_batch import Bodies, encode
from emberq.wire.parameter import ProducerSequence

log = logging.getLogger("emberq.storage")

MAX_UNSAVED = 64
"""So many contents of .idx files wait at most, if none can be written: the newest is needed, others can be remade."""
REMOVED_SUFFIX = ".removed"
"""Behind the name of the folder of a deleted journal, until it is gone."""


class Stored(NamedTuple):
    """The offsets that a batch got.

    If its producer sent the batch again, these are the offsets of the producer's last stored batch: the same, or a
    later one. When that is synced, so is the batch in question.
    """

    base_offset: int
    next_offset: int
    is_repeated: bool


class Jump(NamedTuple):
    """Offsets from the first up to, not including, the next one that no message has."""

    first_offset: int
    next_offset: int


class SegmentInfo(NamedTuple):
    """One segment, as /journal shows it."""

    path: Path
    base_offset: int
    next_offset: int
    size_bytes: int


class Journal:
    """The log of one topic. Owned by one thread; only sync jobs run in others, and they share nothing with it.

    Invariants between calls: first_offset <= synced_offset <= next_offset; the active segment ends with a whole batch.
    """

    def __init__(
        self,
        directory: Path,
        config: JournalConfig,
        recovered: Recovered,
        *,
        clock: Clock,
        workers: Workers | None = None,
        fs: Files = OS_FILES,
    ) -> None:
        """Without `workers`, everything is done where it is asked for, and nothing is read ahead."""
        self.on_failure: Callable[[], None] | None = None
        """Called when a sync has failed, after which it takes no more messages."""
        self._directory = directory
        self._config = config
        self._clock = clock
        self._fs = fs
        self._closed = False
        self._workers = workers
        self.awaited_syncs = AwaitedSyncs() if workers is None else workers.awaited_syncs
        """Those to which a channel that reads much gives way."""
        self._adopt(recovered)

    def _adopt(self, recovered: Recovered) -> None:
        """Be the journal that was found on the disk."""
        config, workers = self._config, self._workers
        self.report: RecoveryReport = recovered.report
        """What opening it found and did."""
        self._read_only = recovered.read_only
        self._identity = recovered.identity
        self._segments = Segments(
            recovered.segments,
            journal=recovered.identity.uuid,
            next_offset=recovered.next_offset,
            interval_bytes=config.index_interval_bytes,
            start_reading=None if workers is None else workers.start_reading,
        )
        self._retention = Retention(
            self._segments, directory=self._directory, config=config, workers=workers or Workers(), fs=self._fs
        )
        self._reader = JournalReader(self._segments)
        self._ahead = (
            None
            if workers is None
            else ReadAhead(self._reader, seed=self._segments.seed, workers=workers, fs=self._fs.patient)
        )
        self._producers = recovered.producers
        self._segments.active.sync_journal = self._sync_before_closing
        self._segments.active.is_unsynced = False
        self._durability = Durability(
            self._directory, synced_offset=recovered.next_offset, descriptors=config.descriptors, fs=self._fs
        )
        self._durability.on_failure = self._failed
        reserved = recovered.identity.reserved
        self._reserved_offset = END_OF_OFFSETS if reserved is None else reserved
        """Offsets before it may be given; as many as there are, if messages are only seen when they are synced."""
        self._unsaved: list[UnsavedSummary] = []
        """Contents of .idx files that are to be written, the oldest first."""
        self.summary_failure: str | None = None
        """Why an .idx file could not be written, because of which old segments stay; None: all were."""

    @classmethod
    def open(
        cls,
        directory: Path,
        config: JournalConfig,
        *,
        clock: Clock,
        workers: Workers | None = None,
        fs: Files = OS_FILES,
    ) -> Journal:
        """Open the journal in `directory`, or make one there. JournalOpenError if that cannot be done."""
        recovered = recover(directory, config, clock=clock, fs=fs)
        _log_report(directory, recovered)
        return cls(directory, config, recovered, clock=clock, workers=workers, fs=fs)

    def reopen(self) -> None:
        """Open a read-only journal anew, to write to it. JournalError if there is still no room, or something is wrong.

        Offsets may have moved on then, as after any recovery: see `report`.
        """
        assert self._read_only is not None
        recovered = recover(self._directory, self._config, clock=self._clock, fs=self._fs)
        if recovered.read_only is not None:
            for segment in recovered.segments:
                segment.close()
            raise JournalOpenError(recovered.read_only)
        _log_report(self._directory, recovered)
        self._let_go()
        self._adopt(recovered)

    def __repr__(self) -> str:
        return f"<Journal {self._directory.name!r} {self.first_offset}..{self.next_offset} synced={self.synced_offset}>"

    # -- what it is --------------------------------------------------------------------------------------------

    @property
    def uuid(self) -> UUID:
        """Which journal this is; offsets mean nothing in another one."""
        return self._identity.uuid

    @property
    def created(self) -> str:
        """When it was made, as RFC 3339."""
        return self._identity.created

    @property
    def first_offset(self) -> int:
        """The oldest offset that has not been removed."""
        return self._segments.first.base_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next message will get."""
        return self._segments.next_offset

    @property
    def synced_offset(self) -> int:
        """Everything before this offset survives a power failure; without `fsync`, everything counts as synced."""
        return self._durability.synced_offset if self._config.fsync else self._segments.next_offset

    @property
    def durable_offset(self) -> int:
        """Everything before this offset survives a power failure, whatever the settings say."""
        return self._durability.synced_offset

    @property
    def failure(self) -> JournalSyncError | None:
        """Why it takes no more messages; None as long as it does."""
        return self._durability.failure

    @property
    def is_read_only(self) -> bool:
        """Whether it was opened on a disk without room; `reopen` ends that."""
        return self._read_only is not None

    @property
    def problem(self) -> str | None:
        """Why it takes no messages, in words for an operator; None if it does."""
        if self._read_only is not None:
            return f"read-only for want of room: {self._read_only}"
        if self.failure is not None:
            return f"{self.failure}; it takes no messages until nsqd is started again"
        return None

    @property
    def total_bytes(self) -> int:
        """The size of all segments."""
        return self._segments.total_bytes

    @property
    def segments(self) -> list[SegmentInfo]:
        """All segments, the oldest first."""
        return [
            SegmentInfo(segment.path, segment.base_offset, self._segments.end_offset(segment), segment.size_bytes)
            for segment in self._segments
        ]

    @property
    def gaps(self) -> list[Gap]:
        """The damage that reads have come across."""
        return list(self._reader.gaps.values())

    def jumps(self) -> list[Jump]:
        """The offsets between the first and the next one that no message has. JournalError if a file cannot be opened.

        They were passed over when the journal moved on after an unclean stop.
        """
        found: list[Jump] = []
        for before, segment in pairwise(self._segments):
            if segment.after_offset is None:
                with _as_journal_error("read", segment.path):
                    header = read_header(segment.path, fs=self._fs)
                after_offset = None if header is None else header.after_offset
                segment.after_offset = segment.base_offset if after_offset is None else after_offset
            if before.base_offset <= segment.after_offset < segment.base_offset:
                found.append(Jump(segment.after_offset, segment.base_offset))
        return found

    # -- appending ---------------------------------------------------------------------------------------------

    def append(
        self,
        bodies: Bodies,
        *,
        timestamp_ns: int,
        times_ns: Sequence[int] | None = None,
        due_ns: Sequence[int] | None = None,
        producer: ProducerSequence | None = None,
    ) -> Stored:
        """Store the messages as one batch. JournalWriteError: none of them is stored, and a later append may be.

        `times_ns` and `due_ns` have one value for each message: when it was published, if that differs from message to
        message, and when it is due (0: at once).
        """
        self._refuse_unless_writable()
        if producer is not None:
            last = self._producers.stored_already(producer)
            if last is not None:
                return Stored(last.base_offset, last.next_offset, is_repeated=True)
        segments = self._segments
        base_offset = segments.next_offset
        if base_offset + bodies.message_count > self._reserved_offset:
            self._reserve(base_offset + bodies.message_count)
        batch = encode(
            bodies,
            base_offset=base_offset,
            timestamp_ns=timestamp_ns,
            seed=segments.seed,
            times_ns=times_ns,
            due_ns=due_ns,
            producer=producer,
            synced_offset=self._durability.synced_offset,
        )
        active = segments.active
        if active.size_bytes + batch.length > self._config.segment_bytes and not active.is_empty:
            self._roll(base_offset)
            active = segments.active
        try:
            position = active.append(batch)
        except JournalWriteError:
            if not active.is_spoiled:
                raise
            self._roll(base_offset)  # the file ends in a bad sector, and will never take another batch
            active = segments.active
            position = active.append(batch)
        segments.next_offset = next_offset = base_offset + bodies.message_count
        assert self._durability.synced_offset <= base_offset < next_offset
        latest_ns = timestamp_ns if times_ns is None else max(times_ns)
        segments.index(active).add(offset=base_offset, position=position, timestamp_ns=latest_ns)
        if producer is not None:
            self._producers.record(
                producer.producer_id, LastBatch(producer.sequence, base_offset, bodies.message_count)
            )
        return Stored(base_offset, next_offset, is_repeated=False)

    def skip_to(self, offset: int) -> None:
        """Give no message an offset before this one.

        For a journal that lost its end to a power failure after a channel had seen more of it: offsets that meant one
        message must not come to mean another.
        """
        if offset <= self.next_offset:
            return
        self._refuse_unless_writable()
        if offset > self._reserved_offset:
            self._reserve(offset)
        self._roll(offset)

    def producer_state(self, producer_id: bytes) -> LastBatch | None:
        """The last batch that this producer has stored, if it is remembered."""
        return self._producers.last(producer_id)

    def _refuse_unless_writable(self) -> None:
        if self._read_only is not None:
            raise JournalWriteError(f"nothing is stored in a read-only journal: {self._read_only}")
        if self.failure is not None:
            raise JournalWriteError(f"nothing is stored after a failed sync: {self.failure}") from self.failure
        if self._closed:
            raise JournalWriteError("the journal is closed")

    def _reserve(self, next_offset: int) -> None:
        """Reserve the offsets before this one, on the disk, before a message gets them. JournalWriteError if not."""
        reserved_offset = next_offset + RESERVED_COUNT
        self._save_identity(self._identity._replace(reserved=reserved_offset, boot=self._fs.boot_id()))
        self._reserved_offset = reserved_offset

    def _save_identity(self, identity: JournalIdentity) -> None:
        try:
            save_identity(self._directory, identity, fs=self._fs)
        except OSError as error:
            raise JournalWriteError(os_error_text("write", self._directory, error)) from error
        self._identity = identity

    def _roll(self, base_offset: int) -> None:
        """Seal the active segment and go on with a new one, which begins with `base_offset`."""
        sealed, end_offset = self._segments.active, self._segments.next_offset
        self._durability.make_room()
        self._refuse_unless_writable()
        synced_offset = self._durability.synced_offset
        header = SegmentHeader(self.uuid, base_offset, self._clock.wall_ns(), synced_offset, end_offset)
        try:
            created = create_segment(
                self._directory,
                header,
                interval_bytes=self._config.index_interval_bytes,
                descriptors=self._config.descriptors,
                fs=self._fs,
            )
        finally:
            self._durability.names_changed()
        created.sync_journal = self._sync_before_closing
        try:
            self._durability.sealed(sealed)
        except OSError as error:
            created.close()
            self._fs.unlink(created.path, missing_ok=True)
            self._durability.names_changed()
            raise JournalWriteError(os_error_text("open", sealed.path, error)) from error
        self._unsaved.append(UnsavedSummary(end_offset, sealed, self._summary()))
        self._segments.add(created)
        sealed.sync_journal = None
        self._segments.next_offset = base_offset
        # The producers must be known without the sealed segments, which may go.
        begin = self._summary()._replace(
            sparse_index=SparseIndex(interval_bytes=self._config.index_interval_bytes)  # its own one grows
        )
        self._unsaved.append(UnsavedSummary(end_offset, created, begin))
        del self._unsaved[:-MAX_UNSAVED]

    def _summary(self) -> Summary:
        """The content of the active segment's .idx file."""
        active, segments = self._segments.active, self._segments
        return Summary(
            active.base_offset,
            segments.next_offset,
            active.size_bytes,
            segments.index(active),
            list(self._producers.items()),
        )

    def _save_active_summary(self) -> str | None:
        durable = self._is_summary_needed
        return save_summary(self._segments.active, self._summary(), journal=self.uuid, durable=durable)

    def _save_summaries(self) -> None:
        """Write the .idx files that wait, as far as they speak only of what is on the disk.

        One that is written before would vouch for batches that a power failure may take.
        """
        if self.failure is None and self._durability.are_names_synced:
            self._writing_summaries(until_offset=self._durability.synced_offset)()
            self._forget_saved()

    def _writing_summaries(self, *, until_offset: int) -> Callable[[], None]:
        """What writes them, in any thread, when everything before the offset is on the disk."""
        waiting = [each for each in self._unsaved if each.end_offset <= until_offset and each.segment in self._segments]
        is_needed = self._is_summary_needed

        def write() -> None:
            for each in waiting:
                if not each.is_saved and not each.save(journal=self.uuid, is_needed=is_needed):
                    return  # it is tried again after the next sync, and when old segments are to go

        return write

    def _forget_saved(self) -> None:
        self._unsaved = [each for each in self._unsaved if not each.is_saved and each.segment in self._segments]
        self.summary_failure = next((each.failure for each in self._unsaved if each.failure is not None), None)

    @property
    def _is_summary_needed(self) -> bool:
        """Whether segments were removed, so that only an .idx file knows the producers of what was in them."""
        return self.first_offset > 0

    # -- syncing -----------------------------------------------------------------------------------------------

    def begin_sync(self, *, is_awaited: bool = False) -> CommitJob | None:
        """A job that brings everything appended so far to the disk; None if all of it is there, or a sync has failed.

        One job at a time: the next begins after `finish_sync` of this one. Without `fsync`, and unless it `is_awaited`,
        only sealed segments are synced.
        """
        if not self._config.fsync and not is_awaited:
            return self._with_summaries(self._durability.begin_sealed(self._segments.active))
        return self._with_summaries(self._durability.begin(self._segments.active, next_offset=self.next_offset))

    def _with_summaries(self, job: CommitJob | None) -> CommitJob | None:
        """Let the job also write the .idx files that speak only of what it brings to the disk."""
        if job is not None and self._unsaved:
            job.then = self._writing_summaries(until_offset=job.target_offset)
        return job

    @property
    def has_unsynced_segments(self) -> bool:
        """Whether sealed segments wait for a sync."""
        return self._durability.has_sealed

    def finish_sync(self, job: CommitJob) -> None:
        """A job has run: its part is on the disk, or `failure` is set for good. A second call changes nothing."""
        self._durability.finish(job)
        if self._config.fsync:
            self._note_synced()
        self._forget_saved()

    def sync(self) -> None:
        """Return when everything is on the disk. JournalSyncError if it may not be."""
        self._durability.end_running_job()
        job = self._with_summaries(self._durability.begin(self._segments.active, next_offset=self.next_offset))
        if job is not None:
            job.run()
            self.finish_sync(job)
        self._note_synced()
        if self.failure is not None:
            raise self.failure

    def _note_synced(self) -> None:
        """The active segment's file may be closed when all of it is on the disk, or is known not to be."""
        durability = self._durability
        if durability.failure is not None or durability.synced_offset == self.next_offset:
            self._segments.active.is_unsynced = not durability.are_names_synced and durability.failure is None

    def _sync_before_closing(self) -> None:
        """Another file needs the descriptor of the active segment."""
        with suppress(JournalSyncError):  # `failure` is set then
            self.sync()

    def _failed(self) -> None:
        if self.on_failure is not None:
            self.on_failure()

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, told: Callable[[], None] | None = None) -> Chunk:
        """The batches from the one that holds `offset` on: at least one, then as many as fit into `max_bytes`.

        This includes batches that are not synced yet. JournalError if a file cannot be read at all, JournalBusyError
        if that takes long. With `told`, JournalColdError if another thread is to read them first: `told` is called when
        they can be had.
        """
        with _as_journal_error("read", self._directory):
            if told is None or self._ahead is None:
                return self._reader.read(offset, max_bytes=max_bytes)
            return self._ahead.read(offset, max_bytes=max_bytes, told=told)

    def locate(self, offset: int, *, max_bytes: int) -> Extent | None:
        """Where the batches from the one that holds `offset` on lie in a file, so that they can be sent as they are.

        Only synced batches, and of one segment: at least one, then as many as fit into `max_bytes`. None if there is
        none yet. JournalError if a file cannot be read at all.
        """
        with _as_journal_error("read", self._directory):
            return self._reader.locate(offset, max_bytes=max_bytes, end_offset=self.synced_offset)

    def offset_at(self, time_ns: int) -> int:
        """The first offset that was published at or after `time_ns`; `next_offset` if none was."""
        with _as_journal_error("read", self._directory):
            return self._reader.offset_at(time_ns)

    def view(self) -> JournalView:
        """The journal as it is now, for searches in another thread; hand it to `learn` when they have ended."""
        return JournalView(self._reader, directory=self._directory, synced_offset=self.synced_offset)

    def learn(self, view: JournalView) -> None:
        """Take over what a view has come across."""
        self._reader.learn(view)

    # -- retention ---------------------------------------------------------------------------------------------

    @property
    def overtaken_offset(self) -> int:
        """What is before it goes, to keep the journal within its limit, whatever channels have still to read."""
        return self._retention.overtaken_offset()

    def trim(self, *, before_offset: int, now_ns: int) -> int:
        """Remove segments that are too old or too many; return how many bytes that frees.

        Never one that holds `before_offset`, the lowest offset that a channel has still to read, or anything behind it.
        An active segment in which everything is too old is sealed first, so that it can go too.
        """
        segments, retention = self._segments, self._retention
        if retention.is_removing:
            return 0
        before_offset = min(before_offset, self._durability.synced_offset)
        is_read = before_offset >= self.next_offset and self.problem is None and not self._closed
        if is_read and retention.is_too_old(segments.active, now_ns=now_ns):
            self._roll(self.next_offset)
        with _as_journal_error("read", self._directory):
            oldest = retention.removable(before_offset=before_offset, now_ns=now_ns)
        if not oldest:
            return 0
        if self._unsaved or not self._fs.exists(segments.active.summary_path):
            self.sync()  # or the producers of what goes would be forgotten
            self._save_summaries()
            if not self._unsaved:
                self.summary_failure = self._save_active_summary()
        size_bytes = segments.total_bytes
        retention.remove(oldest)
        return size_bytes - segments.total_bytes

    # -- the end -----------------------------------------------------------------------------------------------

    def release_files(self) -> None:
        """Let go of descriptors and indexes; they are opened again when needed. For topics that are quiet."""
        self._segments.close_sealed()
        if self.synced_offset == self.next_offset:
            self._segments.active.close()

    def close(self) -> None:
        """Bring everything to the disk and let go of the files. JournalSyncError if that fails."""
        if self._closed:
            return
        self._closed = True
        if self._read_only is not None:
            self._let_go()
            return
        try:
            self.sync()
            self._save_summaries()
            self._save_active_summary()
            if self._identity.reserved is not None:
                self._save_identity(self._identity._replace(reserved=None, boot=""))
        finally:
            self._let_go()

    def delete(self) -> Path:
        """Let go of the files and give the folder another name, under which it is no journal. OSError if that fails.

        Its old name is free at once, for a new journal. The caller removes what is returned, with everything in it:
        that takes long if it is large. After an OSError the journal is as it was.
        """
        self._durability.end_running_job()
        removed = self._directory.with_name(f"{self._directory.name}.{secrets.token_hex(8)}{REMOVED_SUFFIX}")
        self._fs.rename(self._directory, removed)
        self._closed = True
        self._unsaved.clear()
        self._let_go()
        return removed

    def _let_go(self) -> None:
        self._retention.give_up()
        if self._ahead is not None:
            self._ahead.give_up()
        self._segments.close_sealed()
        self._segments.active.close()
        self._durability.let_go()


@contextmanager
def _as_journal_error(operation: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(os_error_text(operation, path, error)) from error


def _log_report(directory: Path, recovered: Recovered) -> None:
    report = recovered.report
    if recovered.read_only is not None:
        log.error("journal %s: opened read-only for want of room: %s", directory, recovered.read_only)
    for repair in report.repairs:
        log.warning("journal %s: %s", directory, repair)
    if report.cut_bytes:
        log.warning("journal %s: cut off %d bytes that had not been synced", directory, report.cut_bytes)
    if report.moved_on is not None:
        first, following = report.moved_on
        log.warning(
            "journal %s: goes on at offset %d; from %d on they may have been given", directory, following, first
        )
    for damage in report.damage:
        log.error("journal %s: %s", directory, damage)
