"""What one channel has acknowledged of a journal, and its file.

              low_water
    AAAAAAAAAAAA|....AAAA..AA......          A: acknowledged    .: not (yet)
                     ^^^^  ^^ acknowledged ranges above the low-water mark

Everything below the low-water mark is acknowledged; the offset at it is not. Of a message above it that has been tried
but not acknowledged, the cursor notes how often, and until when it is deferred. A cursor belongs to one journal: the
offsets of another one mean other messages.

Notes are bounded; the oldest are dropped first. If attempts are forgotten, they count from the start again; if a due
time is forgotten, the message is delivered too early. Neither loses anything.

Offsets are kept as a set of ranges (`OffsetSet`): what is acknowledged nearly in order is a few numbers, however much
it is.

The file:

    0   magic "EMBERQCU"       8   crc32 of all that follows     12  version: uint32
    16  uuid of the journal    32  low-water mark: int64
    40  count of ranges        44  count of attempts    48  count of due times    52  zeros: uint32 each
    56  starts of the acknowledged ranges, then their stops: int64 each
    ..  offsets of tried messages: int64 each, then how often: uint16 each     padded to 8 with zeros
    ..  offsets of deferred messages, then when they are due: int64 each

It is replaced as a whole, so a crash leaves the old one or the new one. An older one than the channel had is harmless:
messages come again. None is lost, because a file never acknowledges more than the channel had.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from uuid import UUID
from zlib import crc32

from emberq.base.file import OS_FILES, Files, is_medium_error, replace_file
from emberq.storage.error import DamagedCursorError, StorageError, os_error_text
from emberq.wire.journal_batch import padded


class OffsetSet:
    """Ranges in order, with a gap between any two: starts[0] < stops[0] < starts[1] < stops[1] < ..."""

    __slots__ = ("count", "starts", "stops")

    def __init__(self, starts: Sequence[int] = (), stops: Sequence[int] = ()) -> None:
        self.starts = list(starts)
        self.stops = list(stops)
        self.count = sum(stops) - sum(starts)
        """How many offsets are in the set."""

    def __contains__(self, offset: int) -> bool:
        following = bisect_right(self.starts, offset)
        return following > 0 and offset < self.stops[following - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, stop)."""
        return zip(self.starts, self.stops, strict=True)

    def add(self, start: int, stop: int) -> int:
        """Put the offsets from `start` up to `stop` in; return how many of them are new."""
        if start >= stop:
            return 0
        first = bisect_left(self.stops, start)  # the first range that reaches the new one, or touches it
        last = bisect_right(self.starts, stop)  # the first range that begins behind it
        before = self.count
        if first < last:
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
            self.count -= sum(self.stops[first:last]) - sum(self.starts[first:last])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]
        self.count += stop - start
        return self.count - before

    def remove_before(self, offset: int) -> None:
        """Take out everything before `offset`."""
        gone = bisect_right(self.stops, offset)
        self.count -= sum(self.stops[:gone]) - sum(self.starts[:gone])
        del self.starts[:gone], self.stops[:gone]
        if self.starts and self.starts[0] < offset:
            self.count -= offset - self.starts[0]
            self.starts[0] = offset

    def remove_from(self, offset: int) -> None:
        """Take out `offset` and everything behind it."""
        kept = bisect_left(self.starts, offset)
        self.count -= sum(self.stops[kept:]) - sum(self.starts[kept:])
        del self.starts[kept:], self.stops[kept:]
        if self.stops and self.stops[-1] > offset:
            self.count -= self.stops[-1] - offset
            self.stops[-1] = offset

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of offsets from `start` up to `stop` that are not in the set."""
        entry = bisect_right(self.stops, start)
        while start < stop:
            if entry == len(self.starts) or self.starts[entry] >= stop:
                yield start, stop
                return
            if start < self.starts[entry]:
                yield start, self.starts[entry]
            start = self.stops[entry]
            entry += 1


# The cursor.

MAX_NOTES = 1_000_000
"""How many attempts and how many due times are remembered, 16 bytes each in the file: enough for a channel with very
many requeued messages, and still saved within tens of milliseconds."""
MAX_ATTEMPTS = 0xFFFF
"""As many as the wire format can tell."""


class Cursor:
    """What a channel has acknowledged. Owned by the channel.

    Invariants: the set holds nothing below `low_water` and not `low_water` itself; notes are of offsets that are not
    acknowledged.
    """

    def __init__(self, journal: UUID, *, low_water: int = 0, max_notes: int = MAX_NOTES) -> None:
        self.journal = journal
        """The journal whose offsets these are."""
        self.low_water = low_water
        """Everything below it is acknowledged."""
        self._above = OffsetSet()
        self._attempts: dict[int, int] = {}
        self._due_ns: dict[int, int] = {}
        self._max_notes = max_notes

    def __repr__(self) -> str:
        return f"<Cursor at {self.low_water}, {self._above.count} acknowledged above it>"

    @classmethod
    def restored(
        cls,
        journal: UUID,
        *,
        low_water: int,
        above: OffsetSet,
        attempts: dict[int, int],
        due_ns: dict[int, int],
        max_notes: int = MAX_NOTES,
    ) -> Cursor:
        """A cursor as it was; for `from_bytes`, which has checked the values."""
        cursor = cls(journal, low_water=low_water, max_notes=max_notes)
        cursor._above = above
        cursor._attempts = attempts
        cursor._due_ns = due_ns
        return cursor

    # -- acknowledging -----------------------------------------------------------------------------------------

    @property
    def acknowledged_above(self) -> OffsetSet:
        """What is acknowledged above the low-water mark; not to be changed."""
        return self._above

    @property
    def high_water(self) -> int:
        """Neither this offset nor one behind it is acknowledged or noted."""
        above = self._above.stops[-1] if self._above.stops else 0
        noted = max((max(notes) + 1 for notes in (self._attempts, self._due_ns) if notes), default=0)
        return max(self.low_water, above, noted)

    def acknowledge(self, start: int, stop: int) -> int:
        """Acknowledge the messages from `start` up to `stop`; return how many of them were not before."""
        if start < self.low_water:
            start = self.low_water
        if start >= stop:
            return 0
        self._forget(start, stop)
        if start > self.low_water:
            return self._above.add(start, stop)
        if not self._above.starts:
            self.low_water = stop
            return stop - start
        fresh = self._above.add(start, stop)
        self.low_water = self._above.stops[0]
        self._above.remove_before(self.low_water)
        assert not self._above.starts or self.low_water < self._above.starts[0]
        return fresh

    def is_acknowledged(self, offset: int) -> bool:
        return offset < self.low_water or offset in self._above

    def unacknowledged(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The runs of messages from `start` up to `stop` that are not acknowledged, as (start, stop)."""
        return self._above.missing(max(start, self.low_water), stop)

    def count_unacknowledged(self, next_offset: int) -> int:
        """How many messages are not acknowledged, in a journal that ends at `next_offset`."""
        return max(0, next_offset - self.low_water - self._above.count)

    # -- moving ------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Forget everything and go on at `offset`, forwards or backwards."""
        self.low_water = offset
        self._above = OffsetSet()
        self._attempts = {}
        self._due_ns = {}

    def end_at(self, next_offset: int) -> None:
        """Forget `next_offset` and everything behind it: the journal ends there, and gives those offsets anew."""
        self.low_water = min(self.low_water, next_offset)
        self._above.remove_from(next_offset)
        for notes in (self._attempts, self._due_ns):
            for offset in [offset for offset in notes if offset >= next_offset]:
                del notes[offset]

    # -- notes -------------------------------------------------------------------------------------------------

    @property
    def attempts(self) -> Mapping[int, int]:
        """How often messages that are not acknowledged were tried, by offset."""
        return self._attempts

    @property
    def due_ns(self) -> Mapping[int, int]:
        """When deferred messages are due, by offset."""
        return self._due_ns

    def note_attempts(self, offset: int, attempts: int) -> None:
        """Note how often the message was tried; 0 removes the note."""
        self._note(self._attempts, offset, min(attempts, MAX_ATTEMPTS))

    def note_due(self, offset: int, due_ns: int) -> None:
        """Note until when the message is deferred; 0 removes the note."""
        self._note(self._due_ns, offset, due_ns)

    def _note(self, notes: dict[int, int], offset: int, value: int) -> None:
        notes.pop(offset, None)
        if value <= 0 or self.is_acknowledged(offset):
            return
        notes[offset] = value
        if len(notes) > self._max_notes:
            del notes[next(iter(notes))]

    def _forget(self, start: int, stop: int) -> None:
        for notes in (self._attempts, self._due_ns):
            if len(notes) < stop - start:
                for offset in [offset for offset in notes if start <= offset < stop]:
                    del notes[offset]
            else:
                for offset in range(start, stop):
                    notes.pop(offset, None)


