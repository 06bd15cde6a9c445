"""The files of one topic, written, synced and rotated. All of it blocks, and is meant for a thread.

**One file** (`OutputFile`) is plain or gzip. A plain file may be continued. If a crash left it in the middle of a line,
that line is ended first, so that the next message begins on a line of its own. A gzip file is a sequence of members,
each complete in itself, which every decompressor reads as one:

    | member | member | ... |      one member from sync to sync

So whatever was synced before a crash can be read after it, even if a torn member follows. But nothing could be read
behind a torn member, so gzip files are never continued: they are created, or not opened at all. A file without any
message gets one empty member at its end, because an empty file is not valid gzip.

**Rotation** (`TopicFiles`). The next file begins when the name no longer fits the time, when the file has been open for
`--rotate-interval`, or when it is larger than `--rotate-size`. That is checked at each message and at each tick of the
clock. The last message of a file is the one that made it too large.

    Revisions   With gzip or --rotate-interval every file is new: if the name is taken, the next revision is tried.
                Otherwise a file that exists is continued, unless it is too large already.
    Work dir    Files are written in --work-dir and moved to --output-dir when they are complete, under a name that no
                other file has there: a file that exists is never replaced. After a crash the last file is still in
                the work dir. It is continued if that is allowed, and else stays there for its owner to look at.
    Empty ones  A tick opens a file even if there is nothing to write, so that a reader who expects one per hour gets
                it; not so with --skip-empty-files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from zlib_ng import zlib_ng

from emberq.base.clock import Clock
from emberq.base.file import make_folder, move_without_replacing, sync_folder
from emberq.tools.nsq_to_file.options import PLAIN, FileName, FileNameFormat, ToFileOptions

# One file.

FILE_MODE = 0o660
"""Messages may be confidential, so no stranger reads them; the group may, unless the user's umask takes that away."""

_GZIP_WINDOW = 16 + zlib_ng.MAX_WBITS
"""zlib's number for the gzip format with the largest window."""
_NEWLINE = b"\n"
_AS_IT_IS = getattr(os, "O_BINARY", 0)
"""Windows would write each line feed as two bytes."""


