"""Group commit: whoever appended waits for one fdatasync together with everybody else.

    append A    append B    append C                 append D
       |           |           |                        |
       v           v           v                        v
    [ sync of A          ]  [ sync of B and C        ]  [ sync of D  ...

One sync of a journal runs at a time, in a thread that is not ours. It covers what had been appended when it began; what
comes meanwhile waits for the next, which starts at once. The busier the journal, the more messages share a sync.

A sync that fails is final. The kernel reports a page that it could not write once and may then consider it clean, so
asking again could only hide the loss (see `JournalSyncError`). All who wait are told, and the journal takes no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from emberq.storage.atomic import sync_directory
from emberq.storage.errors import os_error_text
from emberq.storage.journal.error import JournalSyncError

Work = Callable[[], None]
Told = Callable[[JournalSyncError | None], None]
"""Called with None when the data is on the disk, with the error when it may not be."""


class SyncJob:
    """What is to reach the disk. Owns its descriptors.

    Any thread may run it, and more than one may try: the first does the work, and the others wait until it is done. So
    whoever cannot wait for a thread to come to it does the work himself.
    """

    def __init__(self, descriptors: list[int], *, directory: Path, folder_changed: bool, target_offset: int) -> None:
        self.target_offset = target_offset
        """Everything before this offset is on the disk when the job has run without error."""
        self.error: JournalSyncError | None = None
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
            except OSError as error:
                self.error = JournalSyncError(os_error_text("sync", self._directory, error))
            except BaseException as defect:
                self.error = JournalSyncError(f"sync {self._directory}: {defect!r}")  # nobody may take it for done
                raise
            finally:
                for fd in self._descriptors:
                    os.close(fd)

    def _bring_to_disk(self) -> None:
        for fd in self._descriptors:
            os.fdatasync(fd)
        if self._folder_changed:
            sync_directory(self._directory)


class Syncable(Protocol):
    """What a group commit needs of a journal."""

    @property
    def synced_offset(self) -> int:
        """Everything before it is on the disk."""
        ...

    @property
    def failure(self) -> JournalSyncError | None:
        """Why it takes no more."""
        ...

    def begin_sync(self) -> SyncJob | None:
        """A job for everything appended so far; None if all of it is on the disk, or never will be."""
        ...

    def finish_sync(self, job: SyncJob) -> None:
        """Take note of how a job ended."""
        ...


class GroupCommit:
    """The syncs of one journal, and those who wait for them. Owned by the journal's thread.

    `start` runs work in another thread; `hand_back`, called from there, runs work in the journal's own thread.
    """

    def __init__(
        self, journal: Syncable, *, start: Callable[[Work], object], hand_back: Callable[[Work], object]
    ) -> None:
        self._journal = journal
        self._start = start
        self._hand_back = hand_back
        self._waiting: list[tuple[int, Told]] = []
        self._running = False
        self._asked_again = False  # whether somebody asked for a sync while one was running

    @property
    def is_idle(self) -> bool:
        """Whether no sync runs and nobody waits for one."""
        return not self._running and not self._waiting

    def when_synced(self, offset: int, told: Told) -> None:
        """Call `told` as soon as everything before `offset` is on the disk, perhaps at once, or cannot be."""
        if offset <= self._journal.synced_offset:
            told(None)
        elif self._journal.failure is not None:
            told(self._journal.failure)
        else:
            self._waiting.append((offset, told))
            self.request()

    def request(self) -> None:
        """Sync what has been appended so far, now or when the running sync has ended."""
        if self._running:
            self._asked_again = True
            return
        self._begin()
        if not self._running:
            _tell(self._take_ended())

    def _begin(self) -> None:
        """Begin a sync, unless the journal says that there is nothing to be done (any more)."""
        job = self._journal.begin_sync()
        if job is not None:
            self._running = True
            self._start(lambda: self._work(job))

    def _work(self, job: SyncJob) -> None:
        """In the other thread."""
        try:
            job.run()
        finally:
            self._hand_back(lambda: self._finished(job))

    def _finished(self, job: SyncJob) -> None:
        self._running = False
        self._journal.finish_sync(job)
        ended = self._take_ended()
        if self._waiting or self._asked_again:
            self._asked_again = False
            self._begin()  # before anybody is told: the disk need not wait for what they do then
            if not self._running:
                ended += self._take_ended()
        _tell(ended)

    def _take_ended(self) -> list[tuple[Told, JournalSyncError | None]]:
        """Those whose wait is over, who then no longer wait, with what they are to be told."""
        synced_offset, failure = self._journal.synced_offset, self._journal.failure
        waiting, self._waiting = self._waiting, []
        ended: list[tuple[Told, JournalSyncError | None]] = []
        for offset, told in waiting:
            if offset <= synced_offset:
                ended.append((told, None))
            elif failure is not None:
                ended.append((told, failure))
            else:
                self._waiting.append((offset, told))
        return ended


def _tell(ended: list[tuple[Told, JournalSyncError | None]]) -> None:
    for told, failure in ended:
        told(failure)
