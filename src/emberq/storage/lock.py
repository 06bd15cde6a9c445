"""One process per data folder.

The lock is an exclusive `flock` on the folder itself, so it leaves no lock file behind and dies with the process.
The Go nsqd locks the same way: the two exclude each other. The folder must exist; it is never created, because a
mistyped path must not start an empty broker.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from emberq.storage.errors import DataPathError, os_error_text


class DataPathLock:
    """Holds a data folder from `acquire` to `release`. The empty path is the current folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock at once, or raise DataPathError."""
        if self._fd is not None:
            raise RuntimeError("the data path is locked by this very object")
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            text = os_error_text("open", self._path, error)
            raise DataPathError(f"failed to lock data-path: {text}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            reason = (error.strerror or str(error)).lower()
            raise DataPathError(
                f"failed to lock data-path: cannot flock directory {self._path} - {reason}"
                " (possibly in use by another instance of nsqd)"
            ) from error
        self._fd = fd

    def release(self) -> None:
        """Let others have the folder; does nothing when the lock is not held."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
