"""A broker whose topics are journaled, on files that can be looked at, cut and damaged between two runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.base.timers import Timers
from emberq.broker.broker import Broker
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.broker.store import JournalSettings, JournalStore, SyncMode
from emberq.broker.topic import Pending
from emberq.storage.journal.commit import Work, Workers
from emberq.storage.journal.segment import JournalConfig
from tests.broker.rig import Rig, published


class SlowDisk:
    """The other threads: what is given to them is done at once, or when the test says so."""

    def __init__(self) -> None:
        self.is_slow = False
        self._waiting: deque[Work] = deque()

    def start(self, work: Work) -> None:
        if self.is_slow:
            self._waiting.append(work)
        else:
            work()

    def work_off(self, count: int | None = None) -> None:
        """Do some of what waits, the oldest first; everything, and what follows from it, if not told how much."""
        while self._waiting and count != 0:
            self._waiting.popleft()()
            count = None if count is None else count - 1

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def forget(self) -> None:
        """The process is gone, and its threads with it."""
        self._waiting.clear()


class Outcome:
    """What a publisher is told, if it has been told."""

    def __init__(self, pending: Pending | None) -> None:
        self.is_known = False
        self.failure: Exception | None = None
        if pending is None:
            self._told(None)
        else:
            pending.when_settled(self._told)

    def _told(self, failure: Exception | None) -> None:
        assert not self.is_known, "told twice"
        self.is_known = True
        self.failure = failure

    @property
    def is_stored(self) -> bool:
        return self.is_known and self.failure is None


class JournalRig(Rig):
    """Every topic is journaled, unless `is_wanted` says otherwise."""

    def __init__(
        self,
        folder: Path,
        *,
        sync: SyncMode = SyncMode.ALWAYS,
        is_wanted: Callable[[str], bool] = lambda _name: True,
        segment_bytes: int = 1 << 20,
        retention_ns: int | None = None,
        retention_bytes: int | None = None,
        max_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.folder = folder
        self.slow_disk = SlowDisk()
        self.slow_reading = SlowDisk()
        self.settings = JournalSettings(
            is_wanted=is_wanted,
            sync=sync,
            config=JournalConfig(
                segment_bytes=segment_bytes,
                retention_ns=retention_ns,
                retention_bytes=retention_bytes,
                max_bytes=max_bytes,
                fsync=sync is not SyncMode.NEVER,
                index_interval_bytes=256,
            ),
        )
        super().__init__(folder=folder, **options)

    def _start(self) -> None:
        self.timers = Timers()
        workers = Workers(start=self.slow_disk.start, start_reading=self.slow_reading.start)
        journals = JournalStore(self.folder, self.settings, clock=self.clock, workers=workers)
        self.broker = Broker(
            config=self._config, store=self._store(), clock=self.clock, timers=self.timers, journals=journals
        )

    def crash(self, *, down_ms: int = 1000, before_start: Callable[[], None] = lambda: None) -> None:
        """Start another broker on the files as they are, and nsqd.dat as it would be: of this moment."""
        metadata = self.broker.metadata("test")
        self.slow_disk.forget()
        self.slow_reading.forget()
        self.slow_disk.is_slow = False
        self.clock = ManualClock(wall_ns=self.clock.wall_ns() + down_ms * NS_PER_MS, monotonic_ns=NS_PER_SECOND)
        before_start()
        self._start()
        self.broker.load(metadata)

    def restart_with(self, is_wanted: Callable[[str], bool], *, sync: SyncMode = SyncMode.ALWAYS) -> None:
        """Start again with other topics journaled."""
        self.settings = replace(self.settings, is_wanted=is_wanted, sync=sync)
        self.restart()

    def send(self, *bodies: bytes, topic: str = "t") -> Outcome:
        """An MPUB whose answer may be awaited."""
        return Outcome(self.topic(topic).publish(*published(bodies)))

    def journaled_topic(self, name: str = "t") -> JournaledTopic:
        topic = self.topic(name)
        assert isinstance(topic, JournaledTopic)
        return topic

    def journaled_channel(self, name: str = "c", *, topic: str = "t") -> JournaledChannel:
        channel = self.channel(name, topic=topic)
        assert isinstance(channel, JournaledChannel)
        return channel

    # Files, named without our own code.

    def topic_folder(self, name: str = "t") -> Path:
        return self.folder / f"{name}.journal"

    def cursor_path(self, channel: str = "c", *, topic: str = "t") -> Path:
        return self.topic_folder(topic) / "cursors" / f"{channel}.cursor"

    def mark_path(self, topic: str = "t") -> Path:
        return self.topic_folder(topic) / "topic.mark"

    def last_segment(self, topic: str = "t") -> Path:
        return max(self.topic_folder(topic).glob("*.log"))
