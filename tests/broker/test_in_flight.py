"""What a channel's consumers hold: answers in any order, deadlines, the same result in runs and one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.base.timers import NEVER, Timers
from emberq.broker.batch import Span, published_batch
from emberq.broker.in_flight import (
    MAX_OVERDUE_COUNT,
    MAX_THINNED_COUNT,
    THINNED_NS,
    FinishListener,
    InFlight,
    LatencyListener,
)
from emberq.broker.stats import ClientStats, Histogram, LatencyWindow
from emberq.broker.subscriber import Subscriber
from tests.broker.rig import fin_lines, numbered, published
from tests.support.examples import examples

UNKNOWN = b"0" * 16


class NoSink:
    """The connection of a consumer that only the registry knows."""

    def deliver(self, frames: bytes) -> None: ...

    def deliver_pieces(self, pieces: list[bytes | memoryview]) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> ClientStats:
        return ClientStats()


class Flight:
    """A registry whose time stands still until `advance`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = Timers()
        self.overdue: list[bytes] = []
        """The ids of what timed out since `advance` was last called."""
        self.settled_count = 0
        self.registry = InFlight(
            clock=self.clock,
            timers=self.timers,
            timed_out=self._timed_out,
            given_back=lambda span: self._timed_out(None, span),
            settled=self._note_settled,
        )
        self._first_id = 0

    def _timed_out(self, _holder: Subscriber | None, span: Span) -> None:
        self.overdue += span.ids()

    def _note_settled(self) -> None:
        self.settled_count += 1

    def consumer(self, *, timeout_ns: int = 100) -> Subscriber:
        return Subscriber(NoSink(), msg_timeout_ns=timeout_ns)

    def give(
        self, holder: Subscriber, count: int, *, attempts: int = 0, first_id: int = 0, body_bytes: int = 6
    ) -> list[bytes]:
        """Deliver a batch of messages; their ids."""
        if not first_id:
            self._first_id += 0x1000
            first_id = self._first_id
        blob, ends = published([body.rjust(body_bytes, b".") for body in numbered(count)])
        span = Span(published_batch(blob, ends, first_id, 0), 0, count, attempts)
        self.registry.add(holder, span, span.batch.frames(0, count, attempts + 1), self.clock.monotonic_ns())
        return span.batch.ids(0, count)

    def finish(self, holder: Subscriber, ids: Sequence[bytes], listener: FinishListener | None = None) -> list[bytes]:
        return self.registry.finish(holder, fin_lines(ids), listener)

    def touch(self, holder: Subscriber, message_id: bytes, timeout_ns: int, *, max_held_ns: int = 1000) -> bool:
        return self.registry.touch(holder, message_id, timeout_ns=timeout_ns, max_held_ns=max_held_ns)

    def advance(self, by_ns: int) -> list[bytes]:
        """Let time pass; the ids of what timed out in one turn of the event loop."""
        self.clock.advance(ms=by_ns / NS_PER_MS)
        self.overdue = []
        self.timers.run_due(self.clock.monotonic_ns())
        return sorted(self.overdue)


@pytest.fixture
def flight() -> Flight:
    return Flight()


@pytest.fixture
def holder(flight: Flight) -> Subscriber:
    return flight.consumer()


# FIN.


@pytest.mark.parametrize("size", [1, 3, 4, 50])
def test_messages_finished_in_order_are_forgotten(flight: Flight, holder: Subscriber, size: int) -> None:
    ids = flight.give(holder, size)
    assert flight.finish(holder, ids) == []
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    assert flight.finish(holder, ids[:1]) == ids[:1]


@pytest.mark.parametrize("index", [0, 2, 4])
def test_one_message_of_a_batch_may_be_delivered_alone(flight: Flight, holder: Subscriber, index: int) -> None:
    batch = published_batch(*published(numbered(5)), 0x1000, 0)
    (message_id,) = batch.ids(index, index + 1)
    span = Span(batch, index, index + 1)
    flight.registry.add(holder, span, batch.frames(index, index + 1, 1), flight.clock.monotonic_ns())
    assert (flight.registry.count, holder.in_flight_count) == (1, 1)
    again = flight.registry.take(holder, message_id)
    assert again is not None
    assert (again.ids(), again.attempts, flight.registry.count) == ([message_id], 1, 0)


@pytest.mark.parametrize("size", [1, 3, 50])
def test_what_was_cleared_is_not_held_any_more(flight: Flight, holder: Subscriber, size: int) -> None:
    ids = flight.give(holder, size)
    assert all(map(flight.registry.is_held, ids))
    flight.registry.clear()
    assert not any(map(flight.registry.is_held, ids))
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    assert flight.finish(holder, ids) == ids
    assert flight.advance(200) == []


