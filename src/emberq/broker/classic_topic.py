"""A topic as NSQ has it.

Published messages go straight to the channels. They wait in the topic's own queue only while there is no channel, while
the topic is paused or held, and behind others that wait there. When the way is free again the waiting messages are
moved a portion at a time, so that a large backlog on disk does not hold up everybody else.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from emberq.broker.batch import MAX_BATCH_BYTES, MAX_BATCH_COUNT, Batch, PublishedBatch, Span, cut
from emberq.broker.channel import Channel
from emberq.broker.classic_channel import classic_channel
from emberq.broker.error import StoreError
from emberq.broker.ids import IdSource
from emberq.broker.layout import PUBLISHED_HEADER_BYTES
from emberq.broker.pending import Pending
from emberq.broker.queue import UNREADABLE_RETRY_NS, MessageQueue
from emberq.broker.topic import Surroundings, Topic
from emberq.storage.errors import DiskWriteError, StorageError
from emberq.wire.producer import ProducerSequence

PORTION_COUNT = 10_000
PORTION_BYTES = 4 * 1024 * 1024
"""How much of a backlog is moved before others have their turn: some milliseconds of work."""

_log = logging.getLogger(__name__)


class ClassicTopic(Topic):
    """Owns a queue besides its channels."""

    def __init__(self, name: str, around: Surroundings) -> None:
        super().__init__(name, around)
        self._ids = IdSource(around.config.node_id)
        self._queue = MessageQueue(
            capacity=around.config.channel.mem_queue_size,
            backend=around.store.backend(name),
            report_health=around.report_health,
        )
        self._delays_ns = around.store.load_times(name, "delay")
        """Deferred messages that wait in the topic: how long each is to wait in the channels, by id."""
        self._move_alarm = around.timers.alarm(self._flow_changed)
        self._flows = False
        """Whether what is published goes straight to the channels."""

    @property
    def depth(self) -> int:
        return self._queue.depth

    @property
    def backend_depth(self) -> int:
        return self._queue.backend_depth

    # Publishing.

    def publish(
        self,
        blob: bytes,
        ends: Sequence[int],
        *,
        producer: ProducerSequence | None = None,  # noqa: ARG002 - there is no memory of what producers sent
    ) -> Pending | None:
        if not ends:
            return None
        if len(blob) <= MAX_BATCH_BYTES and len(ends) <= MAX_BATCH_COUNT:
            self._publish_batch(blob, ends)
        else:
            for piece_blob, piece_ends in cut(blob, ends):
                self._publish_batch(piece_blob, piece_ends)
        return None

    def _make_channel(self, name: str) -> Channel:
        return classic_channel(name, topic_name=self.name, around=self._around)

    def _publish_batch(self, blob: bytes, ends: Sequence[int]) -> None:
        batch = self._batch(blob, ends)
        count = batch.count
        try:
            if self._flows:
                self._copy(batch, 0, count)
            else:
                self._keep(batch)
        except StoreError as refusal:
            self.message_count += refusal.stored_count
            self.message_bytes += batch.body_bytes(0, refusal.stored_count)
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
        batch = self._batch(blob, (len(blob),))
        if self._flows:
            self._copy_deferred(Span(batch, 0, 1), delay_ns)
        else:
            depth = self._queue.depth
            self._keep(batch)
            if self._queue.depth > depth:  # an ephemeral topic may have dropped it
                self._delays_ns[batch.ids(0, 1)[0]] = delay_ns
        self.message_count += 1
        self.message_bytes += len(blob) - PUBLISHED_HEADER_BYTES
        return None

    def _batch(self, blob: bytes, ends: Sequence[int]) -> PublishedBatch:
        if self._exiting or self._gate.reason is not None:
            self._refuse_unless_open()
        wall_ns = self._clock.wall_ns()
        return PublishedBatch(blob, ends, self._ids.reserve(len(ends), wall_ns), wall_ns)

    def _update_flow(self) -> None:
        """To be called whenever a channel, the pause, the hold or the backlog came or went."""
        self._flows = self._may_flow and not self._queue.depth

    def _keep(self, batch: PublishedBatch) -> None:
        try:
            self._queue.put(Span(batch, 0, batch.count))
        except DiskWriteError as failure:
            raise StoreError(str(failure), stored_count=failure.stored_count) from failure
        finally:
            batch.forget_records()
            self._update_flow()

    def _copy(self, batch: Batch, start: int, stop: int) -> None:
        """Give each channel its copy. One channel's full disk does not keep the message from the others."""
        refused: StoreError | None = None
        for channel in self.channels.values():
            try:
                channel.put(Span(batch, start, stop, 0))
            except StoreError as failure:
                if refused is None or failure.stored_count < refused.stored_count:
                    refused = failure
        batch.forget_records()
        if refused is not None:
            raise refused

    def _copy_deferred(self, span: Span, delay_ns: int) -> None:
        for channel in self.channels.values():
            channel.put_deferred(Span(span.batch, span.start, span.stop), delay_ns=delay_ns)

    # Backlog.

    def _flow_changed(self) -> None:
        """A portion of what waits is moved now, the rest in later turns."""
        if self._may_flow and not self._exiting:
            self._move_portion()
        self._update_flow()

    def _move_portion(self) -> None:
        moved = moved_bytes = retry_ns = 0
        while moved < PORTION_COUNT and moved_bytes < PORTION_BYTES:
            span = self._queue.take(max_count=PORTION_COUNT - moved, max_bytes=PORTION_BYTES - moved_bytes)
            if span is None:
                retry_ns = UNREADABLE_RETRY_NS  # only if the queue says that there is more
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
            try:
                self._copy(part.batch, part.start, part.stop)
            except StoreError as failure:
                _log.error("TOPIC(%s) ERROR: failed to put msg to a channel - %s", self.name, failure)

    # The topic as a whole.

    def empty(self) -> None:
        self._queue.empty()
        self._delays_ns.clear()
        self._update_flow()

    def _remove_files(self) -> None:
        self.empty()
        self._around.store.save_times(self.name, "delay", {})
        self._queue.delete()

    def _save(self) -> None:
        self._move_alarm.cancel()
        try:
            self._queue.close([])
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write messages to disk - %s", self.name, failure)
        try:
            self._around.store.save_times(self.name, "delay", self._delays_ns)
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write delays to disk - %s", self.name, failure)
