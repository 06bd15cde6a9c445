"""Messages of a channel that are not queued: held by a subscriber, deferred, or on their way to another topic.

`InFlight` is what one consumer holds: messages delivered and not yet answered. They are delivered in runs, and most
consumers answer in the order of delivery. So a run is kept as it was sent, and FINs that come in its order are checked
by comparing their bytes with the FIN lines of the batch, without any work per message. The first answer out of order
breaks the runs up into a dictionary of ids, in which every order costs the same.

Deadlines are not sorted, because TOUCH moves some. `next_deadline_ns` is a lower bound of them all. When it passes, one
pass over everything (never more than the consumer's RDY count) finds what is overdue and the next bound.

`Subscriber` is a consumer's connection as the broker sees it.

`Deferred` holds the messages whose time has not come, as a heap.

`InTransit` holds the messages that leave the channel for another topic. They are taken from the channel's queue,
published elsewhere, and dropped here once they are stored there. Until then they belong to the channel: a crash in
between leaves them in both topics, never in neither.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import count
from typing import Protocol

from emberq.base.timers import NEVER
from emberq.broker.batch import Batch, Span
from emberq.broker.stats import ClientStats, LatencyWindow
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX

# Held by one consumer.


class FinishListener(ABC):
    """Told of finished messages; those of one batch that were finished together are one call."""

    @abstractmethod
    def finished(self, batch: Batch, start: int, stop: int) -> None:
        """Messages `start` to `stop` of `batch` are done with."""


class LatencyListener(FinishListener):
    """Records how long finished messages took."""

    def __init__(self, window: LatencyWindow) -> None:
        self._window = window

    def finished(self, batch: Batch, start: int, stop: int) -> None:
        batch.report_finished(start, stop, self._window)


_ID_START, _ID_END = len(FIN_PREFIX), FIN_LINE_BYTES - 1
"""Where the id stands in a FIN line."""
_MIN_RUN = 4
"""Shorter runs go to the dictionary at once, which is faster for them."""


class Run:
    """Messages of one batch that were sent together and share a deadline."""

    __slots__ = ("attempts", "batch", "deadline_ns", "delivered_ns", "start", "stop")

    def __init__(
        self, batch: Batch, start: int, stop: int, attempts: int, *, delivered_ns: int, deadline_ns: int
    ) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.attempts = attempts
        self.delivered_ns = delivered_ns
        self.deadline_ns = deadline_ns

    def span_of(self, message_id: bytes) -> Span:
        """The one message of this run that has the id."""
        index = self.batch.index_of(message_id)
        return Span(self.batch, index, index + 1, self.attempts)


class InFlight:
    """The messages that one consumer holds. Owned by its subscriber; by the channel once the consumer is gone."""

    __slots__ = ("_runs", "_singles", "count", "next_deadline_ns")

    def __init__(self) -> None:
        self.count = 0
        """How many messages are in flight."""
        self.next_deadline_ns = NEVER
        """No message is overdue before this time."""
        self._runs: deque[Run] = deque()
        """Runs of which no message was answered out of order, oldest first."""
        self._singles: dict[bytes, Run] = {}
        """Messages on their own, by id, with the run they were sent in."""

    def __contains__(self, message_id: bytes) -> bool:
        self._break_up()
        return message_id in self._singles

    def add(self, run: Run) -> None:
        """These messages were sent."""
        count = run.stop - run.start
        self.count += count
        if run.deadline_ns < self.next_deadline_ns:
            self.next_deadline_ns = run.deadline_ns
        if count >= _MIN_RUN:
            self._runs.append(run)
        else:
            self._add_singly(run)

    def finish(self, lines: bytes, listener: FinishListener | None = None) -> list[bytes]:
        """Drop the messages that these FIN lines name; returns the ids that are not in flight here.

        The listener is told of those that are.
        """
        position = self._finish_in_order(lines, listener)
        if position == len(lines):
            self.count -= position // FIN_LINE_BYTES
            return []
        singles, unknown = self._singles, []
        for start in range(position, len(lines), FIN_LINE_BYTES):
            message_id = lines[start + _ID_START : start + _ID_END]
            run = singles.pop(message_id, None)
            if run is None and self._runs:
                self._break_up()
                run = singles.pop(message_id, None)
            if run is None:
                unknown.append(message_id)
            elif listener is not None:
                index = run.batch.index_of(message_id)
                listener.finished(run.batch, index, index + 1)
        self.count -= len(lines) // FIN_LINE_BYTES - len(unknown)
        return unknown

    def _finish_in_order(self, lines: bytes, listener: FinishListener | None) -> int:
        """Finish from the oldest run on, as long as the lines come in its order; how far in `lines` that went."""
        runs = self._runs
        position, end = 0, len(lines)
        while runs and position < end:
            run = runs[0]
            start = run.start * FIN_LINE_BYTES
            length = min(end - position, run.stop * FIN_LINE_BYTES - start)
            if lines[position : position + length] != run.batch.fin_lines()[start : start + length]:
                break
            position += length
            stop = run.start + length // FIN_LINE_BYTES
            if listener is not None:
                listener.finished(run.batch, run.start, stop)
            run.start = stop
            if stop == run.stop:
                runs.popleft()
        return position

    def _break_up(self) -> None:
        """Move every message of a run into the dictionary."""
        for run in self._runs:
            self._add_singly(run)
        self._runs.clear()

    def _add_singly(self, run: Run) -> None:
        before = len(self._singles)
        self._singles.update(dict.fromkeys(run.batch.ids(run.start, run.stop), run))
        # A crash may leave a message on disk twice. Here both are one, and one answer finishes it.
        self.count -= run.stop - run.start - (len(self._singles) - before)

    def take(self, message_id: bytes) -> Span | None:
        """Remove one message; None when it is not in flight here."""
        self._break_up()
        run = self._singles.pop(message_id, None)
        if run is None:
            return None
        self.count -= 1
        return run.span_of(message_id)

    def touch(self, message_id: bytes, *, deadline_ns: int, max_held_ns: int) -> bool:
        """Give one message until `deadline_ns`, but never beyond `max_held_ns` after its delivery."""
        self._break_up()
        run = self._singles.get(message_id)
        if run is None:
            return False
        self._singles[message_id] = Run(
            run.batch,
            run.start,
            run.stop,
            run.attempts,
            delivered_ns=run.delivered_ns,
            deadline_ns=min(deadline_ns, run.delivered_ns + max_held_ns),
        )
        self.next_deadline_ns = min(self.next_deadline_ns, self._singles[message_id].deadline_ns)
        return True

    def take_overdue(self, now_ns: int) -> list[Span]:
        """Remove the messages whose deadline has passed."""
        overdue: list[Span] = []
        kept: deque[Run] = deque()
        next_ns = NEVER
        for run in self._runs:
            if run.deadline_ns <= now_ns:
                overdue.append(Span(run.batch, run.start, run.stop, run.attempts))
            else:
                kept.append(run)
                next_ns = min(next_ns, run.deadline_ns)
        self._runs = kept
        late = [(message_id, run) for message_id, run in self._singles.items() if run.deadline_ns <= now_ns]
        for message_id, run in late:
            del self._singles[message_id]
            overdue.append(run.span_of(message_id))
        for run in self._singles.values():
            next_ns = min(next_ns, run.deadline_ns)
        self.next_deadline_ns = next_ns
        self.count -= sum(span.count for span in overdue)
        return overdue

    def take_all(self) -> list[Span]:
        """Remove everything."""
        return self.take_overdue(NEVER)

    def clear(self) -> None:
        """Forget everything."""
        self._runs.clear()
        self._singles.clear()
        self.count = 0
        self.next_deadline_ns = NEVER


# A consumer's connection.


class SubscriberSink(Protocol):
    """Where a subscriber's messages go: a `ClientSubscription` of nsqd, or a test."""

    def deliver(self, frames: bytes) -> None:
        """Send these message frames. May call `Channel.block` at once when it cannot take more."""
        ...

    def close(self) -> None:
        """The channel is gone; close the connection."""
        ...

    def stats(self) -> ClientStats:
        """What is known about the connection."""
        ...


