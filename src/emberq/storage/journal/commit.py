"""Group commit: many appends wait for one fdatasync.

    append A    append B    append C                 append D
       |           |           |                        |
       v           v           v                        v
    [ sync of A          ]  [ sync of B and C        ]  [ sync of D  ...

`GroupCommit`: one sync of a journal runs at a time, in another thread. It covers what had been appended when it began;
later appends wait for the next, which starts at once. The busier the journal, the more messages share a sync.

`Durability`: what of a journal is on the disk, and what is on its way there. Sealed segments that are not synced yet
wait here as descriptors, together with the news that the folder changed, until a `CommitJob` takes all of it along. The
active segment's descriptor is duplicated for the job, so that the journal may close its own at any time: a descriptor
has one owner. When too many are open (see `DescriptorCache`), the sync is done at once and needs no second one.

A sync that fails is final. The kernel reports a page that it could not write once and may then consider it clean, so
asking again could only hide the loss (see `JournalSyncError`). All waiting publishers are told, and the journal takes
no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from emberq.base.file import OS_FILES, SYNCS, Files
from emberq.storage.error import JournalSyncError, os_error_text
from emberq.storage.journal.segment import MAX_UNSYNCED_SEGMENTS, DescriptorCache, Segment

log = logging.getLogger("emberq.storage")

Work = Callable[[], None]
Told = Callable[[JournalSyncError | None], None]
"""Called with None when the data is on the disk, with the error when it may not be."""


def _run_here(work: Work) -> None:
    work()


class AwaitedSyncs:
    """Counts the journals that have publishers waiting for the disk. One for all that share an event loop.

    What can wait, such as a replay, gives way to them: then the loop is free at the moment the sync ends.
    """

    def __init__(self) -> None:
        self._count = 0
        self._told: dict[Work, None] = {}

    @property
    def are_any(self) -> bool:
        return self._count > 0

    @property
    def are_expected(self) -> bool:
        """Whether there are any, or were lately."""
        return SYNCS.are_expected

    def begin(self) -> None:
        self._count += 1
        SYNCS.begin()

    def end(self) -> None:
        assert self._count > 0
        self._count -= 1
        SYNCS.end()

    def when_none(self, told: Work) -> None:
        """Call this once when there are none any more, however often it was asked for meanwhile."""
        self._told[told] = None

    def tell(self) -> None:
        """Publishers have been told: call the others, if there are no more."""
        if not self._count and self._told:
            waiting, self._told = self._told, {}
            for told in waiting:
                told()


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Where the work of journals is done for which their own thread, the broker's, cannot wait.

    Each takes work and returns; the work is done soon. Those that are not given do it at once, in the caller's thread.
    """

    start: Callable[[Work], object] = _run_here
    """In another thread. What publishers and callers of the API wait for: syncs, small files."""
    start_reading: Callable[[Work], object] = _run_here
    """In a thread that may wait for the disk for long. No sync waits for it."""
    start_removing: Callable[[Work], object] = _run_here
    """In the thread that removes files, one thing after the other."""
    hand_back: Callable[[Work], object] = _run_here
    """In the journals' own thread. Called from any."""
    awaited_syncs: AwaitedSyncs = field(default_factory=AwaitedSyncs)
    """Of all journals whose work is done there."""


class CommitJob:
    """What is to reach the disk. Owns its descriptors.

    Any thread may run it, and more than one may try: the first does the work, and the others wait until it is done. So
    a caller that cannot wait until a thread is free runs the job itself.
    """

    def __init__(
        self,
        descriptors: list[int],
        *,
        directory: Path,
        folder_changed: bool,
        target_offset: int,
        close: Callable[[int], None] | None = None,
        fs: Files = OS_FILES,
    ) -> None:
        """`close` is what closes a descriptor, in the thread that runs the job."""
        self.target_offset = target_offset
        """Everything before this offset is on the disk when the job has run without error."""
        self.error: JournalSyncError | None = None
        self.then: Work | None = None
        """Done behind the sync, in the same thread, if the sync succeeds."""
        self._fs = fs
        self._close = close or fs.close
        self._descriptors = descriptors
        self._directory = directory
        self._folder_changed = folder_changed
        self._lock = threading.Lock()
        self._has_run = False

    def run(self) -> None:
        """Bring it to the disk; when this returns that is done, and a failure is in `error`."""
        with self._lock:
            if self._has_run:
                return
            self._has_run = True
            try:
                self._bring_to_disk()
                if self.then is not None:
                    self.then()
            except OSError as error:
                self.error = JournalSyncError(os_error_text("sync", self._directory, error))
            except BaseException as defect:
                self.error = JournalSyncError(f"sync {self._directory}: {defect!r}")  # it must not be taken for done
                raise
            finally:
                for fd in self._descriptors:
                    self._close(fd)

    def _bring_to_disk(self) -> None:
        for fd in self._descriptors:
            self._fs.sync_data(fd)
        if self._folder_changed:
            self._fs.sync_folder(self._directory)


