"""Messages that wait for their time."""

from __future__ import annotations

from emberq.base.timers import NEVER
from emberq.broker.batch import Span, published_batch
from emberq.broker.deferred import Deferred
from tests.broker.rig import published


def span() -> Span:
    """One message."""
    blob, ends = published([b"body"])
    return Span(published_batch(blob, ends, 0, 0), 0, 1)


def test_nothing_is_due_when_nothing_waits() -> None:
    deferred = Deferred()
    assert len(deferred) == 0
    assert deferred.next_due_ns == NEVER
    assert deferred.take_due(NEVER) == []


def test_a_message_is_due_at_its_time_and_not_before() -> None:
    deferred = Deferred()
    message = span()
    deferred.add(message, due_ns=100)
    assert deferred.take_due(99) == []
    assert len(deferred) == 1
    assert deferred.take_due(100) == [message]
    assert len(deferred) == 0


def test_messages_come_out_in_the_order_of_their_times() -> None:
    deferred = Deferred()
    late, early, middle = span(), span(), span()
    deferred.add(late, due_ns=300)
    deferred.add(early, due_ns=100)
    deferred.add(middle, due_ns=200)
    assert deferred.next_due_ns == 100
    assert deferred.take_due(200) == [early, middle]
    assert deferred.next_due_ns == 300


def test_messages_that_are_due_together_come_out_in_the_order_they_came() -> None:
    deferred = Deferred()
    spans = [span() for _ in range(20)]
    for each in spans:
        deferred.add(each, due_ns=7)
    assert deferred.take_due(7) == spans


def test_everything_can_be_taken_with_its_times() -> None:
    deferred = Deferred()
    late, early = span(), span()
    deferred.add(late, due_ns=300)
    deferred.add(early, due_ns=100)
    assert deferred.take_all() == [(100, early), (300, late)]
    assert len(deferred) == 0
    assert deferred.next_due_ns == NEVER
