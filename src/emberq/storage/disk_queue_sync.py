"""One thread that brings all disk queues to the disk, so that their owner need not wait.

A queue's owner thread decides when to sync; one worker thread, shared by all queues, does it. What passes between them
is a `QueueSyncJob`: numbers and file descriptors, a snapshot that the owner took. A descriptor has one owner at any
time, first the queue and then the job, so a file cannot be closed before it is fsynced.

A job does its steps in this order, and stops at the first that fails:

    fsync the data files  ->  replace the meta file  ->  fsync the folder  ->  delete finished data files

So the meta file never counts data that is not on the disk, and never names a file that is gone. A crash in between
leaves an older meta file, with which the queue finds at least everything that it would find with the newer one.

The jobs of a queue coalesce: while one runs, later ones merge into a single waiting job.

A queue that is emptied or deleted has a job without a position. It deletes the meta file first, then the data files: a
crash in between leaves an empty queue, because without a meta file there is none. Such jobs are urgent, like everything
that a caller waits for. They overtake the syncs, of which hundreds may wait when many queues spill at once.

Deleting takes its time, and a queue of the same name may be opened meanwhile. It must not find what is being deleted.
So the syncer knows the slots that still have work to do. The new queue takes over the slot of the old one and writes to
files behind the old ones; the two jobs merge like any others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from emberq.base.clock import Clock
from emberq.base.file import OS_FILES, Files
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

    position: QueuePosition | None = None
    """Where reading and writing go on; None: nowhere, the queue holds nothing and needs no meta file."""
    open_files: dict[int, int] = field(default_factory=dict)
    """File number -> descriptor, of the data files written to since the previous job."""
    finished: set[int] = field(default_factory=set)
    """Numbers of the data files that have been read to their end, or dropped unread."""
    folder_changed: bool = False
    """Whether a data file was created, whose directory entry must become durable too."""
    is_durable: bool = False
    """Whether all of it must outlive a power failure. Else a process that dies is thought of alone."""
    fs: Files = OS_FILES
    """Where the descriptors are from."""

    def add_file(self, *, number: int, fd: int) -> None:
        """Take over a descriptor. One per file is enough: fsync concerns the file, not the descriptor."""
        if number in self.open_files:
            self.fs.close(fd)
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
        self.is_durable |= newer.is_durable

    def close_files(self) -> None:
        """Let go of the descriptors."""
        for fd in self.open_files.values():
            self.fs.close(fd)
        self.open_files.clear()


class Ticking(Protocol):
    """A queue as a Syncer sees it."""

    def tick(self) -> bool:
        """The sync timeout passed: sync if need be. False if nothing happened and nothing went wrong."""
        ...


MAX_FAILED_REMOVALS = 100
"""More need not be told: each caller is told of one."""
TICKS_PER_TURN = 100
"""Queues whose sync timeout is handled in one turn of the event loop: a few milliseconds of work."""


class Syncer:
    """The worker thread and the sync timeout of all queues. Its methods are called by the owner thread alone.

    Only queues with recent activity are watched, under one alarm; an idle queue costs nothing. With `inline` there
    is no thread and a job runs at once in the caller, which makes tests deterministic.
    """

    def __init__(self, *, clock: Clock, timers: Timers, inline: bool = False) -> None:
        self.last_error: str | None = None
        """The most recent failure of any queue."""
        self.failed_removals: deque[str] = deque(maxlen=MAX_FAILED_REMOVALS)
        """Why files of queues that were deleted or emptied are still there; taken out by the caller that is told."""
        self.unsettled: dict[Path, SyncSlot] = {}
        """The slots with work to do, by meta file, and those whose queue was deleted but whose files could not be. An
        entry is changed under the lock of its slot."""
        self._clock = clock
        self._alarm = timers.alarm(self._ring)
        self._watched: dict[Ticking, int] = {}  # queue -> its sync timeout in ns
        self._to_tick: dict[Ticking, int] = {}  # those of them whose timeout has passed
        self._is_open = not inline
        self._open_lock = threading.Lock()  # between `run` in another thread and `close`
        self._worker: threading.Thread | None = None  # started when there is work
        self._has_work: SimpleQueue[bool] = SimpleQueue()  # True for each `run`, False at the end
        self._urgent: deque[Callable[[], None]] = deque()
        self._ordinary: deque[Callable[[], None]] = deque()

    def watch(self, queue: Ticking, *, timeout_ns: int) -> None:
        """Call `queue.tick()` within the timeout, again and again until it returns False."""
        self._watched[queue] = timeout_ns
        self._alarm.set_earlier(self._clock.monotonic_ns() + timeout_ns)

    def forget(self, queue: Ticking) -> None:
        """Stop watching."""
        self._watched.pop(queue, None)
        self._to_tick.pop(queue, None)

    def run(self, work: Callable[[], None], *, urgent: bool = False) -> None:
        """Do `work` in the worker thread; in the caller when there is no such thread (any more).

        Work is done in the order in which it was given, but what is urgent before what is not.
        """
        with self._open_lock:
            if self._is_open:
                if self._worker is None:
                    self._worker = threading.Thread(target=self._work, name="emberq-sync", daemon=True)
                    self._worker.start()
                (self._urgent if urgent else self._ordinary).append(work)
                self._has_work.put(True)
                return
        work()

    def close(self) -> None:
        """Finish all jobs and stop the thread. Queues closed later than this sync in their own thread."""
        self._alarm.cancel()
        self._watched.clear()
        self._to_tick.clear()
        with self._open_lock:
            self._is_open = False
            worker, self._worker = self._worker, None
        if worker is not None:
            self._has_work.put(False)
            worker.join()

    def _work(self) -> None:
        """The worker thread."""
        while self._has_work.get():
            work = (self._urgent or self._ordinary).popleft()
            try:
                work()
            except Exception as defect:  # work expects its own errors: this is a mistake, which must not be lost
                log.exception("the sync thread failed: %r", defect)  # noqa: TRY401 - the first line says it, too
            del work  # what it holds is not needed while the next is awaited

    def _ring(self) -> None:
        """Tick a portion of the watched queues, the others in the next turns of the loop."""
        if not self._to_tick:
            self._to_tick, self._watched = self._watched, self._to_tick
        for queue in list(islice(self._to_tick, TICKS_PER_TURN)):
            timeout_ns = self._to_tick.pop(queue)
            if queue.tick():
                self._watched[queue] = timeout_ns
        now_ns = self._clock.monotonic_ns()
        if self._to_tick:
            self._alarm.set_earlier(now_ns)
        elif self._watched:
            self._alarm.set_earlier(now_ns + min(self._watched.values()))


class _Urgency(IntEnum):
    """How urgent the run is that a slot has queued for the worker thread."""

    NONE = 0
    ORDINARY = 1
    URGENT = 2


class SyncSlot:
    """The jobs of one queue: at most one running and one waiting. Shared by the queue and the worker thread."""

    def __init__(self, files: QueueFiles, *, syncer: Syncer, log: QueueLog) -> None:
        self.error: str | None = None
        """Why the latest job failed; None if it did not."""
        self.doubtful_number = -1
        """The highest number of a data file whose sync failed: it may have lost something. None: -1."""
        self.next_number: int | None = None
        """The queue was deleted: the number behind those of all its data files. None: it was not."""
        self._files = files
        self._syncer = syncer
        self._log = log
        self._changed = threading.Condition()  # guards the four below
        self._waiting: QueueSyncJob | None = None
        self._queued = _Urgency.NONE  # the run for the waiting job that has been queued
        self._is_running = False
        self._unfinished = QueueSyncJob(
            fs=files.fs
        )  # what a failed job leaves to the next one; never holds descriptors

    def submit(self, job: QueueSyncJob, *, urgent: bool = False) -> None:
        """Have the job done soon. Blocks only while too many files wait (see MAX_WAITING_FILES)."""
        with self._changed:
            self._add(job)
            urgent = urgent or not self._has_room()
            is_new = self._needs_run(_Urgency.URGENT if urgent else _Urgency.ORDINARY)
        if is_new:
            self._syncer.run(self._run, urgent=urgent)
        with self._changed:
            self._changed.wait_for(self._has_room)

    def remove(self, job: QueueSyncJob, *, next_number: int) -> None:
        """Have the last job of a deleted queue done soon. A new queue of its name begins at `next_number`."""
        with self._changed:
            self.next_number = next_number
        self.submit(job, urgent=True)

    def hand_over(self) -> int | None:
        """Where the successor of a deleted queue begins, which owns this slot from now on; None: it was not deleted."""
        with self._changed:
            number, self.next_number = self.next_number, None
        return number

    def wait(self) -> None:
        """Return when all submitted jobs have run."""
        with self._changed:
            is_new = self._waiting is not None and self._needs_run(_Urgency.URGENT)
        if is_new:
            self._syncer.run(self._run, urgent=True)
        with self._changed:
            self._changed.wait_for(self._is_settled)

    def _add(self, job: QueueSyncJob) -> None:
        if self._waiting is None:
            self._waiting = job
        else:
            self._waiting.absorb(job)
        self._syncer.unsettled[self._files.meta] = self

    def _needs_run(self, urgency: _Urgency) -> bool:
        """Whether a run must be queued; if not, one that is as urgent has been."""
        is_new = urgency > self._queued
        self._queued = max(urgency, self._queued)
        return is_new

    def _has_room(self) -> bool:
        return self._waiting is None or len(self._waiting.open_files) < MAX_WAITING_FILES

    def _is_settled(self) -> bool:
        return self._waiting is None and not self._is_running

    def _run(self) -> None:
        """Do the waiting job, if an earlier run has not. A job that arrives meanwhile has a run of its own."""
        with self._changed:
            job, self._waiting = self._waiting, None
            if job is None:
                return
            self._queued = _Urgency.NONE
            self._is_running = True
            self._changed.notify_all()
        try:
            self._perform(job)
        finally:
            with self._changed:
                self._is_running = False
                is_left_behind = self.error is not None and self.next_number is not None
                if self._waiting is None and not is_left_behind:
                    self._syncer.unsettled.pop(self._files.meta, None)
                self._changed.notify_all()

    def _perform(self, job: QueueSyncJob) -> None:
        work = self._unfinished
        assert not work.open_files
        work.absorb(job)
        try:
            self._bring_to_disk(work)
        except OSError as error:
            self._remember(error)
            if work.position is None:
                self._syncer.failed_removals.append(str(error))
        except Exception as defect:
            self.error = repr(defect)  # a thread that waits for this job must not take it for done
            raise
        else:
            self.error = None
            self._unfinished = QueueSyncJob(fs=self._files.fs)
        finally:
            # Also after a failure: the kernel reports a lost page once, asking again would only hide the loss.
            work.close_files()

    def _remember(self, error: OSError) -> None:
        self.error = self._syncer.last_error = str(error)
        self._log.error("failed to sync - %s", error)

    def _sync_file(self, number: int, fd: int) -> None:
        try:
            self._files.fs.sync(fd)
        except OSError:
            self.doubtful_number = max(self.doubtful_number, number)
            raise

    def _bring_to_disk(self, job: QueueSyncJob) -> None:
        files, fs = self._files, self._files.fs
        for number, fd in job.open_files.items():
            if number not in job.finished:
                self._sync_file(number, fd)
        if job.position is None:
            fs.unlink(files.meta, missing_ok=True)
        else:
            assert all(number < job.position.read_file for number in job.finished)  # they are deleted below
            meta_file.save_position(files.meta, job.position, durable=job.is_durable, fs=fs)
            if job.folder_changed or job.finished:
                fs.sync_folder(files.folder)
        for number in job.finished:
            fs.unlink(files.data(number), missing_ok=True)
