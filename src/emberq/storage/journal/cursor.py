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
    40  count of ranges        44  count of attempts    48  count of due times    52  generation: uint32 each
    56  starts of the acknowledged ranges, then their stops: int64 each
    ..  offsets of tried messages: int64 each, then how often: uint16 each     padded to 8 with zeros
    ..  offsets of deferred messages, then when they are due: int64 each

It is replaced as a whole, so a crash leaves the old one or the new one. An older one than the channel had is harmless:
messages come again. None is lost, because a file never acknowledges more than the channel had. What changed since it
was written is in its log, which has the same generation (see `cursor_log`); a file of generation 0 has none.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from uuid import UUID

from zlib_ng.zlib_ng import crc32

from emberq.base.file import OS_FILES, Files, is_medium_error, replace_file
from emberq.storage.error import DamagedCursorError, StorageError, os_error_text
from emberq.wire.journal_batch import ALIGNMENT, padded


class OffsetSet:
    """Ranges in order, with a gap between any two: starts[0] < stops[0] < starts[1] < stops[1] < ...

    They are arrays, not lists: a copy of very many is made in a few milliseconds.
    """

    __slots__ = ("count", "starts", "stops")

    def __init__(self, starts: Sequence[int] = (), stops: Sequence[int] = ()) -> None:
        self.starts = array("q", starts)
        self.stops = array("q", stops)
        self.count = sum(stops) - sum(starts)
        """How many offsets are in the set."""

    def __contains__(self, offset: int) -> bool:
        following = bisect_right(self.starts, offset)
        return following > 0 and offset < self.stops[following - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges as (start, stop)."""
        return zip(self.starts, self.stops, strict=True)

    def copy(self) -> OffsetSet:
        """The same ranges, for another owner."""
        same = OffsetSet()
        same.starts, same.stops, same.count = self.starts[:], self.stops[:], self.count
        return same

    def add_all(self, ranges: list[tuple[int, int]]) -> None:
        """Put many ranges in, which need not be in order: one walk, where `add` moves all that is behind each."""
        starts, stops = self.starts, self.stops
        merged = OffsetSet()
        for start, stop in sorted([*zip(starts, stops, strict=True), *ranges]):
            if merged.stops and start <= merged.stops[-1]:
                merged.stops[-1] = max(stop, merged.stops[-1])
            elif start < stop:
                merged.starts.append(start)
                merged.stops.append(stop)
        self.starts, self.stops = merged.starts, merged.stops
        self.count = sum(self.stops) - sum(self.starts)

    def add(self, start: int, stop: int) -> int:
        """Put the offsets from `start` up to `stop` in; return how many of them are new."""
        if start >= stop:
            return 0
        first = bisect_left(self.stops, start)  # the first range that reaches the new one, or touches it
        last = bisect_right(self.starts, stop)  # the first range that begins behind it
        if first == last:
            self.starts.insert(first, start)
            self.stops.insert(first, stop)
            self.count += stop - start
            return stop - start
        first_start, last_stop = self.starts[first], self.stops[last - 1]
        start, stop = (start if start < first_start else first_start), (stop if stop > last_stop else last_stop)
        if last - first == 1:
            before = last_stop - first_start
        else:
            before = sum(self.stops[first:last]) - sum(self.starts[first:last])
            del self.starts[first + 1 : last], self.stops[first + 1 : last]
        self.starts[first] = start
        self.stops[first] = stop
        fresh = stop - start - before
        self.count += fresh
        return fresh

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


class CursorChanges:
    """What has happened to a cursor since it was last written down; its low-water mark is to be added."""

    __slots__ = ("attempts", "due_ns", "ranges")

    def __init__(self) -> None:
        self.ranges: list[int] = []
        """What was acknowledged above the low-water mark: first offset and the one behind the last, by turns."""
        self.attempts: dict[int, int] = {}
        self.due_ns: dict[int, int] = {}
        """Notes of messages; 0 removes one."""

    def note_range(self, start: int, stop: int) -> None:
        """These offsets were acknowledged."""
        ranges = self.ranges
        if ranges and ranges[-1] == start:
            ranges[-1] = stop
        else:
            ranges.append(start)
            ranges.append(stop)


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
        self.generation = 0
        """Which of its files it was loaded from; 0: from none that has a log."""
        self.logged_bytes = 0
        """How much of the log of that file holds records, with its header."""
        self._changes: CursorChanges | None = None

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

    def copy(self) -> Cursor:
        """The same state, so that it can be written down while this cursor changes."""
        return Cursor.restored(
            self.journal,
            low_water=self.low_water,
            above=self._above.copy(),
            attempts=self._attempts.copy(),
            due_ns=self._due_ns.copy(),
            max_notes=self._max_notes,
        )

    # -- changes -----------------------------------------------------------------------------------------------

    def note_changes(self, *, wanted: bool) -> None:
        """From now on, keep what changes for `take_changes`, or do not."""
        self._changes = CursorChanges() if wanted else None

    def take_changes(self) -> CursorChanges | None:
        """What has changed since the last call; None if that was not kept, or the cursor was moved."""
        changes = self._changes
        if changes is not None:
            self._changes = CursorChanges()
        return changes

    def catch_up(
        self, *, low_water: int, ranges: list[tuple[int, int]], attempts: dict[int, int], due_ns: dict[int, int]
    ) -> None:
        """Add what happened since the cursor was written down: all of it together, as it stands in the end."""
        self._above.add_all(ranges)
        self.low_water = max(self.low_water, low_water)
        self._above.remove_before(self.low_water)
        if self._above.starts and self._above.starts[0] == self.low_water:
            self.low_water = self._above.stops[0]
            self._above.remove_before(self.low_water)
        for notes, later in ((self._attempts, attempts), (self._due_ns, due_ns)):
            for offset, value in later.items():
                notes.pop(offset, None)
                if value:
                    notes[offset] = value
            for offset in [offset for offset in notes if self.is_acknowledged(offset)]:
                del notes[offset]
            for offset in list(islice(notes, max(0, len(notes) - self._max_notes))):
                del notes[offset]

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
        if self._attempts or self._due_ns:
            self._forget(start, stop)
        if start > self.low_water:
            if self._changes is not None:
                self._changes.note_range(start, stop)
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
        self._changes = None  # what went before must not be told without the move, nor what follows

    def end_at(self, next_offset: int) -> None:
        """Forget `next_offset` and everything behind it: the journal ends there, and gives those offsets anew."""
        self.low_water = min(self.low_water, next_offset)
        self._above.remove_from(next_offset)
        self._changes = None
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
        value = max(value, 0)
        if value == notes.get(offset, 0) or self.is_acknowledged(offset):
            return
        notes.pop(offset, None)  # the order of notes is that in which they were made
        if self._changes is not None:
            changed = self._changes.attempts if notes is self._attempts else self._changes.due_ns
            changed.pop(offset, None)
            changed[offset] = value
        if not value:
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
PIECE_COUNT = 16_384
"""How many numbers of a file are encoded at a time: less than a millisecond."""

_PREFIX = struct.Struct("<8sI")
_HEADER = struct.Struct("<I16sqIIII")


CURSOR_HEADER_BYTES = _PREFIX.size + _HEADER.size


def generation_of(header: bytes) -> int:
    """The generation of the file that begins with these bytes; 0 if it is none."""
    if len(header) < CURSOR_HEADER_BYTES or not header.startswith(MAGIC):
        return 0
    generation: int = _HEADER.unpack_from(header, _PREFIX.size)[-1]
    return generation


def to_bytes(cursor: Cursor, *, generation: int = 0) -> bytes:
    """The content of the cursor's file. In another thread the cursor must be a copy."""
    above, attempts, due_ns = cursor.acknowledged_above, cursor.attempts, cursor.due_ns
    assert cursor.low_water >= 0
    assert len(above.starts) == len(above.stops)
    assert not above.starts or cursor.low_water < above.starts[0]
    counts = (len(above.starts), len(attempts), len(due_ns))
    parts = [_HEADER.pack(VERSION, cursor.journal.bytes, cursor.low_water, *counts, generation)]
    crc = crc32(parts[0])
    for part in columns(above.starts, above.stops, attempts, due_ns):
        crc = crc32(part, crc)
        parts.append(part)
    return b"".join((_PREFIX.pack(MAGIC, crc), *parts))


def columns(
    starts: Sequence[int], stops: Sequence[int], attempts: Mapping[int, int], due_ns: Mapping[int, int]
) -> Iterator[bytes]:
    """Ranges and notes as they lie in a file, piece by piece.

    There may be millions. The pieces are small, and large enough for `crc32` to let other threads run meanwhile.
    """
    yield from _pieces("q", starts)
    yield from _pieces("q", stops)
    yield from _pieces("q", attempts)
    yield from _pieces("H", attempts.values())
    yield bytes(-2 * len(attempts) % ALIGNMENT)
    yield from _pieces("q", due_ns)
    yield from _pieces("q", due_ns.values())


def _pieces(typecode: str, values: Iterable[int]) -> Iterator[bytes]:
    if isinstance(values, array):
        for at in range(0, len(values), PIECE_COUNT):
            yield values[at : at + PIECE_COUNT].tobytes()
        return
    rest = iter(values)
    while piece := array(typecode, islice(rest, PIECE_COUNT)):
        yield piece.tobytes()


def columns_bytes(ranges: int, attempts: int, due: int) -> int:
    """How long so many ranges and notes are in a file."""
    return 16 * ranges + padded(10 * attempts) + 16 * due


def from_bytes(content: bytes, *, journal: UUID, max_notes: int = MAX_NOTES) -> Cursor:
    """The cursor in a file. DamagedCursorError if it is none, or one of another journal."""
    if len(content) < CURSOR_HEADER_BYTES:
        raise DamagedCursorError("too short")
    magic, crc = _PREFIX.unpack_from(content)
    if magic != MAGIC or crc != crc32(memoryview(content)[_PREFIX.size :]):
        raise DamagedCursorError("the crc does not fit the contents")
    version, uuid, low_water, ranges, attempts, due, generation = _HEADER.unpack_from(content, _PREFIX.size)
    if version != VERSION:
        raise DamagedCursorError(f"it is of version {version}, this version reads {VERSION}")
    if uuid != journal.bytes:
        raise DamagedCursorError(f"it belongs to another journal, {UUID(bytes=uuid)}")
    at = CURSOR_HEADER_BYTES
    if len(content) != at + columns_bytes(ranges, attempts, due):
        raise DamagedCursorError("the length does not fit the contents")
    found = Columns(content, at=at)
    cursor = Cursor.restored(
        journal,
        low_water=low_water,
        above=_ranges(found.take("q", ranges), found.take("q", ranges), low_water=low_water),
        attempts=dict(zip(found.take("q", attempts), found.take("H", attempts), strict=True)),
        due_ns=dict(zip(found.take("q", due), found.take("q", due), strict=True)),
        max_notes=max_notes,
    )
    cursor.generation = generation
    return cursor


def save_cursor(path: Path, content: bytes, *, fs: Files = OS_FILES) -> None:
    """Replace the file by what `to_bytes` gave, durably; may be called in any thread. StorageError if that fails."""
    try:
        is_new = not fs.exists(path)
        replace_file(path, content, fs=fs)
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


class Columns:
    """Takes one column after the other from the content of a file that is long enough."""

    def __init__(self, content: bytes, *, at: int) -> None:
        self._content = content
        self._at = at

    def take(self, typecode: str, count: int) -> Sequence[int]:
        column: array[int] = array(typecode)
        end = self._at + count * column.itemsize
        column.frombytes(self._content[self._at : end])
        self._at = padded(end)
        return column


def _ranges(starts: Sequence[int], stops: Sequence[int], *, low_water: int) -> OffsetSet:
    """The acknowledged ranges, which must ascend above the low-water mark with gaps between them."""
    edges = [low_water]
    for start, stop in zip(starts, stops, strict=True):
        edges += (start, stop)
    if edges[0] < 0 or any(later <= earlier for earlier, later in pairwise(edges)):
        raise DamagedCursorError("the acknowledged ranges do not ascend")
    return OffsetSet(starts, stops)
