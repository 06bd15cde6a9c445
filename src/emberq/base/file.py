"""Durable files: replace, write fully, fsync a folder, move without replacing.

Replacing a small file as a whole.

The new content goes to `<name>.<random number>.tmp` beside it, is fsynced and then renamed over the old file, so
whoever opens the file finds either all of the old content or all of the new. The rename itself is durable once the
folder is fsynced too; callers that act on that (by deleting what only the old content named) ask for it.

Making the names of files durable: a file that is synced can still vanish in a power failure if its folder is not.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

FILE_MODE = 0o600
"""Messages may be confidential: only the daemon's user reads them."""


def replace_file(path: Path, content: bytes) -> None:
    """Make `content` the content of `path`, fsynced, or leave the old file as it was and raise OSError."""
    temporary = path.with_name(f"{path.name}.{secrets.randbits(63)}.tmp")
    try:
        _write_new(temporary, content)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """Make renames, creations and deletions in the folder `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_fully(fd: int, content: bytes | memoryview, *, position: int) -> tuple[int, OSError | None]:
    """Write `content` at `position`; return how many bytes arrived, and the error that stopped the rest."""
    written = 0
    try:
        while written < len(content):
            # The first round, nearly always the only one, hands over the whole buffer without slicing it.
            rest = memoryview(content)[written:] if written else content
            written += os.pwrite(fd, rest, position + written)
    except OSError as error:
        return written, error
    return written, None


def _write_new(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        _, error = write_fully(fd, content, position=0)
        if error is not None:
            raise error
        os.fsync(fd)
    finally:
        os.close(fd)


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
