"""Crashes of what nsqd keeps for classic topics: a disk queue, its due times, nsqd.dat and the policies.

What is promised of a disk queue: a process that dies loses nothing that was put; a power cut loses nothing that was put
before a sync which succeeded. Records come in order, none twice, and none that was not put. What was taken may come
again, because the name of a meta file is not synced each time. A record has no checksum in NSQ's format: one that was
not synced may come with zeros where a page of it did not reach the disk; after a failed sync also to a process that
starts later. Of the other files: each is what it was after the last save, or what a later save was to make of it, and
never damaged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.storage.backend import DiskLimits
from emberq.storage.data_folder import (
    POLICY_FILE,
    ChannelPolicy,
    MetadataFile,
    MetaEntry,
    PolicyEntry,
    load_metadata,
    load_policies,
    save_policies,
)
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import QueueFiles, load_due_times, save_due_times
from emberq.storage.disk_queue_sync import Syncer
from emberq.storage.error import DiskWriteError, StorageError
from tests.crash.model import BrokenPromiseError
from tests.crash.simulated_files import ROOT, Choice, Fault, SimulatedFiles
from tests.storage.rig import batch, drain, take

NAME = "q"
PATHS = {"nsqd.dat": ROOT / "nsqd.dat", "policies": ROOT / POLICY_FILE, "due times": QueueFiles(ROOT, NAME).due}
ENDLESS = 1 << 60


@dataclass
class QueuedRecord:
    """A record, and when what happened to it; ENDLESS: it has not."""

    payload: bytes
    put_at: int
    synced_at: int = ENDLESS
    gone_from: int = ENDLESS
    """From this moment on it may be missing: it was taken, or dropped."""
    is_doubtful: bool = False
    """A sync failed before it was synced: whether it is on the disk is not known any more."""


@dataclass
class SavedVersions:
    """One of the small files: which version was begun and which was saved when."""

    begun: list[int] = field(default_factory=list)
    saved: list[tuple[int, int]] = field(default_factory=list)


class QueueRun:
    """One recorded run of a disk queue and the files beside it."""

    def __init__(self, seed: int, *, steps: int = 120, fs: SimulatedFiles | None = None) -> None:
        self.seed = seed
        self._dice = random.Random(f"queue {seed}")
        self._trouble = self._dice.random() < 0.3
        self._limits = DiskLimits(
            max_bytes_per_file=self._dice.choice((200, 5000, 20_000)),
            min_record_bytes=1,
            max_record_bytes=1 << 20,
            sync_every=self._dice.choice((0, 10, 2500)),
        )
        self._fs = fs or SimulatedFiles()
        self._clock = ManualClock()
        self._timers = Timers()
        self._records: list[QueuedRecord] = []
        self._files = {name: SavedVersions() for name in PATHS}
        self._entries: list[MetaEntry] = []
        self._queue = self._opened(self._fs, self._timers)
        self._metadata = self._metadata_file()
        for _ in range(steps):
            self._step()

    def __repr__(self) -> str:
        return f"<QueueRun {self.seed} {self._limits} trouble={self._trouble} moments={self._fs.moment}>"

    def _opened(self, fs: SimulatedFiles, timers: Timers) -> DiskQueue:
        syncer = Syncer(clock=self._clock, timers=timers, inline=True)
        queue = DiskQueue(NAME, data_path=ROOT, limits=self._limits, syncer=syncer, fs=fs)
        queue.open()
        return queue

    def _metadata_file(self) -> MetadataFile:
        return MetadataFile(
            PATHS["nsqd.dat"],
            version="test",
            entries=lambda: iter(self._entries),
            run=lambda work: work(),
            hand_back=lambda work: work(),
            clock=self._clock,
            timers=self._timers,
            fs=self._fs,
        )

    # The run.

    def _step(self) -> None:
        deeds: list[tuple[int, Callable[[], None]]] = [
            (40, self._put),
            (20, self._take),
            (8, self._let_time_pass),
            (6, self._sync),
            (1, self._empty),
            (2, self._restart),
            (8, self._save_a_file),
            (3 if self._trouble else 0, self._make_trouble),
        ]
        (deed,) = self._dice.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])
        deed()
        self._note_failures()

    def _put(self) -> None:
        first = len(self._records)
        size = self._dice.choice((10, 100, 3000))
        payloads = [b"<%d>" % (first + index) + b"." * size for index in range(self._dice.choice((1, 3, 10)))]
        stored_count = len(payloads)
        try:
            self._queue.put(batch(*payloads))
        except DiskWriteError as error:
            stored_count = error.stored_count
        for payload in payloads[:stored_count]:
            self._records.append(QueuedRecord(payload, self._fs.moment))
        for payload in payloads[stored_count:]:  # it was refused; a crash may bring it even so
            self._records.append(QueuedRecord(payload, ENDLESS))

    def _take(self) -> None:
        before = self._fs.moment
        for payload in take(self._queue, count=self._dice.choice((1, 5, 50))):
            record = self._record(payload)
            record.gone_from = min(record.gone_from, before)

    def _record(self, payload: bytes) -> QueuedRecord:
        number = int(payload[1 : payload.index(b">")]) if payload.startswith(b"<") and b">" in payload else -1
        if not 0 <= number < len(self._records) or self._records[number].payload != payload:
            raise BrokenPromiseError(f"invented: {payload[:20]!r}")
        return self._records[number]

    def _let_time_pass(self) -> None:
        self._clock.advance(ms=self._dice.choice((1, 2500)))
        self._timers.run_due(self._clock.monotonic_ns())

    def _sync(self) -> None:
        try:
            self._queue.sync()
        except StorageError:
            self._doubt()
            return
        for record in self._records:
            if record.put_at < ENDLESS and not record.is_doubtful:
                record.synced_at = min(record.synced_at, self._fs.moment)

    def _note_failures(self) -> None:
        if self._fs.failed_syncs:
            self._fs.failed_syncs = 0
            self._doubt()

    def _doubt(self) -> None:
        for record in self._records:
            if record.synced_at == ENDLESS:
                record.is_doubtful = True

    def _empty(self) -> None:
        for record in self._records:
            record.gone_from = min(record.gone_from, self._fs.moment)
        self._queue.empty()

    def _restart(self) -> None:
        self._queue.close()
        self._sync()
        self._timers = Timers()
        self._queue = self._opened(self._fs, self._timers)

    def _make_trouble(self) -> None:
        self._fs.faults.append(
            self._dice.choice(
                (
                    Fault("sync"),
                    Fault("sync_folder"),
                    Fault("write", 28, suffix=".dat"),
                    Fault("write", suffix=".dat", taken_bytes=7),
                    Fault("write", 28, suffix=".tmp"),
                    Fault("rename"),
                    Fault("unlink"),
                )
            )
        )

    def _save_a_file(self) -> None:
        name = self._dice.choice(sorted(PATHS))
        versions = self._files[name]
        number = len(versions.begun) + 1
        versions.begun.append(self._fs.moment)
        try:
            if name == "nsqd.dat":
                channels = [MetaEntry(f"t{number}", f"c{index}", paused=True) for index in range(200)]
                self._entries = [MetaEntry(f"t{number}", None, paused=False), *channels]
                self._metadata.save()
            elif name == "policies":
                policy = ChannelPolicy(max_attempts=number, dead_letter_topic="dead")
                save_policies(PATHS[name], [PolicyEntry("t", f"c{i}", policy) for i in range(100)], fs=self._fs)
            else:
                save_due_times(PATHS[name], {b"%016d" % i: number for i in range(200)}, fs=self._fs)
        except StorageError:
            return
        versions.saved.append((self._fs.moment, number))

    # A crash.

    def try_state(self, number: int) -> None:
        """Crash, open everything and check."""
        dice = random.Random(f"queue state {self.seed} {number}")
        moment = dice.randint(0, self._fs.moment)
        choice = Choice(dice.getrandbits(64))
        is_kill = dice.random() < 0.3
        left = self._fs.killed(moment, choice) if is_kill else self._fs.power_cut(moment, choice)
        self._check_files(left, moment)
        self._check_queue(left, moment, is_kill=is_kill)

    def _check_queue(self, left: SimulatedFiles, moment: int, *, is_kill: bool) -> None:
        queue = self._opened(left, Timers())
        is_whole = is_kill and not any(record.is_doubtful for record in self._records)
        payloads = [payload for payload in drain(queue) if is_whole or b"\0" not in payload]
        found = [self._record(payload) for payload in payloads]
        numbers = [self._records.index(record) for record in found]
        if numbers != sorted(set(numbers)):
            raise BrokenPromiseError("records come twice or out of order")
        for record in self._records:
            is_kept = record.put_at <= moment if is_kill and not record.is_doubtful else record.synced_at <= moment
            if is_kept and record.gone_from > moment and record not in found:
                raise BrokenPromiseError(f"lost: {record.payload[:20]!r}, {record.synced_at=} {moment=}")
        queue.put(batch(b"new"))
        if drain(queue) != [b"new"]:
            raise BrokenPromiseError("the queue does not go on")
        queue.close()
        if left.open_count:
            raise BrokenPromiseError(f"{left.open_count} descriptors were left open")

    def _check_files(self, left: SimulatedFiles, moment: int) -> None:
        metadata = load_metadata(PATHS["nsqd.dat"], fs=left)
        policies = load_policies(PATHS["policies"], fs=left)
        times = load_due_times(PATHS["due times"], fs=left)
        found = {
            "nsqd.dat": int(metadata.topics[0].name[1:]) if metadata.topics else 0,
            "policies": policies[0].policy.max_attempts if policies else 0,
            "due times": next(iter(times.values()), 0),
        }
        for name, versions in self._files.items():
            saved = max((number for at, number in versions.saved if at <= moment), default=0)
            begun = sum(at <= moment for at in versions.begun)
            if not saved <= found[name] <= begun:
                raise BrokenPromiseError(f"{name} is version {found[name]}, saved was {saved}, begun was {begun}")
