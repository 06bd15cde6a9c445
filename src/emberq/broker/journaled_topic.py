"""A topic that is a log: its messages are kept in a journal. See docs/ARCHITECTURE.md, "Journaled topics".

    published ──> journal ──> synced ──────────────> released ──> channels
                              (if sync is `always`)   (unless paused, held or without channels)

Everything published is appended to the journal. With sync `always` it counts as stored only when it is on the disk;
then the publisher is told, and channels and readers may see it. Channels are cursors: those that keep up get the
messages from here, the others read the journal.

`released` is the offset up to which channels may see. While the topic is paused, held or has no channel it stays where
it is, and a new channel starts there; so the first one gets what was published before it, and later ones what comes
next. It is kept in the file `topic.mark` for as long as messages wait behind it. So after a crash a topic without that
file has no waiting messages, and every channel goes on where its cursor is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from emberq.base.clock import NS_PER_SECOND
from emberq.base.timers import NEVER
from emberq.broker.batch import Span
from emberq.broker.channel import Channel
from emberq.broker.classic import classic_channel
from emberq.broker.error import JournalFailedError, StoreError, TopicFullError
from emberq.broker.journal_queue import JournaledBatch, JournalSource, published_batches, replayed_batches
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.layout import PUBLISHED_HEADER_BYTES
from emberq.broker.migration import migrate
from emberq.broker.stats import JournalStats, TopicStats
from emberq.broker.store import JournalSettings, JournalStore, SyncMode
from emberq.broker.topic import Pending, Topic, TopicContext
from emberq.storage.error import JournalError, JournalSyncError, StorageError
from emberq.storage.journal.journal import Journal, Stored
from emberq.wire.journal_batch import Bodies, JournalBatch
from emberq.wire.parameter import ProducerSequence, is_ephemeral

SAVE_INTERVAL_NS = NS_PER_SECOND
"""How long a cursor may be ahead of the disk."""
TRIM_INTERVAL_NS = 10 * NS_PER_SECOND
"""How often retention is applied."""
EPHEMERAL_READ_BYTES = 1024 * 1024
"""How much is read at a time to feed an ephemeral channel."""

MAX_REFUSED = 10_000
"""So many refused numbers are remembered: as many as producers."""

_log = logging.getLogger(__name__)


class _Arrival:
    """The messages of one publish, on their way to the channels."""

    __slots__ = ("batches", "body_bytes", "delay_ns", "next_offset")

    def __init__(
        self, next_offset: int, batches: list[JournaledBatch], *, body_bytes: int = 0, delay_ns: int = 0
    ) -> None:
        self.next_offset = next_offset
        self.batches = batches
        self.body_bytes = body_bytes
        self.delay_ns = delay_ns


class JournaledTopic(Topic):
    """Owns the folder of its journal, besides its channels."""

    def __init__(self, name: str, context: TopicContext, journals: JournalStore) -> None:
        super().__init__(name, context)
        self._settings = journals.settings
        self._journals = journals
        limits = self._limits
        has_own_max = limits is not None and limits.journal_max_bytes < NEVER
        self._folder = journals.open(name, max_bytes=limits.journal_max_bytes if limits and has_own_max else None)
        self._journal = self._folder.journal
        self._is_unsettled = False
        """Whether the journal has been opened again and the offsets of lost messages are not passed over yet."""
        self._journal.on_failure = self._note_problem
        self._source = JournalSource(self._journal)
        try:
            self._lost = self._skip_what_was_lost()
            """The offsets of messages that channels have seen and a power failure took."""
            migrate(name, store=context.store, folder=self._folder, clock=context.clock)
        except StorageError:
            with suppress(StorageError):
                self._journal.close()
            context.journal_problems.pop(name, None)  # there is no such topic after all
            raise
        self._stored_offset = self._journal.next_offset
        """Everything before it counts as stored."""
        self._mark = self._folder.load_mark()
        """The offset in `topic.mark`; None if there is no such file, or the journal ends before it."""
        if self._mark is not None and self._mark > self._stored_offset:
            self._mark = None
        self._released_offset = self._stored_offset if self._mark is None else self._mark
        """Everything before it may be seen by the channels."""
        self._refused: dict[ProducerSequence, None] = {}
        """Numbered batches that were refused and not stored since, the oldest first."""
        self._tombstone: Path | None = None
        """What its folder is called since it was deleted."""
        self._overtaken_count = 0
        """Messages that went because of the limit on the journal's size, for each channel that had not read them."""
        self._drops_unseen = self._limits is not None and self._limits.drops
        """Whether the oldest go if too many messages wait for a channel."""
        self._dropped_count = 0
        """Messages that were too many while they waited for a channel."""
        self._expired_count = 0
        """Messages that were too old while they waited for a channel."""
        self._watchers: set[Callable[[], None]] = set()
        self._save_alarm = context.timers.alarm(self._save_cursors)
        self._sync_alarm = context.timers.alarm(self._sync)
        self._trim_alarm = context.timers.alarm(self._trim)
        # What is dropped from a journal that no channel reads is not written down: it is dropped anew at the start.
        wait_ns = TRIM_INTERVAL_NS if self._limits is None or not self.depth else 0
        self._trim_alarm.set(self._clock.monotonic_ns() + wait_ns)
        self._note_problem()

    def _note_problem(self) -> None:
        """Let the node's health tell whether the journal takes messages."""
        problem = self.problem
        if problem is None or self._exiting:
            self._context.journal_problems.pop(self.name, None)
        else:
            self._context.journal_problems[self.name] = problem

    @property
    def problem(self) -> str | None:
        """Why it takes no messages; None if it does."""
        problem = self._journal.problem
        if problem is None and self._is_unsettled:
            return "read-only for want of room: it cannot go on behind messages that are lost"
        return problem

    @property
    def lacks_room(self) -> bool:
        """Whether it takes no messages until there is room on the disk."""
        return self._journal.is_read_only or self._is_unsettled

    def reopen(self) -> None:
        """There may be room on the disk again: take messages again. StorageError if that does not work yet."""
        if self._journal.is_read_only:
            self._journal.reopen()
            self._is_unsettled = True
        if self._is_unsettled:
            self._lost = self._skip_what_was_lost()
            self._stored_offset = self._journal.next_offset
            for channel in self._cursors():
                channel.skip(*self._lost)
            self._is_unsettled = False
        self._note_problem()
        self._flow_changed()

    @property
    def is_journaled(self) -> bool:
        return True

    @property
    def journal(self) -> Journal:
        """For reading; only the topic appends."""
        return self._journal

    @property
    def settings(self) -> JournalSettings:
        """When a publish is confirmed, and what retention keeps."""
        return self._settings

    @property
    def is_open(self) -> bool:
        """Whether it is neither being deleted nor closed."""
        return not self._exiting

    @property
    def stored_offset(self) -> int:
        """Everything before it counts as stored; a channel that is to get only new messages starts here."""
        return self._stored_offset

    def offset_at(self, time_ns: int) -> int:
        """The first offset published at or after that moment. JournalError if the journal cannot be read."""
        return min(self._journal.offset_at(time_ns), self._stored_offset)

    @property
    def depth(self) -> int:
        return self._stored_offset - self._released_offset

    @property
    def backend_depth(self) -> int:
        return self.depth

    @property
    def unstored_count(self) -> int:
        return 0 if self._journal.problem is not None else self._journal.next_offset - self._stored_offset

    @property
    def waiting_bytes(self) -> int:
        waiting = self.depth + self.unstored_count
        return waiting * self._source.mean_bytes if waiting else 0

    # Publishing.

    def publish(self, blob: bytes, ends: Sequence[int], *, producer: ProducerSequence | None = None) -> Pending | None:
        if not ends:
            return None
        if self._exiting or self._gate.reason is not None:
            self._refuse(producer)
        if self._refuses:
            self._refuse_when_full(blob, len(ends), producer)
        timestamp_ns = self._clock.wall_ns()
        bodies = Bodies.of_items(blob, ends, prefix_bytes=PUBLISHED_HEADER_BYTES)
        stored = self._append(bodies, timestamp_ns=timestamp_ns, producer=producer)
        if stored.is_repeated:
            return self._when_stored(_Arrival(stored.next_offset, []))
        batches = published_batches(blob, ends, first_offset=stored.base_offset, timestamp_ns=timestamp_ns)
        body_bytes = len(blob) - PUBLISHED_HEADER_BYTES * len(ends)
        return self._when_stored(_Arrival(stored.next_offset, batches, body_bytes=body_bytes))

    def publish_durably(self, blob: bytes, ends: Sequence[int]) -> Pending | None:
        pending = self.publish(blob, ends)
        if pending is not None or not ends:
            return pending
        # With sync `interval` or `never` they count as stored, but a power failure could still take them.
        durable = Pending()
        self._folder.commit.when_synced(
            self._journal.next_offset,
            lambda failure: durable.settle(None if failure is None else JournalFailedError(self.name, str(failure))),
        )
        return durable

    def publish_deferred(
        self, blob: bytes, *, delay_ns: int, producer: ProducerSequence | None = None
    ) -> Pending | None:
        if self._exiting or self._gate.reason is not None:
            self._refuse(producer)
        if self._refuses:
            self._refuse_when_full(blob, 1, producer)
        timestamp_ns = self._clock.wall_ns()
        bodies = Bodies.of_items(blob, (len(blob),), prefix_bytes=PUBLISHED_HEADER_BYTES)
        due_ns = (timestamp_ns + delay_ns,)
        stored = self._append(bodies, timestamp_ns=timestamp_ns, due_ns=due_ns, producer=producer)
        if stored.is_repeated:
            return self._when_stored(_Arrival(stored.next_offset, []))
        batches = published_batches(blob, (len(blob),), first_offset=stored.base_offset, timestamp_ns=timestamp_ns)
        body_bytes = len(blob) - PUBLISHED_HEADER_BYTES
        return self._when_stored(_Arrival(stored.next_offset, batches, body_bytes=body_bytes, delay_ns=delay_ns))

    def _append(
        self,
        bodies: Bodies,
        *,
        timestamp_ns: int,
        due_ns: Sequence[int] | None = None,
        producer: ProducerSequence | None = None,
    ) -> Stored:
        if self._is_unsettled:
            raise JournalFailedError(self.name, self.problem or "it takes no messages yet")
        try:
            if self._mark is None and not self._may_flow:
                self._save_mark()
            stored = self._journal.append(bodies, timestamp_ns=timestamp_ns, due_ns=due_ns, producer=producer)
        except StorageError as failure:
            self._note_refused(producer)
            problem = self._journal.problem
            if problem is None:
                self._context.report_health(str(failure))  # else it is known, and nothing was written
            raise JournalFailedError(self.name, problem or str(failure)) from failure
        self._context.report_health(None)
        if producer is not None and producer in self._refused:
            if stored.is_repeated:
                reason = f"number {producer.sequence} was refused, and a later one of its producer is stored"
                raise StoreError(reason)
            del self._refused[producer]
        return stored

    def _refuse(self, producer: ProducerSequence | None) -> None:
        self._note_refused(producer)
        self._refuse_unless_open()

    def _refuse_when_full(self, blob: bytes, count: int, producer: ProducerSequence | None) -> None:
        """TopicFullError if these messages would be too many; but what is stored already may be sent again."""
        last = None if producer is None else self._journal.producer_state(producer.producer_id)
        if last is not None and producer is not None and producer.sequence <= last.sequence:
            return
        try:
            self._refuse_beyond_limits(blob, count)
        except TopicFullError:
            self._note_refused(producer)
            raise

    def _note_refused(self, producer: ProducerSequence | None) -> None:
        """Remember a number that is not stored, so that it never counts as stored because a later one is."""
        if producer is not None:
            self._refused[producer] = None
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]

    def _when_stored(self, arrival: _Arrival) -> Pending | None:
        if self._settings.sync is SyncMode.ALWAYS:
            pending = Pending()
            self._folder.commit.when_synced(
                arrival.next_offset, lambda failure: self._synced(arrival, pending, failure)
            )
            return pending
        self._stored(arrival)
        if self._settings.sync is SyncMode.INTERVAL:
            self._sync_alarm.set_earlier(self._clock.monotonic_ns() + self._settings.sync_interval_ns)
        elif self._journal.has_unsynced_segments:
            self._folder.commit.request()
        return None

    def _synced(self, arrival: _Arrival, pending: Pending, failure: JournalSyncError | None) -> None:
        if failure is not None:
            pending.settle(JournalFailedError(self.name, self._journal.problem or str(failure)))
            return
        self._stored(arrival)
        pending.settle(None)

    def _stored(self, arrival: _Arrival) -> None:
        """The messages are stored: hand them to the channels, if those may see them."""
        self._stored_offset = max(self._stored_offset, arrival.next_offset)
        self.message_bytes += arrival.body_bytes
        for batch in arrival.batches:
            self.message_count += batch.count
        if self._watchers and self._settings.sync is not SyncMode.INTERVAL:
            self._tell_watchers()
        if not self._may_flow or self._exiting:
            if self._drops_unseen and not self._exiting:
                self._drop_excess()
            return
        self._released_offset = self._stored_offset
        for channel in self.channels.values():
            for batch in arrival.batches:
                if arrival.delay_ns:
                    channel.put_deferred(Span(batch, 0, 1), delay_ns=arrival.delay_ns)
                else:
                    channel.put(Span(batch, 0, batch.count))

    # Watching.

    def watch(self, told: Callable[[], None]) -> None:
        """Call `told` once: when more of the journal may be on the disk than now, or when the topic goes."""
        self._watchers.add(told)

    def unwatch(self, told: Callable[[], None]) -> None:
        """Do not call `told` any more."""
        self._watchers.discard(told)

    def _tell_watchers(self) -> None:
        watchers, self._watchers = self._watchers, set()
        for told in watchers:
            told()

    # Channels.

    def _make_channel(self, name: str) -> Channel:
        if is_ephemeral(name):
            return classic_channel(name, topic_name=self.name, context=self._context, limits=self._channel_limits)
        context = self._context
        cursor = self._folder.cursor(name, start_offset=self._released_offset)
        cursor.acknowledge(*self._lost)
        channel = JournaledChannel(
            name,
            topic_name=self.name,
            file=self._folder.cursor_file(name),
            source=self._source,
            cursor=cursor,
            end_offset=self._released_offset,
            turns=self._journals.logging_turns(context.timers),
            on_change=self._save_soon,
            clock=context.clock,
            timers=context.timers,
            limits=self._channel_limits,
        )
        if self._lost[0] < self._lost[1]:
            channel.skip(*self._lost)  # has been done; but so the cursor is saved soon
        return channel

    def delete_channel(self, name: str) -> Pending | None:
        super().delete_channel(name)
        if is_ephemeral(name) or self._exiting:
            return None
        forgotten = Pending()
        self._folder.sync_cursors(forgotten.settle)
        return forgotten

    def saved_channel_names(self) -> list[str]:
        """The channels that have a cursor in the folder."""
        return self._folder.channel_names()

    def _skip_what_was_lost(self) -> tuple[int, int]:
        """Never give the offsets of messages that a power failure took, and channels have seen, to other messages."""
        if self._journal.is_read_only:
            return self._journal.next_offset, self._journal.next_offset
        moved_on = self._journal.report.moved_on
        lost_from = self._journal.next_offset if moved_on is None else moved_on[0]
        self._journal.skip_to(self._folder.seen_offset())
        return lost_from, self._journal.next_offset

    def _flow_changed(self) -> None:
        if self._exiting:
            return
        if self._may_flow:
            self._release()
        elif self._mark is None and self._released_offset < self._journal.next_offset:
            try:
                self._save_mark()
            except StorageError as failure:
                _log.error("TOPIC(%s): failed to save where its channels stop - %s", self.name, failure)

    def _save_mark(self) -> None:
        """Save where the channels stop, before a message behind it is confirmed. StorageError if that fails."""
        self._folder.save_mark(self._released_offset)
        self._mark = self._released_offset

    def _remove_mark(self) -> None:
        if self._mark is not None:
            try:
                self._folder.remove_mark()
            except OSError as failure:  # then the next run releases again what its channels have acknowledged
                _log.error("TOPIC(%s): failed to remove its mark - %s", self.name, failure)
            self._mark = None

    def _release(self) -> None:
        """Let the channels see everything."""
        start, self._released_offset = self._released_offset, self._stored_offset
        for channel in self.channels.values() if start < self._released_offset else ():
            if isinstance(channel, JournaledChannel):
                channel.extend_to(self._released_offset)
            else:
                self._feed(channel, start)
        self._remove_mark()

    def _feed(self, channel: Channel, start: int) -> None:
        """Give what waited to an ephemeral channel, as much as fits into its memory queue."""
        position = start
        capacity = self._context.config.channel.mem_queue_size
        while position < self._released_offset and (channel.depth < capacity or not capacity):
            try:
                chunk = self._source.read(position, max_bytes=EPHEMERAL_READ_BYTES)
            except JournalError as failure:
                _log.error("TOPIC(%s): its journal cannot be read - %s", self.name, failure)
                return
            for batch in chunk.batches:
                self._feed_batch(
                    channel, batch, max(batch.base_offset, position), min(batch.next_offset, self._released_offset)
                )
            position = chunk.next_offset

    def _feed_batch(self, channel: Channel, batch: JournalBatch, start: int, stop: int) -> None:
        if batch.due_ns is None:
            for piece in replayed_batches(batch, start, stop):
                channel.put(Span(piece, 0, piece.count))
            return
        wall_ns = self._clock.wall_ns()
        for offset in range(start, stop):
            (message,) = replayed_batches(batch, offset, offset + 1)
            delay_ns = batch.due_ns[offset - batch.base_offset] - wall_ns
            if delay_ns > 0:
                channel.put_deferred(Span(message, 0, 1), delay_ns=delay_ns)
            else:
                channel.put(Span(message, 0, 1))

    # Saving, syncing and trimming, by alarms.

    def _save_soon(self) -> None:
        self._save_alarm.set_earlier(self._clock.monotonic_ns() + SAVE_INTERVAL_NS)

    def _save_cursors(self) -> None:
        for channel in self._cursors():
            channel.save_soon()

    def _sync(self) -> None:
        self._folder.commit.when_synced(self._journal.next_offset, self._interval_ended)

    def _interval_ended(self, _failure: JournalSyncError | None) -> None:
        self._tell_watchers()

    def _trim(self) -> None:
        """Remove messages that retention does not keep and that every channel has acknowledged."""
        self._trim_alarm.set(self._clock.monotonic_ns() + TRIM_INTERVAL_NS)
        self._source.forget()
        if self._limits is not None and self.depth:
            self._drop_expired()
            self._drop_excess()
        overtaken_offset = self._overtake()
        lowest = min((channel.low_water for channel in self._cursors()), default=self._released_offset)
        before_offset = max(overtaken_offset, min(lowest, self._released_offset))
        try:
            self._journal.trim(before_offset=before_offset, now_ns=self._clock.wall_ns())
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to remove old messages - %s", self.name, failure)
            return
        if self._journal.summary_failure is not None:
            self._context.report_health(self._journal.summary_failure)

    def _overtake(self) -> int:
        """If the journal is larger than its limit: let the channels pass over what has to go, up to the offset."""
        first, released = self._journal.first_offset, self._released_offset
        offset = min(self._journal.overtaken_offset, self._stored_offset)
        if offset <= first:
            return offset
        unseen_count = max(0, offset - max(released, first))
        if not self.channels:
            self._count_overtaken(unseen_count, "a channel")
        for channel in self._cursors():
            self._count_overtaken(channel.overtake(min(offset, released)) + unseen_count, f"channel {channel.name}")
        self._pass_over(offset)
        return offset

    def _pass_over(self, offset: int) -> None:
        """Let no channel see what is before `offset`, if the topic has not let it through."""
        released = self._released_offset
        if offset <= released:
            return
        for channel in self._cursors():
            channel.skip(released, offset)
        self._released_offset = offset
        for channel in self._cursors():
            channel.extend_to(offset)

    def _drop_expired(self) -> None:
        """Pass over what has waited too long for a channel."""
        limits, released = self._limits, self._released_offset
        if limits is None or not limits.has_ttl:
            return
        with suppress(JournalError):  # it will be searched again
            self._pass_over(self.offset_at(self._clock.wall_ns() - limits.ttl_ns))
        self._expired_count += self._released_offset - released

    def _drop_excess(self) -> None:
        """Pass over the oldest messages that wait for a channel, if too many do."""
        limits = self._limits
        if limits is None or not self._drops_unseen:
            return
        may_wait = limits.max_depth
        if limits.max_bytes < NEVER:
            may_wait = min(may_wait, limits.max_bytes // max(1, self._source.mean_bytes))
        excess = max(0, self.depth - may_wait)
        self._pass_over(self._released_offset + excess)
        self._dropped_count += excess

    def _count_overtaken(self, count: int, reader: str) -> None:
        self._overtaken_count += count
        if count:
            _log.error(
                "TOPIC(%s): removed %d messages before %s had read them, because of journal-max-bytes",
                self.name,
                count,
                reader,
            )

    def _cursors(self) -> list[JournaledChannel]:
        return [channel for channel in self.channels.values() if isinstance(channel, JournaledChannel)]

    # The topic as a whole.

    def empty(self) -> None:
        for channel in self._cursors():
            channel.skip(self._released_offset, self._stored_offset)
            channel.save_now()  # before the mark goes, or they would get them after a crash
        self._released_offset = self._stored_offset
        for channel in self._cursors():
            channel.extend_to(self._released_offset)
        self._remove_mark()
        self._flow_changed()

    def bury(self) -> None:
        try:
            self._tombstone = self._journal.delete()
        except OSError as error:
            raise StorageError(f"the journal of {self.name} cannot be removed: {error.strerror or error}") from error

    def settle_deletion(self) -> None:
        assert self._tombstone is not None  # noqa: S101 - for the type checker
        self._journals.bury(self._tombstone, self.deleted.settle)

    def _remove_files(self) -> None:
        """They went with the name of their folder, the cursors of the channels too."""
        self._end_watches()

    def _save(self) -> None:
        self._end_watches()
        try:
            self._journal.close()
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to close its journal - %s", self.name, failure)

    def _end_watches(self) -> None:
        self._tell_watchers()
        self._context.journal_problems.pop(self.name, None)
        for alarm in (self._save_alarm, self._sync_alarm, self._trim_alarm):
            alarm.discard()

    def stats(self, *, with_channels: bool = True) -> TopicStats:
        journal = self._journal
        return replace(
            super().stats(with_channels=with_channels),
            dropped_count=self._dropped_count,
            expired_count=self._expired_count,
            journal=JournalStats(
                first_offset=journal.first_offset,
                next_offset=journal.next_offset,
                synced_offset=journal.synced_offset,
                size_bytes=journal.total_bytes,
                lag=max((channel.lag for channel in self._cursors()), default=0),
                overtaken_count=self._overtaken_count,
                problem=self.problem,
            ),
        )