class OutputFile:
    """One open file. Owned by a `TopicFiles`. After an OSError it can only be closed."""

    def __init__(self, fd: int, path: Path, *, size_bytes: int, gzip_level: int) -> None:
        self._fd = fd
        self.path = path
        self.size_bytes = size_bytes
        """The size of the content, before compression."""
        self._gzip_level = gzip_level
        self._member: zlib_ng._Compress | None = None
        """The member that is being written."""
        self._is_synced = True

    @classmethod
    def create(cls, path: Path, *, gzip_level: int = PLAIN) -> Self:
        """A new file; FileExistsError if the name is taken."""
        make_folder(path.parent)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | _AS_IT_IS, FILE_MODE)
        file = cls(fd, path, size_bytes=0, gzip_level=gzip_level)
        file._guarded(lambda: sync_folder(path.parent))
        return file

    @classmethod
    def create_or_continue(cls, path: Path) -> Self:
        """The plain file of that name, new or not."""
        try:
            return cls.create(path)
        except FileExistsError:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | _AS_IT_IS)
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
            self._write_out(self._member.flush(zlib_ng.Z_FINISH))
            self._member = None
        os.fsync(self._fd)
        self._is_synced = True

    def close(self) -> None:
        """Sync and close. The file is closed even if the sync fails."""
        try:
            if self._gzip_level != PLAIN and self.size_bytes == 0:
                self.write(b"")
            self.sync()
        finally:
            os.close(self._fd)

    def _guarded(self, preparation: Callable[[], None]) -> None:
        """Run the last step of opening. If it fails, the file is closed."""
        try:
            preparation()
        except OSError:
            os.close(self._fd)
            raise

    def _compress(self, content: bytes) -> bytes:
        if self._member is None:
            self._member = zlib_ng.compressobj(self._gzip_level, zlib_ng.DEFLATED, _GZIP_WINDOW)
        return self._member.compress(content)

    def _write_out(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _end_torn_line(self) -> None:
        if not self.size_bytes:
            return
        os.lseek(self._fd, self.size_bytes - 1, os.SEEK_SET)  # what is written goes to the end in any case
        if os.read(self._fd, 1) != _NEWLINE:
            self.write(_NEWLINE)


# Rotation.

logger = logging.getLogger(__name__)


class OutputError(Exception):
    """A file could not be written; the text says which and why. What was not synced may be lost."""


class TopicFiles:
    """The files of one topic, one after the other. Used by one thread at a time, and not after an `OutputError`."""

    def __init__(self, names: FileNameFormat, options: ToFileOptions, *, clock: Clock, label: str) -> None:
        self._names = names
        self._options = options
        self._clock = clock
        self._label = label
        """The start of its log lines."""
        self._file: OutputFile | None = None
        self._opened_ns = 0
        self._name = FileName("")
        """The name of the last file opened."""
        self._revision = 0
        """The revision of that file, or the first to try for the next file of the name."""

    def append(self, bodies: Sequence[bytes], *, sync: bool) -> bool:
        """Write one line for each body. Returns whether everything appended so far is synced."""
        with self._translated_errors():
            has_rotated = False
            start = 0
            while start < len(bodies):
                has_rotated |= self._rotate_if_due()
                file = self._current()
                end = self._end_of_share(file, bodies, start)
                file.write(b"\n".join(bodies[start:end]) + b"\n")
                start = end
            if sync or has_rotated:  # what was written before the rotation is synced; this syncs the rest
                self._sync()
            return sync or has_rotated

    def tick(self) -> None:
        """Begin the next file if it is due, and sync. Called at each tick of the clock."""
        with self._translated_errors():
            self._rotate_if_due()
            if not self._options.skip_empty_files:
                self._current()
            self._sync()

    def reopen(self) -> None:
        """Sync and close the file, and open it or the next one: an operator may have moved it away."""
        with self._translated_errors():
            self._finish()
            if not self._options.skip_empty_files:
                self._current()

    def close(self) -> None:
        """Sync and close the file, which is complete then."""
        with self._translated_errors():
            self._finish()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = error.filename or (self._file.path if self._file is not None else self._options.output_dir)
            if error.filename2 is not None:
                place = f"{place} -> {error.filename2}"
            raise OutputError(f"{place}: {error.strerror or error}") from error

    # Rotation

    def _rotate_if_due(self) -> bool:
        file = self._file
        if file is None or not self._is_complete(file):
            return False
        self._finish()
        return True

    def _is_complete(self, file: OutputFile) -> bool:
        interval_ns = self._options.rotate_interval_ns
        return (
            self._is_too_large(file)
            or (interval_ns > 0 and self._clock.monotonic_ns() - self._opened_ns > interval_ns)
            or self._names.at(self._clock.wall_ns()) != self._name
        )

    def _is_too_large(self, file: OutputFile) -> bool:
        return 0 < self._options.rotate_size < file.size_bytes

    def _end_of_share(self, file: OutputFile, bodies: Sequence[bytes], start: int) -> int:
        """Where the part of `bodies` for this file ends: behind the one that makes it too large, or at the end."""
        limit_bytes = self._options.rotate_size
        if limit_bytes == 0:
            return len(bodies)
        size_bytes = file.size_bytes
        for index in range(start, len(bodies)):
            size_bytes += len(bodies[index]) + 1
            if size_bytes > limit_bytes:
                return index + 1
        return len(bodies)

    # The current file

    def _sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def _current(self) -> OutputFile:
        if self._file is None:
            self._file = self._open()
        return self._file

    def _open(self) -> OutputFile:
        name = self._names.at(self._clock.wall_ns())
        if name != self._name:
            self._name = name
            self._revision = 0
        while (file := self._try_open(Path(name.with_revision(self._revision)))) is None:
            self._revision += 1
        self._opened_ns = self._clock.monotonic_ns()
        logger.info("%s opening %s", self._label, file.path)
        return file

    def _try_open(self, relative: Path) -> OutputFile | None:
        """The file of that name; None if the name cannot be used, which happens only to names with a revision."""
        options = self._options
        if options.has_work_dir and Path(options.output_dir, relative).exists():
            return None
        path = Path(options.folder_of_open_files, relative)
        try:
            if options.creates_only:
                return OutputFile.create(path, gzip_level=options.compression_level)
            file = OutputFile.create_or_continue(path)
        except FileExistsError:
            return None
        if self._is_too_large(file):
            file.close()
            return None
        return file

    def _finish(self) -> None:
        """Close the file, and move it to the output folder."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        if self._options.has_work_dir:
            self._move_to_output(file.path)
        if self._options.creates_only or self._options.has_work_dir or self._is_too_large(file):
            self._revision += 1  # its name is not used again, even if the file is moved away

    def _move_to_output(self, source: Path) -> None:
        while True:
            target = Path(self._options.output_dir, self._name.with_revision(self._revision))
            try:
                move_without_replacing(source, target=target)
            except FileExistsError:  # created since the name was chosen
                self._revision += 1
            else:
                logger.info("%s moved finished file %s to %s", self._label, source, target)
                return