class Locality(IntEnum):
    """How near a consumer is to this nsqd; the nearest are served first."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


class Subscriber:
    """One consumer of one channel. Owned by the channel; the session passes it to the channel's methods."""

    __slots__ = (
        "blocked",
        "finish_count",
        "in_flight",
        "locality",
        "message_count",
        "msg_timeout_ns",
        "queued",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "sink",
    )

    def __init__(
        self, sink: SubscriberSink, *, msg_timeout_ns: int, sample_rate: int = 0, locality: Locality = Locality.GLOBAL
    ) -> None:
        self.sink = sink
        self.msg_timeout_ns = msg_timeout_ns
        """How long a delivered message may stay unanswered."""
        self.sample_rate = sample_rate
        """0: every message; else about this percentage of them."""
        self.locality = locality
        self.in_flight = InFlight()
        self.ready_count = 0
        """RDY: how many messages it wants to hold at most."""
        self.blocked = False
        """Whether its socket takes no more for now."""
        self.queued = False
        """Whether it stands in the channel's line of ready subscribers."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def window(self) -> int:
        """How many messages may be sent to it now; not positive when none."""
        return 0 if self.blocked else self.ready_count - self.in_flight.count


# Deferred, and on their way to another topic.


class Deferred:
    """The deferred messages of a channel, which owns it. Each span holds one message."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Span]] = []
        self._sequence = count()  # keeps spans that are due together in the order they came

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ns(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def add(self, span: Span, *, due_ns: int) -> None:
        """Hold the message until `due_ns`."""
        heapq.heappush(self._heap, (due_ns, next(self._sequence), span))

    def take_due(self, now_ns: int) -> list[Span]:
        """Remove the messages whose time has come."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def take_all(self) -> list[tuple[int, Span]]:
        """Remove everything, with the due times, earliest first."""
        everything = [(due_ns, span) for due_ns, _, span in sorted(self._heap)]
        self._heap.clear()
        return everything


class InTransit:
    """Messages taken from the queue for another topic and not known to be there. Owned by the channel.

    A span is forgotten when the channel is emptied, moved to another offset or closed. Calls about it do nothing then.
    """

    def __init__(
        self,
        *,
        done_with: Callable[[list[Span]], None],
        put_again: Callable[[Span], None],
        put_off: Callable[[Span, int], None],
    ) -> None:
        """`done_with` drops messages for good, `put_again` queues them, `put_off` defers one by a delay in ns."""
        self._done_with = done_with
        self._put_again = put_again
        self._put_off = put_off
        self._spans: dict[Span, None] = {}
        """An ordered set."""

    def __contains__(self, span: Span) -> bool:
        return span in self._spans

    @property
    def count(self) -> int:
        """How many messages are in transit."""
        return sum(span.count for span in self._spans)

    def add(self, spans: Iterable[Span]) -> None:
        """These messages were taken from the queue; each span is to be `moved` or `put_back`."""
        self._spans.update(dict.fromkeys(spans))

    def moved(self, span: Span, count: int) -> bool:
        """The first `count` messages of a span are stored elsewhere; False if the span was forgotten."""
        if span not in self._spans:
            return False
        if count:
            self._done_with([span.split(count)])
        if not span.count:
            del self._spans[span]
        return True

    def put_back(self, span: Span, *, delay_ns: int = 0) -> None:
        """A span, or what is left of it, stays in the channel: it is queued at once or deferred."""
        if span not in self._spans:
            return
        del self._spans[span]
        if not delay_ns:
            self._put_again(span)
            return
        for index in range(span.start, span.stop):
            self._put_off(Span(span.batch, index, index + 1, span.attempts), delay_ns)

    def take_all(self) -> list[Span]:
        """Remove and forget all spans."""
        spans, self._spans = self._spans, {}
        return list(spans)