@pytest.mark.parametrize("size", [3, 4, 50])
def test_messages_finished_in_reverse_order_are_forgotten(flight: Flight, holder: Subscriber, size: int) -> None:
    ids = flight.give(holder, size)
    assert flight.finish(holder, ids[::-1]) == []
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)


def test_messages_finished_one_by_one_are_forgotten(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 10)
    for left, message_id in zip(range(9, -1, -1), ids, strict=True):
        assert flight.finish(holder, [message_id]) == []
        assert (flight.registry.count, holder.in_flight_count) == (left, left)


def test_one_answer_may_span_several_runs(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 5) + flight.give(holder, 2) + flight.give(holder, 7)
    assert flight.finish(holder, ids) == []
    assert flight.registry.count == 0


def test_one_answer_may_span_runs_and_single_messages(flight: Flight, holder: Subscriber) -> None:
    ids = [message_id for size in (50, 1, 50, 2, 3, 50) for message_id in flight.give(holder, size)]
    assert flight.finish(holder, ids) == []
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    assert flight.finish(holder, ids) == ids


def test_unknown_messages_are_named_in_the_order_of_the_answer(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 6)
    stranger = b"f" * 16
    assert flight.finish(holder, [ids[0], stranger, ids[2], UNKNOWN, ids[1]]) == [stranger, UNKNOWN]
    assert flight.registry.count == 3


def test_a_message_is_finished_once(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 6)
    assert flight.finish(holder, [ids[0], ids[0], ids[1], ids[1]]) == [ids[0], ids[1]]
    assert flight.registry.count == 4


def test_nothing_is_in_flight_at_first(flight: Flight, holder: Subscriber) -> None:
    assert flight.finish(holder, [UNKNOWN]) == [UNKNOWN]
    assert flight.registry.count == 0
    assert not flight.registry.is_held(UNKNOWN)
    assert flight.timers.next_due_ns == NEVER


@pytest.mark.parametrize("size", [1, 3, 4, 9])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_message_that_is_in_flight_twice_is_settled_by_the_answers_to_it(
    flight: Flight, size: int, is_same: bool
) -> None:
    first, second = flight.consumer(), flight.consumer()
    second = first if is_same else second
    ids = flight.give(first, size, first_id=0x7000)
    flight.give(second, size, first_id=0x7000)
    for holder in (first, second):
        flight.finish(holder, [*ids[::-1], *ids])
    assert (flight.registry.count, first.in_flight_count, second.in_flight_count) == (0, 0, 0)
    assert flight.registry.take_all() == []


class Heard:
    """A listener that records how long messages took, and for how many it has done so."""

    def __init__(self) -> None:
        self._window = LatencyWindow(window_ns=60 * NS_PER_SECOND, clock=ManualClock())
        self.listener = LatencyListener(self._window)

    @property
    def count(self) -> int:
        total = Histogram()
        self._window.add_to(total)
        return total.count


def test_the_listener_is_told_of_what_is_finished_in_order_also_later_in_a_run(
    flight: Flight, holder: Subscriber
) -> None:
    ids, heard = flight.give(holder, 12), Heard()
    for start, stop in ((0, 3), (3, 9), (9, 12)):
        assert flight.finish(holder, ids[start:stop], heard.listener) == []
        assert heard.count == stop


def test_the_listener_is_told_of_what_is_finished_out_of_order_and_not_of_unknown_messages(
    flight: Flight, holder: Subscriber
) -> None:
    ids, heard = flight.give(holder, 5), Heard()
    flight.finish(holder, [ids[3], UNKNOWN, ids[1]], heard.listener)
    assert heard.count == 2


# Whose a message is.


@pytest.mark.parametrize("size", [1, 3, 4, 50])
def test_a_consumer_cannot_answer_what_another_holds(flight: Flight, size: int) -> None:
    holder, other = flight.consumer(), flight.consumer()
    ids = flight.give(holder, size)
    assert flight.finish(other, ids) == ids
    assert flight.registry.take(other, ids[0]) is None
    assert not flight.touch(other, ids[-1], 100)
    assert all(map(flight.registry.is_held, ids))
    assert flight.finish(holder, ids) == []
    assert not any(map(flight.registry.is_held, ids))


def test_only_messages_in_flight_are_held(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 10)
    flight.finish(holder, ids[:4])
    assert [flight.registry.is_held(message_id) for message_id in ids] == [False] * 4 + [True] * 6
    flight.finish(holder, [ids[7]])
    assert [flight.registry.is_held(message_id) for message_id in ids[4:]] == [True] * 3 + [False] + [True] * 2
    assert not flight.registry.is_held(b"not hexadecimal!")


