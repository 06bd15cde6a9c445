"""Which files belong to which topic or channel: disk queues, due times, policies and journals.

`Store` is what the broker asks of the data folder, `DiskStore` is the data folder. `JournalStore` says which topics are
journaled, and opens and removes their folders.

A journal is deleted as a whole or not at all, whenever the process dies or the power fails:

    t.journal ──renamed──> t.journal.<16 hex digits>.removed ──data folder synced──> emptied ──nsqd.dat saved──> gone

The rename is the deletion; it is answered when it is on the disk, and only then is a file removed. Until nsqd.dat does
not name the topic any more, the folder stays: it tells the next run that the topic was deleted.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.file import OS_FILES, Files, empty_folder, remove_folder
from emberq.base.timers import Timers
from emberq.broker.journaled_channel import LoggingTurns
from emberq.broker.layout import STORED_HEADER_BYTES
from emberq.storage import data_folder, disk_queue_files
from emberq.storage.backend import Backend, DiskLimits, NullQueue
from emberq.storage.data_folder import PolicyEntry
from emberq.storage.disk_queue import DiskQueue
from emberq.storage.disk_queue_files import Kind, QueueFiles, QueuePosition
from emberq.storage.disk_queue_sync import Syncer
from emberq.storage.error import StorageError, os_error_text
from emberq.storage.journal.commit import Workers
from emberq.storage.journal.cursor_log import Told
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

    def waiting_bytes(self, name: str) -> int:
        """The bodies of the messages in that backend, which was just opened; as good as its files tell at a glance."""
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

    def remove_leftovers(self) -> None:
        """Remove what an earlier run was writing when it died."""
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

    def waiting_bytes(self, name: str) -> int:
        queue = self._queues.get(name)
        if queue is None or not queue.depth:
            return 0
        files = QueueFiles(self._data_path, name, fs=self._fs)
        try:
            position = disk_queue_files.load_position(files.meta, fs=self._fs) or QueuePosition()
            numbers = [number for number in files.all_existing() if number >= position.read_file]
            size = sum([self._fs.file_size(files.data(number)) for number in numbers]) - position.read_pos
        except (OSError, StorageError) as failure:
            _log.warning("the messages in %s are not counted among the bytes that wait - %s", files.meta, failure)
            return 0
        return max(0, size - STORED_HEADER_BYTES * queue.depth)

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

    def remove_leftovers(self) -> None:
        data_folder.remove_leftovers(self._data_path, fs=self._fs)

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


_TOMBSTONE = re.compile(rf"(.+){re.escape(FOLDER_SUFFIX)}\.[0-9a-f]{{16}}{re.escape(REMOVED_SUFFIX)}")
"""The name of the folder of a deleted journal; the group is the topic."""


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


class JournalStore:
    """The journals in a data folder."""

    def __init__(
        self,
        data_path: Path,
        settings: JournalSettings,
        *,
        clock: Clock,
        workers: Workers | None = None,
        fs: Files = OS_FILES,
    ) -> None:
        self.settings = settings
        self._fs = fs
        self._data_path = data_path
        self._clock = clock
        self._workers = workers or Workers()
        self._turns: LoggingTurns | None = None
        self.tombstones: list[Path] = []
        """The folders of deleted journals that are not gone yet. Others get a copy."""
        self._deleted: set[str] = set()
        """The topics of which this run found such a folder when it began."""

    def logging_turns(self, timers: Timers) -> LoggingTurns:
        """The turns that the channels of all topics share."""
        if self._turns is None:
            self._turns = LoggingTurns(clock=self._clock, timers=timers)
        return self._turns

    def has(self, topic: str) -> bool:
        """Whether this topic is journaled, or is to be once it exists."""
        return not is_ephemeral(topic) and (self.has_folder(topic) or self.settings.is_wanted(topic))

    def has_folder(self, topic: str) -> bool:
        """Whether there is a journal of this topic."""
        return self._fs.is_folder(self._folder(topic))

    def topic_names(self) -> list[str]:
        """The topics that have a journal."""
        names = (name.removesuffix(FOLDER_SUFFIX) for name in self._names() if name.endswith(FOLDER_SUFFIX))
        return sorted(name for name in names if is_valid_name(name))

    def _names(self) -> list[str]:
        return self._fs.names(self._data_path) if self._fs.is_folder(self._data_path) else []

    def open(self, topic: str, *, max_bytes: int | None = None) -> JournalFolder:
        """Open a topic's folder, or make one. StorageError if that cannot be done.

        `max_bytes` limits the size of the journal, in place of the limit for all.
        """
        settings = self.settings
        config = settings.config if max_bytes is None else replace(settings.config, max_bytes=max_bytes)
        return JournalFolder(
            self._folder(topic),
            replace(config, is_seen_unsynced=settings.sync is not SyncMode.ALWAYS),
            clock=self._clock,
            workers=self._workers,
            fs=self._fs,
        )

    def _folder(self, topic: str) -> Path:
        return self._data_path / f"{topic}{FOLDER_SUFFIX}"

    # Deleted journals.

    def bury(self, tombstone: Path, told: Told) -> None:
        """The folder of a journal was renamed to this. `told` is called when that is on the disk, or why it is not.

        Then its files are removed, soon. If it is not on the disk, the next run removes them: until then a power
        failure may bring the journal back, and must bring back all of it.
        """
        self.tombstones.append(tombstone)

        def work() -> None:
            failure = self._sync_names()
            self._workers.hand_back(lambda: self._buried(tombstone, failure, told))

        self._workers.start(work)

    def _buried(self, tombstone: Path, failure: StorageError | None, told: Told) -> None:
        if failure is None:
            self._workers.start_removing(lambda: self._empty(tombstone))
        told(failure)

    def find_leftovers(self) -> None:
        """Find the deleted journals that an earlier run did not come to remove, and remove their files, soon."""
        found = [match for match in map(_TOMBSTONE.fullmatch, self._names()) if match is not None]
        self._deleted = {match[1] for match in found}
        self.tombstones = tombstones = [self._data_path / match[0] for match in found]

        def work() -> None:
            if self._sync_names() is None:  # the process may have died before it did
                for tombstone in tombstones:
                    self._empty(tombstone)

        if tombstones:
            self._workers.start_removing(work)

    def was_deleted(self, topic: str) -> bool:
        """Whether an earlier run deleted the journal of this topic, and nsqd.dat may not know that."""
        return topic in self._deleted and not self.has_folder(topic)

    def forget(self, tombstones: list[Path]) -> None:
        """Remove these folders, soon: nsqd.dat is on the disk and does not name their topics."""
        self.tombstones = [tombstone for tombstone in self.tombstones if tombstone not in tombstones]
        self._workers.start_removing(lambda: self._remove(tombstones))

    def _sync_names(self) -> StorageError | None:
        try:
            self._fs.sync_folder(self._data_path)
        except OSError as error:
            _log.error("failed to sync %s - %s", self._data_path, error)
            return StorageError(os_error_text("sync", self._data_path, error))
        return None

    def _empty(self, tombstone: Path) -> None:
        try:
            empty_folder(tombstone, fs=self._fs.patient)
        except FileNotFoundError:
            return  # nsqd.dat was saved first, and all of it is gone
        except OSError as error:
            _log.error("failed to remove a deleted journal - %s", error)

    def _remove(self, tombstones: list[Path]) -> None:
        for tombstone in tombstones:
            try:
                remove_folder(tombstone, fs=self._fs.patient)
            except OSError as error:
                _log.error("failed to remove a deleted journal - %s", error)
