"""Where the broker's queues live: one place that knows which files belong to which topic or channel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from emberq.storage import due
from emberq.storage.backend import Backend, NullQueue
from emberq.storage.diskqueue import DiskQueue
from emberq.storage.due import Kind
from emberq.storage.limits import DiskLimits
from emberq.storage.naming import QueueFiles
from emberq.storage.sync import Syncer
from emberq.wire.name import is_ephemeral


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


class DiskStore:
    """Files in the data folder."""

    def __init__(self, data_path: Path, *, limits: DiskLimits, syncer: Syncer) -> None:
        self._data_path = data_path
        self._limits = limits
        self._syncer = syncer

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

    def _times_path(self, name: str) -> Path:
        return QueueFiles(self._data_path, name).due
