"""Durable files: what a program has written is whole, and still there after a power failure.

    Files                   all that the storage layer asks of a file system
    OS_FILES                the one of the operating system; OS_FILES.patient gives way to syncs

    replace_file            a small file gets new content as a whole
    remove_temporary_files  what that left behind when the process died
    write_fully             all bytes of a buffer, or how far it came
    read_fully              so many bytes, fewer only at the end of the file
    read_around             the same, with zeros where the medium cannot be read
    sync_file               the content of a file is on the disk
    sync_folder             the names of files in a folder are on the disk
    make_folder             a folder that is there after a power failure
    empty_folder            everything in a folder goes
    remove_folder           and so does the folder
    move_without_replacing  another name for a file, unless it is taken

Content and name of a file become durable separately. A file that is synced can still vanish in a power failure if its
folder is not; a rename can come undone. So a caller that acts on a new name, or on a name that is gone, syncs the
folder first.

What a power failure leaves of a file that was not synced is anything: each page of it may be the new one or the old
one, in any order, and the size may be old although the pages are new. Of what was done to the names of a folder it
leaves the first so many changes. After a sync that failed the operating system may take pages for written that are not:
a second sync says that all is well. Code that must survive this is tested on a file system that does it (tests/crash),
which is why it takes a `Files` instead of calling the operating system.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

FILE_MODE = 0o600
"""Messages may be confidential: only the daemon's user reads them."""
FOLDER_MODE = 0o770

UNREADABLE_PIECE_BYTES = 4096
"""A medium fails by sectors. File systems read pages, so this is the least that one bad sector costs."""
_MEDIUM_ERRORS = frozenset((errno.EIO, errno.EBADMSG))
"""The medium did not give the bytes, or not those that were written (EBADMSG: a file system with checksums)."""
_NO_ROOM_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS))

_TEMPORARY = re.compile(r"(.+)\.[0-9]{1,19}\.tmp")
"""What `replace_file` calls the new file until it takes the place of the old one, whose name is the group."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Files(Protocol):
    """All that the storage layer asks of a file system. What fails raises OSError, as in `os`.

    A file is used by its descriptor, at positions that the caller names: there is no current position. Any thread may
    call any method.
    """

    # Files, by descriptor.

    def open(self, path: Path, flags: int) -> int:
        """A descriptor; `flags` as for `os.open`."""
        ...

    def close(self, fd: int) -> None: ...

    def duplicate(self, fd: int) -> int:
        """A second descriptor of the same file, with an owner of its own."""
        ...

    def read(self, fd: int, size: int, position: int) -> bytes:
        """At most `size` bytes; none at the end of the file."""
        ...

    def is_in_memory(self, fd: int, size: int, position: int) -> bool:
        """Whether all of these bytes can be read without waiting for the disk; True if unknown."""
        ...

    @property
    def patient(self) -> Files:
        """The same files for a thread that can wait: its reads and removals give way to the syncs of others."""
        ...

    def write(self, fd: int, content: bytes | memoryview, position: int) -> int:
        """Write; return how many bytes were taken, perhaps not all."""
        ...

    def write_parts(self, fd: int, parts: Sequence[bytes | bytearray], position: int) -> int:
        """Write some buffers one behind the other, in one go; return how many bytes were taken."""
        ...

    def size(self, fd: int) -> int: ...

    def truncate(self, fd: int, size: int) -> None: ...

    def discard(self, fd: int, *, in_haste: bool = False) -> None:
        """Close the last descriptor of a file that has no name any more; its room is given back between syncs.

        In haste, it is given back as fast as the disk can.
        """
        ...

    def sync(self, fd: int) -> None:
        """Return when content and size are on the disk."""
        ...

    def sync_data(self, fd: int) -> None:
        """As `sync`, without the times of the file."""
        ...

    # Files and folders, by name.

    def read_file(self, path: Path) -> bytes:
        """All of a file."""
        ...

    def file_size(self, path: Path) -> int: ...

    def exists(self, path: Path) -> bool: ...

    def is_folder(self, path: Path) -> bool: ...

    def names(self, folder: Path) -> list[str]:
        """The names of all files and folders in a folder."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name; a file that has that name goes."""
        ...

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None: ...

    def create_folder(self, path: Path) -> None: ...

    def delete_folder(self, path: Path) -> None:
        """Delete an empty folder."""
        ...

    def sync_folder(self, path: Path) -> None:
        """Return when the names in the folder are on the disk."""
        ...

    def boot_id(self) -> str:
        """Names the time since the machine was started: within it no write is lost. Empty: not known."""
        ...


