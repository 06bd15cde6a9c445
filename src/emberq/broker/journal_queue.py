"""The queue of a channel that is a cursor over a journal, and the batches in it.

                  position            end
    ..............|===================|.........      the journal
         |                 |
         v                 v
      fresh, again       ahead: counted, not held

Messages before `position` have been taken from the journal. Those not delivered yet are here: `fresh` ones in order,
and those that are to be tried `again`, of which only the offset is kept when memory is full. The messages between
`position` and `end` are in the journal alone; `end` is as far as the topic lets its channels see. A channel that keeps
up gets its messages straight from the publisher. One that lags reads the journal, a block at a time, when it has run
out; if the disk has to be waited for, another thread reads, a block ahead. So it never holds more than the memory queue
or two blocks.

Messages of which only the offset is kept are read again a block at a time too, in the order of their offsets. A batch
is read whole, because its crc covers all of it. So the messages of one batch must share one reading, also if they come
due one after the other: the batches that were read last are remembered for some seconds.

When both `fresh` and `again` have messages they are served in turn, because neither may starve.

The id of a message is its offset, in 16 hexadecimal digits. A batch that was just published has the layout in which it
arrived; one that was read from the journal is bodies alone. A message that waits to be tried again, maybe for hours, is
only remembered by its offset (`UnloadedMessage`) and read again when its time has come.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from emberq.base.clock import NS_PER_MS
from emberq.base.compiled import mypyc_attr
from emberq.base.timers import NEVER
from emberq.broker.batch import MAX_BATCH_BYTES, Batch, Span, cut, pieces_of, published_shape
from emberq.broker.layout import Lone, Published, Shape, start_of, sub_ends
from emberq.broker.queue import BRIEF_BYTES, UNREADABLE_RETRY_NS, Queue
from emberq.storage.error import JournalBusyError, JournalColdError, JournalError
from emberq.storage.journal.commit import AwaitedSyncs
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import ONE_BATCH, Chunk
from emberq.wire.frame import WireMessage
from emberq.wire.journal_batch import JournalBatch

READ_AHEAD_BYTES = 256 * 1024
"""How much is read from the journal at a time: enough for it to cost little per message."""
MAX_LOADED_COUNT = 1000
"""How many messages to be tried again are read at a time: as many as come due in one turn of the event loop."""
RECENT_BYTES = 8 * 1024 * 1024
RECENT_COUNT = 16
"""How many batches are remembered from which messages were read again, and their bytes: more than one MPUB has."""

BUSY_RETRY_NS = 5 * NS_PER_MS
"""When to go on with a search that the journal does in portions of a few milliseconds: others get half the time."""
DISK_RETRY_NS = 20 * NS_PER_MS
"""When to look again for what another thread reads, should it not have told by then."""
MAX_WAY_NS = 2 * NS_PER_MS
"""For how long a queue that lags gives way to publishers, if there are always some that wait for a sync, ..."""
TURN_NS = NS_PER_MS // 2
"""... and for how long it goes on then, before it gives way again: it must not starve."""

_log = logging.getLogger(__name__)


# Batches.


@mypyc_attr(acyclic=True)
class JournaledBatch(Batch):
    """Messages with consecutive offsets. They are in the journal, so memory may drop them."""

    __slots__ = ("first_offset", "timestamp_ns")

    def __init__(self, shape: Shape, count: int, first_offset: int, timestamp_ns: int) -> None:
        super().__init__(shape, count)
        self.first_offset = first_offset
        self.timestamp_ns = timestamp_ns

    def picked(self, indexes: Sequence[int]) -> Batch:
        """As `Batch.picked`, but offsets must stay consecutive: a batch with gaps is left as it is."""
        first = indexes[0]
        if indexes[-1] - first + 1 != len(indexes):
            return self
        return JournaledBatch(self._picked_shape(indexes), len(indexes), self.first_offset + first, self.timestamp_ns)

    def alone(self, index: int, frame: bytes) -> Batch:
        return JournaledBatch(Lone(frame), 1, self.first_offset + index, self.timestamp_ns)

    def unloaded(self, index: int) -> UnloadedMessage:
        """This one message, without its body."""
        offset = self.first_offset + index
        return UnloadedMessage(Published(b"", (0,), offset, self.timestamp_ns, 0), 1, offset, self.timestamp_ns)


@mypyc_attr(acyclic=True)
class UnloadedMessage(JournaledBatch):
    """One message, of which only the offset is kept."""

    __slots__ = ()


def replayed_batch(bodies: bytes, ends: Sequence[int], *, first_offset: int, timestamp_ns: int) -> JournaledBatch:
    """Messages as they were read from the journal: bodies, with nothing before them."""
    shape = published_shape(bodies, ends, first_offset, timestamp_ns, 0)
    return JournaledBatch(shape, len(ends), first_offset, timestamp_ns)


def journaled(batch: Batch) -> JournaledBatch:
    """A batch of a journaled channel, which has no others."""
    assert isinstance(batch, JournaledBatch)  # noqa: S101 - for the type checker
    return batch


def offsets_of(span: Span) -> tuple[int, int]:
    """The offset of the span's first message, and the one behind its last."""
    first_offset = journaled(span.batch).first_offset
    return first_offset + span.start, first_offset + span.stop


