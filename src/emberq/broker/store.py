"""Where the broker's queues live: one place that knows which files belong to which topic or channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from emberq.storage import due, policy
from emberq.storage.backend import Backend, NullQueue
from emberq.storage.diskqueue import DiskQueue
from emberq.storage.due import Kind
from emberq.storage.limits import DiskLimits
from emberq.storage.naming import QueueFiles
from emberq.storage.policy import PolicyEntry
from emberq.storage.sync import Syncer
from emberq.wire.name import is_ephemeral, is_valid_name


class Store(Protocol):
    """Opens backends by name and keeps due times beside them."""

    def backend(self, name: str) -> Backend:
        """The opened backend of a topic (`t`) or channel (`t:c`)."""
        ...

    def load_times(self, name: str, kind: Kind) -> dict[bytes, int]:
        """The times saved for messages in that backend, by id."""
        ...

    def save_times(self, name: str, kind: Kind, times: Mapping[bytes, int]) -> None:
        """Keep the times for the next run; an empty mapping removes what was kept."""
        ...

    def left_queues(self, topic: str) -> list[str]:
        """The names of the backends of a topic and its channels that an earlier run has left."""
        ...

    def load_policies(self) -> list[PolicyEntry]:
        """The policies saved for channels."""
        ...

    def save_policies(self, entries: Iterable[PolicyEntry]) -> None:
        """Keep them for the next run, in place of those that were kept."""
        ...


class DiskStore:
    """Files in the data folder."""

    def __init__(self, data_path: Path, *, limits: DiskLimits, syncer: Syncer) -> None:
        self._data_path = data_path
        self._limits = limits
        self._syncer = syncer
        self._left: dict[str, list[str]] | None = None
        """The queues that were there when somebody first asked, by topic: a folder may hold very many files."""

    def backend(self, name: str) -> Backend:
        if is_ephemeral(name):
            return NullQueue()
        queue = DiskQueue(name, data_path=self._data_path, limits=self._limits, syncer=self._syncer)
        queue.open()
        return queue

    def load_times(self, name: str, kind: Kind) -> dict[bytes, int]:
        return {} if is_ephemeral(name) else due.load(self._times_path(name), kind=kind)

    def save_times(self, name: str, kind: Kind, times: Mapping[bytes, int]) -> None:
        if not is_ephemeral(name):
            due.save(self._times_path(name), times, kind=kind)

    def load_policies(self) -> list[PolicyEntry]:
        return policy.load(self._data_path / policy.FILE_NAME)

    def save_policies(self, entries: Iterable[PolicyEntry]) -> None:
        policy.save(self._data_path / policy.FILE_NAME, entries)

    def left_queues(self, topic: str) -> list[str]:
        if self._left is None:
            self._left = _queues_by_topic(self._data_path)
        return [name for name in self._left.get(topic, ()) if QueueFiles(self._data_path, name).meta.exists()]

    def _times_path(self, name: str) -> Path:
        return QueueFiles(self._data_path, name).due


def _queues_by_topic(data_path: Path) -> dict[str, list[str]]:
    """The disk queues in a folder. One that has no meta file is empty."""
    queues: dict[str, list[str]] = {}
    for name in sorted(QueueFiles.names_in(data_path)):
        topic, _, channel = name.partition(":")
        if is_valid_name(topic) and (not channel or is_valid_name(channel)):
            queues.setdefault(topic, []).append(name)
    return queues
