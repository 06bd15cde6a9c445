"""Which files belong to which topic or channel: disk queues, due times, policies and journals.

`Store` is what the broker asks of the data folder, `DiskStore` is the data folder. `JournalStore` says which topics are
journaled, and opens their folders.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.file import OS_FILES, Files, remove_folder
from emberq.base.timers import Timers
from emberq.broker.journaled_channel import LoggingTurns
from emberq.storage import data_folder, disk_queue_files
from emberq.storage.backend import Backend, DiskLimits, NullQueue
from emberq.storage.data_folder import PolicyEntry
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import Kind, QueueFiles
from emberq.storage.disk_queue_sync import Syncer
from emberq.storage.error import StorageError
from emberq.storage.journal.commit import Work
from emberq.storage.journal.folder import FOLDER_SUFFIX, JournalFolder
from emberq.storage.journal.journal import REMOVED_SUFFIX
from emberq.storage.journal.segment import JournalConfig
from emberq.wire.parameter import is_ephemeral, is_valid_name

_log = logging.getLogger(__name__)

# Disk queues, due times, policies.


class Store(Protocol):
    """Opens backends by name and keeps due times beside them."""

    def backend(self, name: str) -> Backend:
        """The opened backend of a topic (`t`) or channel (`t:c`)."""
        ...

    def load_times(self, name: str, kind: Kind) -> dict[bytes, int]:
        """The times saved for messages in that backend, by id."""
        ...

    def save_times(self, name: str, kind: Kind, times: Mapping[bytes, int]) -> None:
        """Keep the times for the next run, soon; an empty mapping removes what was kept."""
        ...

    def left_queues(self, topic: str) -> list[str]:
        """The names of the backends of a topic and its channels that an earlier run left."""
        ...

    def load_policies(self) -> list[PolicyEntry]:
        """The policies saved for channels."""
        ...

    def save_policies(self, entries: Iterable[PolicyEntry]) -> None:
        """Keep these policies for the next run, in place of those saved before."""
        ...


class DiskStore:
    """A store of files in the data folder. They are written and removed by the syncer's thread."""

    def __init__(self, data_path: Path, *, limits: DiskLimits, syncer: Syncer, fs: Files = OS_FILES) -> None:
        self._fs = fs
        self._data_path = data_path
        self._limits = limits
        self._syncer = syncer
        self._left: dict[str, list[str]] | None = None
        """The queues that the folder held at the first question, by topic: it may hold very many files."""
        self._queues: WeakValueDictionary[str, DiskQueue] = WeakValueDictionary()
        """The queues in use, and some that were; by name."""
        self._has_times: dict[str, bool] = {}
        """The names for which there was a file of times: whether it is still wanted."""

    def backend(self, name: str) -> Backend:
        if is_ephemeral(name):
            return NullQueue()
        before = self._queues.get(name)
        if before is not None:
            before.delete()  # a topic is deleted channel by channel: the next owner of this name came before its turn
        queue = DiskQueue(name, data_path=self._data_path, limits=self._limits, syncer=self._syncer, fs=self._fs)
        queue.open()
        self._queues[name] = queue
        return queue

    def load_times(self, name: str, kind: Kind) -> dict[bytes, int]:
        path = self._times_path(name)
        if is_ephemeral(name) or not self._has_times.get(name, True) or not self._fs.exists(path):
            return {}
        self._has_times[name] = True
        return disk_queue_files.load_due_times(path, kind=kind, fs=self._fs)

    def save_times(self, name: str, kind: Kind, times: Mapping[bytes, int]) -> None:
        if is_ephemeral(name) or not (times or self._has_times.get(name, False)):
            return
        self._has_times[name] = bool(times)
        path, content, fs = self._times_path(name), dict(times), self._fs
        self._syncer.run(lambda: _save_or_log(path, content, kind, fs), urgent=True)

    def load_policies(self) -> list[PolicyEntry]:
        return data_folder.load_policies(self._data_path / data_folder.POLICY_FILE, fs=self._fs)

    def save_policies(self, entries: Iterable[PolicyEntry]) -> None:
        data_folder.save_policies(self._data_path / data_folder.POLICY_FILE, entries, fs=self._fs)

    def left_queues(self, topic: str) -> list[str]:
        if self._left is None:
            self._left = _queues_by_topic(self._data_path, fs=self._fs)
        return [name for name in self._left.get(topic, ()) if self._is_left(name)]

    def _is_left(self, name: str) -> bool:
        """Whether there is still something, unless it is just being removed."""
        meta = QueueFiles(self._data_path, name).meta
        slot = self._syncer.unsettled.get(meta)
        return self._fs.exists(meta) and (slot is None or slot.next_number is None)

    def _times_path(self, name: str) -> Path:
        return QueueFiles(self._data_path, name).due