# The file.

MAGIC = b"EMBERQCU"
VERSION = 1

_PREFIX = struct.Struct("<8sI")
_HEADER = struct.Struct("<I16sqIIII")


def to_bytes(cursor: Cursor) -> bytes:
    """The content of the cursor's file."""
    above, attempts, due_ns = cursor.acknowledged_above, cursor.attempts, cursor.due_ns
    assert cursor.low_water >= 0
    assert len(above.starts) == len(above.stops)
    assert not above.starts or cursor.low_water < above.starts[0]
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


def save_cursor(path: Path, content: bytes, *, is_awaited: bool = True, fs: Files = OS_FILES) -> None:
    """Replace the file by what `to_bytes` gave, fsynced; may be called in any thread. StorageError if that fails.

    Unless it `is_awaited`, a power failure may bring the older file back, which is harmless.
    """
    try:
        is_new = not fs.exists(path)
        replace_file(path, content, fs=fs)
        if is_new or is_awaited:
            _sync_name(path, is_new=is_new, fs=fs)
    except OSError as error:
        raise StorageError(os_error_text("write", path, error)) from error


def _sync_name(path: Path, *, is_new: bool, fs: Files) -> None:
    try:
        fs.sync_folder(path.parent)
    except OSError:
        if is_new:  # or the next attempt would find it, and take it for one that stays
            fs.unlink(path, missing_ok=True)
        raise


def load_cursor(path: Path, *, journal: UUID, fs: Files = OS_FILES) -> Cursor | None:
    """The cursor in a file; None if there is no file. DamagedCursorError if it is not one of this journal."""
    try:
        content = fs.read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        failure = DamagedCursorError if is_medium_error(error) else StorageError
        raise failure(os_error_text("read", path, error)) from error
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