def published_batches(
    blob: bytes, ends: Sequence[int], *, first_offset: int, timestamp_ns: int
) -> list[JournaledBatch]:
    """The messages of one publish, in batches that are small enough (see `batch.cut`)."""
    batches: list[JournaledBatch] = []
    for piece, piece_ends in cut(blob, ends, first_id=first_offset):
        shape = published_shape(piece, piece_ends, first_offset, timestamp_ns)
        batches.append(JournaledBatch(shape, len(piece_ends), first_offset, timestamp_ns))
        first_offset += len(piece_ends)
    return batches


class JournalSource:
    """Reads messages of one journal for the channels of its topic."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._recent: dict[int, JournalBatch] = {}
        """The batches that single messages were read from, by base offset; the one used least recently first."""
        self._recent_bytes = 0

    def read(self, offset: int, *, max_bytes: int, told: Callable[[], None] | None = None) -> Chunk:
        """As `Journal.read`."""
        return self._journal.read(offset, max_bytes=max_bytes, told=told)

    @property
    def awaited_syncs(self) -> AwaitedSyncs:
        """As `Journal.awaited_syncs`."""
        return self._journal.awaited_syncs

    @property
    def first_offset(self) -> int:
        """The oldest message that is kept."""
        return self._journal.first_offset

    @property
    def mean_bytes(self) -> int:
        """How much of the journal there is for each message that is kept."""
        journal = self._journal
        return journal.total_bytes // max(1, journal.next_offset - journal.first_offset)

    def offset_at(self, time_ns: int) -> int:
        """As `Journal.offset_at`."""
        return self._journal.offset_at(time_ns)

    def batch_at(self, offset: int, *, told: Callable[[], None] | None = None) -> JournalBatch | None:
        """The batch that holds this offset; None if it is damaged or gone, JournalError if it cannot be read now.

        With `told` as in `Journal.read`.
        """
        for batch in self._recent.values():
            if batch.base_offset <= offset < batch.next_offset:
                self._remember(batch)
                return batch
        for batch in self._journal.read(offset, max_bytes=ONE_BATCH, told=told).batches:
            if batch.base_offset <= offset < batch.next_offset:
                self._remember(batch)
                return batch
        return None

    def forget(self) -> None:
        """Let go of the batches that were read last."""
        self._recent.clear()
        self._recent_bytes = 0

    def _remember(self, batch: JournalBatch) -> None:
        recent = self._recent
        if recent.pop(batch.base_offset, None) is None:
            self._recent_bytes += batch.length
        recent[batch.base_offset] = batch
        while len(recent) > 1 and (len(recent) > RECENT_COUNT or self._recent_bytes > RECENT_BYTES):
            self._recent_bytes -= recent.pop(next(iter(recent))).length


def replayed_batches(
    batch: JournalBatch, start: int, stop: int, *, max_bytes: int = MAX_BATCH_BYTES
) -> Iterator[JournaledBatch]:
    """The messages with offsets `start` to `stop` of a batch that was read."""
    first, last = start - batch.base_offset, stop - batch.base_offset
    if batch.times_ns is not None:
        for index in range(first, last):
            body = batch.body(index)
            offset = batch.base_offset + index
            yield replayed_batch(body, (len(body),), first_offset=offset, timestamp_ns=batch.times_ns[index])
        return
    base = batch.positions[first]
    ends = (
        batch.ends[: last - first] if isinstance(batch.ends, range) else [end - base for end in batch.ends[first:last]]
    )
    for piece_start, piece_stop in pieces_of(ends, first_id=start, max_bytes=max_bytes):
        yield replayed_batch(
            bytes(batch.bodies[base + start_of(ends, piece_start) : base + ends[piece_stop - 1]]),
            sub_ends(ends, piece_start, piece_stop),
            first_offset=start + piece_start,
            timestamp_ns=batch.timestamp_ns,
        )


# The queue.


class JournalQueue(Queue):
    """The messages of one channel that wait. Owned by its channel, as is the cursor.

    `defer` takes a message that is due later, and the wall time when it is; `noted` is called when the cursor has
    changed, `wake` when messages can be taken that had to be read first.
    """

    def __init__(
        self,
        source: JournalSource,
        cursor: Cursor,
        *,
        max_count: int,
        max_bytes: int,
        end_offset: int,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        defer: Callable[[Span, int], None],
        noted: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._source = source
        self._cursor = cursor
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._defer = defer
        self._noted = noted
        self._wake = wake
        self._fresh: deque[Span] = deque()
        self._fresh_count = 0
        self._again: deque[Span] = deque()
        self._again_count = 0
        self._memory_bytes = 0
        """The bodies of `_fresh` and `_again`."""
        self._unloaded: deque[tuple[int, int]] = deque()
        """Messages to be tried again behind those in `_again`, of which only the offset and the attempts are here."""
        self._again_is_next = False
        self._position = cursor.low_water
        self._end = cursor.low_water
        self._ahead_count = 0
        """Messages between position and end that are not acknowledged."""
        self._ahead_bytes = 0
        """Their bodies. Of those that came while the queue did not look, by the mean size of the journal's messages."""
        self._gives_way_since_ns = NEVER
        self._turn_end_ns = 0
        self._known_position = -1
        self._known_ns = NEVER
        """Of the last position for which it was asked, when its message was published."""
        self.extend_to(end_offset)

    @property
    def depth(self) -> int:
        return self._fresh_count + self._again_count + len(self._unloaded) + self._ahead_count

    @property
    def memory_count(self) -> int:
        return self._fresh_count + self._again_count

    @property
    def backend_depth(self) -> int:
        return self._ahead_count + len(self._unloaded)

    @property
    def waiting_bytes(self) -> int:
        unloaded = len(self._unloaded)
        return self._memory_bytes + self._ahead_bytes + (unloaded * self._source.mean_bytes if unloaded else 0)

    @property
    def end(self) -> int:
        """As far as the topic lets its channels see."""
        return self._end

    @property
    def keeps_up(self) -> bool:
        """Whether it has taken all that it may see from the journal."""
        return self._ahead_count == 0

    # In.

    def put(self, span: Span) -> None:
        """Append the next messages of the journal. If memory is full they are only counted, and read later."""
        count = span.stop - span.start
        self._end = offsets_of(span)[1]
        if self._ahead_count or not self._has_room(span):
            self._ahead_count += count
            self._ahead_bytes += span.batch.body_bytes(span.start, span.stop)
        else:
            self._add_fresh(span)
            self._position = self._end

    def _has_room(self, span: Span) -> bool:
        """Whether memory may hold these, too."""
        size = span.batch.body_bytes(span.start, span.stop)
        count = self.memory_count + span.stop - span.start
        return count <= self._max_count and self._memory_bytes + size <= self._max_bytes

    def _add_fresh(self, span: Span) -> None:
        self._fresh.append(span)
        self._fresh_count += span.stop - span.start
        self._memory_bytes += span.batch.body_bytes(span.start, span.stop)

    def _add_again(self, span: Span) -> None:
        self._again.append(span)
        self._again_count += span.stop - span.start
        self._memory_bytes += span.batch.body_bytes(span.start, span.stop)

    def pass_over(self, span: Span) -> None:
        """Leave out the next message, which the channel takes itself; only for a queue that keeps up."""
        self._position = self._end = offsets_of(span)[1]

    def extend_to(self, end_offset: int) -> None:
        """The topic lets its channels see more."""
        added = 0
        for start, stop in self._cursor.unacknowledged(max(self._end, self._position), end_offset):
            added += stop - start
        if added:
            self._ahead_count += added
            self._ahead_bytes += added * self._source.mean_bytes
        self._end = max(self._end, end_offset)
        if not self._ahead_count:
            self._position = self._end

    def _less_ahead(self, count: int) -> None:
        """So many messages are not ahead any more. Their share of the bytes goes with them."""
        left = self._ahead_count - count
        self._ahead_bytes = self._ahead_bytes * left // self._ahead_count if left > 0 else 0
        self._ahead_count = left

    def put_again(self, spans: list[Span]) -> None:
        for span in spans:
            self._put_again(span)
        self._noted()

    def _put_again(self, span: Span) -> None:
        start, stop = offsets_of(span)
        for offset in range(start, stop):
            self._cursor.note_attempts(offset, span.attempts)
            self._cursor.note_due(offset, 0)
        if not self._unloaded and not isinstance(span.batch, UnloadedMessage) and self._has_room(span):
            self._add_again(span)
        else:
            self._unloaded.extend((offset, span.attempts) for offset in range(start, stop))

    # Out.

    def take(self, *, max_count: int, max_bytes: int) -> Span | None:
        backend_depth = self.backend_depth
        self.is_brief = backend_depth > 0 and self._source.awaited_syncs.are_expected
        if self.is_brief and self._gives_way():
            self.retry_ns = MAX_WAY_NS
            return None
        span = self._take(max_count, max_bytes)
        self.was_in_memory = self.backend_depth == backend_depth
        return span

    def _gives_way(self) -> bool:
        """Whether publishers are first, who wait for a sync and want the event loop as soon as it has ended."""
        awaited = self._source.awaited_syncs
        if not awaited.are_any:
            self._gives_way_since_ns = NEVER
            return False
        now_ns = self._monotonic_ns()
        if now_ns < self._turn_end_ns:
            return False
        self._gives_way_since_ns = min(self._gives_way_since_ns, now_ns)
        if now_ns - self._gives_way_since_ns < MAX_WAY_NS:
            awaited.when_none(self._wake)
            return True
        self._gives_way_since_ns = NEVER
        self._turn_end_ns = now_ns + TURN_NS
        return False

    def _take(self, max_count: int, max_bytes: int) -> Span | None:
        self.retry_ns = UNREADABLE_RETRY_NS
        for _ in range(2):  # from `fresh` or `again`, as it is the turn; if there is none, from the other
            takes_again, self._again_is_next = self._again_is_next, not self._again_is_next
            take = self._take_again if takes_again else self._take_fresh
            try:
                span = take(max_count, max_bytes)
            except JournalBusyError as busy:
                self.retry_ns = DISK_RETRY_NS if isinstance(busy, JournalColdError) else BUSY_RETRY_NS
                continue
            except JournalError as failure:
                _log.error("a journal cannot be read now - %s", failure)
                continue
            if span is not None:
                return span
        return None

    def _take_fresh(self, max_count: int, max_bytes: int) -> Span | None:
        while self._fresh or self._ahead_count > 0:
            if not self._fresh:
                self._read_ahead()  # what it finds may all be due later
                continue
            span = _split(self._fresh, max_count, max_bytes)
            self._fresh_count -= span.stop - span.start
            self._memory_bytes -= span.batch.body_bytes(span.start, span.stop)
            return span
        return None

    def _take_again(self, max_count: int, max_bytes: int) -> Span | None:
        while not self._again and self._unloaded:
            self._load_again()  # what it finds may all be damaged
        if not self._again:
            return None
        span = _split(self._again, max_count, max_bytes)
        self._again_count -= span.stop - span.start
        self._memory_bytes -= span.batch.body_bytes(span.start, span.stop)
        return span

    def _load_again(self) -> None:
        """Read a block of the messages of which only the offset is here. JournalError if it cannot be read now."""
        block = sorted(islice(self._unloaded, MAX_LOADED_COUNT))
        done = size = 0
        while done < len(block) and size < READ_AHEAD_BYTES:
            offset, attempts = block[done]
            try:
                batch = self._source.batch_at(offset, told=self._wake)
            except JournalError:
                if not done:
                    raise
                break
            if batch is None:
                self._give_up(offset, offset + 1)
                done += 1
                continue
            stop = _run_stop(block, done, batch, max_bytes=READ_AHEAD_BYTES - size)
            first = offset - batch.base_offset
            size += batch.positions[first + stop - done] - batch.positions[first]
            for piece in replayed_batches(batch, offset, offset + stop - done):
                self._add_again(Span(piece, 0, piece.count, attempts))
            done = stop
        for _ in block:
            self._unloaded.popleft()
        self._unloaded.extendleft(reversed(block[done:]))

    def _read_ahead(self) -> None:
        """Take a block from the journal. JournalError if it cannot be read now."""
        chunk = self._source.read(self._position, max_bytes=READ_AHEAD_BYTES, told=self._wake)
        for gap in chunk.gaps:
            self._less_ahead(self._give_up(gap.first_offset, min(gap.next_offset, self._end)))
        for batch in chunk.batches:
            start, stop = max(batch.base_offset, self._position), min(batch.next_offset, self._end)
            for run_start, run_stop in list(self._cursor.unacknowledged(start, stop)):
                self._less_ahead(run_stop - run_start)
                self._take_in(batch, run_start, run_stop)
        position, self._position = self._position, min(chunk.next_offset, self._end)
        if self._ahead_count and (self._position == self._end or self._position <= position):
            _log.error("a channel counted %d messages too many", self._ahead_count)  # there is no more to be read
            self._ahead_count = self._ahead_bytes = 0

    def _give_up(self, start: int, stop: int) -> int:
        """Acknowledge messages that are damaged or gone, which the journal has logged; how many were not before."""
        given_up = self._cursor.acknowledge(start, stop)
        self._noted()
        return given_up

    def _take_in(self, batch: JournalBatch, start: int, stop: int) -> None:
        cursor = self._cursor
        has_notes = any(_has_any(notes, start, stop) for notes in (cursor.attempts, cursor.due_ns))
        if not has_notes and batch.due_ns is None:
            max_bytes = BRIEF_BYTES if self.is_brief else MAX_BATCH_BYTES  # frames are made for a whole piece at once
            for piece in replayed_batches(batch, start, stop, max_bytes=max_bytes):
                self._add_fresh(Span(piece, 0, piece.count))
            return
        now_ns = self._wall_ns()
        for offset in range(start, stop):
            attempts = cursor.attempts.get(offset, 0)
            (message,) = replayed_batches(batch, offset, offset + 1)
            span = Span(message, 0, 1, attempts)
            due_ns = cursor.due_ns.get(offset, 0)
            if not due_ns and not attempts and batch.due_ns is not None:
                due_ns = batch.due_ns[offset - batch.base_offset]
            if due_ns > now_ns:
                self._defer(span, due_ns)
            else:
                self._add_fresh(span)

    def peek(self, count: int) -> list[WireMessage]:
        messages: list[WireMessage] = []
        for span in self._fresh:
            messages += span.messages(count - len(messages))
        for span in self._again:
            messages += span.messages(count - len(messages))
        try:
            messages += self._peek_unloaded(count - len(messages))
            return messages + self._peek_ahead(count - len(messages))
        except JournalError as failure:
            _log.error("a journal cannot be read now - %s", failure)
            return messages

    def _peek_unloaded(self, count: int) -> list[WireMessage]:
        messages: list[WireMessage] = []
        for offset, attempts in sorted(islice(self._unloaded, count)):
            batch = self._source.batch_at(offset)
            if batch is not None:
                (message,) = replayed_batches(batch, offset, offset + 1)
                messages.append(message.message(0, attempts))
        return messages

    def _peek_ahead(self, count: int) -> list[WireMessage]:
        messages: list[WireMessage] = []
        position = self._position
        while len(messages) < count and position < self._end:
            chunk = self._source.read(position, max_bytes=READ_AHEAD_BYTES)
            for batch in chunk.batches:
                start, stop = max(batch.base_offset, position), min(batch.next_offset, self._end)
                for run_start, run_stop in self._cursor.unacknowledged(start, stop):
                    for piece in replayed_batches(batch, run_start, run_stop):
                        messages += Span(piece, 0, piece.count).messages(count - len(messages))
            position = chunk.next_offset
        return messages

    # As a whole.

    def overtake(self, offset: int) -> int:
        """Give up what only the journal has of the messages before `offset`, because they go; how many these are."""
        given_up = 0
        stop = min(offset, self._end)
        if self._position < stop:
            given_up = self._pass(stop)
        staying = deque(entry for entry in self._unloaded if entry[0] >= offset)
        if len(staying) < len(self._unloaded):
            for lost_offset, _ in self._unloaded:
                if lost_offset < offset:
                    given_up += self._give_up(lost_offset, lost_offset + 1)
            self._unloaded = staying
        return given_up

    def _pass(self, stop: int) -> int:
        """Give up what is ahead, up to the offset `stop`; how many messages these are."""
        given_up = self._give_up(self._position, stop)
        self._less_ahead(given_up)
        self._position = stop
        return given_up

    # What is too much or too old. The journal keeps it: the cursor passes over it.

    def drop_oldest(self, *, max_count: int, max_bytes: int) -> int:
        fresh = offsets_of(self._fresh[0])[0] if self._fresh else NEVER
        again = offsets_of(self._again[0])[0] if self._again else NEVER
        if not self._again and self._unloaded and self._unloaded[0][0] < fresh:
            offset, _ = self._unloaded.popleft()
            return self._give_up(offset, offset + 1)
        if again < fresh:
            return self._drop_again(max_count, max_bytes)
        return self._drop_fresh(max_count, max_bytes) if self._fresh else self._drop_ahead(max_count, max_bytes)

    def _drop_fresh(self, max_count: int, max_bytes: int) -> int:
        span = _split(self._fresh, max_count, max_bytes)
        self._fresh_count -= span.stop - span.start
        return self._dropped(span)

    def _drop_again(self, max_count: int, max_bytes: int) -> int:
        span = _split(self._again, max_count, max_bytes)
        self._again_count -= span.stop - span.start
        return self._dropped(span)

    def _dropped(self, span: Span) -> int:
        self._memory_bytes -= span.batch.body_bytes(span.start, span.stop)
        self._give_up(*offsets_of(span))
        return span.stop - span.start

    def _drop_ahead(self, max_count: int, max_bytes: int) -> int:
        if self._ahead_count <= 0:
            return 0
        count = min(max_count, self._ahead_count)
        if max_bytes < self._ahead_bytes:
            count = min(count, -(-max_bytes * self._ahead_count // self._ahead_bytes))
        stop = self._position
        for run_start, run_stop in self._cursor.unacknowledged(self._position, self._end):
            stop = min(run_stop, run_start + count)
            count -= stop - run_start
            if count <= 0:
                break
        return self._pass(stop)

    def drop_before(self, time_ns: int, *, max_count: int) -> int:
        """As in `Queue`. Of what only the journal has, all that was published before, in one go."""
        if self._fresh and journaled(self._fresh[0].batch).timestamp_ns < time_ns:
            return self._drop_fresh(max_count, NEVER)
        if self._again and journaled(self._again[0].batch).timestamp_ns < time_ns:
            return self._drop_again(max_count, NEVER)
        if not self._ahead_count and not self._unloaded:
            return 0
        try:
            offset = min(self._source.offset_at(time_ns), self._end)
        except JournalError as failure:
            _log.debug("a journal cannot be searched now - %s", failure)
            return 0
        dropped = self._pass(offset) if self._position < offset else 0
        while dropped < max_count and self._unloaded and self._unloaded[0][0] < offset:
            lost_offset, _ = self._unloaded.popleft()
            dropped += self._give_up(lost_offset, lost_offset + 1)
        return dropped

    def oldest_ns(self) -> int:
        if self._unloaded or (self._ahead_count and not self._fresh):
            return NEVER
        oldest_ns = NEVER
        for spans in (self._fresh, self._again):
            if spans:
                oldest_ns = min(oldest_ns, journaled(spans[0].batch).timestamp_ns)
        return oldest_ns

    def waiting_since_ns(self) -> int:
        firsts = [journaled(spans[0].batch).timestamp_ns for spans in (self._fresh, self._again) if spans]
        if self._ahead_count and not self._fresh:
            firsts.append(self._ahead_ns())
        return min(firsts, default=NEVER)

    def _ahead_ns(self) -> int:
        """When the next message that only the journal has was published. It is read once, and remembered.

        If it is not in memory it is not waited for: another thread brings it, for the next who asks.
        """
        if self._known_position != self._position:
            try:
                batches = self._source.read(self._position, max_bytes=ONE_BATCH, told=_not_awaited).batches
            except JournalError as failure:
                _log.debug("a journal cannot be read now - %s", failure)
                return NEVER
            self._known_position = self._position
            self._known_ns = batches[0].timestamp_ns if batches else NEVER
        return self._known_ns

    def trim(self, *, max_count: int, max_bytes: int) -> None:
        """Drop nothing: messages that are not in memory are in the journal."""

    def empty(self) -> None:
        self.seek(self._end)

    def seek(self, offset: int) -> None:
        """Go on at `offset`, where the cursor is or will be put."""
        self._fresh.clear()
        self._again.clear()
        self._unloaded.clear()
        self._fresh_count = self._again_count = self._memory_bytes = 0
        self._position = min(offset, self._end)
        self._ahead_count = self._end - self._position
        self._ahead_bytes = self._ahead_count * self._source.mean_bytes if self._ahead_count else 0


def _not_awaited() -> None:
    """What was to be brought into memory is there. No channel waits for it."""


def _has_any(notes: Mapping[int, int], start: int, stop: int) -> bool:
    """Whether there is a note of any offset from `start` up to `stop`."""
    if len(notes) < stop - start:
        return any(start <= offset < stop for offset in notes)
    return any(offset in notes for offset in range(start, stop))


def _run_stop(block: list[tuple[int, int]], start: int, batch: JournalBatch, *, max_bytes: int) -> int:
    """Where the run ends that begins at `start` of the block, at least one long.

    Its messages are in this batch, have consecutive offsets, and were tried equally often.
    """
    offset, attempts = block[start]
    positions, first = batch.positions, offset - batch.base_offset
    stop = start + 1
    while stop < len(block) and block[stop] == (offset + stop - start, attempts):
        index = first + stop - start
        if index >= batch.count or positions[index + 1] - positions[first] > max_bytes:
            break
        stop += 1
    return stop


def _split(spans: deque[Span], max_count: int, max_bytes: int) -> Span:
    """Take from the first span what stays within both limits, at least one message."""
    span = spans[0]
    count = span.batch.fitting(span.start, max_count=min(max_count, span.stop - span.start), max_bytes=max_bytes)
    if count < span.stop - span.start:
        return span.split(count)
    return spans.popleft()
