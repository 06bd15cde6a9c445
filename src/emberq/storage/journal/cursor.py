"""What one channel has done with a journal: a cursor.

              low_water
    AAAAAAAAAAAA|....AAAA..AA......          A: acknowledged    .: not (yet)
                     ^^^^  ^^ acknowledged ranges above the low-water mark

Everything below the low-water mark is acknowledged; the offset at it is not. Of a message above it that has been tried
but not acknowledged, the cursor remembers how often, and until when it was put off.

It knows nothing of files and of time, and belongs to one journal: the offsets of another one mean other messages.

Both memories are bounded. An attempt that is forgotten counts again from the start, a due time that is forgotten means
that the message is delivered too early: neither loses anything. The oldest notes are dropped first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from emberq.storage.journal.offset_set import OffsetSet

MAX_NOTES = 1_000_000
"""So many attempts and so many due times are remembered, 16 bytes each in the file: what a channel with a very large
number of requeued messages needs, and still saved within tens of milliseconds."""
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
        """A cursor as it was; for `cursor_file`, which has checked the values."""
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
        """Nothing is known of this offset and those behind it."""
        above = self._above.stops[-1] if self._above.stops else 0
        noted = max((max(notes) + 1 for notes in (self._attempts, self._due_ns) if notes), default=0)
        return max(self.low_water, above, noted)

    def acknowledge(self, start: int, stop: int) -> int:
        """The messages from `start` up to `stop` are done with; return how many of them were not before."""
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
        return fresh

    def is_acknowledged(self, offset: int) -> bool:
        """Whether this message is done with."""
        return offset < self.low_water or offset in self._above

    def unacknowledged(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The runs of messages from `start` up to `stop` that are not done with, as (start, stop)."""
        return self._above.missing(max(start, self.low_water), stop)

    def count_unacknowledged(self, next_offset: int) -> int:
        """How many messages are not done with, in a journal that ends at `next_offset`."""
        return max(0, next_offset - self.low_water - self._above.count)

    # -- moving ------------------------------------------------------------------------------------------------

    def seek(self, offset: int) -> None:
        """Forget everything and go on at `offset`, forwards or backwards."""
        self.low_water = offset
        self._above = OffsetSet()
        self._attempts = {}
        self._due_ns = {}

    def end_at(self, next_offset: int) -> None:
        """Forget what is said of `next_offset` and behind it: the journal ends there, and gives those offsets anew."""
        self.low_water = min(self.low_water, next_offset)
        self._above.remove_from(next_offset)
        for notes in (self._attempts, self._due_ns):
            for offset in [offset for offset in notes if offset >= next_offset]:
                del notes[offset]

    # -- notes -------------------------------------------------------------------------------------------------

    @property
    def attempts(self) -> Mapping[int, int]:
        """How often messages were tried that are not done with, by offset."""
        return self._attempts

    @property
    def due_ns(self) -> Mapping[int, int]:
        """When messages are due that were put off, by offset."""
        return self._due_ns

    def note_attempts(self, offset: int, attempts: int) -> None:
        """The message was tried so often; 0 forgets it."""
        self._note(self._attempts, offset, min(attempts, MAX_ATTEMPTS))

    def note_due(self, offset: int, due_ns: int) -> None:
        """The message is put off until then; 0 forgets it."""
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