# REQ.


def test_a_message_taken_out_keeps_its_attempts_and_leaves_the_others(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 6, attempts=6)
    span = flight.registry.take(holder, ids[4])
    assert span is not None
    assert (span.ids(), span.attempts) == ([ids[4]], 7)
    assert flight.registry.count == 5
    assert flight.registry.take(holder, ids[4]) is None
    assert flight.registry.take(holder, UNKNOWN) is None
    assert [flight.registry.is_held(message_id) for message_id in ids] == [True, True, True, True, False, True]


def test_messages_may_be_finished_and_taken_out_by_turns(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 50)
    for finished, wanted in zip(ids[::2], ids[1::2], strict=True):
        assert flight.finish(holder, [finished]) == []
        taken = flight.registry.take(holder, wanted)
        assert taken is not None
        assert taken.ids() == [wanted]
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    assert flight.finish(holder, ids) == ids
    assert flight.advance(1000) == []


def test_a_message_taken_out_does_not_hold_the_rest_of_its_batch(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 100)
    span = flight.registry.take(holder, ids[40])
    assert span is not None
    assert span.batch.count == 1


@pytest.mark.parametrize(("kept_index", "step"), [(50, -1), (0, 1), (50, 1), (99, 1)])
def test_a_run_that_lost_most_of_its_messages_lets_go_of_its_batch(flight: Flight, kept_index: int, step: int) -> None:
    holder = flight.consumer(timeout_ns=NS_PER_SECOND)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = []
        for _ in range(20):
            ids = flight.give(holder, 100, body_bytes=1000)
            kept.append(ids.pop(kept_index))
            flight.finish(holder, ids[::step])
        flight.advance(THINNED_NS)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 300_000, "20 messages of 1000 bytes and a batch, not 20 batches of 100,000"
    assert flight.finish(holder, kept) == []
    assert flight.registry.count == 0


def test_many_runs_that_lost_most_of_their_messages_are_seen_to_in_several_turns(flight: Flight) -> None:
    holder = flight.consumer(timeout_ns=NS_PER_SECOND)
    size = MAX_THINNED_COUNT // 4
    kept = []
    for _ in range(9):
        ids = flight.give(holder, size)
        kept.append(ids.pop(0))
        flight.finish(holder, ids)
    flight.advance(THINNED_NS)
    turns = 1
    while flight.timers.next_due_ns == flight.clock.monotonic_ns():
        flight.advance(0)
        turns += 1
    assert turns == 3
    assert flight.finish(holder, kept) == []


# Deadlines.


def test_a_message_is_overdue_at_its_deadline_and_not_before(flight: Flight) -> None:
    hasty, patient = flight.consumer(timeout_ns=100), flight.consumer(timeout_ns=200)
    run, single = flight.give(hasty, 5), flight.give(patient, 1)
    assert flight.timers.next_due_ns - flight.clock.monotonic_ns() == 100
    assert flight.advance(99) == []
    assert flight.advance(1) == run
    assert (flight.registry.count, hasty.in_flight_count, patient.in_flight_count) == (1, 0, 1)
    assert flight.advance(99) == []
    assert flight.advance(1) == single
    assert (flight.registry.count, flight.settled_count) == (0, 2)


def test_only_what_is_left_of_a_run_is_overdue(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 8)
    flight.finish(holder, ids[:3])
    assert flight.advance(100) == ids[3:]


def test_what_was_answered_in_time_rings_for_nothing(flight: Flight, holder: Subscriber) -> None:
    flight.finish(holder, flight.give(holder, 8))
    flight.advance(50)
    later = flight.give(holder, 8)
    assert flight.advance(50) == []
    assert flight.settled_count == 0
    assert flight.advance(50) == later


def test_many_messages_that_are_overdue_come_back_in_portions(flight: Flight, holder: Subscriber) -> None:
    for _ in range(15):
        flight.give(holder, 300)
    assert len(flight.advance(100)) in range(MAX_OVERDUE_COUNT, MAX_OVERDUE_COUNT + 300)
    while flight.registry.count:
        assert flight.advance(0)
    assert flight.settled_count in range(3, 6)


def test_a_touched_message_gets_more_time_and_the_others_do_not(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 4)
    assert flight.touch(holder, ids[1], 170)
    assert flight.advance(100) == [ids[0], ids[2], ids[3]]
    assert flight.advance(69) == []
    assert flight.advance(1) == [ids[1]]


