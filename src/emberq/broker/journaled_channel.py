"""A channel of a journaled topic: a cursor over its journal.

It delivers, times out, requeues and defers like any other channel. But it keeps no messages on disk, only its cursor:
which offsets are acknowledged, how often the others were tried, and until when they are deferred. What changes is
written to a log within some hundredths of a second, and brought to the disk within a second. After a crash the channel
goes on where the log ends, so some messages come again and none is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import Timers
from emberq.broker.batch import Batch, Span
from emberq.broker.channel import Channel, ChannelLimits
from emberq.broker.in_flight import FinishListener
from emberq.broker.journal_queue import JournalQueue, JournalSource, journaled, offsets_of
from emberq.broker.stats import LatencyWindow
from emberq.storage.error import StorageError
from emberq.storage.journal.cursor import Cursor
from emberq.storage.journal.cursor_log import CursorFile, Told

LOG_INTERVAL_NS = 20 * NS_PER_MS
"""How long what was finished may be in memory alone, so long as few channels are busy."""
LOGS_PER_TURN = 8
"""How many channels log their changes in one turn. At some 40 us each that takes less than 2 % of the time. With more
busy channels each waits longer, but never beyond its next save."""

_log = logging.getLogger(__name__)


class Acknowledger(FinishListener):
    """Acknowledges finished messages in the cursor. `on_change` is called for the first change after each logging."""

    def __init__(self, cursor: Cursor, latency: LatencyWindow | None, on_change: Callable[[], None]) -> None:
        self._cursor = cursor
        self._latency = latency
        self._on_change = on_change
        self.is_unlogged = False
        """Whether the cursor has changed since its changes were last logged."""

    def finished(self, batch: Batch, start: int, stop: int) -> None:
        first = journaled(batch).first_offset
        self._cursor.acknowledge(first + start, first + stop)
        if self._latency is not None:
            batch.report_finished(start, stop, self._latency)
        self.changed()

    def changed(self) -> None:
        """The cursor is not what its log says."""
        if not self.is_unlogged:
            self.is_unlogged = True
            self._on_change()


class LoggingTurns:
    """Lets channels log their changes, a few at a time. All channels of a broker share one."""

    def __init__(self, *, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._waiting: dict[JournaledChannel, None] = {}
        """An ordered set: the one that waits longest comes first."""
        self._alarm = timers.alarm(self._turn)

    def add(self, channel: JournaledChannel) -> None:
        """This channel has changes to log."""
        self._waiting[channel] = None
        self._alarm.set_earlier(self._clock.monotonic_ns() + LOG_INTERVAL_NS)

    def _turn(self) -> None:
        for channel in list(islice(self._waiting, LOGS_PER_TURN)):
            del self._waiting[channel]
            channel.log_changes()
        if self._waiting:
            self._alarm.set(self._clock.monotonic_ns() + LOG_INTERVAL_NS)


class JournaledChannel(Channel):
    """Owns its cursor. Created by its topic, which calls `save_soon` within a second of `on_change`."""

    def __init__(
        self,
        name: str,
        *,
        topic_name: str,
        file: CursorFile,
        source: JournalSource,
        cursor: Cursor,
        end_offset: int,
        turns: LoggingTurns,
        on_change: Callable[[], None],
        clock: Clock,
        timers: Timers,
        limits: ChannelLimits,
    ) -> None:
        self._file = file
        file.resume(cursor)
        self._turns = turns
        self._is_unsaved = False
        """Whether changes that were logged may not be on the disk."""
        self._source = source
        self._cursor = cursor
        self._on_change = on_change
        self._is_saving = False
        self._awaiting_save: list[Told] = []
        self._messages = JournalQueue(
            source,
            cursor,
            max_count=limits.mem_queue_size,
            max_bytes=limits.mem_queue_bytes,
            end_offset=end_offset,
            wall_ns=clock.wall_ns,
            monotonic_ns=clock.monotonic_ns,
            defer=self._defer_until,
            noted=self._cursor_changed,
            wake=self.pump,
        )
        super().__init__(name, topic_name=topic_name, queue=self._messages, clock=clock, timers=timers, limits=limits)
        self._acknowledger = Acknowledger(cursor, self.latency, self._has_changed)
        self._finish_listener = self._acknowledger

    def _has_changed(self) -> None:
        self._turns.add(self)
        self._on_change()

    def _cursor_changed(self) -> None:
        self._acknowledger.changed()

    def pump(self) -> None:
        """As `Channel.pump`. If others are in a hurry, once in each turn of the event loop at most."""
        if not self._messages.is_brief:
            self._pump_now()
        elif not self._goes_on_later:
            self._pump_later()

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
            if self._drops:
                self._drop_beyond_limits()
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

    def overtake(self, offset: int) -> int:
        """Pass over what is before `offset`, which goes, except for what is in memory; how many messages are lost."""
        return self._messages.overtake(offset)

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

    def save_now(self) -> None:
        """Write the cursor to its file; a failure is logged."""
        try:
            self._file.save(self._cursor)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to save its cursor - %s", self.name, failure)

    def log_changes(self) -> None:
        """Write down what has changed since the last call, so that it outlives the process; a failure is logged."""
        if not self._acknowledger.is_unlogged:
            return
        self._acknowledger.is_unlogged = False
        self._is_unsaved = True
        try:
            if not self._exiting:
                self._file.append(self._cursor)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to log what was finished - %s", self.name, failure)

    def save_soon(self) -> None:
        """Bring the cursor to the disk, in another thread, if it has changed."""
        self.log_changes()
        if self._is_unsaved and not self._is_saving:
            self._is_saving = True
            self._is_unsaved = False
            awaiting, self._awaiting_save = self._awaiting_save, []
            if awaiting or self._file.is_new_file_due:
                self._file.save_soon(self._cursor, lambda failure: self._saved(failure, awaiting))
            else:
                self._file.sync_soon(lambda failure: self._saved(failure, awaiting))

    def when_saved(self, told: Told) -> None:
        """Call `told` when the cursor, as it is now, is on the disk, or could not be brought there."""
        self._awaiting_save.append(told)
        self._acknowledger.changed()
        self.save_soon()

    def _saved(self, failure: StorageError | None, awaiting: list[Told]) -> None:
        self._is_saving = False
        if failure is not None and not self._exiting:  # of a channel that was deleted meanwhile none is saved
            _log.error("CHANNEL(%s): failed to save its cursor - %s", self.name, failure)
            self._is_unsaved = True
        if self._is_unsaved or self._acknowledger.is_unlogged:
            self._on_change()  # while this save ran, `save_soon` did nothing
        for told in awaiting:
            told(failure)
        if self._awaiting_save:
            self.save_soon()

    def forget_place(self) -> None:
        self._file.remove()

    def _remove_files(self) -> None:
        """Its only file has gone before."""
