"""Messages that leave a channel for another topic.

They are taken from the channel's queue, published elsewhere, and are done with here when they are stored there. Until
then they are the channel's: a crash in between leaves them in both topics, never in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from emberq.broker.batch import Span


class Departures:
    """What a channel has let go and not lost sight of. Owned by the channel.

    Spans no longer count once the channel has been emptied, moved to another offset or closed: whatever is said of them
    then is of no account.
    """

    def __init__(
        self,
        *,
        done_with: Callable[[list[Span]], None],
        put_again: Callable[[Span], None],
        put_off: Callable[[Span, int], None],
    ) -> None:
        """`done_with` forgets messages for good, `put_again` queues them, `put_off` holds one back for so long."""
        self._done_with = done_with
        self._put_again = put_again
        self._put_off = put_off
        self._spans: dict[Span, None] = {}
        """An ordered set."""

    def __contains__(self, span: Span) -> bool:
        return span in self._spans

    @property
    def count(self) -> int:
        """How many messages these are."""
        return sum(span.count for span in self._spans)

    def add(self, spans: Iterable[Span]) -> None:
        """These messages were taken from the queue; each span is to be `moved` or `put_back`."""
        self._spans.update(dict.fromkeys(spans))

    def moved(self, span: Span, count: int) -> bool:
        """The first `count` messages of a span are stored elsewhere; whether it still counted."""
        if span not in self._spans:
            return False
        if count:
            self._done_with([span.split(count)])
        if not span.count:
            del self._spans[span]
        return True

    def put_back(self, span: Span, *, delay_ns: int = 0) -> None:
        """A span, or what is left of it, stays after all: to be had again at once or after a while."""
        if span not in self._spans:
            return
        del self._spans[span]
        if not delay_ns:
            self._put_again(span)
            return
        for index in range(span.start, span.stop):
            self._put_off(Span(span.batch, index, index + 1, span.attempts), delay_ns)

    def take_all(self) -> list[Span]:
        """Forget them."""
        spans, self._spans = self._spans, {}
        return list(spans)
