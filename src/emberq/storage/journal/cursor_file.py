"""The bytes of a cursor, and its file.

    0   magic "EMBERQCU"       8   crc32 of all that follows     12  version: uint32
    16  uuid of the journal    32  low-water mark: int64
    40  count of ranges        44  count of attempts    48  count of due times    52  zeros: uint32 each
    56  starts of the acknowledged ranges, then their stops: int64 each
    ..  offsets of tried messages: int64 each, then how often: uint16 each     padded to 8 with zeros
    ..  offsets of messages that were put off, then when they are due: int64 each

The file is replaced as a whole, so a crash leaves the old one or the new one. An older one than the channel had is
harmless: messages come again. None is lost, as long as what is acknowledged in it is never more than was.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from uuid import UUID
from zlib import crc32

from emberq.storage.atomic import replace_file, sync_directory
from emberq.storage.errors import StorageError, os_error_text
from emberq.storage.journal.batch import padded
from emberq.storage.journal.cursor import MAX_NOTES, Cursor
from emberq.storage.journal.error import DamagedCursorError
from emberq.storage.journal.offset_set import OffsetSet

MAGIC = b"EMBERQCU"
VERSION = 1

_PREFIX = struct.Struct("<8sI")
_HEADER = struct.Struct("<I16sqIIII")


def to_bytes(cursor: Cursor) -> bytes:
    """The content of the cursor's file."""
    above, attempts, due_ns = cursor.acknowledged_above, cursor.attempts, cursor.due_ns
    tried = array("H", attempts.values()).tobytes()
    content = b"".join(
        (
            _HEADER.pack(
                VERSION, cursor.journal.bytes, cursor.low_water, len(above.starts), len(attempts), len(due_ns), 0
            ),
            array("q", above.starts).tobytes(),
            array("q", above.stops).tobytes(),
            array("q", attempts).tobytes(),
            tried,
            bytes(padded(len(tried)) - len(tried)),
            array("q", due_ns).tobytes(),
            array("q", due_ns.values()).tobytes(),
        )
    )
    return _PREFIX.pack(MAGIC, crc32(content)) + content


def from_bytes(content: bytes, *, journal: UUID, max_notes: int = MAX_NOTES) -> Cursor:
    """The cursor in a file. DamagedCursorError if it is none, or one of another journal."""
    if len(content) < _PREFIX.size + _HEADER.size:
        raise DamagedCursorError("too short")
    magic, crc = _PREFIX.unpack_from(content)
    if magic != MAGIC or crc != crc32(memoryview(content)[_PREFIX.size :]):
        raise DamagedCursorError("the crc does not fit the contents")
    version, uuid, low_water, ranges, attempts, due, _ = _HEADER.unpack_from(content, _PREFIX.size)
    if version != VERSION:
        raise DamagedCursorError(f"it is of version {version}, this version reads {VERSION}")
    if uuid != journal.bytes:
        raise DamagedCursorError(f"it belongs to another journal, {UUID(bytes=uuid)}")
    columns = _Columns(content, at=_PREFIX.size + _HEADER.size)
    cursor = Cursor.restored(
        journal,
        low_water=low_water,
        above=_ranges(columns.take("q", ranges), columns.take("q", ranges), low_water=low_water),
        attempts=dict(zip(columns.take("q", attempts), columns.take("H", attempts), strict=True)),
        due_ns=dict(zip(columns.take("q", due), columns.take("q", due), strict=True)),
        max_notes=max_notes,
    )
    columns.finish()
    return cursor


def save_cursor(path: Path, content: bytes) -> None:
    """Replace the file by what `to_bytes` gave, fsynced; may be called in any thread. StorageError if that fails."""
    try:
        is_new = not path.exists()
        replace_file(path, content)
        if is_new:
            sync_directory(path.parent)
    except OSError as error:
        raise StorageError(os_error_text("write", path, error)) from error


def load_cursor(path: Path, *, journal: UUID) -> Cursor | None:
    """The cursor in a file; None if there is no file. DamagedCursorError if it is not one of this journal."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(os_error_text("read", path, error)) from error
    return from_bytes(content, journal=journal)


class _Columns:
    """Takes one column after the other from the content of a file."""

    def __init__(self, content: bytes, *, at: int) -> None:
        self._content = content
        self._at = at

    def take(self, typecode: str, count: int) -> Sequence[int]:
        column: array[int] = array(typecode)
        end = self._at + count * column.itemsize
        if end > len(self._content):
            raise DamagedCursorError("the length does not fit the contents")
        column.frombytes(self._content[self._at : end])
        self._at = padded(end)
        return column

    def finish(self) -> None:
        if self._at != len(self._content):
            raise DamagedCursorError("the length does not fit the contents")


def _ranges(starts: Sequence[int], stops: Sequence[int], *, low_water: int) -> OffsetSet:
    """The acknowledged ranges, which must ascend above the low-water mark with gaps between them."""
    edges = [low_water]
    for start, stop in zip(starts, stops, strict=True):
        edges += (start, stop)
    if edges[0] < 0 or any(later <= earlier for earlier, later in pairwise(edges)):
        raise DamagedCursorError("the acknowledged ranges do not ascend")
    return OffsetSet(starts, stops)
