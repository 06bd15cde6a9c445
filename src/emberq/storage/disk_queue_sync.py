"""One thread that brings all disk queues to the disk, so that their owner need not wait.

A queue's owner thread decides when to sync; one worker thread, shared by all queues, does it. What passes between them
is a `QueueSyncJob`: numbers and file descriptors, a snapshot that the owner took. A descriptor has one owner at any
time, first the queue and then the job, so a file cannot be closed before it is fsynced.

A job does its steps in this order, and stops at the first that fails:

    fsync the data files  ->  replace the meta file  ->  fsync the folder  ->  delete finished data files

So the meta file never counts data that is not on the disk, and never names a file that is gone. A crash in between
leaves an older meta file, with which the queue finds at least everything that it would find with the newer one.

The jobs of a queue coalesce: while one runs, later ones merge into a single waiting job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from emberq.base.clock import Clock
from emberq.base.file import sync_folder
from emberq.base.timers import Timers
from emberq.storage import disk_queue_files as meta_file
from emberq.storage.disk_queue_files import QueueFiles, QueueLog, QueuePosition

log = logging.getLogger("emberq.storage")

MAX_WAITING_FILES = 8
"""A writer that rolls faster than the disk syncs waits when its next job holds this many open files. Descriptors
are scarce, and unsynced pages fill the memory."""


@dataclass(slots=True)
class QueueSyncJob:
    """What of one queue is to reach the disk. Owns the descriptors in `open_files`."""

    position: QueuePosition = field(default_factory=QueuePosition)
    open_files: dict[int, int] = field(default_factory=dict)
    """File number -> descriptor, of the data files written to since the previous job."""
    finished: set[int] = field(default_factory=set)
    """Numbers of the data files that have been read to their end."""
    folder_changed: bool = False
    """Whether a data file was created, whose directory entry must become durable too."""

    def add_file(self, *, number: int, fd: int) -> None:
        """Take over a descriptor. One per file is enough: fsync concerns the file, not the descriptor."""
        if number in self.open_files:
            os.close(fd)
        else:
            self.open_files[number] = fd

    def absorb(self, newer: QueueSyncJob) -> None:
        """Take over the work of a newer job, its position and its descriptors."""
        self.position = newer.position
        for number, fd in newer.open_files.items():
            self.add_file(number=number, fd=fd)
        newer.open_files.clear()
        self.finished |= newer.finished
        self.folder_changed |= newer.folder_changed

    def close_files(self) -> None:
        """Let go of the descriptors."""
        for fd in self.open_files.values():
            os.close(fd)
        self.open_files.clear()


class Ticking(Protocol):
    """A queue as a Syncer sees it."""

    def tick(self) -> bool:
        """The sync timeout passed: sync if need be. False if nothing happened and nothing went wrong."""
        ...


class Syncer:
    """The worker thread and the sync timeout of all queues. Its methods are called by the owner thread alone.

    Only queues with recent activity are watched, under one alarm; an idle queue costs nothing. With `inline` there
    is no thread and a job runs at once in the caller, which makes tests deterministic.
    """

    def __init__(self, *, clock: Clock, timers: Timers, inline: bool = False) -> None:
        self.last_error: str | None = None
        """The most recent failure of any queue."""
        self._clock = clock
        self._alarm = timers.alarm(self._ring)
        self._watched: dict[Ticking, int] = {}  # queue -> its sync timeout in ns
        self._worker = None if inline else ThreadPoolExecutor(1, thread_name_prefix="emberq-sync")
        self._worker_lock = threading.Lock()  # between `run` in the worker thread and `close`

    def watch(self, queue: Ticking, *, timeout_ns: int) -> None:
        """Call `queue.tick()` within the timeout, again and again until it returns False."""
        self._watched[queue] = timeout_ns
        self._alarm.set_earlier(self._clock.monotonic_ns() + timeout_ns)

    def forget(self, queue: Ticking) -> None:
        """Stop watching."""
        self._watched.pop(queue, None)

    def run(self, work: Callable[[], None]) -> None:
        """Do `work` in the worker thread; in the caller when there is no such thread (any more)."""
        with self._worker_lock:
            if self._worker is not None:
                self._worker.submit(work).add_done_callback(_report_defect)
                return
        work()

    def close(self) -> None:
        """Finish all jobs and stop the thread. Queues closed later than this sync in their own thread."""
        self._alarm.cancel()
        self._watched.clear()
        with self._worker_lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=True)

    def _ring(self) -> None:
        watched, self._watched = self._watched, {}
        for queue, timeout_ns in watched.items():
            if queue.tick():
                self.watch(queue, timeout_ns=timeout_ns)


class SyncSlot:
    """The jobs of one queue: at most one running and one waiting. Shared by the queue and the worker thread."""

    def __init__(self, files: QueueFiles, *, syncer: Syncer, log: QueueLog) -> None:
        self.error: str | None = None
        """Why the latest job failed; None if it did not."""
        self._files = files
        self._syncer = syncer
        self._log = log
        self._changed = threading.Condition()  # guards the three below
        self._waiting: QueueSyncJob | None = None
        self._busy = False  # whether a run is queued or going on
        self._unfinished = QueueSyncJob()  # what a failed job leaves to the next one; never holds descriptors

    def submit(self, job: QueueSyncJob) -> None:
        """Have the job done soon. Blocks only while too many files wait (see MAX_WAITING_FILES)."""
        with self._changed:
            if self._waiting is None:
                self._waiting = job
            else:
                self._waiting.absorb(job)
            if self._busy:
                self._changed.wait_for(self._has_room)
                return
            self._busy = True
        self._syncer.run(self._run)

    def wait(self) -> None:
        """Return when all submitted jobs have run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)

    def discard(self) -> set[int]:
        """Forget what has not been done yet; return the numbers of data files that were still to be deleted."""
        with self._changed:
            job, self._waiting = self._waiting, None
            self._changed.wait_for(lambda: not self._busy)
            undone, self._unfinished = self._unfinished, QueueSyncJob()
        self.error = None
        if job is not None:
            undone.absorb(job)
        undone.close_files()
        return undone.finished

    def _has_room(self) -> bool:
        return self._waiting is None or len(self._waiting.open_files) < MAX_WAITING_FILES

    def _run(self) -> None:
        """Do the waiting job. A job that arrives meanwhile queues again, behind those of other queues."""
        with self._changed:
            job, self._waiting = self._waiting, None
            self._changed.notify_all()
        try:
            if job is not None:
                self._perform(job)
        finally:
            with self._changed:
                self._busy = again = self._waiting is not None
                self._changed.notify_all()
            if again:
                self._syncer.run(self._run)

    def _perform(self, job: QueueSyncJob) -> None:
        work = self._unfinished
        assert not work.open_files
        work.absorb(job)
        try:
            self._bring_to_disk(work)
        except OSError as error:
            self._remember(error)
        except Exception as defect:
            self.error = repr(defect)  # a thread that waits for this job must not take it for done
            raise
        else:
            self.error = None
            self._unfinished = QueueSyncJob()
        finally:
            # Also after a failure: the kernel reports a lost page once, asking again would only hide the loss.
            work.close_files()

    def _remember(self, error: OSError) -> None:
        self.error = self._syncer.last_error = str(error)
        self._log.error("failed to sync - %s", error)

    def _bring_to_disk(self, job: QueueSyncJob) -> None:
        assert all(number < job.position.read_file for number in job.finished)  # they are deleted below
        for number, fd in job.open_files.items():
            if number not in job.finished:
                os.fsync(fd)
        meta_file.save_position(self._files.meta, job.position)
        if job.folder_changed or job.finished:
            sync_folder(self._files.folder)
        for number in job.finished:
            self._files.data(number).unlink(missing_ok=True)


def _report_defect(future: Future[None]) -> None:
    """Log what a job raised: it expects only OSError, so anything else is a mistake that must not be lost."""
    defect = future.exception()
    if defect is not None:
        log.error("the sync thread failed: %r", defect, exc_info=defect)
