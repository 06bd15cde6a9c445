"""A topic whose messages are kept in a journal; see DESIGN in docs/ARCHITECTURE.md, "Journaled topics".

    published ──> journal ──> synced ──────────────> released ──> channels
                              (if sync is `always`)   (unless paused, held or without channels)

Everything published is appended to the journal. With `always` it counts as stored, and is shown to anybody, only when
it is on the disk; then the publisher is told. Channels are cursors: those that keep up get the messages from here, the
others read the journal.

`released` is the offset up to which channels may see. While the topic is paused, held or has no channel it stays where
it is, and a new channel starts there; so the first one gets what was published before it, and later ones what comes
next. While it stands still it is kept in the file `topic.mark`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emberq.base.clock import NS_PER_SECOND
from emberq.broker.batch import Span
from emberq.broker.channel import Channel
from emberq.broker.error import StoreError
from emberq.broker.journal_store import JournalStore, SyncMode
from emberq.broker.journaled_batch import JournaledBatch, JournalSource, published_batches, replayed_batches
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.layout import PUBLISHED_HEADER_BYTES
from emberq.broker.pending import Pending
from emberq.broker.topic import Surroundings, Topic
from emberq.storage.errors import StorageError
from emberq.storage.journal.batch import Bodies
from emberq.storage.journal.error import JournalError, JournalSyncError, JournalWriteError
from emberq.storage.journal.journal import Journal, Stored
from emberq.storage.journal.producer import ProducerSequence
from emberq.wire.name import is_ephemeral

SAVE_INTERVAL_NS = NS_PER_SECOND
"""How long a cursor may be ahead of its file."""
TRIM_INTERVAL_NS = 10 * NS_PER_SECOND
"""How often it is looked whether something is old enough to go."""
EPHEMERAL_READ_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


class _Arrival:
    """What one publish brought, on its way to the channels."""

    __slots__ = ("batches", "body_bytes", "delay_ns", "next_offset")

    def __init__(
        self, next_offset: int, batches: list[JournaledBatch], *, body_bytes: int = 0, delay_ns: int = 0
    ) -> None:
        self.next_offset = next_offset
        self.batches = batches
        self.body_bytes = body_bytes
        self.delay_ns = delay_ns


class JournaledTopic(Topic):
    """Owns the journal's folder besides its channels."""

    def __init__(self, name: str, around: Surroundings, journals: JournalStore) -> None:
        super().__init__(name, around)
        self._settings = journals.settings
        self._folder = journals.open(name)
        self._journal = self._folder.journal
        self._source = JournalSource(self._journal)
        self._stored_offset = self._journal.next_offset
        """Everything before it counts as stored."""
        self._released_offset = self._marked_offset = min(self._folder.load_mark(), self._stored_offset)
        self._save_alarm = around.timers.alarm(self._save_cursors)
        self._sync_alarm = around.timers.alarm(self._folder.commit.request)
        self._trim_alarm = around.timers.alarm(self._trim)
        self._trim_alarm.set(self._clock.monotonic_ns() + TRIM_INTERVAL_NS)

    @property
    def is_journaled(self) -> bool:
        return True

    @property
    def journal(self) -> Journal:
        """For those who read it; only the topic appends."""
        return self._journal

    @property
    def depth(self) -> int:
        return self._stored_offset - self._released_offset

    @property
    def backend_depth(self) -> int:
        return self.depth

    # Publishing.

    def publish(self, blob: bytes, ends: Sequence[int], *, producer: ProducerSequence | None = None) -> Pending | None:
        if not ends:
            return None
        if self._exiting or self._gate.reason is not None:
            self._refuse_unless_open()
        timestamp_ns = self._clock.wall_ns()
        bodies = Bodies.of_items(blob, ends, prefix_bytes=PUBLISHED_HEADER_BYTES)
        stored = self._append(bodies, timestamp_ns=timestamp_ns, producer=producer)
        if stored.is_repeated:
            return self._when_stored(_Arrival(stored.next_offset, []))
        batches = published_batches(blob, ends, first_offset=stored.base_offset, timestamp_ns=timestamp_ns)
        body_bytes = len(blob) - PUBLISHED_HEADER_BYTES * len(ends)
        return self._when_stored(_Arrival(stored.next_offset, batches, body_bytes=body_bytes))

    def publish_deferred(self, blob: bytes, *, delay_ns: int) -> Pending | None:
        self._refuse_unless_open()
        timestamp_ns = self._clock.wall_ns()
        bodies = Bodies.of_items(blob, (len(blob),), prefix_bytes=PUBLISHED_HEADER_BYTES)
        stored = self._append(bodies, timestamp_ns=timestamp_ns, due_ns=(timestamp_ns + delay_ns,))
        batch = JournaledBatch(blob, (len(blob),), stored.base_offset, timestamp_ns)
        body_bytes = len(blob) - PUBLISHED_HEADER_BYTES
        return self._when_stored(_Arrival(stored.next_offset, [batch], body_bytes=body_bytes, delay_ns=delay_ns))

    def _append(
        self,
        bodies: Bodies,
        *,
        timestamp_ns: int,
        due_ns: Sequence[int] | None = None,
        producer: ProducerSequence | None = None,
    ) -> Stored:
        try:
            stored = self._journal.append(bodies, timestamp_ns=timestamp_ns, due_ns=due_ns, producer=producer)
        except JournalWriteError as failure:
            self._around.report_health(str(failure))
            raise StoreError(str(failure)) from failure
        self._around.report_health(None)
        return stored

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
        return None

    def _synced(self, arrival: _Arrival, pending: Pending, failure: JournalSyncError | None) -> None:
        if failure is not None:
            self._around.report_health(str(failure))
            pending.settle(StoreError(str(failure)))
            return
        self._stored(arrival)
        pending.settle(None)

    def _stored(self, arrival: _Arrival) -> None:
        """It is in the journal for good: show it to the channels, if they may see it."""
        self._stored_offset = max(self._stored_offset, arrival.next_offset)
        self.message_bytes += arrival.body_bytes
        for batch in arrival.batches:
            self.message_count += batch.count
        if not self._may_flow or self._exiting:
            return
        self._released_offset = self._stored_offset
        for channel in self.channels.values():
            for batch in arrival.batches:
                if arrival.delay_ns:
                    channel.put_deferred(Span(batch, 0, 1), delay_ns=arrival.delay_ns)
                else:
                    channel.put(Span(batch, 0, batch.count))

    # Channels.

    def _make_channel(self, name: str) -> Channel:
        if is_ephemeral(name):
            return super()._make_channel(name)
        around = self._around
        cursor = self._folder.cursor(name, start_offset=self._released_offset)
        if cursor.high_water > self._journal.next_offset:
            # The journal lost its end to a power failure; what was seen of it must not come to mean something else.
            lost_from = self._journal.next_offset
            self._journal.skip_to(cursor.high_water)
            cursor.acknowledge(lost_from, self._journal.next_offset)
            self._stored_offset = self._journal.next_offset
        return JournaledChannel(
            name,
            topic_name=self.name,
            folder=self._folder,
            source=self._source,
            cursor=cursor,
            end_offset=self._released_offset,
            on_change=self._save_soon,
            clock=around.clock,
            timers=around.timers,
            limits=around.config.channel,
        )

    def saved_channel_names(self) -> list[str]:
        """The channels that a cursor tells of."""
        return self._folder.channel_names()

    def _flow_changed(self) -> None:
        if self._exiting:
            return
        if self._may_flow:
            self._release()
        elif self._marked_offset != self._released_offset:
            self._marked_offset = self._released_offset
            try:
                self._folder.save_mark(self._marked_offset)
            except StorageError as failure:
                _log.error("TOPIC(%s): failed to save where its channels stop - %s", self.name, failure)

    def _release(self) -> None:
        """Let the channels see everything."""
        start, self._released_offset = self._released_offset, self._stored_offset
        if start == self._released_offset:
            return
        for channel in self.channels.values():
            if isinstance(channel, JournaledChannel):
                channel.extend_to(self._released_offset)
            else:
                self._feed(channel, start)

    def _feed(self, channel: Channel, start: int) -> None:
        """Give what waited to a channel that lives in memory alone, as far as it takes it."""
        position = start
        room = self._around.config.channel.mem_queue_size
        while position < self._released_offset and room > 0:
            try:
                chunk = self._source.read(position, max_bytes=EPHEMERAL_READ_BYTES)
            except JournalError as failure:
                _log.error("TOPIC(%s): its journal cannot be read - %s", self.name, failure)
                return
            for batch in chunk.batches:
                first, stop = max(batch.base_offset, position), min(batch.next_offset, self._released_offset)
                for piece in replayed_batches(batch, first, min(stop, first + room)):
                    room -= piece.count
                    channel.put(Span(piece, 0, piece.count))
            position = chunk.next_offset

    # What is done from time to time.

    def _save_soon(self) -> None:
        self._save_alarm.set_earlier(self._clock.monotonic_ns() + SAVE_INTERVAL_NS)

    def _save_cursors(self) -> None:
        for channel in self._cursors():
            channel.save_soon()

    def _trim(self) -> None:
        """Remove what is old enough, if every channel has passed it."""
        self._trim_alarm.set(self._clock.monotonic_ns() + TRIM_INTERVAL_NS)
        lowest = min((channel.low_water for channel in self._cursors()), default=self._released_offset)
        try:
            freed_bytes = self._journal.trim(
                before_offset=min(lowest, self._released_offset), now_ns=self._clock.wall_ns()
            )
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to remove old messages - %s", self.name, failure)
            return
        if freed_bytes:
            _log.info("TOPIC(%s): removed %d bytes of old messages", self.name, freed_bytes)

    def _cursors(self) -> list[JournaledChannel]:
        return [channel for channel in self.channels.values() if isinstance(channel, JournaledChannel)]

    # The topic as a whole.

    def empty(self) -> None:
        for channel in self._cursors():
            channel.skip(self._released_offset, self._stored_offset)
        self._released_offset = self._stored_offset
        for channel in self._cursors():
            channel.extend_to(self._released_offset)
        self._flow_changed()

    def _remove_files(self) -> None:
        self._cancel_alarms()
        try:
            self._journal.delete()
        except OSError as failure:
            _log.error("TOPIC(%s): failed to remove its journal - %s", self.name, failure)

    def _save(self) -> None:
        self._cancel_alarms()
        try:
            self._journal.close()
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to close its journal - %s", self.name, failure)

    def _cancel_alarms(self) -> None:
        for alarm in (self._save_alarm, self._sync_alarm, self._trim_alarm):
            alarm.discard()
