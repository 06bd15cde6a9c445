"""A topic: what is published to it is copied to each of its channels.

Published messages go straight to the channels. They wait in the topic's own queue only while there is no channel, while
the topic is paused or held, and behind others that wait there. When the way is free again the waiting messages are
moved a portion at a time, so that a large backlog on disk does not hold up everybody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emberq.base.clock import Clock
from emberq.base.timers import Timers
from emberq.broker.batch import MAX_BATCH_BYTES, MAX_BATCH_COUNT, Batch, PublishedBatch, Span, cut
from emberq.broker.channel import NO_LATENCY_KEPT, Channel
from emberq.broker.error import ExitingError, GateClosedError, StoreError
from emberq.broker.gate import PublishGate
from emberq.broker.ids import IdSource
from emberq.broker.latency import LatencyConfig
from emberq.broker.layout import PUBLISHED_HEADER_BYTES
from emberq.broker.queue import UNREADABLE_RETRY_NS, HealthReport, MessageQueue
from emberq.broker.stats import TopicStats
from emberq.broker.store import Store
from emberq.storage.errors import DiskWriteError, StorageError
from emberq.wire.name import is_ephemeral

PORTION_COUNT = 10_000
PORTION_BYTES = 4 * 1024 * 1024
"""How much of a backlog is moved before others have their turn: some milliseconds of work."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What is the same for every topic of a broker."""

    node_id: int = 0
    mem_queue_size: int = 10_000
    max_msg_timeout_ns: int = 900 * 1_000_000_000
    max_channel_consumers: int = 0
    latency: LatencyConfig = NO_LATENCY_KEPT


ChannelListener = Callable[["Topic", Channel, bool], None]
"""Told of each channel that comes (True) or has gone (False)."""


class Topic:
    """Owns its queue and its channels. Created by the broker."""

    def __init__(
        self,
        name: str,
        *,
        config: TopicConfig,
        store: Store,
        clock: Clock,
        timers: Timers,
        gate: PublishGate,
        report_health: HealthReport,
        on_channel: ChannelListener,
    ) -> None:
        self.name = name
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.channels: dict[str, Channel] = {}
        self._is_held = False
        """Waiting for its channels to be known."""
        self._exiting = False
        self._config = config
        self._gate = gate
        self._store = store
        self._clock = clock
        self._timers = timers
        self._report_health = report_health
        self._on_channel = on_channel
        self._ids = IdSource(config.node_id)
        self._queue = MessageQueue(
            capacity=config.mem_queue_size, backend=store.backend(name), report_health=report_health
        )
        self._delays_ns = store.load_times(name, "delay")
        """Deferred messages that wait in the topic: how long each is to wait in the channels, by id."""
        self._move_alarm = timers.alarm(self._move)
        self._flows = False
        """Whether what is published goes straight to the channels."""

    def __repr__(self) -> str:
        return f"<Topic {self.name} depth={self.depth} channels={len(self.channels)}>"

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def depth(self) -> int:
        return self._queue.depth

    # Publishing.

    def publish(self, blob: bytes, ends: Sequence[int]) -> None:
        """Take in messages: `blob` holds them back to back, each an int32 size and a body; `ends` says where each ends.

        StoreError when the disk refuses some of them; those before are kept.
        """
        if not ends:
            return
        if len(blob) <= MAX_BATCH_BYTES and len(ends) <= MAX_BATCH_COUNT:
            self._publish_batch(blob, ends)
        else:
            for piece_blob, piece_ends in cut(blob, ends):
                self._publish_batch(piece_blob, piece_ends)

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

    def publish_deferred(self, blob: bytes, *, delay_ns: int) -> None:
        """Take in one message that channels are to hold back for a while."""
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

    def _batch(self, blob: bytes, ends: Sequence[int]) -> PublishedBatch:
        if self._exiting:
            raise ExitingError
        if self._gate.reason is not None:
            raise GateClosedError(self._gate.reason)
        wall_ns = self._clock.wall_ns()
        return PublishedBatch(blob, ends, self._ids.reserve(len(ends), wall_ns), wall_ns)

    def _update_flow(self) -> None:
        """To be called whenever a channel, the pause, the hold or the backlog came or went."""
        self._flows = bool(self.channels) and not self.paused and not self._is_held and not self._queue.depth

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

    def _move(self) -> None:
        """Let waiting messages through, if they may go: a portion now, the rest in later turns."""
        if self.channels and not self.paused and not self._is_held and not self._exiting:
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

    # Channels.

    def channel(self, name: str) -> Channel:
        """The channel of that name, made if there is none."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._create_channel(name)
        return channel

    def find_channel(self, name: str) -> Channel | None:
        return self.channels.get(name)

    def _create_channel(self, name: str) -> Channel:
        if self._exiting:
            raise ExitingError
        channel = Channel(
            name,
            topic_name=self.name,
            store=self._store,
            clock=self._clock,
            timers=self._timers,
            report_health=self._report_health,
            mem_queue_size=self._config.mem_queue_size,
            max_msg_timeout_ns=self._config.max_msg_timeout_ns,
            max_consumers=self._config.max_channel_consumers,
            latency=self._config.latency,
        )
        self.channels[name] = channel
        _log.info("TOPIC(%s): new channel(%s)", self.name, name)
        self._on_channel(self, channel, True)
        self._move()
        return channel

    def delete_channel(self, name: str) -> None:
        """Remove a channel and all it holds; KeyError when there is none of that name."""
        channel = self.channels.pop(name)
        _log.info("TOPIC(%s): deleting channel %s", self.name, name)
        self._update_flow()
        channel.delete()
        self._on_channel(self, channel, False)

    # The topic as a whole.

    def pause(self) -> None:
        """Keep what is published in the topic for now."""
        self.paused = True
        self._update_flow()

    def unpause(self) -> None:
        self.paused = False
        self._move()

    def hold(self) -> None:
        """Keep what is published in the topic until its channels are known; unlike a pause it shows nowhere."""
        self._is_held = True
        self._update_flow()

    def release(self) -> None:
        """The channels are known."""
        self._is_held = False
        self._move()

    def empty(self) -> None:
        """Drop what waits in the topic; the channels keep what they have."""
        self._queue.empty()
        self._delays_ns.clear()
        self._update_flow()

    def delete(self) -> None:
        """Remove everything, channels and files included."""
        self._exiting = True
        for name in list(self.channels):
            self.delete_channel(name)
        self.empty()
        self._store.save_times(self.name, "delay", {})
        self._queue.delete()

    def close(self) -> None:
        """Write everything to disk for the next run."""
        self._exiting = True
        self._move_alarm.cancel()
        for channel in self.channels.values():
            channel.close()
        try:
            self._queue.close([])
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write messages to disk - %s", self.name, failure)
        try:
            self._store.save_times(self.name, "delay", self._delays_ns)
        except StorageError as failure:
            _log.error("TOPIC(%s): failed to write delays to disk - %s", self.name, failure)

    def stats(self) -> TopicStats:
        """What the topic holds now."""
        return TopicStats(
            name=self.name,
            channels=tuple(self.channels[name].stats() for name in sorted(self.channels)),
            depth=self.depth,
            backend_depth=self._queue.backend_depth,
            message_count=self.message_count,
            message_bytes=self.message_bytes,
            paused=self.paused,
            e2e=self._config.latency.summarize(channel.latency for channel in self.channels.values()),
        )
