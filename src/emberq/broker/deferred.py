"""Messages of a channel that are neither queued nor in flight: they wait for their time, or leave for another topic.

`Deferred` holds the messages whose time has not come, as a heap.

`InTransit` holds the messages that leave the channel for another topic. They are taken from the channel's queue,
published elsewhere, and dropped here once they are stored there. Until then they belong to the channel: a crash in
between leaves them in both topics, never in neither.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from emberq.base.timers import NEVER
from emberq.broker.batch import Span


class Deferred:
    """The deferred messages of a channel, which owns it. Each span holds one message."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Span]] = []
        self._sequence = 0
        """Keeps spans that are due together in the order they came."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due_ns(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def add(self, span: Span, *, due_ns: int) -> None:
        """Hold the message until `due_ns`."""
        self._sequence += 1
        heapq.heappush(self._heap, (due_ns, self._sequence, span))

    def take_due(self, now_ns: int, *, max_count: int = NEVER) -> list[Span]:
        """Remove the messages whose time has come, at most `max_count` of them."""
        heap = self._heap
        due: list[Span] = []
        while heap and heap[0][0] <= now_ns and len(due) < max_count:
            due.append(heapq.heappop(heap)[2])
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
