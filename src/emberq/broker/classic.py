"""Topics and channels as NSQ has them, and the ids of their messages.

Published messages go straight to the channels. They wait in the topic's own queue only while there is no channel, while
the topic is paused or held, and behind others that wait there. When the way is free again, the waiting messages are
moved a portion at a time, so that a large backlog on disk does not hold up other topics and clients.

A channel's queue is memory that overflows to a disk queue. Messages in memory, in flight or deferred are written to the
disk queue when nsqd stops. A disk queue's record has no due time, so deferred messages keep theirs in a file beside it.

An id has the layout of the reference:

    bits 63..22   pseudo-milliseconds: (now in ns >> 20) - EPOCH, 1.048576 ms each
    bits 21..12   node id
    bits 11..0    sequence number within the pseudo-millisecond

The reference waits when a pseudo-millisecond is used up or the clock went back. Ours takes the next pseudo-millisecond
instead, ahead of the clock if it must: ids stay unique and increasing, and no publisher waits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.batch import MAX_BATCH_BYTES, Gathering, Span, cut, lone_message, published_batch
from emberq.broker.channel import Channel, ChannelLimits
from emberq.broker.deferred import grain_of
from emberq.broker.error import StoreError
from emberq.broker.layout import MAX_BATCH_COUNT, PUBLISHED_HEADER_BYTES
from emberq.broker.limit import QueueKeeper, TopicLimits
from emberq.broker.queue import UNREADABLE_RETRY_NS, HealthReport, MessageQueue
from emberq.broker.stats import TopicStats
from emberq.broker.store import Store
from emberq.broker.topic import Pending, Topic, TopicContext
from emberq.storage.error import DiskWriteError, StorageError
from emberq.wire.parameter import ProducerSequence, is_ephemeral

_log = logging.getLogger(__name__)


# Topics.

PORTION_COUNT = 10_000
PORTION_BYTES = 4 * 1024 * 1024
"""How much of a backlog is moved in one turn of the event loop: some milliseconds of work."""


MAX_COPYING_NS = 3 * NS_PER_MS
"""How long messages are copied to channels in one turn of the event loop."""
FEW_COUNT = 4
FEW_BYTES = 8 * 1024
"""So few messages share a batch with those that were published before and after them, if they have to wait."""


class _Copying:
    """Messages, and the channels that are still to get them."""

    __slots__ = ("channels", "span")

    def __init__(self, span: Span, channels: list[Channel]) -> None:
        self.span = span
        self.channels = channels


class ClassicTopic(Topic):
    """A topic whose messages go straight to its channels. Owns a queue besides its channels."""

    def __init__(self, name: str, context: TopicContext) -> None:
        super().__init__(name, context)
        self._ids = IdSource(context.config.node_id, start_ns=context.clock.wall_ns())
        self._queue = MessageQueue(
            max_count=context.config.channel.mem_queue_size,
            max_bytes=context.config.channel.mem_queue_bytes,
            backend=context.store.backend(name),
            report_health=context.report_health,
            backend_bytes=_waiting_bytes(context.store, name, self._limits),
            dropped=self._forget_delays,
        )
        self._keeper: QueueKeeper | None = None
        """Drops what may not wait in the topic any longer; None if everything may."""
        if self._limits is not None and self._limits.needs_keeper:
            self._keeper = QueueKeeper(
                self._queue, self._limits, owner=f"TOPIC({name})", clock=context.clock, timers=context.timers
            )
        self._delays_ns = context.store.load_times(name, "delay")
        """For deferred messages that wait in the topic: how long channels are to defer each, by id."""
        self._move_alarm = context.timers.alarm(self._flow_changed)
        self._flows = False
        """Whether published messages go straight to the channels."""
        self._copying: _Copying | None = None
        """Messages that some channels are still to get."""
        self._waits = False
        """Whether the messages last published were not delivered at once."""
        self._gathering = Gathering()
        self._due_together = Gathering()
        self._moment = NEVER
        """When the message that was last published with a delay is due."""

    @property
    def depth(self) -> int:
        return self._queue.depth

    @property
    def backend_depth(self) -> int:
        return self._queue.backend_depth

    @property
    def waiting_bytes(self) -> int:
        return self._queue.waiting_bytes

    # Publishing.

    def publish(
        self,
        blob: bytes,
        ends: Sequence[int],
        *,
        producer: ProducerSequence | None = None,  # noqa: ARG002 - only a journal remembers producers
    ) -> Pending | None:
        if not ends:
            return None
        if self._refuses:
            self._refuse_beyond_limits(blob, len(ends))
        if len(blob) <= MAX_BATCH_BYTES and len(ends) <= MAX_BATCH_COUNT:
            self._publish_batch(blob, ends)
        else:
            for piece_blob, piece_ends in cut(blob, ends):
                self._publish_batch(piece_blob, piece_ends)
        return None

    def _make_channel(self, name: str) -> Channel:
        return classic_channel(name, topic_name=self.name, context=self._context, limits=self._channel_limits)

    def _publish_batch(self, blob: bytes, ends: Sequence[int]) -> None:
        if self._exiting or self._gate.reason is not None:
            self._refuse_unless_open()
        wall_ns = self._clock.wall_ns()
        count = len(ends)
        first_id = self._ids.reserve(count, wall_ns)
        if self._waits and count <= FEW_COUNT and len(blob) <= FEW_BYTES:
            span = self._gathering.add(blob, ends, first_id, wall_ns)
        else:
            span = Span(published_batch(blob, ends, first_id, wall_ns), 0, count)
        batch, start = span.batch, span.start
        try:
            if self._flows:
                self._copy(span)
            else:
                self._keep(span)
        except StoreError as refusal:
            self.message_count += refusal.stored_count
            self.message_bytes += batch.body_bytes(start, start + refusal.stored_count)
            raise
        self.message_count += count
        self.message_bytes += len(blob) - PUBLISHED_HEADER_BYTES * count

    def publish_deferred(
        self,
        blob: bytes,
        *,
        delay_ns: int,
        producer: ProducerSequence | None = None,  # noqa: ARG002 - as above
    ) -> Pending | None:
        if self._exiting or self._gate.reason is not None:
            self._refuse_unless_open()
        if self._refuses:
            self._refuse_beyond_limits(blob, 1)
        span = self._deferred_span(blob, delay_ns)
        if self._flows:
            self._copy_deferred(span, delay_ns)
        else:
            message_id = span.ids()[0]
            depth = self._queue.depth
            self._keep(span)
            if self._queue.depth > depth:  # an ephemeral topic may have dropped it
                self._delays_ns[message_id] = delay_ns
        self.message_count += 1
        self.message_bytes += len(blob) - PUBLISHED_HEADER_BYTES
        return None

    def _deferred_span(self, blob: bytes, delay_ns: int) -> Span:
        """One message that is to wait. Those that are due together share a batch."""
        wall_ns = self._clock.wall_ns()
        message_id = self._ids.reserve(1, wall_ns)
        moment = grain_of(self._clock.monotonic_ns() + delay_ns)
        if moment == self._moment and len(blob) <= FEW_BYTES:
            return self._due_together.add(blob, (len(blob),), message_id, wall_ns)
        self._moment = moment
        self._due_together.end()
        return Span(lone_message(blob, message_id, wall_ns), 0, 1)

    def _update_flow(self) -> None:
        """Called whenever a channel, the pause, the hold or the backlog came or went."""
        self._flows = self._may_flow and not self._queue.depth and self._copying is None

    def _keep(self, span: Span) -> None:
        batch = span.batch
        try:
            self._queue.put(span)
        except DiskWriteError as failure:
            raise StoreError(str(failure), stored_count=failure.stored_count) from failure
        finally:
            self._waits = True
            batch.forget_records()
            if self._keeper is not None:
                self._keeper.filled()
            self._update_flow()

    # Copies for the channels.

    def _copy(self, span: Span) -> None:
        """Give each channel its copy. If the disk of one is full, the others still get theirs.

        If this takes too long, because there are many channels and their disks are slow, the rest of them get theirs in
        later turns of the event loop, and what is published meanwhile waits in the topic.
        """
        channels = list(self.channels.values())
        refused = self._copy_portion(span, channels)
        if channels:
            self._copying = _Copying(span, channels)
            self._move_alarm.set(self._clock.monotonic_ns())
            self._update_flow()
        if refused is not None:
            raise refused

    def _copy_portion(self, span: Span, channels: list[Channel]) -> StoreError | None:
        """Copy to as many of the channels as a turn has time for, and take these off; the worst that a disk refused."""
        refused: StoreError | None = None
        waits = False
        end_ns = self._clock.monotonic_ns() + MAX_COPYING_NS if len(channels) > 8 else NEVER
        done = 0
        for channel in channels:
            try:
                channel.put(Span(span.batch, span.start, span.stop))
            except StoreError as failure:
                if refused is None or failure.stored_count < refused.stored_count:
                    refused = failure
            waits = waits or channel.waits
            done += 1
            if end_ns != NEVER and self._clock.monotonic_ns() > end_ns:
                break
        del channels[:done]
        span.batch.forget_records()
        self._waits = waits
        if not waits:
            self._gathering.end()
        return refused

    def _go_on_copying(self) -> bool:
        """Copy another portion for the channels that are still to get one; whether all have got theirs."""
        copying = self._copying
        if copying is None:
            return True
        copying.channels = [channel for channel in copying.channels if self.channels.get(channel.name) is channel]
        refused = self._copy_portion(copying.span, copying.channels)
        if refused is not None:
            _log.error("TOPIC(%s) ERROR: failed to put msg to a channel - %s", self.name, refused)
        if not copying.channels:
            self._copying = None
        return self._copying is None

    def _copy_deferred(self, span: Span, delay_ns: int) -> None:
        for channel in self.channels.values():
            channel.put_deferred(Span(span.batch, span.start, span.stop), delay_ns=delay_ns)

    # Backlog.

    def _flow_changed(self) -> None:
        """Move a portion of what waits now, the rest in later turns."""
        if self._may_flow and not self._exiting:
            self._move_portion()
        self._update_flow()

    def _move_portion(self) -> None:
        if not self._go_on_copying():
            self._move_alarm.set(self._clock.monotonic_ns())
            return
        moved = moved_bytes = retry_ns = 0
        while moved < PORTION_COUNT and moved_bytes < PORTION_BYTES and self._copying is None:
            span = self._queue.take(max_count=PORTION_COUNT - moved, max_bytes=PORTION_BYTES - moved_bytes)
            if span is None:
                retry_ns = UNREADABLE_RETRY_NS  # used only if the queue says that there is more
                break
            moved += span.count
            moved_bytes += span.batch.body_bytes(span.start, span.stop)
            self._move_span(span)
        if self._queue.depth:
            self._move_alarm.set(self._clock.monotonic_ns() + retry_ns)

    def _move_span(self, span: Span) -> None:
        parts = [span]
        if self._delays_ns:
            parts = [Span(span.batch, index, index + 1) for index in range(span.start, span.stop)]
        for part in parts:
            delay_ns = self._delays_ns.pop(part.ids()[0], 0) if self._delays_ns else 0
            if delay_ns:
                self._copy_deferred(part.compact(), delay_ns)
                continue
            while not self._go_on_copying():
                pass  # a copy in small parts, which only a restart with deferred messages makes, is not put off
            try:
                self._copy(part)
            except StoreError as failure:
                _log.error("TOPIC(%s) ERROR: failed to put msg to a channel - %s", self.name, failure)

    def _forget_delays(self, span: Span) -> None:
        """These messages were dropped."""
        if self._delays_ns:
            for message_id in span.ids():
                self._delays_ns.pop(message_id, None)

    # The topic as a whole.

    def stats(self, *, with_channels: bool = True) -> TopicStats:
        stats = super().stats(with_channels=with_channels)
        if self._keeper is not None:
            stats.dropped_count = self._keeper.dropped_count
            stats.expired_count = self._keeper.expired_count
        stats.oldest_age_ns = self._queue.oldest_age_ns(self._clock.wall_ns())
        return stats

    def empty(self) -> None:
        self._copying = None
        self._queue.empty()
        self._delays_ns.clear()
        self._update_flow()

    def close(self) -> None:
        while not self._go_on_copying():
            pass
        super().close()

    def _remove_files(self) -> None:
        self.empty()
        self._context.store.save_times(self.name, "delay", {})
        if self._keeper is not None:
            self._keeper.end()
        self._queue.delete()

    def _save(self) -> None:
        self._move_alarm.cancel()
        if self._keeper is not None:
            self._keeper.end()
        try:
            self._queue.close([])
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write messages to disk - %s", self.name, failure)
        try:
            self._context.store.save_times(self.name, "delay", self._delays_ns)
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write delays to disk - %s", self.name, failure)


# Channels.


def classic_channel(name: str, *, topic_name: str, context: TopicContext, limits: ChannelLimits) -> ClassicChannel:
    """A new channel in the context of its topic."""
    return ClassicChannel(
        name,
        topic_name=topic_name,
        store=context.store,
        clock=context.clock,
        timers=context.timers,
        limits=limits,
        report_health=context.report_health,
    )


class ClassicChannel(Channel):
    """A channel over memory and a disk queue. A journaled topic has such channels too: its ephemeral ones."""

    def __init__(
        self,
        name: str,
        *,
        topic_name: str,
        store: Store,
        clock: Clock,
        timers: Timers,
        limits: ChannelLimits,
        report_health: HealthReport,
    ) -> None:
        self._store = store
        self._storage_name = f"{topic_name}:{name}"
        self._messages = MessageQueue(
            max_count=NEVER if is_ephemeral(name) else limits.mem_queue_size,
            max_bytes=NEVER if is_ephemeral(name) else limits.mem_queue_bytes,
            backend=store.backend(self._storage_name),
            report_health=report_health,
            backend_bytes=_waiting_bytes(store, self._storage_name, limits.waiting),
            dropped=self._forget_due_times,
        )
        self._restored_due_ns = store.load_times(self._storage_name, "due")
        """Wall-clock due times of messages that lie in the backend but are not to be delivered yet, by id."""
        super().__init__(name, topic_name=topic_name, queue=self._messages, clock=clock, timers=timers, limits=limits)

    def _due(self, span: Span) -> list[Span]:
        """All but the messages that were deferred before a restart, and still are."""
        if not self._restored_due_ns:
            return [span]
        parts = [Span(span.batch, index, index + 1, span.attempts) for index in range(span.start, span.stop)]
        return [part for part in parts if not self._defer_restored(part)]

    def _defer_restored(self, part: Span) -> bool:
        """Defer this message if it was deferred before a restart and its time has not come; whether it was."""
        due_wall_ns = self._restored_due_ns.pop(part.ids()[0], 0)
        remaining_ns = due_wall_ns - self._clock.wall_ns()
        if remaining_ns <= 0:
            return False
        self._defer(part.compact(), remaining_ns)
        return True

    def _forget_due_times(self, span: Span) -> None:
        """These messages were dropped."""
        if self._restored_due_ns:
            for message_id in span.ids():
                self._restored_due_ns.pop(message_id, None)

    def _done_with(self, spans: list[Span]) -> None:
        """Nothing is left to do: they have left the queue."""

    def empty(self) -> None:
        self._restored_due_ns.clear()
        self._store.save_times(self._storage_name, "due", {})
        super().empty()

    def _remove_files(self) -> None:
        self._messages.delete()

    def _save(self, in_flight: list[Span], deferred: list[tuple[int, Span]]) -> None:
        deferred_count = sum(span.count for _, span in deferred)
        counts = (self._messages.memory_count, sum(span.count for span in in_flight), deferred_count)
        if any(counts):
            _log.info(
                "CHANNEL(%s): flushing %d memory %d in-flight %d deferred messages to backend", self.name, *counts
            )
        wall_ns = self._clock.wall_ns()
        offset_ns = wall_ns - self._clock.monotonic_ns()
        due_times = {message_id: due_ns for message_id, due_ns in self._restored_due_ns.items() if due_ns > wall_ns}
        for due_ns, span in deferred:
            due_times.update(dict.fromkeys(span.ids(), due_ns + offset_ns))
        try:
            self._messages.close([*in_flight, *(span for _, span in deferred)])
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to write messages to disk - %s", self.name, failure)
        try:
            self._store.save_times(self._storage_name, "due", due_times)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to write due times to disk - %s", self.name, failure)


def _waiting_bytes(store: Store, name: str, limits: TopicLimits | None) -> int:
    """The bodies that an earlier run left in this backend, if there is a limit on them."""
    return 0 if limits is None or limits.max_bytes == NEVER else store.waiting_bytes(name)


# Ids.

_EPOCH = 1_288_834_974_288
_SEQUENCES = 1 << 12
MAX_NODE_ID = 1023


class IdSource:
    """Makes the ids of one topic."""

    def __init__(self, node_id: int, *, start_ns: int = 0) -> None:
        """None is of a time before `start_ns`: an earlier run may have given it, if the clock is set back now."""
        if not 0 <= node_id <= MAX_NODE_ID:
            raise ValueError(f"node id {node_id} is not in 0..{MAX_NODE_ID}")
        self._node_bits = node_id << 12
        self._tick = max(0, (start_ns >> 20) - _EPOCH)
        self._next_sequence = 0

    def reserve(self, count: int, wall_ns: int) -> int:
        """The first of `count` (at most 4096) consecutive ids, all of one pseudo-millisecond."""
        tick = (wall_ns >> 20) - _EPOCH
        if tick <= self._tick:
            tick = self._tick if self._next_sequence + count <= _SEQUENCES else self._tick + 1
        if tick > self._tick:
            self._tick = tick
            self._next_sequence = 0
        first_sequence = self._next_sequence
        self._next_sequence += count
        return tick << 22 | self._node_bits | first_sequence
