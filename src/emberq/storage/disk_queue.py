"""NSQ's disk queue, file for file and byte for byte: append, take, roll, delete.

Records are appended to numbered data files and read from the oldest on; a file that has been read to its end is
deleted. The meta file says where reading and writing go on. Both places move forward through the files:

        000003.dat        000004.dat        000005.dat
    ........RRRRRRRR  RRRRRRRRRRRRRRRR  RRRRRRR|
            ^ read                             ^ write       R: waiting, `depth` of them

Writing. A batch is one write to each file it touches. The queue rolls to the next file before a record that would
make a non-empty file longer than the limit, so a file holds whole records only.

Reading. A record that was taken is gone: if a consumer does not finish it, its channel puts it back. A record of which
a part is missing is never returned. A file that makes no sense is set aside as `.bad`, and reading goes on with the
next.

Syncing. Data and meta file reach the disk together (see `disk_queue_sync`): after `sync_every` records written and
read, after the sync timeout, when writing rolls, and when a file was read to its end or set aside. After the timeout a
queue also closes its files, so thousands of quiet channels need no descriptors. A queue that was not used since its
last sync has nothing to write when it is closed. The meta file of a new queue is there at once, and says that it is
empty: what is written before the first sync is found like all that is newer than the meta file.

Dropping. The records of a queue that is emptied or deleted are gone at once; its files are removed by the sync thread,
soon. Until then a crash brings them back. `sync` returns when they are gone.

Recovering. The meta file may be older than the data files, because the process died. Then writing goes on in a new
file, and the records beyond the recorded write position are counted and read like everything before them. Records that
were taken since then come again; none that had reached the disk is lost.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path

from emberq.base.file import OS_FILES, Files, write_fully
from emberq.storage.backend import DiskLimits, Records
from emberq.storage.disk_queue_files import (
    BLOCK_BYTES,
    QueueFiles,
    QueueLog,
    QueuePosition,
    SegmentReader,
    clear_the_way,
    count_waiting,
    open_for_writing,
    recover,
)
from emberq.storage.disk_queue_sync import QueueSyncJob, Syncer, SyncSlot
from emberq.storage.error import DamagedSegmentError, DiskWriteError, StorageError, SyncError, os_error_text

LOG = logging.getLogger("emberq.storage")

_NOT_THE_FILES_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM}
"""Errors that say nothing about the content of a file: it is not set aside, but read another time."""


_MAX_PLAUSIBLE_FILES = 10_000
"""More files between reading and writing, of 100 MB each by default, come from a damaged meta file."""


class DiskQueue:
    """One queue. Owned by one thread; it shares nothing with the sync thread but the jobs it gives away.

    Invariants between calls: `(read_file, read_pos) <= (write_file, write_pos)`; both are at record boundaries;
    `depth` is 0 when they are equal; the write file's descriptor is held by this object or by a job, never both.
    """

    def __init__(
        self,
        name: str,
        *,
        data_path: Path,
        limits: DiskLimits,
        syncer: Syncer,
        log: logging.Logger = LOG,
        fs: Files = OS_FILES,
    ) -> None:
        self.depth = 0
        """How many records wait."""
        self._name = name
        self._limits = limits
        self._log = QueueLog(log, name=name)
        self._fs = fs
        self._files = QueueFiles(data_path, name, fs=fs)
        self._read_file = 0
        self._read_pos = 0
        self._write_file = 0
        self._write_pos = 0
        self._reader: SegmentReader | None = None  # of the read file; opened when needed
        self._write_fd: int | None = None  # of the write file; opened when needed
        self._syncer = syncer
        self._slot = SyncSlot(self._files, syncer=syncer, log=self._log)
        self._next_job = QueueSyncJob(fs=fs)  # what the next job will have to do
        self._operations = 0  # records written and read since the last job was submitted
        self._sync_is_due = False  # at the next opportunity, with any number of operations
        self._has_meta = False  # whether a meta file exists or has been submitted
        self._watched = False  # whether the syncer will call `tick`
        self._closed = False

    def __repr__(self) -> str:
        depth, *places = self._position()
        return f"<DiskQueue {self._name!r} depth={depth} read={places[0]},{places[1]} write={places[2]},{places[3]}>"

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Go on where an earlier run stopped (see `recover`). StorageError if the files cannot be read.

        A queue of this name may have been closed or deleted just before: its files are on their way to the disk, or to
        be removed. The first is waited for; to the second this queue is the successor, which begins empty.
        """
        before = self._syncer.unsettled.get(self._files.meta)
        if before is not None:
            first_number = before.hand_over()
            if first_number is not None:
                self._slot = before
                self._read_file = self._write_file = first_number
                return
            before.wait()
        try:
            position = recover(self._files, limits=self._limits, log=self._log)
            if position is None:
                clear_the_way(self._files, first=0, log=self._log)
                return
        except OSError as error:
            raise StorageError(os_error_text("open", self._files.meta, error)) from error
        self.depth, self._read_file, self._read_pos, self._write_file, self._write_pos = position
        self._has_meta = True
        self._reconcile()
        self._check_places()
        self._sync_if_due()

    # -- writing ---------------------------------------------------------------------------------------------

    def put(self, records: Records) -> None:
        """Append the records. DiskWriteError tells how many were stored; a later put may succeed again."""
        if self._closed:
            raise DiskWriteError("exiting", stored_count=0)
        if not records.ends:
            return
        self._refuse_unreadable(records)
        stored_count = 0
        try:
            while stored_count < len(records.ends):
                stored_count = self._append(records, first=stored_count)
        finally:
            self._sync_if_due()

    def _refuse_unreadable(self, records: Records) -> None:
        """Refuse a batch with a record that could not be read back."""
        if records.ends[-1] != len(records.blob):
            raise ValueError("the last record does not end where the batch ends")
        size = self._limits.refused_size(records.ends)
        if size is not None:
            low, high = self._limits.min_record_bytes, self._limits.max_record_bytes
            raise DiskWriteError(
                f"invalid message write size ({size}) minMsgSize={low} maxMsgSize={high}", stored_count=0
            )

    def _append(self, records: Records, *, first: int) -> int:
        """Write the records from index `first` on that go to one file; return the index of the next."""
        blob, ends = records
        start = ends[first - 1] if first else 0
        try:
            fd = self._writable_file(next_bytes=ends[first] - start)
        except OSError as error:
            raise self._write_error("open", error, stored_count=first) from error
        room = self._limits.max_bytes_per_file - self._write_pos
        stop = max(first + 1, bisect_right(ends, start + room, first))
        chunk = blob if stop - first == len(ends) else memoryview(blob)[start : ends[stop - 1]]
        assert len(chunk) == ends[stop - 1] - start
        written, failure = write_fully(fd, chunk, position=self._write_pos, fs=self._fs)
        if failure is None:
            assert written == len(chunk)
        else:
            stop = bisect_right(ends, start + written, first)
        if stop > first:
            self._wrote(ends[stop - 1] - start, count=stop - first)
        if failure is not None:
            self._cut_torn_record(fd)
            raise self._write_error("write", failure, stored_count=stop) from failure
        return stop

    def _write_error(self, operation: str, error: OSError, *, stored_count: int) -> DiskWriteError:
        text = os_error_text(operation, self._files.data(self._write_file), error)
        return DiskWriteError(text, stored_count=stored_count)

    def _writable_file(self, *, next_bytes: int) -> int:
        """The descriptor of the file that the next record of `next_bytes` goes to, rolled if need be."""
        if self._write_pos > 0 and self._write_pos + next_bytes > self._limits.max_bytes_per_file:
            self._roll()
        fd = self._opened_write_file()
        if self._fs.size(fd) < self._write_pos:
            # Writing here would leave a hole, which reads as damage and would cost the new records too.
            self._log.warning(
                "%s is shorter than writePos %d, skipping to new file",
                self._files.data(self._write_file),
                self._write_pos,
            )
            self._roll()
            fd = self._opened_write_file()
        return fd

    def _opened_write_file(self) -> int:
        if self._write_file <= self._slot.doubtful_number and self._write_pos > 0:
            self._roll()  # no reader would get past a hole, so nothing may come to lie behind one
        if self._write_fd is None:
            if self._write_pos == 0:
                clear_the_way(self._files, first=self._write_file + 1, log=self._log)
                self._next_job.folder_changed = True
            path = self._files.data(self._write_file)
            self._write_fd = open_for_writing(path, position=self._write_pos, fs=self._fs)
            if self._write_pos == 0:  # after each sync it is opened again, which is not worth a line
                self._log.tell(f"writeOne() opened {path}")
        return self._write_fd

    def _wrote(self, size_bytes: int, *, count: int) -> None:
        if not self._has_meta:
            # Without a meta file a crash would lose even what the kernel has. So there is one at once, of a queue whose
            # records are all unrecorded. It costs no fsync: thousands of channels may spill at the same time.
            self._has_meta = True
            self._slot.submit(QueueSyncJob(position=self._position(), fs=self._fs))
        self._write_pos += size_bytes
        self.depth += count
        self._operations += count

    def _cut_torn_record(self, fd: int) -> None:
        """After a failed write: end the file where the position says, and have the next put open it afresh."""
        with suppress(OSError):  # then opening it for the next put cuts it
            self._fs.truncate(fd, self._write_pos)
        self._retire_write_file()

    def _roll(self) -> None:
        """Write to the next file from now on. A reader that had read everything goes along."""
        was_drained = self._is_at_tail()
        self._retire_write_file()
        self._write_file += 1
        self._write_pos = 0
        if was_drained:
            self._finish_read_file()
        self._submit_sync()

    def _retire_write_file(self) -> None:
        """Hand the write file's descriptor to the next job, which will fsync and close it."""
        if self._write_fd is not None:
            self._next_job.add_file(number=self._write_file, fd=self._write_fd)
            self._write_fd = None

    # -- reading ---------------------------------------------------------------------------------------------

    def take(self, *, max_count: int, max_bytes: int) -> Records | None:
        """Remove and return the next records. At least one if any is readable, however large; none is partial.

        Returns None when nothing waits, and also, with `depth` above 0, when the process is out of descriptors or
        memory; then try again later.
        """
        if self._closed:
            return None
        records = self._next_records(max_count=max_count, max_bytes=max_bytes)
        if records is not None:
            assert records.ends[-1] == len(records.blob)
            self._read_pos += len(records.blob)
            self.depth -= len(records.ends)
            self._operations += len(records.ends)
            if self._read_file < self._write_file and self._read_pos == self._read_end():
                self._finish_read_file()
            self._reconcile()
        self._sync_if_due()
        return records

    def peek(self, *, max_count: int) -> Records | None:
        """The next records, which stay; no more than one read-ahead block of them."""
        if self._closed:
            return None
        records = self._next_records(max_count=max_count, max_bytes=BLOCK_BYTES)
        self._sync_if_due()
        return records

    def _next_records(self, *, max_count: int, max_bytes: int) -> Records | None:
        """The records at the read place, after moving it past files that have none to give."""
        while not self._is_at_tail():
            try:
                end = self._read_end()
                if self._read_pos == end:
                    self._finish_read_file()
                    continue
                reader = self._opened_reader()
                return reader.records_at(self._read_pos, end=end, max_count=max_count, max_bytes=max_bytes)
            except (OSError, DamagedSegmentError) as error:
                if isinstance(error, OSError) and error.errno in _NOT_THE_FILES_FAULT:
                    self._log.error("cannot read now - %s", error)
                    return None
                self._set_read_file_aside(error)
        self._reconcile()
        return None

    def _read_end(self) -> int:
        """Where the records of the read file end."""
        if self._read_file == self._write_file:
            return self._write_pos
        return self._opened_reader().size()

    def _opened_reader(self) -> SegmentReader:
        if self._reader is None:
            path = self._files.data(self._read_file)
            self._reader = SegmentReader(path, limits=self._limits, fs=self._fs)
            if self._read_pos == 0:
                self._log.tell(f"readOne() opened {path}")
        return self._reader

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _finish_read_file(self) -> None:
        """Everything in the read file was taken: have it deleted, and read the next."""
        self._next_job.finished.add(self._read_file)
        self._read_next_file()

    def _set_read_file_aside(self, error: Exception) -> None:
        """The read file is damaged: keep it as `.bad` for the operator, and read the next."""
        path, bad_path = self._files.data(self._read_file), self._files.bad(self._read_file)
        self._log.error("reading at %d of %s - %s", self._read_pos, path, error)
        if self._read_file == self._write_file:
            self._retire_write_file()
            self._write_file += 1
            self._write_pos = 0
        self._log.warning("jump to next file and saving bad file as %s", bad_path)
        try:
            self._fs.rename(path, bad_path)
        except OSError as rename_error:
            self._log.error("failed to rename bad file - %s", rename_error)
        self._read_next_file()
        self._skip_missing_files()

    def _read_next_file(self) -> None:
        self._drop_reader()
        self._read_file += 1
        self._read_pos = 0
        self._sync_is_due = True

    def _skip_missing_files(self) -> None:
        """Go to the next file that exists: a damaged meta file may name millions that do not."""
        existing = self._files.existing(first=self._read_file, last=self._write_file - 1)
        self._read_file = existing[0] if existing else self._write_file

    # -- keeping places and depth consistent -------------------------------------------------------------------

    def _is_at_tail(self) -> bool:
        return self._read_pos == self._write_pos and self._read_file == self._write_file

    def _reconcile(self) -> None:
        """Correct places and depth that contradict each other, because they come from a file that may be wrong."""
        if self._is_at_tail():
            if self.depth != 0:
                kind = "negative" if self.depth < 0 else "positive"
                cause = "metadata corruption" if self.depth < 0 else "data loss"
                self._log.error("%s depth at tail (%d), %s, resetting 0...", kind, self.depth, cause)
                self.depth = 0
                self._sync_is_due = True
        elif (self._read_file, self._read_pos) > (self._write_file, self._write_pos):
            self._log.error("reading is past writing, corruption, skipping to a new file")
            self._drop_records()
            self._sync_is_due = True
        elif self.depth <= 0:
            self.depth = count_waiting(self._files, self._position(), limits=self._limits)
            if self.depth == 0:
                self._next_records(max_count=1, max_bytes=0)  # finds nothing either, but tidies up on its way

    def _check_places(self) -> None:
        """The invariants of the class, before they are written to the disk and after they were read from it."""
        assert min(self._read_file, self._read_pos, self._write_file, self._write_pos, self.depth) >= 0, self
        assert (self._read_file, self._read_pos) <= (self._write_file, self._write_pos), self
        assert self.depth == 0 or not self._is_at_tail(), self

    # -- syncing ---------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when all that was put and taken so far is on the disk; SyncError if it cannot get there."""
        if not self._closed and (self.depth or self._has_meta):
            self._submit_sync()
        self._slot.wait()
        if self._slot.error is not None:
            raise SyncError(self._slot.error)

    def tick(self) -> bool:
        """The sync timeout passed: sync what happened since the last job, retry one that failed, close the files."""
        self._drop_reader()
        self._retire_write_file()
        was_active = self._needs_sync() or self._slot.error is not None
        if was_active:
            self._submit_sync()
        self._watched = was_active  # once more after the last activity: a job that was just submitted may fail
        return was_active

    def _needs_sync(self) -> bool:
        return self._operations > 0 or self._sync_is_due or bool(self._next_job.open_files)

    def _sync_if_due(self) -> None:
        if not self._needs_sync():
            return
        if self._sync_is_due or 0 <= self._limits.sync_every <= self._operations:
            self._submit_sync()
        if not self._watched and not self._closed:
            self._watched = True
            self._syncer.watch(self, timeout_ns=self._limits.sync_timeout_ns)

    def _submit_sync(self) -> None:
        """Give the sync thread a snapshot of this moment, along with the files it concerns."""
        self._check_places()
        self._retire_write_file()
        job = self._taken_job()
        job.position = self._position()
        job.is_durable = True
        self._operations = 0
        self._sync_is_due = False
        self._has_meta = True
        self._slot.submit(job)

    def _position(self) -> QueuePosition:
        return QueuePosition(self.depth, self._read_file, self._read_pos, self._write_file, self._write_pos)

    # -- ending ----------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all records: no data file and no meta file is left, soon. The next put starts a new file."""
        if not self._closed and self._has_files():
            self._log.tell("emptying")
            self._drop_records()
            self._has_meta = False
            self._slot.submit(self._taken_job(), urgent=True)

    def _has_files(self) -> bool:
        """Whether a data file or a meta file may exist."""
        return self._has_meta or self._write_pos > 0 or self._write_fd is not None or self._needs_sync()

    def _drop_records(self) -> None:
        """Have all data files from the first unread on deleted, and put both places at the start of a new one."""
        self._drop_reader()
        self._retire_write_file()
        first, last = sorted((self._read_file, self._write_file))
        # A damaged meta file may name millions of files, of which hardly any exist.
        is_plausible = last - first < _MAX_PLAUSIBLE_FILES
        numbers = range(first, last + 1) if is_plausible else self._files.existing(first=first, last=last)
        self._next_job.finished.update(numbers)
        self._read_file = self._write_file = last + 1
        self._read_pos = self._write_pos = 0
        self.depth = self._operations = 0
        self._sync_is_due = False

    def _taken_job(self) -> QueueSyncJob:
        """The job for what happened since the last one."""
        job, self._next_job = self._next_job, QueueSyncJob(fs=self._fs)
        return job

    def close(self) -> None:
        """Let go of all files. What is not on the disk yet will be soon, the meta file too; `sync` waits for it.

        If that fails it is logged, and `sync` raises SyncError.
        """
        if self._closed:
            return
        self._log.tell("closing")
        self._stop()
        self._retire_write_file()
        if self._needs_sync() or self._slot.error is not None:
            self._submit_sync()
        elif not self._has_meta:
            # It says nothing that a power failure could take away, so thousands of such queues cost no fsync.
            self._slot.submit(QueueSyncJob(position=self._position(), fs=self._fs))

    def delete(self) -> None:
        """Drop all records and let go of the queue; its files go soon. The ones set aside as `.bad` stay."""
        if self._closed:
            return
        self._log.tell("deleting")
        self._stop()
        if self._has_files():
            self._drop_records()
            self._slot.remove(self._taken_job(), next_number=self._write_file)

    def _stop(self) -> None:
        self._closed = True
        self._syncer.forget(self)
        self._drop_reader()