def test_a_touch_does_not_reach_beyond_the_longest_time_a_message_may_be_held(
    flight: Flight, holder: Subscriber
) -> None:
    (message_id,) = flight.give(holder, 1)
    flight.advance(50)
    assert flight.touch(holder, message_id, 500, max_held_ns=120)
    assert flight.touch(holder, message_id, 600, max_held_ns=120)
    assert flight.advance(69) == []
    assert flight.advance(1) == [message_id]


def test_a_touched_message_does_not_hold_the_rest_of_its_batch(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 100)
    assert flight.touch(holder, ids[30], 500)
    flight.finish(holder, ids[:30] + ids[31:])
    (span,) = flight.registry.take_all()
    assert (span.ids(), span.batch.count) == ([ids[30]], 1)


def test_a_touch_may_shorten_the_time(flight: Flight, holder: Subscriber) -> None:
    ids = flight.give(holder, 5)
    assert flight.touch(holder, ids[0], 60)
    assert flight.advance(60) == ids[:1]


def test_a_message_that_is_not_in_flight_cannot_be_touched(flight: Flight, holder: Subscriber) -> None:
    flight.give(holder, 5)
    assert not flight.touch(holder, UNKNOWN, 500)


@pytest.mark.parametrize("size", [2, 20])
def test_everything_can_be_taken_or_forgotten(flight: Flight, holder: Subscriber, size: int) -> None:
    ids = flight.give(holder, size)
    assert [message_id for span in flight.registry.take_all() for message_id in span.ids()] == ids
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    flight.give(holder, size)
    flight.registry.clear()
    assert (flight.registry.count, holder.in_flight_count) == (0, 0)
    assert flight.registry.take_all() == []
    assert flight.advance(1000) == []


def test_a_consumer_that_answers_one_message_late_does_not_make_the_registry_grow(
    flight: Flight, holder: Subscriber
) -> None:
    (first,) = flight.give(holder, 1)
    tracemalloc.start()
    try:
        for _ in range(300):
            flight.finish(holder, flight.give(holder, 1))
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3000):
            flight.finish(holder, flight.give(holder, 1))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
    assert flight.finish(holder, [first]) == []


# Any history, against a dictionary of deadlines.

operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "finish_oldest", "finish_any", "take", "touch", "time"]), st.integers(0, 1 << 30)
    ),
    max_size=40,
)


@examples(200)
@given(operations)
def test_any_history_agrees_with_a_dictionary(history: list[tuple[str, int]]) -> None:
    flight = Flight()
    consumers = [flight.consumer(timeout_ns=timeout_ns) for timeout_ns in (20, 50, 50)]
    deadlines: dict[bytes, int] = {}
    delivered: dict[bytes, int] = {}
    owners: dict[bytes, Subscriber] = {}
    now_ns = 0
    for operation, number in history:
        holder = consumers[number % 3]
        known = [message_id for message_id in deadlines if owners[message_id] is holder]
        some = known[number % (len(known) + 1) :: 1 + number % 3]
        if operation == "add":
            ids = flight.give(holder, 1 + number % 19)
            deadlines |= dict.fromkeys(ids, now_ns + holder.msg_timeout_ns)
            delivered |= dict.fromkeys(ids, now_ns)
            owners |= dict.fromkeys(ids, holder)
        elif operation == "finish_oldest":
            ids = known[: number % (len(known) + 1)]
            assert flight.finish(holder, ids) == []
            for message_id in ids:
                del deadlines[message_id]
        elif operation == "finish_any":
            others = [message_id for message_id in deadlines if owners[message_id] is not holder][:2]
            assert flight.finish(holder, [*some[::-1], UNKNOWN, *others, *some[:1]]) == [UNKNOWN, *others, *some[:1]]
            for message_id in some:
                del deadlines[message_id]
        elif operation == "take" and some:
            span = flight.registry.take(holder, some[0])
            assert span is not None
            assert span.ids() == [some[0]]
            del deadlines[some[0]]
        elif operation == "touch" and some:
            assert flight.touch(holder, some[0], 30, max_held_ns=70)
            deadlines[some[0]] = min(now_ns + 30, delivered[some[0]] + 70)
        elif operation == "time":
            now_ns += number % 40
            late = sorted(message_id for message_id, deadline_ns in deadlines.items() if deadline_ns <= now_ns)
            assert flight.advance(number % 40) == late
            for message_id in late:
                del deadlines[message_id]
        assert flight.registry.count == len(deadlines)
        for consumer in consumers:
            assert consumer.in_flight_count == sum(owners[message_id] is consumer for message_id in deadlines)
        assert all(flight.registry.is_held(message_id) == (message_id in deadlines) for message_id in owners)
