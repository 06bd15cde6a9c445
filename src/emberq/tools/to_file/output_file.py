"""One open file, plain or gzip.

A plain file may be continued. If a crash left it in the middle of a line, that line is ended first, so that it does not
swallow the beginning of the next message.

A gzip file is a sequence of members, each complete in itself, which every decompressor reads as one:

    | member | member | ... |      one member from sync to sync

Whatever was synced before a crash can therefore be read after it, even if a torn member follows. But nothing could be
read behind a torn member, so gzip files are never continued: they are created, or not opened at all. A file without any
message gets one empty member at its end, because an empty file is not valid gzip.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

from emberq.tools.to_file.file_name import PLAIN
from emberq.tools.to_file.folder import make_folder, sync_folder

FILE_MODE = 0o666
"""Less what the user's umask takes away."""

_GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""What zlib takes for "in the gzip format, with the largest window"."""
_NEWLINE = b"\n"


class OutputFile:
    """Owned by a `TopicFiles`. A file that raised OSError once is only good for closing."""

    def __init__(self, fd: int, path: Path, *, size_bytes: int, gzip_level: int) -> None:
        self._fd = fd
        self.path = path
        self.size_bytes = size_bytes
        """Of the content, before compression."""
        self._gzip_level = gzip_level
        self._member: zlib._Compress | None = None
        """The member that is being written."""
        self._is_synced = True

    @classmethod
    def create(cls, path: Path, *, gzip_level: int = PLAIN) -> Self:
        """A new file; FileExistsError if the name is taken."""
        make_folder(path.parent)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, FILE_MODE)
        file = cls(fd, path, size_bytes=0, gzip_level=gzip_level)
        file._guarded(lambda: sync_folder(path.parent))
        return file

    @classmethod
    def create_or_continue(cls, path: Path) -> Self:
        """The plain file of that name, new or not."""
        try:
            return cls.create(path)
        except FileExistsError:
            fd = os.open(path, os.O_RDWR | os.O_APPEND)
        file = cls(fd, path, size_bytes=os.fstat(fd).st_size, gzip_level=PLAIN)
        file._guarded(file._end_torn_line)
        return file

    def __repr__(self) -> str:
        return f"<OutputFile {self.path} {self.size_bytes} bytes>"

    def write(self, lines: bytes) -> None:
        """Append the lines. They are safe after the next `sync`."""
        self.size_bytes += len(lines)
        self._write_out(lines if self._gzip_level == PLAIN else self._compress(lines))
        self._is_synced = False

    def sync(self) -> None:
        """Return when everything written so far is on the disk and can be read from there."""
        if self._is_synced:
            return
        if self._member is not None:
            self._write_out(self._member.flush(zlib.Z_FINISH))
            self._member = None
        os.fsync(self._fd)
        self._is_synced = True

    def close(self) -> None:
        """Sync and close; closed it is in any case."""
        try:
            if self._gzip_level != PLAIN and self.size_bytes == 0:
                self.write(b"")
            self.sync()
        finally:
            os.close(self._fd)

    def _guarded(self, preparation: Callable[[], None]) -> None:
        """What is left to do before anybody can use the file; if it fails the file is closed."""
        try:
            preparation()
        except OSError:
            os.close(self._fd)
            raise

    def _compress(self, content: bytes) -> bytes:
        if self._member is None:
            self._member = zlib.compressobj(self._gzip_level, zlib.DEFLATED, _GZIP_WINDOW)
        return self._member.compress(content)

    def _write_out(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _end_torn_line(self) -> None:
        if self.size_bytes and os.pread(self._fd, 1, self.size_bytes - 1) != _NEWLINE:
            self.write(_NEWLINE)
