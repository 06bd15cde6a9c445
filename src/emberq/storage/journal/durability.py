"""What of a journal is on the disk, and what is on its way there.

Sealed segments that are not synced yet wait here as descriptors, together with the news that the folder changed, until
a `SyncJob` takes all of it along. The active segment's descriptor is duplicated for the job, so that the journal may
close its own at any time: a descriptor has one owner.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from emberq.storage.errors import os_error_text
from emberq.storage.journal.commit import SyncJob
from emberq.storage.journal.error import JournalSyncError
from emberq.storage.journal.segment import MAX_UNSYNCED_SEGMENTS, Segment

log = logging.getLogger("emberq.storage")


class Durability:
    """The state of syncing one journal. Owned by the journal."""

    def __init__(self, directory: Path, *, synced_offset: int) -> None:
        self.synced_offset = synced_offset
        """Everything before it is on the disk."""
        self.failure: JournalSyncError | None = None
        """Why nobody can tell any more what is on the disk."""
        self._directory = directory
        self._sealed: list[int] = []  # descriptors of sealed segments that are not synced yet
        self._folder_changed = False  # whether a segment was created whose directory entry is not synced yet
        self._job: SyncJob | None = None  # the one that runs

    def sealed(self, segment: Segment) -> None:
        """This segment was written to, and another one was created behind it. OSError: out of descriptors."""
        self._sealed.append(os.dup(segment.descriptor()))
        self._folder_changed = True

    def make_room(self) -> None:
        """If the disk is far behind, wait for it here, so that what is not synced stays bounded."""
        if len(self._sealed) < MAX_UNSYNCED_SEGMENTS:
            return
        job = SyncJob(self._sealed, directory=self._directory, folder_changed=False, target_offset=0)
        self._sealed = []
        job.run()
        self.finish(job)

    def begin(self, active: Segment, *, next_offset: int) -> SyncJob | None:
        """A job for everything up to `next_offset`; None if nothing is to be done (any more)."""
        if self._job is not None:
            raise RuntimeError("a sync of this journal is running")
        if self.failure is not None or self.synced_offset == next_offset:
            return None
        try:
            descriptor = os.dup(active.descriptor())
        except OSError:
            self._sync_here(active, next_offset=next_offset)  # out of descriptors, which is no reason to fail
            return None
        self._job = self._take_job([descriptor], next_offset=next_offset)
        return self._job

    def finish(self, job: SyncJob) -> None:
        """Take note of how a job ended. To say so twice does no harm."""
        if self._job is job:
            self._job = None
        if job.error is None:
            if self.failure is None:
                self.synced_offset = max(self.synced_offset, job.target_offset)
        elif self.failure is None:
            log.error("journal %s takes no more messages: %s", self._directory, job.error)
            self.failure = job.error

    def end_running_job(self) -> None:
        """Have the job that runs in another thread, or waits for one, done when this returns."""
        if self._job is not None:
            self._job.run()
            self.finish(self._job)

    def let_go(self) -> None:
        """Close what waits to be synced."""
        for fd in self._sealed:
            os.close(fd)
        self._sealed = []

    def _take_job(self, descriptors: list[int], *, next_offset: int) -> SyncJob:
        """A job that has these descriptors, and everything else that is not synced."""
        job = SyncJob(
            [*self._sealed, *descriptors],
            directory=self._directory,
            folder_changed=self._folder_changed,
            target_offset=next_offset,
        )
        self._sealed = []
        self._folder_changed = False
        return job

    def _sync_here(self, active: Segment, *, next_offset: int) -> None:
        """Sync in the caller's thread, with the descriptor that the journal has already."""
        job = self._take_job([], next_offset=next_offset)
        job.run()
        try:
            os.fdatasync(active.descriptor())
        except OSError as error:
            job.error = JournalSyncError(os_error_text("sync", active.path, error))
        self.finish(job)
