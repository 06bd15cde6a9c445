"""nsqd.dat as the daemon keeps it: read once, written whenever topics or channels come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from emberq.storage import metadata
from emberq.storage.errors import StorageError
from emberq.storage.metadata import Metadata

_log = logging.getLogger(__name__)


class MetadataFile:
    """Writes snapshots in the order they were taken, from whichever thread; a late older one is not written."""

    def __init__(self, path: Path, *, run: Callable[[Callable[[], None]], None]) -> None:
        self.path = path
        self._run = run
        """Runs a function soon, off the loop's thread."""
        self._lock = threading.Lock()
        self._taken = 0
        """Snapshots taken; counted by the loop's thread alone."""
        self._written = 0
        """The newest snapshot in the file; guarded by `_lock`."""

    def load(self) -> Metadata:
        """What the last run left."""
        return metadata.load(self.path)

    def save(self, snapshot: Metadata) -> None:
        """Write the snapshot and return when it is on disk; StorageError if it cannot be."""
        self._taken += 1
        self._write(snapshot, self._taken)

    def save_soon(self, snapshot: Metadata) -> None:
        """Write the snapshot without waiting for the disk."""
        self._taken += 1
        number = self._taken
        self._run(lambda: self._write_or_log(snapshot, number))

    def _write_or_log(self, snapshot: Metadata, number: int) -> None:
        try:
            self._write(snapshot, number)
        except StorageError as failure:
            _log.error("failed to persist metadata - %s", failure)

    def _write(self, snapshot: Metadata, number: int) -> None:
        with self._lock:
            if number > self._written:
                metadata.save(self.path, snapshot)
                self._written = number
