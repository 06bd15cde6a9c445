"""Messages that wait for their time."""

from __future__ import annotations

from emberq.base.clock import NS_PER_MS
from emberq.base.timers import NEVER
from emberq.broker.batch import Span, published_batch
from emberq.broker.deferred import Deferred
from tests.broker.rig import published


def span(count: int = 1) -> Span:
    """So many messages."""
    blob, ends = published([b"body"] * count)
    return Span(published_batch(blob, ends, 0, 0), 0, count)


def ms(count: int) -> int:
    return count * NS_PER_MS


def test_nothing_is_due_when_nothing_waits() -> None:
    deferred = Deferred()
    assert len(deferred) == 0
    assert deferred.next_due_ns == NEVER
    assert deferred.take_due(NEVER) == []


def test_a_message_is_due_at_its_time_and_not_before() -> None:
    deferred = Deferred()
    message = span()
    deferred.add(message, due_ns=ms(100))
    assert deferred.take_due(ms(100) - 1) == []
    assert len(deferred) == 1
    assert deferred.take_due(ms(100)) == [message]
    assert len(deferred) == 0


def test_a_message_is_never_early_and_at_most_a_millisecond_late() -> None:
    deferred = Deferred()
    message = span()
    deferred.add(message, due_ns=ms(100) + 1)
    assert deferred.next_due_ns == ms(101)
    assert deferred.take_due(ms(100) + 1) == []
    assert deferred.take_due(ms(101)) == [message]


def test_messages_come_out_in_the_order_of_their_times() -> None:
    deferred = Deferred()
    late, early, middle = span(), span(), span()
    deferred.add(late, due_ns=ms(300))
    deferred.add(early, due_ns=ms(100))
    deferred.add(middle, due_ns=ms(200))
    assert deferred.next_due_ns == ms(100)
    assert deferred.take_due(ms(200)) == [early, middle]
    assert deferred.next_due_ns == ms(300)


def test_messages_that_are_due_together_come_out_in_the_order_they_came() -> None:
    deferred = Deferred()
    spans = [span() for _ in range(20)]
    for each in spans:
        deferred.add(each, due_ns=7)
    assert deferred.take_due(ms(1)) == spans


def test_messages_of_a_batch_that_are_due_together_come_out_as_one_span() -> None:
    deferred = Deferred()
    batch = span(3).batch
    for index in range(3):
        deferred.add(Span(batch, index, index + 1), due_ns=ms(5))
    assert len(deferred) == 3
    (together,) = deferred.take_due(ms(5))
    assert (together.batch, together.start, together.stop) == (batch, 0, 3)
    assert len(deferred) == 0


def test_no_more_is_taken_than_asked_for() -> None:
    deferred = Deferred()
    batch = span(5).batch
    deferred.add(Span(batch, 0, 5), due_ns=ms(5))
    deferred.add(span(), due_ns=ms(5))
    deferred.add(span(), due_ns=ms(6))
    taken = [
        [(each.start, each.stop) for each in deferred.take_due(ms(10), max_count=count)] for count in (0, 3, 1, 2, 5)
    ]
    assert taken == [[], [(0, 3)], [(3, 4)], [(4, 5), (0, 1)], [(0, 1)]]
    assert (len(deferred), deferred.next_due_ns) == (0, NEVER)


def test_everything_can_be_taken_with_its_times() -> None:
    deferred = Deferred()
    late, early = span(), span()
    deferred.add(late, due_ns=ms(300))
    deferred.add(early, due_ns=ms(100))
    assert deferred.take_all() == [(ms(100), early), (ms(300), late)]
    assert len(deferred) == 0
    assert deferred.next_due_ns == NEVER
