"""A channel of a journaled topic: a cursor over its journal.

It delivers, times out, requeues and defers like any other channel. But it keeps no messages on disk, only its cursor:
which offsets are acknowledged, how often the others were tried, and until when they are deferred. The cursor is written
to its file at least every second. After a crash the channel goes on where the file says, so some messages come again
and none is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from emberq.base.clock import Clock
from emberq.base.timers import Timers
from emberq.broker.batch import Batch, Span
from emberq.broker.channel import Channel, ChannelLimits
from emberq.broker.in_flight import FinishListener
from emberq.broker.journal_queue import JournalQueue, JournalSource, journaled, offsets_of
from emberq.broker.stats import LatencyWindow
from emberq.storage.error import StorageError
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.folder import CursorFile, Told

_log = logging.getLogger(__name__)


class Acknowledger(FinishListener):
    """Acknowledges finished messages in the cursor. `on_change` is called for the first change after each save."""

    def __init__(self, cursor: Cursor, latency: LatencyWindow | None, on_change: Callable[[], None]) -> None:
        self._cursor = cursor
        self._latency = latency
        self._on_change = on_change
        self.is_dirty = False
        """Whether the cursor has changed since it was last saved."""

    def finished(self, batch: Batch, start: int, stop: int) -> None:
        first = journaled(batch).first_offset
        self._cursor.acknowledge(first + start, first + stop)
        if self._latency is not None:
            batch.report_finished(start, stop, self._latency)
        self.changed()

    def changed(self) -> None:
        """The cursor is not what its file says."""
        if not self.is_dirty:
            self.is_dirty = True
            self._on_change()


class JournaledChannel(Channel):
    """Owns its cursor. Created by its topic, which calls `save_soon` after `on_change`."""

    def __init__(
        self,
        name: str,
        *,
        topic_name: str,
        file: CursorFile,
        source: JournalSource,
        cursor: Cursor,
        end_offset: int,
        on_change: Callable[[], None],
        clock: Clock,
        timers: Timers,
        limits: ChannelLimits,
    ) -> None:
        self._file = file
        self._source = source
        self._cursor = cursor
        self._on_change = on_change
        self._is_saving = False
        self._awaiting_save: list[Told] = []
        self._messages = JournalQueue(
            source,
            cursor,
            capacity=limits.mem_queue_size,
            end_offset=end_offset,
            wall_ns=clock.wall_ns,
            defer=self._defer_until,
            noted=self._cursor_changed,
        )
        super().__init__(name, topic_name=topic_name, queue=self._messages, clock=clock, timers=timers, limits=limits)
        self._acknowledger = Acknowledger(cursor, self.latency, on_change)
        self._finish_listener = self._acknowledger

    def _cursor_changed(self) -> None:
        self._acknowledger.changed()

    @property
    def low_water(self) -> int:
        """Everything before this offset is acknowledged."""
        return self._cursor.low_water

    @property
    def lag(self) -> int:
        """How many of the messages that it may see are not acknowledged."""
        return self._cursor.count_unacknowledged(self._messages.end)

    # Messages.

    def extend_to(self, end_offset: int) -> None:
        """The topic lets its channels see more of the journal."""
        before = self._messages.depth
        self._messages.extend_to(end_offset)
        self.message_count += self._messages.depth - before
        self.pump()

    def put_deferred(self, span: Span, *, delay_ns: int) -> None:
        if not self._messages.keeps_up:
            self._messages.put(span)  # the journal has the due time too
            self.message_count += 1
            return
        self._messages.pass_over(span)
        super().put_deferred(span, delay_ns=delay_ns)

    def _hold_until(self, due_ns: int, span: Span) -> None:
        """Keep only the offset of the message; the cursor notes when it is due."""
        lone = Span(journaled(span.batch).unloaded(span.start), 0, 1, span.attempts)
        offset = offsets_of(lone)[0]
        self._cursor.note_attempts(offset, span.attempts)
        self._cursor.note_due(offset, self._clock.wall_ns() + due_ns - self._clock.monotonic_ns())
        self._acknowledger.changed()
        super()._hold_until(due_ns, lone)

    def _defer_until(self, span: Span, due_wall_ns: int) -> None:
        self._defer(span, due_wall_ns - self._clock.wall_ns())

    def _done_with(self, spans: list[Span]) -> None:
        for span in spans:
            self._cursor.acknowledge(*offsets_of(span))
        self._acknowledger.changed()

    # The channel as a whole.

    def empty(self) -> None:
        super().empty()
        self._cursor.acknowledge(self._cursor.low_water, self._messages.end)
        self._acknowledger.changed()

    def skip(self, start: int, stop: int) -> None:
        """Never deliver these messages, which the topic has not let through yet."""
        self._cursor.acknowledge(start, stop)
        self._acknowledger.changed()

    def seek(self, offset: int) -> None:
        """Deliver from `offset` on, also what was delivered before; what is in flight is forgotten.

        It cannot go back beyond the oldest message that is kept. If `offset` lies beyond what the topic has let
        through, the messages before it are left out when the topic lets them through.
        """
        end = self._messages.end
        place = min(max(offset, self._source.first_offset), end)
        self.empty()
        self._cursor.seek(place)
        self._messages.seek(place)
        self.skip(end, offset)
        self.pump()

    def _save(self, in_flight: list[Span], deferred: list[tuple[int, Span]]) -> None:
        for span in in_flight:
            for offset in range(*offsets_of(span)):
                self._cursor.note_attempts(offset, span.attempts)
        wall_offset_ns = self._clock.wall_ns() - self._clock.monotonic_ns()  # the wall clock may have been set since
        for due_ns, span in deferred:
            self._cursor.note_due(offsets_of(span)[0], due_ns + wall_offset_ns)
        self.save_now()

    def save(self) -> None:
        """Write the cursor to its file. StorageError if that fails."""
        self._file.save(self._cursor)

    def save_now(self) -> None:
        """Write the cursor to its file; a failure is logged."""
        try:
            self.save()
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to save its cursor - %s", self.name, failure)

    def save_soon(self) -> None:
        """Write the cursor to its file, in another thread, if it has changed."""
        if self._acknowledger.is_dirty and not self._is_saving:
            self._is_saving = True
            self._acknowledger.is_dirty = False
            awaiting, self._awaiting_save = self._awaiting_save, []
            self._file.save_soon(
                self._cursor, lambda failure: self._saved(failure, awaiting), is_awaited=bool(awaiting)
            )

    def when_saved(self, told: Told) -> None:
        """Call `told` when the cursor, as it is now, has been written to its file, or could not be."""
        self._awaiting_save.append(told)
        self._acknowledger.changed()
        self.save_soon()

    def _saved(self, failure: StorageError | None, awaiting: list[Told]) -> None:
        self._is_saving = False
        if failure is not None:
            _log.error("CHANNEL(%s): failed to save its cursor - %s", self.name, failure)
            self._acknowledger.is_dirty = True
        if self._acknowledger.is_dirty:
            self._on_change()  # while this save ran, `save_soon` did nothing
        for told in awaiting:
            told(failure)
        if self._awaiting_save:
            self.save_soon()

    def _remove_files(self) -> None:
        self._file.remove()
