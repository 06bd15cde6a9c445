"""Retention: which old segments of a journal go, and how.

A segment goes when its newest message is older than the retention time, or when all segments together are larger than
the retention size. Segments go as a whole, the oldest first, and never one that a channel has still to read, unless the
journal would be larger than its limit: then the topic has the channels pass over what goes (`overtaken_offset`). The
active segment never goes; one in which everything is too old is sealed first.

For readers they are gone at once. Their files stay until what tells of them is on the disk: the .idx file of the active
segment names the producers whose batches go. Publishers must not wait for that, nor for the room on the disk, of which
a file system may give back no more than half a gigabyte in a second:

    loop      take them out |            | delete the names |
    thread                  | sync names |                  | give back the room, between the syncs of others
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from emberq.base.file import Files, sync_file
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.segment import JournalConfig, Segment
from emberq.storage.journal.segments import Segments

log = logging.getLogger("emberq.storage")

MAX_REMOVED = 32
"""How many segments go at a time: each keeps a descriptor until its room is given back."""
MANY_REMOVED = 4
"""If more than this go at a time, publishers write as fast as room is given back, and it is given back in haste."""


class Retention:
    """Removes the oldest segments of one journal. Owned by the journal, as are the segments."""

    def __init__(
        self, segments: Segments, *, directory: Path, config: JournalConfig, workers: Workers, fs: Files
    ) -> None:
        self.is_removing = False
        """Whether another thread has still to sync, or to give back room."""
        self._segments = segments
        self._directory = directory
        self._config = config
        self._workers = workers
        self._fs = fs
        self._is_over = False

    def is_too_old(self, segment: Segment, *, now_ns: int) -> bool:
        """Whether even the newest message of a segment is older than the retention time; not if there is none."""
        retention_ns = self._config.retention_ns
        if retention_ns is None or segment.is_empty:
            return False
        return self._segments.latest_ns(segment) < now_ns - retention_ns

    def removable(self, *, before_offset: int, now_ns: int) -> list[Segment]:
        """The segments that should go and hold nothing that is not before `before_offset`."""
        config = self._config
        limits = [limit for limit in (config.retention_bytes, config.max_bytes) if limit is not None]
        retention_bytes = min(limits, default=None)
        kept_bytes = self._segments.total_bytes
        found: list[Segment] = []
        for segment in list(self._segments)[:-1]:
            are_too_many = retention_bytes is not None and kept_bytes > retention_bytes
            if self._segments.end_offset(segment) > before_offset:
                break
            if not are_too_many and not self.is_too_old(segment, now_ns=now_ns):
                break
            kept_bytes -= segment.size_bytes
            found.append(segment)
        return found[:MAX_REMOVED]

    def overtaken_offset(self) -> int:
        """Where the journal would begin if it kept to its limit, whatever channels have still to read."""
        max_bytes = self._config.max_bytes
        kept_bytes = self._segments.total_bytes
        if max_bytes is None or kept_bytes <= max_bytes:
            return self._segments.first.base_offset
        for segment in list(self._segments)[:-1]:
            kept_bytes -= segment.size_bytes
            if kept_bytes <= max_bytes:
                return self._segments.end_offset(segment)
        return self._segments.active.base_offset

    def remove(self, oldest: list[Segment]) -> None:
        """Remove these segments, which are the oldest ones; what takes long, in another thread.

        A failure is only logged, and what cannot be deleted is part of the journal again.
        """
        for segment in oldest:
            removed = self._segments.remove_first()
            assert removed is segment
        summary_path = self._segments.active.summary_path
        start, hand_back = self._workers.start_removing, self._workers.hand_back
        self.is_removing = True

        def sync() -> None:
            failure = self._sync_names(summary_path)
            hand_back(lambda: delete(failure))

        def delete(failure: OSError | None) -> None:
            fds = [] if self._is_over else self._delete(oldest, failure)
            start(lambda: give_back(fds))

        def give_back(fds: list[int]) -> None:
            for fd in fds:
                self._fs.discard(fd, in_haste=len(fds) > MANY_REMOVED)
            hand_back(self._removed)

        start(sync)

    def _removed(self) -> None:
        self.is_removing = False

    def give_up(self) -> None:
        """The journal is closed or deleted: what has not been deleted is not this object's any more."""
        self._is_over = True

    def _sync_names(self, summary_path: Path) -> OSError | None:
        try:
            # It must be on the disk: without it and these segments, nothing would tell which producers there are.
            sync_file(summary_path, fs=self._fs)
            self._fs.sync_folder(self._directory)
        except OSError as error:
            return error
        return None

    def _delete(self, oldest: list[Segment], failure: OSError | None) -> list[int]:
        """Delete the names; the descriptors that keep what they took."""
        fds: list[int] = []
        freed_bytes = deleted_count = 0
        try:
            if failure is not None:
                raise failure
            for segment in oldest:
                self._delete_names(segment, fds)
                freed_bytes += segment.size_bytes
                deleted_count += 1
        except OSError as error:
            log.warning("journal %s: old segments were not removed - %s", self._directory, error)
            self._segments.put_back(oldest[deleted_count:])
        if freed_bytes:
            log.info("journal %s: removed %d bytes of old messages", self._directory, freed_bytes)
        return fds

    def _delete_names(self, segment: Segment, fds: list[int]) -> None:
        fs = self._fs
        fs.unlink(segment.summary_path, missing_ok=True)
        try:
            fd = fs.open(segment.path, os.O_WRONLY)
        except FileNotFoundError:
            return
        fds.append(fd)  # as long as it is open, the file keeps its room, and deleting the name is done at once
        fs.unlink(segment.path)
