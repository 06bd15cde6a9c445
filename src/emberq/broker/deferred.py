"""Messages of a channel that are neither queued nor in flight: they wait for their time, or leave for another topic.

`Deferred` holds the messages whose time has not come. Those that are due in the same millisecond are kept together:
many messages are deferred by the same delay, and are queued again in batches like those in which they came.

`InTransit` holds the messages that leave the channel for another topic. They are taken from the channel's queue,
published elsewhere, and dropped here once they are stored there. Until then they belong to the channel: a crash in
between leaves them in both topics, never in neither.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from emberq.base.timers import NEVER
from emberq.broker.batch import Span

GRAIN_NS: Final = 1_000_000
"""Due times are rounded up to multiples of this: a millisecond."""


def grain_of(due_ns: int) -> int:
    """The moment, at `due_ns` or soon after, at which a message that is due then leaves."""
    return -(-due_ns // GRAIN_NS) * GRAIN_NS


class Deferred:
    """The deferred messages of a channel, which owns it."""

    def __init__(self) -> None:
        self._moments: list[int] = []
        """When something is due, as a heap."""
        self._spans: dict[int, list[Span]] = {}
        """What is due at each of these moments, in the order it came."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def next_due_ns(self) -> int:
        return self._moments[0] if self._moments else NEVER

    def add(self, span: Span, *, due_ns: int) -> None:
        """Hold the messages until `due_ns`."""
        self._count += span.stop - span.start
        moment = grain_of(due_ns)
        spans = self._spans.get(moment)
        if spans is None:
            self._spans[moment] = [span]
            heapq.heappush(self._moments, moment)
        elif not spans[-1].extend(span):
            spans.append(span)

    def take_due(self, now_ns: int, *, max_count: int = NEVER) -> list[Span]:
        """Remove the messages whose time has come, at most `max_count` of them."""
        due: list[Span] = []
        left = max_count
        while left and self._moments and self._moments[0] <= now_ns:
            spans = self._spans[self._moments[0]]
            taken = 0
            while left and taken < len(spans):
                span = spans[taken]
                if span.stop - span.start > left:
                    span = span.split(left)
                else:
                    taken += 1
                left -= span.stop - span.start
                due.append(span)
            del spans[:taken]
            if not spans:
                del self._spans[heapq.heappop(self._moments)]
        self._count -= max_count - left
        return due

    def take_all(self) -> list[tuple[int, Span]]:
        """Remove everything, with the due times, earliest first."""
        everything = [(moment, span) for moment, spans in sorted(self._spans.items()) for span in spans]
        self._moments.clear()
        self._spans.clear()
        self._count = 0
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
