"""A channel: one copy of a topic's messages, shared out among its subscribers.

A message is in exactly one place: in the queue, in flight to one subscriber, deferred, or on its way to another topic
(see `in_flight`), because it was tried often enough or is to be tried there again (see `dead_letter`). `pump` moves
messages from the queue to subscribers that are ready; everything that makes a message or a subscriber available ends
with a call of it.

Fairness: ready subscribers stand in a line. The first is given its share of what is queued (at most its window), then
goes to the end. So a burst is spread over many consumers, and goes to a single one in one piece.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.batch import Span
from emberq.broker.error import ExitingError, MessageNotInFlightError, NotOwnerError, StoreError, TooManyConsumersError
from emberq.broker.in_flight import (
    Deferred,
    FinishListener,
    InFlight,
    InTransit,
    LatencyListener,
    Locality,
    Run,
    Subscriber,
)
from emberq.broker.queue import UNREADABLE_RETRY_NS, Queue
from emberq.broker.stats import ChannelStats, ClientStats, LatencyConfig
from emberq.storage.data_folder import ChannelPolicy
from emberq.storage.error import DiskWriteError
from emberq.wire.command import FIN_LINE_BYTES
from emberq.wire.frame import WireMessage
from emberq.wire.parameter import is_ephemeral

MAX_HAND_OVER_BYTES = 256 * 1024
"""The most that one subscriber is given at a time, so that a full socket is noticed before memory fills behind it."""

NO_LATENCY_KEPT = LatencyConfig()


@dataclass(frozen=True)
class ChannelLimits:
    """What is the same for every channel of a broker."""

    mem_queue_size: int = 10_000
    max_msg_timeout_ns: int = 900 * NS_PER_SECOND
    max_defer_ns: int = 3600 * NS_PER_SECOND
    """The longest delay. A wall clock that was set back must not make that of a restored message longer."""
    max_consumers: int = 0
    latency: LatencyConfig = NO_LATENCY_KEPT


DEFAULT_LIMITS = ChannelLimits()


class Forwarder(Protocol):
    """Takes messages that were tried often enough to another topic: `dead_letter.DeadLetterForwarder`."""

    @property
    def policy(self) -> ChannelPolicy:
        """How often messages are tried, and where they go then."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether it takes no more for now; it pumps the channel when it does again."""
        ...

    def take(self, span: Span) -> None:
        """Take over messages that the channel has taken from its queue."""
        ...


