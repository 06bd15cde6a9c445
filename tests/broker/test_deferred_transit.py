"""Messages on their way to another topic: each is stored there, or stays."""

from __future__ import annotations

from emberq.broker.batch import Span, published_batch
from emberq.broker.deferred import InTransit
from tests.broker.rig import numbered, published

Range = tuple[int, int]


def span(count: int) -> Span:
    blob, ends = published(numbered(count))
    return Span(published_batch(blob, ends, 0, 0), 0, count, 3)


def places(of: Span) -> Range:
    return of.start, of.stop


class Ledger:
    """What became of the messages, by their places in the batch."""

    def __init__(self) -> None:
        self.done: list[Range] = []
        self.again: list[Range] = []
        self.put_off: list[tuple[Range, int, int]] = []
        self.transit = InTransit(
            done_with=lambda spans: self.done.extend(map(places, spans)),
            put_again=lambda one: self.again.append(places(one)),
            put_off=lambda one, delay_ns: self.put_off.append((places(one), one.attempts, delay_ns)),
        )


def test_what_was_moved_is_done_with_and_the_rest_is_still_on_its_way() -> None:
    ledger, messages = Ledger(), span(5)
    ledger.transit.add([messages])
    assert ledger.transit.moved(messages, 2)
    assert ledger.done == [(0, 2)]
    assert messages in ledger.transit
    assert ledger.transit.count == 3


def test_a_span_is_forgotten_when_all_of_it_was_moved() -> None:
    ledger, messages = Ledger(), span(5)
    ledger.transit.add([messages])
    assert ledger.transit.moved(messages, 5)
    assert messages not in ledger.transit
    assert not ledger.transit.moved(messages, 0)
    assert ledger.done == [(0, 5)]


def test_that_none_were_moved_finishes_none() -> None:
    ledger, messages = Ledger(), span(5)
    ledger.transit.add([messages])
    assert ledger.transit.moved(messages, 0)
    assert ledger.done == []
    assert ledger.transit.count == 5


def test_what_is_put_back_without_a_delay_is_queued_in_one_piece() -> None:
    ledger, messages = Ledger(), span(5)
    ledger.transit.add([messages])
    ledger.transit.moved(messages, 2)
    ledger.transit.put_back(messages)
    assert (ledger.again, ledger.put_off) == ([(2, 5)], [])
    assert ledger.transit.count == 0


def test_what_is_put_back_with_a_delay_waits_message_by_message_with_its_attempts() -> None:
    ledger, messages = Ledger(), span(3)
    ledger.transit.add([messages])
    ledger.transit.moved(messages, 1)
    ledger.transit.put_back(messages, delay_ns=70)
    assert (ledger.again, ledger.put_off) == ([], [((1, 2), 3, 70), ((2, 3), 3, 70)])


def test_what_is_said_of_forgotten_messages_is_of_no_account() -> None:
    ledger, messages = Ledger(), span(5)
    ledger.transit.add([messages])
    assert ledger.transit.take_all() == [messages]
    assert not ledger.transit.moved(messages, 2)
    ledger.transit.put_back(messages)
    ledger.transit.put_back(messages, delay_ns=70)
    assert (ledger.done, ledger.again, ledger.put_off) == ([], [], [])
    assert messages.count == 5
