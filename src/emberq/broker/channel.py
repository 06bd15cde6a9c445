"""A channel: one copy of a topic's messages, shared out among its subscribers.

A message is in exactly one place: in the queue, in flight to one subscriber, deferred, or on its way to another topic
(see `in_flight`, `deferred`), because it was tried often enough or is to be tried there again (see `dead_letter`).
`pump` moves messages from the queue to subscribers that are ready (see `subscriber`).

The commands of consumers (RDY, FIN, REQ, TOUCH) only change what is known: `pump` is called once for all that arrived
together. So a packet of many answers makes one delivery.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.batch import Span
from emberq.broker.deferred import Deferred, InTransit
from emberq.broker.error import ExitingError, MessageNotInFlightError, NotOwnerError, StoreError, TooManyConsumersError
from emberq.broker.in_flight import FinishListener, InFlight, LatencyListener
from emberq.broker.limit import QueueKeeper, TopicLimits
from emberq.broker.queue import BRIEF_BYTES, Queue
from emberq.broker.stats import ChannelStats, ClientStats, LatencyConfig
from emberq.broker.subscriber import Locality, ReadyLines, Subscriber
from emberq.storage.data_folder import ChannelPolicy
from emberq.storage.error import DiskWriteError
from emberq.wire.command import FIN_LINE_BYTES
from emberq.wire.frame import WireMessage
from emberq.wire.parameter import is_ephemeral

MAX_HAND_OVER_BYTES: Final = 256 * 1024
"""The most that one subscriber is given at a time, so that a full socket is noticed before memory fills behind it."""

WORTH_A_PIECE_BYTES: Final = 4096
"""Pieces that are larger than this, on average, are sent one by one. To join smaller ones is cheaper."""
MAX_HAND_OVERS: Final = 128
"""How many deliveries a channel makes in one turn of the event loop; each ends in a write to a socket."""
MAX_SHARE_NS: Final = 2 * NS_PER_MS
"""For how long a channel makes large deliveries in one turn."""
MAX_READING_NS: Final = NS_PER_MS // 2
"""The same for messages that have to be read: a replay may go on for minutes, and others want short turns meanwhile."""
NOTHING_TAKEN: Final = -1
LARGE_HAND_OVER_BYTES: Final = 16 * 1024
"""After a delivery of this size a look at the clock costs nothing."""
MATURING_COUNT: Final = 1000
"""How many deferred messages are queued in one turn of the event loop when their time has come."""

NO_LATENCY_KEPT = LatencyConfig()


@dataclass(frozen=True)
class ChannelLimits:
    """What is the same for every channel of a topic; all but `waiting` also for every channel of a broker."""

    mem_queue_size: int = 10_000
    mem_queue_bytes: int = NEVER
    max_msg_timeout_ns: int = 900 * NS_PER_SECOND
    max_defer_ns: int = 3600 * NS_PER_SECOND
    """The longest delay. A wall clock that was set back must not make that of a restored message longer."""
    max_consumers: int = 0
    requeues_on_disconnect: bool = False
    """What a consumer held is queued again when it leaves, not when it times out."""
    latency: LatencyConfig = NO_LATENCY_KEPT
    waiting: TopicLimits | None = None
    """How much may wait in a channel, and for how long; None: as much as there is, for ever."""


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
        self._is_ephemeral = is_ephemeral(name)
        self._keeper: QueueKeeper | None = None
        """Drops what may not wait any longer; None if everything may."""
        self._has_ttl = False
        if limits.waiting is not None and limits.waiting.needs_keeper:
            owner = f"CHANNEL({topic_name}:{name})"
            self._keeper = QueueKeeper(queue, limits.waiting, owner=owner, clock=clock, timers=timers)
            self._has_ttl = limits.waiting.has_ttl
        self._drops = self._is_ephemeral or self._keeper is not None
        """Whether messages that no subscriber takes may have to be dropped."""
        self._finish_listener: FinishListener | None = None if self.latency is None else LatencyListener(self.latency)
        self._deferred = Deferred()
        self._subscribers: dict[Subscriber, None] = {}
        """An ordered set."""
        self._in_flight = InFlight(
            clock=clock, timers=timers, timed_out=self._timed_out, given_back=self._given_back, settled=self.pump
        )
        self.in_transit = InTransit(done_with=self._done_with, put_again=self._put_again, put_off=self._put_off)
        """Messages taken from the queue for another topic and not known to be there."""
        self._forwarder: Forwarder | None = None
        """Takes the messages that were tried `_max_attempts` times; None if there is no limit."""
        self._max_attempts = NEVER
        self._lines = ReadyLines()
        self._local_counts = [0] * len(Locality)
        self._alarm = timers.alarm(self._on_time)
        self._handed_over_ns = 0
        """When the last delivery began."""
        self._goes_on_later = False
        """Whether the channel has had its turn: the alarm lets it deliver more in the next one."""

    def __repr__(self) -> str:
        return f"<Channel {self.topic_name}:{self.name} depth={self.depth} in_flight={self.in_flight_count}>"

    @property
    def is_ephemeral(self) -> bool:
        return self._is_ephemeral

    @property
    def depth(self) -> int:
        return self._queue.depth

    @property
    def waiting_bytes(self) -> int:
        """The bodies of the messages that `depth` counts, together."""
        return self._queue.waiting_bytes

    @property
    def waits(self) -> bool:
        """Whether it has messages in memory that are not delivered."""
        return self._queue.memory_count > 0

    @property
    def deferred_count(self) -> int:
        return len(self._deferred)

    @property
    def in_flight_count(self) -> int:
        return self._in_flight.count + self.in_transit.count

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
        if not self._lines.is_empty or self._drops:
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
        """Hand queued messages to ready subscribers until one or the other runs out, or the channel's turn is over."""
        self._pump_now()

    def _pump_now(self) -> None:
        if not self.paused and not self._exiting and not self._goes_on_later:
            self._share_out()
        if self._drops:
            self._drop_beyond_limits()

    def _drop_beyond_limits(self) -> None:
        if self._keeper is not None:
            self._keeper.filled()
        if self._is_ephemeral:  # it has no disk
            self._queue.trim(max_count=self._limits.mem_queue_size, max_bytes=self._limits.mem_queue_bytes)

    def _share_out(self) -> None:
        lines, queue, forwarder = self._lines, self._queue, self._forwarder
        lines.begin()
        left = MAX_HAND_OVERS
        began_ns = NEVER
        while not lines.is_empty and (depth := queue.depth):
            if forwarder is not None and forwarder.is_busy:
                return
            if not left:
                self._pump_later()
                return
            left -= 1
            subscriber = lines.next(depth)
            if subscriber is None:
                return
            size = self._hand_over(subscriber, min(subscriber.window, lines.share))
            lines.join(subscriber)
            if size == NOTHING_TAKEN:
                self._alarm.set_earlier(self._clock.monotonic_ns() + queue.retry_ns)
                return
            if size >= LARGE_HAND_OVER_BYTES:
                began_ns = min(began_ns, self._handed_over_ns)
                limit_ns = MAX_SHARE_NS if queue.was_in_memory else MAX_READING_NS
                if queue.is_brief or self._clock.monotonic_ns() - began_ns >= limit_ns:
                    left = 0

    def _pump_later(self) -> None:
        """Go on in the next turn of the event loop, and no earlier."""
        self._goes_on_later = True
        self._alarm.set_earlier(self._clock.monotonic_ns())

    def _hand_over(self, subscriber: Subscriber, count: int) -> int:
        """Give a subscriber up to `count` messages; their bytes, or NOTHING_TAKEN if the queue gave none."""
        self._handed_over_ns = now_ns = self._clock.monotonic_ns()
        queue, in_flight = self._queue, self._in_flight
        pieces: list[bytes | memoryview] = []
        size = taken = delivered = 0
        max_bytes = BRIEF_BYTES if queue.is_brief else MAX_HAND_OVER_BYTES
        while taken < count and size < max_bytes:
            span = queue.take(max_count=count - taken, max_bytes=max_bytes - size)
            if span is None:
                break
            taken += span.stop - span.start
            for part in self._deliverable(span, subscriber):
                first = len(pieces)
                size += part.batch.add_frames(pieces, part.start, part.stop, part.attempts + 1)
                delivered += part.stop - part.start
                if queue.was_in_memory:
                    self._local_counts[subscriber.locality] += part.stop - part.start
                in_flight.add(subscriber, part, pieces[first], now_ns)
        sink = subscriber.sink
        if pieces and sink is not None:
            subscriber.message_count += delivered
            first_piece = pieces[0]
            if len(pieces) == 1 and isinstance(first_piece, bytes):
                sink.deliver(first_piece)
            elif size >= len(pieces) * WORTH_A_PIECE_BYTES:
                sink.deliver_pieces(pieces)
            else:
                sink.deliver(b"".join(pieces))
        if self._has_ttl and delivered < taken:
            return max(size, LARGE_HAND_OVER_BYTES)  # messages that were too old took time, too
        return size if taken else NOTHING_TAKEN

    def _deliverable(self, span: Span, subscriber: Subscriber) -> list[Span]:
        """The part of a span that goes to this subscriber: not what was tried too often, is too old or sampled out."""
        parts = self._due(span)
        if span.attempts >= self._max_attempts and self._forwarder is not None:
            for part in parts:
                self._forwarder.take(part)
            return []
        if self._has_ttl:
            parts = self._young(parts)
        return parts if not subscriber.sample_rate else self._sampled(parts, subscriber.sample_rate)

    def _young(self, parts: list[Span]) -> list[Span]:
        """The messages that are not too old; the others are dropped."""
        keeper = self._keeper
        if keeper is None:
            return parts
        kept: list[Span] = []
        left_out: list[Span] = []
        oldest_ns = keeper.oldest_ns
        for part in parts:
            position = part.start
            for start, stop in part.batch.published_since(oldest_ns, part.start, part.stop):
                if position < start:
                    left_out.append(Span(part.batch, position, start, part.attempts))
                kept.append(Span(part.batch, start, stop, part.attempts))
                position = stop
            if position < part.stop:
                left_out.append(Span(part.batch, position, part.stop, part.attempts))
        if left_out:
            keeper.expired_count += sum([span.count for span in left_out])
            self._done_with(left_out)
        return kept

    def _sampled(self, parts: list[Span], sample_rate: int) -> list[Span]:
        """About this percentage of the messages; the others are dropped."""
        kept: list[Span] = []
        left_out: list[Span] = []
        for part in parts:
            for index in range(part.start, part.stop):
                # The reference keeps draws of 0..rate out of 0..99: one percent more than asked for.
                is_kept = random.randrange(100) <= sample_rate  # noqa: S311
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

    def _put_again(self, span: Span) -> None:
        self._queue.put_again([span])

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
        """Let a consumer leave. What it held stays in flight until it times out, or is queued again soon."""
        if subscriber in self._subscribers:
            del self._subscribers[subscriber]
            subscriber.ready_count = 0
            subscriber.sink = None
            self._lines.leave(subscriber)
            if self._limits.requeues_on_disconnect and not self._exiting:
                self._in_flight.give_back(subscriber)

    @property
    def subscriber_count(self) -> int:
        return len(self._subscribers)

    # Answers, and what else consumers tell. Each is followed by a call of `pump`, one for all that came together.

    def set_ready(self, subscriber: Subscriber, count: int) -> None:
        """RDY."""
        subscriber.ready_count = count
        self._lines.join(subscriber)

    def block(self, subscriber: Subscriber) -> None:
        """The subscriber's socket is full."""
        subscriber.blocked = True

    def unblock(self, subscriber: Subscriber) -> None:
        """The subscriber's socket takes more again."""
        subscriber.blocked = False
        self._lines.join(subscriber)

    def finish(self, subscriber: Subscriber, lines: bytes) -> list[bytes]:
        """FIN, many at once; returns the ids that this subscriber does not hold."""
        unknown = self._in_flight.finish(subscriber, lines, self._finish_listener)
        subscriber.finish_count += len(lines) // FIN_LINE_BYTES - len(unknown)
        self._lines.join(subscriber)
        return unknown

    def why_not(self, message_id: bytes) -> MessageNotInFlightError | NotOwnerError:
        """Why a subscriber that does not hold this message cannot answer it."""
        return NotOwnerError() if self._in_flight.is_held(message_id) else MessageNotInFlightError()

    def requeue(self, subscriber: Subscriber, message_id: bytes, *, delay_ns: int) -> None:
        """REQ. The error of `why_not` if this subscriber does not hold the message."""
        span = self._in_flight.take(subscriber, message_id)
        if span is None:
            raise self.why_not(message_id)
        self.requeue_count += 1
        subscriber.requeue_count += 1
        if delay_ns > 0:
            self._defer(span, delay_ns)
        else:
            self._queue.put_again([span])
        self._lines.join(subscriber)

    def touch(self, subscriber: Subscriber, message_id: bytes, *, msg_timeout_ns: int) -> None:
        """TOUCH. The error of `why_not` if this subscriber does not hold the message."""
        max_held_ns = self._limits.max_msg_timeout_ns
        if not self._in_flight.touch(subscriber, message_id, timeout_ns=msg_timeout_ns, max_held_ns=max_held_ns):
            raise self.why_not(message_id)

    # Time.

    def _timed_out(self, subscriber: Subscriber, span: Span) -> None:
        """Queue again what was not answered in time."""
        self.timeout_count += span.stop - span.start
        self._queue.put_again([span.compact()])
        if subscriber.sink is not None:
            self._lines.join(subscriber)

    def _given_back(self, span: Span) -> None:
        """Queue again what a consumer held that has left."""
        self.requeue_count += span.stop - span.start
        self._queue.put_again([span.compact()])

    def _on_time(self) -> None:
        """Queue what was deferred until now, a portion of it in each turn of the event loop."""
        self._goes_on_later = False
        due = self._deferred.take_due(self._clock.monotonic_ns(), max_count=MATURING_COUNT)
        if due:
            self._queue.put_again(due)
        self._alarm.set(self._deferred.next_due_ns)
        self._pump_now()

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
        self._in_flight.clear()
        self.in_transit.take_all()
        for subscriber in self._subscribers:
            self._lines.join(subscriber)
        self._goes_on_later = False
        self._alarm.cancel()

    def forget_place(self) -> None:  # noqa: B027 - the files of a classic channel go when it is deleted
        """Let no later run find the channel, before it is deleted. StorageError leaves it as it was."""

    def delete(self) -> None:
        """Drop every message, close the consumers' connections and remove the files."""
        self._exiting = True
        self._end_keeper()
        self._close_consumers()
        self.empty()
        self._remove_files()

    def close(self) -> None:
        """Bring to disk what the next run must know."""
        self._exiting = True
        self._end_keeper()
        self._alarm.cancel()
        self._close_consumers()
        in_flight = self._in_flight.take_all()
        in_flight += self.in_transit.take_all()
        self._save(in_flight, self._deferred.take_all())

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    @abstractmethod
    def _save(self, in_flight: list[Span], deferred: list[tuple[int, Span]]) -> None:
        """Keep what was in flight, deferred (with the due times) and queued, for the next run."""

    @abstractmethod
    def _remove_files(self) -> None:
        """Remove all files of the channel."""

    def _close_consumers(self) -> None:
        for subscriber in list(self._subscribers):
            sink = subscriber.sink
            self.unsubscribe(subscriber)
            if sink is not None:
                sink.close()
        self._lines.clear()

    def clients(self) -> Iterator[ClientStats]:
        """The connections of its consumers, one by one. What changes them meanwhile does no harm."""
        for subscriber in list(self._subscribers):
            if subscriber.sink is not None:
                yield subscriber.sink.stats()

    def stats(self, *, with_clients: bool = True) -> ChannelStats:
        """What the channel holds now."""
        return ChannelStats(
            name=self.name,
            depth=self.depth,
            backend_depth=self._queue.backend_depth,
            in_flight_count=self.in_flight_count,
            deferred_count=self.deferred_count,
            message_count=self.message_count,
            requeue_count=self.requeue_count,
            timeout_count=self.timeout_count,
            dead_letter_count=self.dead_letter_count,
            redriven_count=self.redriven_count,
            dropped_count=0 if self._keeper is None else self._keeper.dropped_count,
            expired_count=0 if self._keeper is None else self._keeper.expired_count,
            oldest_age_ns=self._queue.oldest_age_ns(self._clock.wall_ns()),
            policy=None if self._forwarder is None else self._forwarder.policy,
            paused=self.paused,
            zone_local_msg_count=self._local_counts[Locality.ZONE],
            region_local_msg_count=self._local_counts[Locality.REGION],
            global_msg_count=self._local_counts[Locality.GLOBAL],
            clients=tuple(self.clients()) if with_clients else (),
            e2e=self._limits.latency.summarize([self.latency]),
        )
