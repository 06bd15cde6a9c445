"""Real files without the wait for the disk, for tests whose subject is not what a crash leaves (see `tests/crash`)."""

from __future__ import annotations

from pathlib import Path

from emberq.base.file import OsFiles


class UnsyncedFiles(OsFiles):
    """Whatever is synced is taken for synced at once."""

    def sync(self, fd: int) -> None: ...

    def sync_data(self, fd: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...
