"""A channel as NSQ has it: a memory queue that overflows to a disk queue.

What is in memory, in flight or deferred is written to the disk queue when nsqd stops. A disk queue's record has no due
time, so deferred messages keep theirs in a file beside it.
"""

from __future__ import annotations

import logging

from emberq.base.clock import Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.batch import Span
from emberq.broker.channel import Channel, ChannelLimits
from emberq.broker.queue import HealthReport, MessageQueue
from emberq.broker.store import Store
from emberq.broker.topic import Surroundings
from emberq.storage.errors import StorageError
from emberq.wire.name import is_ephemeral

_log = logging.getLogger(__name__)


def classic_channel(name: str, *, topic_name: str, around: Surroundings) -> ClassicChannel:
    """A channel of a topic with these surroundings."""
    return ClassicChannel(
        name,
        topic_name=topic_name,
        store=around.store,
        clock=around.clock,
        timers=around.timers,
        limits=around.config.channel,
        report_health=around.report_health,
    )


class ClassicChannel(Channel):
    """Created by its topic; also by a journaled topic, for channels that live in memory alone."""

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
            capacity=NEVER if is_ephemeral(name) else limits.mem_queue_size,
            backend=store.backend(self._storage_name),
            report_health=report_health,
        )
        self._restored_due_ns = store.load_times(self._storage_name, "due")
        """Wall-clock due times of messages that lie in the backend but are not to be delivered yet, by id."""
        super().__init__(name, topic_name=topic_name, queue=self._messages, clock=clock, timers=timers, limits=limits)

    def _due(self, span: Span) -> list[Span]:
        """Not what was put off before a restart, and still is."""
        if not self._restored_due_ns:
            return [span]
        parts = [Span(span.batch, index, index + 1, span.attempts) for index in range(span.start, span.stop)]
        return [part for part in parts if not self._defer_restored(part)]

    def _defer_restored(self, part: Span) -> bool:
        """Whether this message, from before a restart, still has to wait; then it does."""
        due_wall_ns = self._restored_due_ns.pop(part.ids()[0], 0)
        remaining_ns = due_wall_ns - self._clock.wall_ns()
        if remaining_ns <= 0:
            return False
        self._defer(part.compact(), self._clock.monotonic_ns() + remaining_ns)
        return True

    def _done_with(self, spans: list[Span]) -> None:
        """They were taken from the queue, and that is all there is to forget."""

    def empty(self) -> None:
        self._restored_due_ns.clear()
        self._store.save_times(self._storage_name, "due", {})
        super().empty()

    def _remove_files(self) -> None:
        self._messages.delete()

    def _save(self, in_flight: list[Span], deferred: list[tuple[int, Span]]) -> None:
        counts = (self._messages.memory_count, sum(span.count for span in in_flight), len(deferred))
        if any(counts):
            _log.info(
                "CHANNEL(%s): flushing %d memory %d in-flight %d deferred messages to backend", self.name, *counts
            )
        wall_ns = self._clock.wall_ns()
        offset_ns = wall_ns - self._clock.monotonic_ns()
        due_times = {message_id: due_ns for message_id, due_ns in self._restored_due_ns.items() if due_ns > wall_ns}
        due_times.update((span.ids()[0], due_ns + offset_ns) for due_ns, span in deferred)
        try:
            self._messages.close([*in_flight, *(span for _, span in deferred)])
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to write messages to disk - %s", self.name, failure)
        try:
            self._store.save_times(self._storage_name, "due", due_times)
        except StorageError as failure:
            _log.error("CHANNEL(%s): failed to write due times to disk - %s", self.name, failure)
