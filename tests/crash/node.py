"""An nsqd without sockets and threads, on simulated files: the real broker and storage, started and stopped as by the
daemon. What would run in other threads waits until the test lets it run."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.file import lacks_room
from emberq.base.timers import Timers
from emberq.broker.broker import Broker, TopologyChange
from emberq.broker.channel import ChannelLimits
from emberq.broker.journaled_topic import JournaledTopic
from emberq.broker.store import DiskStore, JournalSettings, JournalStore, SyncMode
from emberq.broker.topic import Pending, TopicConfig
from emberq.storage.backend import DiskLimits
from emberq.storage.data_folder import MetadataFile
from emberq.storage.disk_queue_sync import Syncer
from emberq.storage.error import StorageError
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.segment import DescriptorCache, JournalConfig
from emberq.wire.journal_batch import JournalBatch
from tests.crash.simulated_files import ROOT, SimulatedFiles


class Scheduler:
    """The other threads: work that was given to them, and results that they handed back, each run when told."""

    def __init__(self) -> None:
        self._begun: list[Work] = []
        self._handed_back: deque[Work] = deque()
        self.workers = Workers(
            start=self.start, start_reading=self.start, start_removing=self.start, hand_back=self.hand_back
        )

    def start(self, work: Work) -> None:
        self._begun.append(work)

    def hand_back(self, work: Work) -> None:
        self._handed_back.append(work)

    @property
    def is_idle(self) -> bool:
        return not self._begun and not self._handed_back

    def step(self, choose: random.Random) -> None:
        """Let one thread run, or the loop take one result."""
        if self._handed_back and (not self._begun or choose.random() < 0.5):
            self._handed_back.popleft()()
        elif self._begun:
            self._begun.pop(choose.randrange(len(self._begun)))()

    def run_all(self) -> None:
        """Everything that waits, and what follows from it."""
        while not self.is_idle:
            while self._begun:
                self._begun.pop(0)()
            while self._handed_back:
                self._handed_back.popleft()()


@dataclass(frozen=True)
class NodeSettings:
    """How the nsqd is set up. Topics whose names begin with `j` are journaled."""

    sync: SyncMode = SyncMode.ALWAYS
    segment_bytes: int = 24 * 1024
    retention_bytes: int | None = None
    mem_queue_size: int = 0
    index_interval_bytes: int = 4096
    max_open: int = 100
    """How many files of journals may be open at a time."""


def journal_config(settings: NodeSettings) -> JournalConfig:
    """How the journals of a node are set up."""
    return JournalConfig(
        segment_bytes=settings.segment_bytes,
        retention_bytes=settings.retention_bytes,
        retention_ns=None,
        index_interval_bytes=settings.index_interval_bytes,
        fsync=settings.sync is not SyncMode.NEVER,
        is_seen_unsynced=settings.sync is not SyncMode.ALWAYS,
        descriptors=DescriptorCache(max_open=settings.max_open),
    )


class Node:
    """One run of the nsqd. A crash is to leave it as it is and start another on other files."""

    def __init__(self, fs: SimulatedFiles, settings: NodeSettings, *, clock: ManualClock) -> None:
        self.fs = fs
        self.settings = settings
        self.clock = clock
        self.timers = Timers()
        self.scheduler = Scheduler()
        self.syncer = Syncer(clock=clock, timers=self.timers, inline=True)
        limits = DiskLimits(max_bytes_per_file=16 * 1024, sync_every=20)
        journal_settings = JournalSettings(
            is_wanted=lambda name: name.startswith("j"),
            sync=settings.sync,
            config=journal_config(settings),
        )
        self.broker = Broker(
            config=TopicConfig(channel=ChannelLimits(mem_queue_size=settings.mem_queue_size)),
            store=DiskStore(ROOT, limits=limits, syncer=self.syncer, fs=fs),
            clock=clock,
            timers=self.timers,
            journals=JournalStore(
                ROOT,
                journal_settings,
                clock=clock,
                workers=self.scheduler.workers,
                fs=fs,
            ),
        )
        self.metadata_file = MetadataFile(
            ROOT / "nsqd.dat",
            version="test",
            entries=self.broker.entries,
            run=self.scheduler.start,
            hand_back=self.scheduler.hand_back,
            clock=clock,
            timers=self.timers,
            fs=fs,
        )
        self.metadata_file.on_saved = self.broker.metadata_saved

    def start(self) -> None:
        """Bring back what an earlier run left; on a full disk, as far as that goes without writing."""
        self.broker.load(self.metadata_file.load())
        try:
            self.metadata_file.save()
        except StorageError as failure:
            if not (self.fs.is_full and lacks_room(failure)):
                raise
        self.broker.add_listener(self._changed)
        self.run_due()

    def make_room(self) -> None:
        """The disk is not full any more: what the daemon does then."""
        self.fs.is_full = False
        self.broker.reopen_journals()
        self.metadata_file.save()
        assert not self.broker.awaits_room, "a journal is still read-only"
        self.run_due()

    def stop(self) -> None:
        """A clean stop."""
        self.broker.finish_deleting()
        self.metadata_file.save()
        self.scheduler.run_all()
        self.broker.close()
        self.scheduler.run_all()
        self.syncer.close()

    def _changed(self, _change: TopologyChange) -> None:
        self.metadata_file.save_soon()

    # Time.

    def advance(self, *, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.run_due()

    def run_due(self) -> None:
        """What the daemon's timer does."""
        self.timers.run_due(self.clock.monotonic_ns())

    def settle(self) -> None:
        """Let all threads run, and what they lead to."""
        self.scheduler.run_all()
        self.run_due()
        self.scheduler.run_all()

    def settled(self, pending: Pending | None) -> Exception | None:
        """What a publisher is told in the end; None: it is stored."""
        told: list[Exception | None] = []
        if pending is None:
            return None
        pending.when_settled(told.append)
        self.settle()
        assert told, "a publisher is never told"
        return told[0]

    # Looking.

    def journaled_topic(self, name: str) -> JournaledTopic | None:
        topic = self.broker.find_topic(name)
        assert topic is None or isinstance(topic, JournaledTopic)
        return topic


def batches_of(topic: JournaledTopic) -> list[JournalBatch]:
    """Everything that can be read of a topic's journal."""
    batches: list[JournalBatch] = []
    offset = topic.journal.first_offset
    while offset < topic.journal.next_offset:
        chunk = topic.journal.read(offset, max_bytes=1 << 20)
        assert chunk.next_offset > offset, "a reader does not get on"
        batches += chunk.batches
        offset = chunk.next_offset
    return batches


def new_clock(before: ManualClock | None = None) -> ManualClock:
    """The clock of a run; its monotonic time begins anew, as after a reboot."""
    if before is None:
        return ManualClock()
    return ManualClock(wall_ns=before.wall_ns() + NS_PER_SECOND, monotonic_ns=NS_PER_SECOND)