class OsFiles:
    """The file system of the operating system: one call each."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def duplicate(self, fd: int) -> int:
        return os.dup(fd)

    def read(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def is_in_memory(self, fd: int, size: int, position: int) -> bool:
        _read_ahead(fd, not SYNCS.are_expected)  # for who reads on, from what is in memory to what is not
        cache = _page_cache()
        return cache is None or cache.has(fd, size, position)

    @property
    def patient(self) -> Files:
        return _PATIENT_FILES

    def write(self, fd: int, content: bytes | memoryview, position: int) -> int:
        return os.pwrite(fd, content, position)

    def write_parts(self, fd: int, parts: Sequence[bytes | bytearray], position: int) -> int:
        return os.pwritev(fd, parts, position)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def discard(self, fd: int, *, in_haste: bool = False) -> None:
        try:
            _give_back_room(fd, rest_s=0.0 if in_haste else REST_S)
        finally:
            os.close(fd)

    def sync(self, fd: int) -> None:
        with SYNCS.one():
            os.fsync(fd)

    def sync_data(self, fd: int) -> None:
        with SYNCS.one():
            if hasattr(os, "fdatasync"):
                os.fdatasync(fd)
            else:  # macOS syncs only everything
                os.fsync(fd)

    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def file_size(self, path: Path) -> int:
        return path.stat().st_size

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, folder: Path) -> list[str]:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        path.unlink(missing_ok=missing_ok)

    def create_folder(self, path: Path) -> None:
        path.mkdir(mode=FOLDER_MODE)

    def delete_folder(self, path: Path) -> None:
        path.rmdir()

    def sync_folder(self, path: Path) -> None:
        if not hasattr(os, "O_DIRECTORY"):
            return  # Windows opens no folders, and NTFS has a log of its own for names
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with SYNCS.one():
                os.fsync(fd)
        finally:
            os.close(fd)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""


OS_FILES = OsFiles()


# Reads and removals that give way.

PATIENT_BYTES = 64 * 1024
"""What a patient read asks the disk for at a time; a sync that begins meanwhile waits for no more."""
MAX_PATIENCE_S = 0.002
"""So long such a read waits at most for syncs to end: where there is always one under way, it has to go on beside."""
QUIET_S = 0.1
"""So long after the last sync none is expected, and files are read as fast as they can be."""
PIECE_GIVEN_BACK = 1024 * 1024
"""How much of a deleted file is freed at a time; a sync that begins meanwhile waits for no more."""
REST_S = 0.01
"""How long others have the disk for themselves before the next piece."""


class Syncs:
    """The syncs that are under way in this process, in whatever thread."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        self._last_s = -QUIET_S
        """When the last one ended, by the monotonic clock."""

    @property
    def are_expected(self) -> bool:
        """Whether there is one, or was lately."""
        return self._count > 0 or time.monotonic() - self._last_s < QUIET_S

    @contextmanager
    def one(self) -> Iterator[None]:
        """There is one more as long as this lasts."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """There is one more, or will be in a moment."""
        with self._changed:
            self._count += 1

    def end(self) -> None:
        """One that had begun is over."""
        with self._changed:
            self._count -= 1
            self._last_s = time.monotonic()
            if not self._count:
                self._changed.notify_all()

    def give_way(self) -> None:
        """Return when there is none, or after a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, MAX_PATIENCE_S)


SYNCS = Syncs()