def _save_or_log(path: Path, times: Mapping[bytes, int], kind: Kind, fs: Files) -> None:
    try:
        disk_queue_files.save_due_times(path, times, kind=kind, fs=fs)
    except StorageError as failure:
        _log.error("failed to write due times to disk - %s", failure)


def _queues_by_topic(data_path: Path, *, fs: Files) -> dict[str, list[str]]:
    """The disk queues in a folder. One that has no meta file is empty."""
    queues: dict[str, list[str]] = {}
    for name in sorted(QueueFiles.names_in(data_path, fs=fs)):
        topic, _, channel = name.partition(":")
        if is_valid_name(topic) and (not channel or is_valid_name(channel)):
            queues.setdefault(topic, []).append(name)
    return queues


# Journals.


class SyncMode(enum.StrEnum):
    """When a published message counts as stored."""

    ALWAYS = "always"
    """When it is on the disk. No consumer or reader sees it before."""
    INTERVAL = "interval"
    """When it is written; it is synced to the disk at intervals."""
    NEVER = "never"
    """When it is written; the operating system decides when it reaches the disk."""


@dataclass(frozen=True)
class JournalSettings:
    """What is the same for every journaled topic."""

    is_wanted: Callable[[str], bool] = lambda _name: False
    """Whether a new topic of that name is journaled. One that has a journal stays so."""
    sync: SyncMode = SyncMode.ALWAYS
    sync_interval_ns: int = 2 * NS_PER_SECOND
    config: JournalConfig = field(default_factory=JournalConfig)


def run_here(work: Work) -> None:
    """Do `work` now, in this thread."""
    work()


class JournalStore:
    """The journals in a data folder. `start` runs work in another thread, `hand_back` in the broker's thread.

    Deleted journals are removed by the syncer's thread, if there is one.
    """

    def __init__(
        self,
        data_path: Path,
        settings: JournalSettings,
        *,
        clock: Clock,
        start: Callable[[Work], object] = run_here,
        hand_back: Callable[[Work], object] = run_here,
        syncer: Syncer | None = None,
        fs: Files = OS_FILES,
    ) -> None:
        self.settings = settings
        self._fs = fs
        self._syncer = syncer
        self._data_path = data_path
        self._clock = clock
        self._start = start
        self._hand_back = hand_back
        self._turns: LoggingTurns | None = None

    def logging_turns(self, timers: Timers) -> LoggingTurns:
        """The turns that the channels of all topics share."""
        if self._turns is None:
            self._turns = LoggingTurns(clock=self._clock, timers=timers)
        return self._turns

    def has(self, topic: str) -> bool:
        """Whether this topic is journaled, or is to be once it exists."""
        return not is_ephemeral(topic) and (self._fs.is_folder(self._folder(topic)) or self.settings.is_wanted(topic))

    def topic_names(self) -> list[str]:
        """The topics that have a journal."""
        names = (name.removesuffix(FOLDER_SUFFIX) for name in self._names() if name.endswith(FOLDER_SUFFIX))
        return sorted(name for name in names if is_valid_name(name))

    def _names(self) -> list[str]:
        return self._fs.names(self._data_path) if self._fs.is_folder(self._data_path) else []

    def open(self, topic: str) -> JournalFolder:
        """Open a topic's folder, or make one. StorageError if that cannot be done."""
        settings = self.settings
        return JournalFolder(
            self._folder(topic),
            replace(settings.config, is_seen_unsynced=settings.sync is not SyncMode.ALWAYS),
            clock=self._clock,
            start=self._start,
            hand_back=self._hand_back,
            fs=self._fs,
        )

    def remove(self, folder: Path) -> None:
        """Remove the folder of a deleted journal, soon; that it has no topic any more is known to the disk before."""
        if self._syncer is None:
            self._remove_folder(folder)
        else:
            self._syncer.run(self._sync_names, urgent=True)
            self._syncer.run(lambda: self._remove_folder(folder))

    def remove_leftovers(self) -> None:
        """Remove the deleted journals that an earlier run did not come to remove."""
        for name in self._names():
            if f"{FOLDER_SUFFIX}." in name and name.endswith(REMOVED_SUFFIX):
                self.remove(self._data_path / name)

    def _folder(self, topic: str) -> Path:
        return self._data_path / f"{topic}{FOLDER_SUFFIX}"

    def _sync_names(self) -> None:
        try:
            self._fs.sync_folder(self._data_path)
        except OSError as failure:
            _log.error("failed to sync %s - %s", self._data_path, failure)

    def _remove_folder(self, folder: Path) -> None:
        try:
            remove_folder(folder, fs=self._fs)
        except OSError as failure:
            _log.error("failed to remove a deleted journal - %s", failure)
