"""Messages of a journaled topic. Their ids are their offsets, in 16 hexadecimal digits.

A batch that was just published has the shape it came in; one that was read from the journal is bodies alone. A message
that waits to be tried again, maybe for hours, is only remembered by its offset (`UnloadedMessage`) and read again when
its time has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from emberq.broker.batch import Batch, PublishedBatch, Span, cut
from emberq.storage.journal.batch import JournalBatch
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import Chunk


class JournaledBatch(PublishedBatch):
    """Messages with consecutive offsets that are in the journal, and here for as long as somebody needs them."""

    __slots__ = ()

    @property
    def first_offset(self) -> int:
        return self._first_id

    @property
    def timestamp_ns(self) -> int:
        return self._timestamp_ns

    def alone(self, index: int) -> JournaledBatch:
        body = self.message(index, 0).body
        return ReplayedBatch(body, (len(body),), self._first_id + index, self._timestamp_ns)

    def unloaded(self, index: int) -> UnloadedMessage:
        """This one message, without its body."""
        return UnloadedMessage(b"", (0,), self._first_id + index, self._timestamp_ns)


class ReplayedBatch(JournaledBatch):
    """Read from the journal: bodies, with nothing before them."""

    __slots__ = ()
    _header_bytes = 0


class UnloadedMessage(JournaledBatch):
    """One message, of which only the offset is kept."""

    __slots__ = ()


def journaled(batch: Batch) -> JournaledBatch:
    """A batch of a journaled channel, which has no others."""
    assert isinstance(batch, JournaledBatch)  # noqa: S101 - see above
    return batch


def offsets_of(span: Span) -> tuple[int, int]:
    """The offset of the span's first message, and the one behind its last."""
    first_offset = journaled(span.batch).first_offset
    return first_offset + span.start, first_offset + span.stop


def published_batches(
    blob: bytes, ends: Sequence[int], *, first_offset: int, timestamp_ns: int
) -> list[JournaledBatch]:
    """What one publish brought, in batches of a size that is good to hold."""
    batches: list[JournaledBatch] = []
    for piece, piece_ends in cut(blob, ends, first_id=first_offset):
        batches.append(JournaledBatch(piece, piece_ends, first_offset, timestamp_ns))
        first_offset += len(piece_ends)
    return batches


class JournalSource:
    """Reads messages of one journal for the channels of its topic."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def read(self, offset: int, *, max_bytes: int) -> Chunk:
        """As `Journal.read`."""
        return self._journal.read(offset, max_bytes=max_bytes)

    @property
    def first_offset(self) -> int:
        """The oldest message that is kept."""
        return self._journal.first_offset

    def load(self, offset: int) -> JournaledBatch | None:
        """One message; None if it is damaged or gone, JournalError if it cannot be read now."""
        for batch in self._journal.read(offset, max_bytes=1).batches:
            if batch.base_offset <= offset < batch.next_offset:
                return next(replayed_batches(batch, offset, offset + 1))
        return None


def replayed_batches(batch: JournalBatch, start: int, stop: int) -> Iterator[JournaledBatch]:
    """The messages with offsets `start` to `stop` of a batch that was read."""
    first, last = start - batch.base_offset, stop - batch.base_offset
    if batch.times_ns is not None:
        for index in range(first, last):
            body = batch.body(index)
            yield ReplayedBatch(body, (len(body),), batch.base_offset + index, batch.times_ns[index])
        return
    positions, ends = batch.positions, batch.ends
    blob = bytes(batch.bodies[positions[first] : positions[last]])
    if isinstance(ends, range):
        piece_ends: Sequence[int] = ends[: last - first]
    else:
        piece_ends = [end - positions[first] for end in ends[first:last]]
    offset = start
    for piece, own_ends in cut(blob, piece_ends, first_id=start):
        yield ReplayedBatch(piece, own_ends, offset, batch.timestamp_ns)
        offset += len(own_ends)