class Channel(ABC):
    """Owns its queue, what is in flight and what is deferred. Created by its topic."""

    def __init__(
        self,
        name: str,
        *,
        topic_name: str,
        queue: Queue,
        clock: Clock,
        timers: Timers,
        limits: ChannelLimits,
    ) -> None:
        self.name = name
        self.topic_name = topic_name
        self.paused = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.dead_letter_count = 0
        """Messages that went to the dead-letter topic."""
        self.redriven_count = 0
        """Messages that were moved to another topic to be tried again."""
        self.latency = limits.latency.new_window(clock)
        """How long messages took to be finished; None when no percentile is configured."""
        self._exiting = False
        self._clock = clock
        self._limits = limits
        self._queue = queue
        self._keeps_at_most = limits.mem_queue_size if is_ephemeral(name) else NEVER
        """An ephemeral channel has no disk: messages that no subscriber takes and memory cannot hold are dropped."""
        self._finish_listener: FinishListener | None = None if self.latency is None else LatencyListener(self.latency)
        self._deferred = Deferred()
        self._subscribers: dict[Subscriber, None] = {}
        """An ordered set."""
        self._abandoned: list[InFlight] = []
        """What consumers that have left still hold, until it times out."""
        self.in_transit = InTransit(done_with=self._done_with, put_again=queue.put_again, put_off=self._put_off)
        """Messages taken from the queue for another topic and not known to be there."""
        self._forwarder: Forwarder | None = None
        """Takes the messages that were tried `_max_attempts` times; None if there is no limit."""
        self._max_attempts = NEVER
        self._ready: tuple[deque[Subscriber], ...] = tuple(deque() for _ in Locality)
        """The lines of subscribers with an open window, the nearest first."""
        self._local_counts = [0] * len(Locality)
        self._alarm = timers.alarm(self._on_time)

    def __repr__(self) -> str:
        return f"<Channel {self.topic_name}:{self.name} depth={self.depth} in_flight={self.in_flight_count}>"

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def depth(self) -> int:
        return self._queue.depth

    @property
    def in_flight_count(self) -> int:
        held = sum(subscriber.in_flight.count for subscriber in self._subscribers)
        held += sum(in_flight.count for in_flight in self._abandoned)
        return held + self.in_transit.count

    # Messages in.

    def put(self, span: Span) -> None:
        """Take in messages that were published; StoreError when the disk refuses some."""
        count = span.stop - span.start
        try:
            self._queue.put(span)
        except DiskWriteError as failure:
            self.message_count += failure.stored_count
            self.pump()
            raise StoreError(str(failure), stored_count=failure.stored_count) from failure
        self.message_count += count
        zone_line, region_line, global_line = self._ready
        if global_line or zone_line or region_line or self._keeps_at_most != NEVER:
            self.pump()

    def put_deferred(self, span: Span, *, delay_ns: int) -> None:
        """Take in a message that was published to be delivered later."""
        self.message_count += span.count
        self._defer(span, delay_ns)

    def _defer(self, span: Span, delay_ns: int) -> None:
        self._hold_until(self._clock.monotonic_ns() + min(delay_ns, self._limits.max_defer_ns), span)

    def _hold_until(self, due_ns: int, span: Span) -> None:
        self._deferred.add(span, due_ns=due_ns)
        self._alarm.set_earlier(due_ns)

    # Messages out.

    def pump(self) -> None:
        """Hand queued messages to ready subscribers until one or the other runs out."""
        if not self.paused and not self._exiting:
            self._share_out()
        if self._keeps_at_most != NEVER:
            self._queue.trim(self._keeps_at_most)

    def _share_out(self) -> None:
        zone_line, region_line, global_line = self._ready
        turns_left = share = 0
        served: deque[Subscriber] | None = None
        while line := zone_line or region_line or global_line:
            depth = self._queue.depth
            if not depth or (self._forwarder is not None and self._forwarder.is_busy):
                return
            if not turns_left or line is not served:  # a new round: each subscriber in the line gets the same
                served, turns_left = line, len(line)
                share = -(-depth // turns_left)
            turns_left -= 1
            subscriber = line.popleft()
            subscriber.queued = False
            progress = subscriber.window <= 0 or self._hand_over(subscriber, min(subscriber.window, share))
            if subscriber.window > 0:
                subscriber.queued = True
                line.append(subscriber)
            if not progress:
                self._alarm.set_earlier(self._clock.monotonic_ns() + UNREADABLE_RETRY_NS)
                return

    def _hand_over(self, subscriber: Subscriber, count: int) -> bool:
        """Give a subscriber up to `count` messages; whether the queue gave any."""
        now_ns = self._clock.monotonic_ns()
        deadline_ns = now_ns + subscriber.msg_timeout_ns
        frames: list[bytes] = []
        frames_bytes = taken = delivered = 0
        while taken < count and frames_bytes < MAX_HAND_OVER_BYTES:
            disk_depth = self._queue.backend_depth
            span = self._queue.take(max_count=count - taken, max_bytes=MAX_HAND_OVER_BYTES - frames_bytes)
            if span is None:
                break
            taken += span.stop - span.start
            from_memory = self._queue.backend_depth == disk_depth
            for part in self._deliverable(span, subscriber):
                batch, start, stop, attempts = part.batch, part.start, part.stop, part.attempts + 1
                data = batch.frames(start, stop, attempts)
                frames.append(data)
                frames_bytes += len(data)
                delivered += stop - start
                if from_memory:
                    self._local_counts[subscriber.locality] += stop - start
                subscriber.in_flight.add(
                    Run(batch, start, stop, attempts, delivered_ns=now_ns, deadline_ns=deadline_ns)
                )
        if frames:
            subscriber.message_count += delivered
            self._alarm.set_earlier(deadline_ns)
            subscriber.sink.deliver(frames[0] if len(frames) == 1 else b"".join(frames))
        return taken > 0

    def _deliverable(self, span: Span, subscriber: Subscriber) -> list[Span]:
        """The part of a span that goes to this subscriber: not what was tried too often, nor what is sampled out."""
        parts = self._due(span)
        if span.attempts >= self._max_attempts and self._forwarder is not None:
            for part in parts:
                self._forwarder.take(part)
            return []
        if not subscriber.sample_rate:
            return parts
        kept: list[Span] = []
        left_out: list[Span] = []
        for part in parts:
            for index in range(part.start, part.stop):
                # The reference keeps draws of 0..rate out of 0..99: one percent more than asked for.
                is_kept = random.randrange(100) <= subscriber.sample_rate  # noqa: S311
                (kept if is_kept else left_out).append(Span(part.batch, index, index + 1, part.attempts))
        self._done_with(left_out)
        return kept

    def _due(self, span: Span) -> list[Span]:
        """The part of a span that may be delivered now; the rest is deferred."""
        return [span]

    @abstractmethod
    def _done_with(self, spans: list[Span]) -> None:
        """Drop these messages for good, although no consumer finished them."""

    def peek(self, count: int) -> list[WireMessage]:
        """The next `count` messages, or as many as there are; they stay where they are."""
        return self._queue.peek(count)

    # Messages that leave for another topic.

    def use_forwarder(self, forwarder: Forwarder | None) -> None:
        """Give messages that were tried often enough to the forwarder; None: try without end."""
        self._forwarder = forwarder
        self._max_attempts = NEVER if forwarder is None else forwarder.policy.max_attempts
        self.pump()

    def take_out(self, *, max_count: int, max_bytes: int) -> list[Span] | None:
        """Take some of the next messages, to bring them to another topic; None when none can be had.

        The caller adds them to `in_transit` at once, as they are or in smaller spans.
        """
        span = self._queue.take(max_count=max_count, max_bytes=max_bytes)
        return None if span is None else self._due(span)

    def _put_off(self, span: Span, delay_ns: int) -> None:
        self._defer(span.compact(), delay_ns)

    # Subscribers.

    def subscribe(self, subscriber: Subscriber) -> None:
        """Let a consumer join. It gets nothing before its first RDY."""
        if self._exiting:
            raise ExitingError
        if subscriber in self._subscribers:
            return
        limit = self._limits.max_consumers
        if 0 < limit <= len(self._subscribers):
            raise TooManyConsumersError(self.topic_name, self.name, limit=limit)
        self._subscribers[subscriber] = None

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Let a consumer leave. What it held stays in flight until it times out."""
        if subscriber not in self._subscribers:
            return
        del self._subscribers[subscriber]
        if subscriber.queued:
            self._ready[subscriber.locality].remove(subscriber)
            subscriber.queued = False
        subscriber.ready_count = 0
        if subscriber.in_flight.count:
            self._abandoned.append(subscriber.in_flight)

    @property
    def subscriber_count(self) -> int:
        return len(self._subscribers)

    def set_ready(self, subscriber: Subscriber, count: int) -> None:
        subscriber.ready_count = count
        self._join_line(subscriber)

    def block(self, subscriber: Subscriber) -> None:
        """The subscriber's socket is full."""
        subscriber.blocked = True

    def unblock(self, subscriber: Subscriber) -> None:
        """The subscriber's socket takes more again."""
        subscriber.blocked = False
        self._join_line(subscriber)

    def _join_line(self, subscriber: Subscriber) -> None:
        if not subscriber.queued and subscriber.window > 0:
            subscriber.queued = True
            self._ready[subscriber.locality].append(subscriber)
        self.pump()

    # Answers.

    def finish(self, subscriber: Subscriber, lines: bytes) -> list[bytes]:
        """FIN, many at once; returns the ids that this subscriber does not hold."""
        unknown = subscriber.in_flight.finish(lines, self._finish_listener)
        subscriber.finish_count += len(lines) // FIN_LINE_BYTES - len(unknown)
        self._join_line(subscriber)
        return unknown

    def why_not(self, message_id: bytes) -> MessageNotInFlightError | NotOwnerError:
        """Why a subscriber that does not hold this message cannot answer it."""
        others = [subscriber.in_flight for subscriber in self._subscribers]
        if any(message_id in in_flight for in_flight in (*others, *self._abandoned)):
            return NotOwnerError()
        return MessageNotInFlightError()

    def requeue(self, subscriber: Subscriber, message_id: bytes, *, delay_ns: int) -> None:
        """REQ. The error of `why_not` if this subscriber does not hold the message."""
        span = subscriber.in_flight.take(message_id)
        if span is None:
            raise self.why_not(message_id)
        self.requeue_count += 1
        subscriber.requeue_count += 1
        if delay_ns > 0:
            self._defer(span.compact(), delay_ns)
        else:
            self._queue.put_again(span.compact())
        self._join_line(subscriber)

    def touch(self, subscriber: Subscriber, message_id: bytes, *, msg_timeout_ns: int) -> None:
        """TOUCH. The error of `why_not` if this subscriber does not hold the message."""
        now_ns = self._clock.monotonic_ns()
        touched = subscriber.in_flight.touch(
            message_id, deadline_ns=now_ns + msg_timeout_ns, max_held_ns=self._limits.max_msg_timeout_ns
        )
        if not touched:
            raise self.why_not(message_id)
        self._alarm.set_earlier(subscriber.in_flight.next_deadline_ns)

    # Time.

    def _on_time(self) -> None:
        """Queue again what timed out and what was deferred until now."""
        now_ns = self._clock.monotonic_ns()
        for subscriber in self._subscribers:
            if self._time_out(subscriber.in_flight, now_ns):
                self._join_line(subscriber)
        for in_flight in self._abandoned:
            self._time_out(in_flight, now_ns)
        self._abandoned = [in_flight for in_flight in self._abandoned if in_flight.count]
        for span in self._deferred.take_due(now_ns):
            self._queue.put_again(span)
        self._alarm.set(self._next_due_ns())
        self.pump()

    def _time_out(self, in_flight: InFlight, now_ns: int) -> bool:
        if in_flight.next_deadline_ns > now_ns:
            return False
        overdue = in_flight.take_overdue(now_ns)
        self.timeout_count += sum(span.count for span in overdue)
        for span in overdue:
            self._queue.put_again(span.compact())
        return bool(overdue)

    def _next_due_ns(self) -> int:
        deadlines = [subscriber.in_flight.next_deadline_ns for subscriber in self._subscribers]
        deadlines += [in_flight.next_deadline_ns for in_flight in self._abandoned]
        return min(self._deferred.next_due_ns, *deadlines, NEVER)

    # The channel as a whole.

    def pause(self) -> None:
        """Deliver nothing for now; timeouts and deferred messages go on."""
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self.pump()

    def empty(self) -> None:
        """Drop every message, wherever it is."""
        self._queue.empty()
        self._deferred.take_all()
        self._abandoned.clear()
        self.in_transit.take_all()
        for subscriber in self._subscribers:
            subscriber.in_flight.clear()
            self._join_line(subscriber)
        self._alarm.cancel()

    def delete(self) -> None:
        """Drop every message, close the consumers' connections and remove the files."""
        self._exiting = True
        self._close_consumers()
        self.empty()
        self._remove_files()

    def close(self) -> None:
        """Bring to disk what the next run must know."""
        self._exiting = True
        self._alarm.cancel()
        self._close_consumers()
        in_flight = [span for held in self._abandoned for span in held.take_all()]
        in_flight += self.in_transit.take_all()
        self._abandoned.clear()
        self._save(in_flight, self._deferred.take_all())

    @abstractmethod
    def _save(self, in_flight: list[Span], deferred: list[tuple[int, Span]]) -> None:
        """Keep what was in flight, deferred (with the due times) and queued, for the next run."""

    @abstractmethod
    def _remove_files(self) -> None:
        """Remove all files of the channel."""

    def _close_consumers(self) -> None:
        for subscriber in list(self._subscribers):
            self.unsubscribe(subscriber)
            subscriber.sink.close()
        for line in self._ready:
            line.clear()

    def clients(self) -> Iterator[ClientStats]:
        """The connections of its consumers, one by one. What changes them meanwhile does no harm."""
        for subscriber in list(self._subscribers):
            if subscriber in self._subscribers:
                yield subscriber.sink.stats()

    def stats(self, *, with_clients: bool = True) -> ChannelStats:
        """What the channel holds now."""
        return ChannelStats(
            name=self.name,
            depth=self.depth,
            backend_depth=self._queue.backend_depth,
            in_flight_count=self.in_flight_count,
            deferred_count=len(self._deferred),
            message_count=self.message_count,
            requeue_count=self.requeue_count,
            timeout_count=self.timeout_count,
            dead_letter_count=self.dead_letter_count,
            redriven_count=self.redriven_count,
            policy=None if self._forwarder is None else self._forwarder.policy,
            paused=self.paused,
            zone_local_msg_count=self._local_counts[Locality.ZONE],
            region_local_msg_count=self._local_counts[Locality.REGION],
            global_msg_count=self._local_counts[Locality.GLOBAL],
            clients=tuple(self.clients()) if with_clients else (),
            e2e=self._limits.latency.summarize([self.latency]),
        )
