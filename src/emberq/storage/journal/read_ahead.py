"""Reading ahead for channels that lag, in another thread.

A replay of gigabytes must not hold up others, who wait for their turn of the event loop and for the disk. So a channel
that lags reads only what is in memory. What is not, another thread brings there first, and what follows, too:

    loop                   | read A, deliver A   || read B, deliver B   || read C, deliver C   ...
    thread     | bring A |   | bring B, C |         | bring D |            | bring E |         ...

It is two parts ahead: then a sync to which it gives way, or a turn of the loop that comes late, holds up only one of
the two.

Where publishers wait for syncs they are in a hurry, and the loop is to have short turns. So the thread hands over what
it has read, and the loop need not read it once more. The thread also checks large batches, because that does not need
the interpreter. To check small ones, or to decode any, would: the loop and its publishers would wait for it again and
again. All this takes more time in total than if the loop did it, so where nobody is in a hurry, the loop does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from emberq.base.file import PATIENT_BYTES, SYNCS, Files
from emberq.storage.error import ColdPart, JournalColdError
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.reader import ONE_BATCH, Chunk, JournalReader, LoadedPart
from emberq.wire.journal_batch import CHECKED_FROM, HEADER_BYTES, header_at

PARTS_AHEAD = 2
"""How many reads ahead of the channel the other thread is."""
MAX_BROUGHT = 16
"""Parts that were read ahead and not taken since: the channel has gone, or was sent elsewhere."""
MAX_LOADED_BYTES = 1024 * 1024
"""A part that is larger than this, because it is one large batch, is only brought into memory, not kept."""
LARGE_BATCH_BYTES = 16 * 1024
"""To check a batch of this size takes longer than to hand the interpreter to another thread and back."""


class _Job(NamedTuple):
    part: ColdPart
    handed_bytes: int = 0
    """How much of it to hand over: so much, or the first batch if that is larger. 0: only bring it into memory."""


class _Brought(NamedTuple):
    part: ColdPart
    loaded: LoadedPart | None


class ReadAhead:
    """Has another thread read what channels take next. Owned by the journal, in whose thread all runs but `_work`.

    The other thread opens files by `fs`.
    """

    def __init__(self, reader: JournalReader, *, seed: int, workers: Workers, fs: Files) -> None:
        self._reader = reader
        self._seed = seed
        self._workers = workers
        self._fs = fs
        self._wanted: dict[int, _Job] = {}
        """What to read, by the offset that is there; the first first. That one is under way if `_is_reading`."""
        self._told: dict[int, dict[Callable[[], None], None]] = {}
        """Which channels wait for it."""
        self._is_reading = False
        self._brought: dict[int, _Brought] = {}
        """What was read and not taken since, by offset; the oldest first."""

    def read(self, offset: int, *, max_bytes: int, told: Callable[[], None]) -> Chunk:
        """As `JournalReader.read`. JournalColdError if it is not in memory, or not handed over yet.

        Then `told` is called when it is.
        """
        job = self._wanted.get(offset)
        if job is not None and job.handed_bytes:
            self._told.setdefault(offset, {})[told] = None
            raise JournalColdError(f"{job.part.path}: position {job.part.position} is being read", job.part)
        brought = self._brought.pop(offset, None)
        loaded = None if brought is None else brought.loaded
        try:
            chunk = self._reader.read(offset, max_bytes=max_bytes, may_wait=False, loaded=loaded)
        except JournalColdError as cold:
            if brought is None or not brought.part.holds(cold.part):
                self._want(offset, _Job(cold.part))
                if offset in self._wanted:  # else there is no other thread, and it was brought at once
                    self._told.setdefault(offset, {})[told] = None
                    raise
            # Else it cannot be read, or memory is so short that it has gone again. The channel has waited long enough.
            chunk = self._reader.read(offset, max_bytes=max_bytes)
        if chunk.batches and max_bytes > ONE_BATCH and chunk.next_offset not in self._brought:
            self._want_following(chunk.next_offset, max_bytes=max_bytes)
        return chunk

    def _want_following(self, offset: int, *, max_bytes: int) -> None:
        if SYNCS.are_expected:
            part = self._reader.part_at(offset, max_bytes=MAX_LOADED_BYTES)
            handed_bytes = max_bytes
        else:
            part = self._reader.cold_part(offset, max_bytes=PARTS_AHEAD * max_bytes)
            handed_bytes = 0
        if part is not None:
            self._want(offset, _Job(part, handed_bytes))

    def give_up(self) -> None:
        """The journal is closed, or another one takes its place."""
        self._wanted.clear()
        self._told.clear()
        self._brought.clear()

    def _want(self, offset: int, job: _Job) -> None:
        self._wanted.setdefault(offset, job)
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_reading and self._wanted:
            self._is_reading = True
            offset, job = next(iter(self._wanted.items()))
            self._workers.start_reading(lambda: self._work(offset, job))

    def _done(self, offset: int, brought: _Brought) -> None:
        self._is_reading = False
        if self._wanted.pop(offset, None) is not None:  # else it was given up meanwhile
            self._brought[offset] = brought
            if len(self._brought) > MAX_BROUGHT:
                del self._brought[next(iter(self._brought))]
        self._go_on()
        for told in self._told.pop(offset, ()):
            told()

    # -- in the other thread -----------------------------------------------------------------------------------

    def _work(self, offset: int, job: _Job) -> None:
        brought = _Brought(job.part, None)
        try:
            with suppress(OSError):  # the channel meets it when it reads there
                brought = self._bring(job)
        finally:
            self._workers.hand_back(lambda: self._done(offset, brought))

    def _bring(self, job: _Job) -> _Brought:
        path, position, length = job.part
        fd = self._fs.open(path, os.O_RDONLY)
        try:
            if job.handed_bytes:
                block = self._load(fd, job)
                loaded = LoadedPart(path, position, block, self._checked_bytes(memoryview(block)))
                return _Brought(ColdPart(path, position, len(block)), loaded)
            if not self._fs.is_in_memory(fd, length, position):
                for start in range(position, position + length, PATIENT_BYTES):
                    self._fs.read(fd, min(PATIENT_BYTES, position + length - start), start)
            return _Brought(job.part, None)
        finally:
            self._fs.close(fd)

    def _load(self, fd: int, job: _Job) -> bytes:
        position, length = job.part.position, job.part.length
        start = self._fs.read(fd, HEADER_BYTES, position)
        batch_bytes = header_at(memoryview(start)).length if len(start) == HEADER_BYTES else 0
        size = batch_bytes if job.handed_bytes < batch_bytes <= length else min(job.handed_bytes, length)
        return self._fs.read(fd, size, position)

    def _checked_bytes(self, block: memoryview) -> int:
        """How much of the block, from its beginning on, is large batches that are sound."""
        end = 0
        while len(block) - end >= HEADER_BYTES:
            header = header_at(block[end:])
            if header.length < LARGE_BATCH_BYTES or header.fault(room_bytes=len(block) - end) is not None:
                break
            crc = self._seed
            for start in range(end + CHECKED_FROM, end + header.length, PATIENT_BYTES):
                SYNCS.give_way()
                crc = crc32(block[start : min(start + PATIENT_BYTES, end + header.length)], crc)
            if crc != header.crc:
                break  # the reader finds out, and what to do about it
            end += header.length
        return end