class Syncable(Protocol):
    """What a group commit needs of a journal."""

    @property
    def durable_offset(self) -> int:
        """Everything before it is on the disk."""
        ...

    @property
    def failure(self) -> JournalSyncError | None:
        """Why it takes no more."""
        ...

    def begin_sync(self, *, is_awaited: bool) -> CommitJob | None:
        """A job for everything appended so far; None if all of it is on the disk, or never will be.

        Unless it `is_awaited`, the journal may leave the sync of its end to the operating system.
        """
        ...

    def finish_sync(self, job: CommitJob) -> None:
        """Take note of how a job ended."""
        ...


class GroupCommit:
    """The syncs of one journal, and the callbacks that wait for them. Owned by the journal's thread."""

    def __init__(self, journal: Syncable, *, workers: Workers) -> None:
        self._journal = journal
        self._workers = workers
        self._waiting: list[tuple[int, Told]] = []
        self._running = False
        self._asked_again = False  # whether a sync was requested while one was running
        self._is_counted = False  # among the awaited syncs

    @property
    def is_idle(self) -> bool:
        """Whether no sync runs and none is waited for."""
        return not self._running and not self._waiting

    def when_synced(self, offset: int, told: Told) -> None:
        """Call `told` when everything before `offset` is on the disk, or cannot be: at once, if it is so already."""
        if offset <= self._journal.durable_offset:
            told(None)
        elif self._journal.failure is not None:
            told(self._journal.failure)
        else:
            self._waiting.append((offset, told))
            self._count_awaited()
            self.request()

    def request(self) -> None:
        """Sync what has been appended so far, now or when the running sync has ended."""
        if self._running:
            self._asked_again = True
            return
        self._begin()
        if not self._running:
            self._tell(self._take_ended())

    def _begin(self) -> None:
        """Begin a sync, unless everything is on the disk or the journal takes no more."""
        job = self._journal.begin_sync(is_awaited=bool(self._waiting))
        if job is not None:
            self._running = True
            self._workers.start(lambda: self._work(job))

    def _work(self, job: CommitJob) -> None:
        """In the other thread."""
        try:
            job.run()
        finally:
            self._workers.hand_back(lambda: self._finished(job))

    def _finished(self, job: CommitJob) -> None:
        self._running = False
        self._journal.finish_sync(job)
        ended = self._take_ended()
        if self._waiting or self._asked_again:
            self._asked_again = False
            self._begin()  # before the callbacks, so that the disk does not wait for them
            if not self._running:
                ended += self._take_ended()
        self._tell(ended)

    def _take_ended(self) -> list[tuple[Told, JournalSyncError | None]]:
        """Remove the callbacks whose wait is over; each with what it is called with."""
        durable_offset, failure = self._journal.durable_offset, self._journal.failure
        waiting, self._waiting = self._waiting, []
        ended: list[tuple[Told, JournalSyncError | None]] = []
        for offset, told in waiting:
            if offset <= durable_offset:
                ended.append((told, None))
            elif failure is not None:
                ended.append((told, failure))
            else:
                self._waiting.append((offset, told))
        return ended

    def _tell(self, ended: list[tuple[Told, JournalSyncError | None]]) -> None:
        self._count_awaited()
        for told, failure in ended:
            told(failure)
        self._workers.awaited_syncs.tell()

    def _count_awaited(self) -> None:
        is_awaited = bool(self._waiting)
        if is_awaited != self._is_counted:
            self._is_counted = is_awaited
            awaited = self._workers.awaited_syncs
            (awaited.begin if is_awaited else awaited.end)()


