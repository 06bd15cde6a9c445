"""Making the names of files durable: a file that is synced can still vanish in a power failure if its folder is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FOLDER_MODE = 0o770


def sync_folder(path: Path) -> None:
    """Make creations and deletions in the folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create the folder and those above it where they are missing, durably."""
    if path.is_dir():
        return
    if path.exists():  # not a FileExistsError: that is about the name of a file, and another one may do
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    sync_folder(path.parent)


def move_without_replacing(source: Path, *, target: Path) -> None:
    """Give a file another name, durably; FileExistsError if that name is taken.

    A rename would replace the other file. So the file gets the second name first and loses the old one then; in between
    a crash leaves it with both.
    """
    make_folder(target.parent)
    os.link(source, target)
    sync_folder(target.parent)
    source.unlink()
