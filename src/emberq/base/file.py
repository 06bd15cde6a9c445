"""Durable files: what a program has written is whole, and still there after a power failure.

    replace_file            a small file gets new content as a whole
    write_fully             all bytes of a buffer, or how far it came
    sync_file               the content of a file is on the disk
    sync_folder             the names of files in a folder are on the disk
    make_folder             a folder that is there after a power failure
    move_without_replacing  another name for a file, unless it is taken

Content and name of a file become durable separately. A file that is synced can still vanish in a power failure if its
folder is not; a rename can come undone. So a caller that acts on a new name, or on a name that is gone, syncs the
folder first.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

FILE_MODE = 0o600
"""Messages may be confidential: only the daemon's user reads them."""
FOLDER_MODE = 0o770


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Make `content` the content of `path`, or leave the old file as it was and raise OSError.

    The content goes to `<name>.<random number>.tmp` beside it, is fsynced if it is to be durable, and is renamed over
    the old file. So a reader finds either all of the old content or all of the new. Without `durable` a power failure
    may leave a file with part of the content.
    """
    temporary = path.with_name(f"{path.name}.{secrets.randbits(63)}.tmp")
    try:
        _write_new(temporary, content, durable=durable)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _write_new(path: Path, content: bytes, *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    try:
        _, error = write_fully(fd, content, position=0)
        if error is not None:
            raise error
        if durable:
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


def sync_file(path: Path) -> None:
    """Make the content of a file durable; OSError if that fails, FileNotFoundError if there is no such file."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Make renames, creations and deletions in the folder durable; OSError if that fails."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
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