class Durability:
    """The state of syncing one journal. Owned by the journal."""

    def __init__(
        self, directory: Path, *, synced_offset: int, descriptors: DescriptorCache, fs: Files = OS_FILES
    ) -> None:
        self.on_failure: Callable[[], None] | None = None
        """Called when `failure` is set."""
        self.synced_offset = synced_offset
        """Everything before it is on the disk."""
        self.failure: JournalSyncError | None = None
        """The failed sync after which it is not known what is on the disk."""
        self._fs = fs
        self._directory = directory
        self._descriptors = descriptors
        self._sealed: list[int] = []  # descriptors of sealed segments that are not synced yet
        self._folder_changed = False  # whether a segment was created, or nearly was, and the folder is not synced yet
        self._job: CommitJob | None = None  # the one that runs

    def names_changed(self) -> None:
        """A segment was created, or was to be. What is left of one that failed must not come back beside what comes."""
        self._folder_changed = True

    def sealed(self, segment: Segment) -> None:
        """This segment was written to, and another one was created behind it. OSError: out of descriptors."""
        self._sealed.append(self._descriptors.lend(segment, is_needed=True))
        segment.is_unsynced = False  # by its own descriptor: there is another one, which stays until it has been synced

    def make_room(self) -> None:
        """If the disk is far behind, wait for it here, so that the unsynced segments stay few."""
        if len(self._sealed) < MAX_UNSYNCED_SEGMENTS:
            return
        job = self._job_of(self._sealed, folder_changed=False, target_offset=0)
        self._sealed = []
        job.run()
        self.finish(job)

    def begin(self, active: Segment, *, next_offset: int) -> CommitJob | None:
        """A job for everything up to `next_offset`; None if all of it is on the disk, or a sync has failed."""
        if self._job is not None:
            raise RuntimeError("a sync of this journal is running")
        assert self.synced_offset <= next_offset
        is_synced = self.synced_offset == next_offset and not self._folder_changed
        if self.failure is not None or is_synced:
            return None
        try:
            descriptor = self._descriptors.lend(active)
        except OSError:
            self._sync_here(active, next_offset=next_offset)  # out of descriptors, which is no reason to fail
            return None
        self._job = self._take_job([descriptor], next_offset=next_offset)
        return self._job

    def begin_sealed(self, active: Segment) -> CommitJob | None:
        """A job for the sealed segments alone; None if all of them are on the disk, a sync runs, or one has failed."""
        if self.failure is not None or self._job is not None or not self._sealed:
            return None
        self._job = self._take_job([], next_offset=active.base_offset)
        return self._job

    @property
    def are_names_synced(self) -> bool:
        """Whether all segments will be found after a power failure, unless a sync that runs fails."""
        return not self._folder_changed

    @property
    def has_sealed(self) -> bool:
        """Whether sealed segments wait to be synced."""
        return bool(self._sealed)

    def finish(self, job: CommitJob) -> None:
        """Take note of how a job ended. A second call for the same job changes nothing."""
        if self._job is job:
            self._job = None
        if job.error is None:
            if self.failure is None:
                self.synced_offset = max(self.synced_offset, job.target_offset)
        elif self.failure is None:
            log.error("journal %s takes no more messages: %s", self._directory, job.error)
            self.failure = job.error
            if self.on_failure is not None:
                self.on_failure()

    def end_running_job(self) -> None:
        """Wait for the job in another thread, or run it here if it has not begun."""
        if self._job is not None:
            self._job.run()
            self.finish(self._job)

    def let_go(self) -> None:
        """Close what waits to be synced."""
        for fd in self._sealed:
            self._close(fd)
        self._sealed = []

    def _close(self, fd: int) -> None:
        self._descriptors.give_back(fd, fs=self._fs)

    def _job_of(self, descriptors: list[int], *, folder_changed: bool, target_offset: int) -> CommitJob:
        return CommitJob(
            descriptors,
            directory=self._directory,
            folder_changed=folder_changed,
            target_offset=target_offset,
            close=self._close,
            fs=self._fs,
        )

    def _take_job(self, descriptors: list[int], *, next_offset: int) -> CommitJob:
        """A job that has these descriptors, and everything else that is not synced."""
        job = self._job_of(
            [*self._sealed, *descriptors], folder_changed=self._folder_changed, target_offset=next_offset
        )
        self._sealed = []
        self._folder_changed = False
        return job

    def _sync_here(self, active: Segment, *, next_offset: int) -> None:
        """Sync in the caller's thread, with the descriptor that the journal has already."""
        job = self._take_job([], next_offset=next_offset)
        job.run()
        try:
            self._fs.sync_data(active.descriptor())
        except OSError as error:
            job.error = JournalSyncError(os_error_text("sync", active.path, error))
        self.finish(job)