class PatientFiles(OsFiles):
    """Reads in small pieces, between syncs, where there are any.

    A disk serves what it was asked for first. Reading a large file from one end to the other, with what the system
    reads ahead, makes a sync beside it take forty times as long (p99 20 to 60 ms instead of 0.5 ms, on an NVMe disk);
    so read, it takes as long as ever, and the file is read at half the rate.
    """

    def read(self, fd: int, size: int, position: int) -> bytes:
        if not SYNCS.are_expected:
            return os.pread(fd, size, position)
        _read_ahead(fd, False)
        pieces: list[bytes] = []
        while size:
            SYNCS.give_way()
            piece = os.pread(fd, min(size, PATIENT_BYTES), position)
            pieces.append(piece)
            if not piece:
                break
            size -= len(piece)
            position += len(piece)
        return b"".join(pieces)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW) if SYNCS.are_expected else None
        except OSError:
            fd = None  # if it is no file, or not there, the next line says so
        path.unlink(missing_ok=missing_ok)
        if fd is not None:
            self.discard(fd)


_PATIENT_FILES = PatientFiles()


def _give_back_room(fd: int, *, rest_s: float) -> None:
    """Free what a file without a name takes, in pieces, as long as others sync meanwhile.

    The next sync of any file waits until the file system has freed what was deleted before. Where it tells the disk of
    each free block, which is how many machines are set up, that takes 2 ms for a megabyte.
    """
    status = os.fstat(fd)
    size = status.st_size
    if status.st_nlink:
        return  # it has another name: a copy, made by a backup
    while size > PIECE_GIVEN_BACK and SYNCS.are_expected:
        size -= PIECE_GIVEN_BACK
        os.ftruncate(fd, size)
        time.sleep(rest_s)


def _read_ahead(fd: int, does_so: bool) -> None:
    """Let the system read more than it is asked for, or not."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL if does_so else os.POSIX_FADV_RANDOM)


# What of a file is in memory.


class PageCache:
    """Tells what Linux has in memory of a file. One for the whole process.

    To try and read it, even with RWF_NOWAIT, has the system begin to read what is not there. To map it and to call
    mincore begins nothing. These calls take microseconds, and keep the interpreter's lock: to give it away for so short
    a time would cost the caller its turn.
    """

    def __init__(self) -> None:
        import ctypes

        libc = ctypes.PyDLL(None)
        address, size = ctypes.c_void_p, ctypes.c_size_t
        libc.mmap.argtypes = (address, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        libc.mmap.restype = address
        libc.mincore.argtypes = (address, size, ctypes.c_char_p)
        libc.munmap.argtypes = (address, size)
        self._libc = libc
        self._no_address = address(-1).value
        self._new_buffer = ctypes.create_string_buffer

    def has(self, fd: int, size: int, position: int) -> bool:
        """Whether all of these bytes are there; True if the system does not tell."""
        start = position - position % mmap.PAGESIZE
        length = position + size - start
        address = self._libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
        if address == self._no_address:
            return True
        is_there = self._new_buffer(-(-length // mmap.PAGESIZE))  # a byte for each page
        is_told = self._libc.mincore(address, length, is_there) == 0
        self._libc.munmap(address, length)
        return not is_told or b"\0" not in is_there.raw


@functools.cache
def _page_cache() -> PageCache | None:
    return PageCache() if sys.platform == "linux" else None


# What is made of these operations.


def replace_file(path: Path, content: bytes, *, durable: bool = True, fs: Files = OS_FILES) -> None:
    """Make `content` the content of `path`, or leave the old file as it was and raise OSError.

    The content goes to `<name>.<random number>.tmp` beside it, is fsynced if it is to be durable, and is renamed over
    the old file. So a reader finds either all of the old content or all of the new. Without `durable` a power failure
    may leave a file with part of the content.
    """
    temporary = path.with_name(f"{path.name}.{secrets.randbits(63)}.tmp")
    try:
        _write_new(temporary, content, durable=durable, fs=fs)
        fs.rename(temporary, path)
    except OSError:
        with suppress(OSError):  # the disk may be gone; what is left is removed when the folder is opened again
            fs.unlink(temporary, missing_ok=True)
        raise


def remove_temporary_files(folder: Path, is_ours: Callable[[str], bool], *, fs: Files = OS_FILES) -> None:
    """Remove the new files that were to replace others when the process died. OSError if that fails.

    `is_ours` tells by the name of the file to be replaced whether it may be done.
    """
    for match in map(_TEMPORARY.fullmatch, fs.names(folder)):
        if match is not None and is_ours(match[1]):
            fs.unlink(folder / match[0], missing_ok=True)


def _write_new(path: Path, content: bytes, *, durable: bool, fs: Files) -> None:
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        _, error = write_fully(fd, content, position=0, fs=fs)
        if error is not None:
            raise error
        if durable:
            fs.sync(fd)
    finally:
        fs.close(fd)


def write_fully(
    fd: int, content: bytes | memoryview, *, position: int, fs: Files = OS_FILES
) -> tuple[int, OSError | None]:
    """Write `content` at `position`; return how many bytes arrived, and the error that stopped the rest."""
    written = 0
    try:
        while written < len(content):
            # The first round, nearly always the only one, hands over the whole buffer without slicing it.
            rest = memoryview(content)[written:] if written else content
            written += fs.write(fd, rest, position + written)
    except OSError as error:
        return written, error
    return written, None


def read_fully(fd: int, size: int, *, position: int, fs: Files = OS_FILES) -> bytes:
    """`size` bytes from `position` on, fewer only at the end of the file."""
    block = fs.read(fd, size, position)
    while len(block) < size:
        more = fs.read(fd, size - len(block), position + len(block))
        if not more:
            break
        block += more
    return block


class ReadAround(NamedTuple):
    """What could be read of a file, and where it could not be."""

    content: bytes
    """With zeros in the place of what could not be read."""
    unreadable: list[int]
    """Where each unreadable piece begins; pieces are aligned to their size."""


def read_around(fd: int, size: int, *, position: int, fs: Files = OS_FILES) -> ReadAround:
    """As `read_fully`, but a bad sector costs only the piece of the file that it is in. OSError for other failures."""
    try:
        return ReadAround(read_fully(fd, size, position=position, fs=fs), [])
    except OSError as error:
        if not is_medium_error(error):
            raise
    pieces: list[bytes] = []
    unreadable: list[int] = []
    end = min(position + size, fs.size(fd))
    while position < end:
        start = position - position % UNREADABLE_PIECE_BYTES
        piece_bytes = min(start + UNREADABLE_PIECE_BYTES, end) - position
        try:
            piece = read_fully(fd, piece_bytes, position=position, fs=fs)
        except OSError as error:
            if not is_medium_error(error):
                raise
            piece = bytes(piece_bytes)
            unreadable.append(start)
        pieces.append(piece)
        position += piece_bytes
    return ReadAround(b"".join(pieces), unreadable)


def is_medium_error(error: OSError) -> bool:
    """Whether the medium failed at this place; it may be well at others."""
    return error.errno in _MEDIUM_ERRORS


def lacks_room(failure: BaseException | None) -> bool:
    """Whether something failed, maybe through other failures, because the disk is full or takes no writes."""
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno in _NO_ROOM_ERRORS:
            return True
        failure = failure.__cause__
    return False


def sync_file(path: Path, *, fs: Files = OS_FILES) -> None:
    """Make the content of a file durable; OSError if that fails, FileNotFoundError if there is no such file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        fs.sync(fd)
    finally:
        fs.close(fd)


def sync_folder(path: Path) -> None:
    """Make renames, creations and deletions in the folder durable; OSError if that fails."""
    OS_FILES.sync_folder(path)


def make_folder(path: Path) -> None:
    """Create the folder and those above it where they are missing, durably."""
    if path.is_dir():
        return
    if path.exists():  # not a FileExistsError: that is about the name of a file, and another one may do
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)
    sync_folder(path.parent)


def empty_folder(path: Path, *, fs: Files = OS_FILES) -> None:
    """Remove everything in a folder, as far as that goes before an OSError."""
    for name in fs.names(path):
        try:
            fs.unlink(path / name)
        except IsADirectoryError:
            remove_folder(path / name, fs=fs)


def remove_folder(path: Path, *, fs: Files = OS_FILES) -> None:
    """Remove a folder and everything in it, as far as that goes before an OSError."""
    empty_folder(path, fs=fs)
    fs.delete_folder(path)


def move_without_replacing(source: Path, *, target: Path) -> None:
    """Give a file another name, durably; FileExistsError if that name is taken.

    A rename would replace the other file. So the file gets the second name first and loses the old one then; in between
    a crash leaves it with both.
    """
    make_folder(target.parent)
    os.link(source, target)
    sync_folder(target.parent)
    source.unlink()
