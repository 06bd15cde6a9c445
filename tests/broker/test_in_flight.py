"""What one consumer holds: answers in any order, deadlines, and the same result whether in runs or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_SECOND, ManualClock
from emberq.base.timers import NEVER
from emberq.broker.batch import PublishedBatch, Span
from emberq.broker.in_flight import InFlight, LatencyListener, Run
from emberq.broker.stats import Histogram, LatencyWindow
from tests.broker.rig import fin_lines, numbered, published

UNKNOWN = b"0" * 16


def run_of(message_count: int, *, first_id: int = 0x1000, delivered_ns: int = 0, deadline_ns: int = 100) -> Run:
    """Messages that were delivered together."""
    blob, ends = published(numbered(message_count))
    batch = PublishedBatch(blob, ends, first_id, 0)
    return Run(batch, 0, message_count, 1, delivered_ns=delivered_ns, deadline_ns=deadline_ns)


def ids_of(run: Run) -> list[bytes]:
    return run.batch.ids(0, run.batch.count)


def ids_in(spans: Sequence[Span]) -> list[bytes]:
    return [message_id for span in spans for message_id in span.ids()]


# FIN.


@pytest.mark.parametrize("size", [1, 3, 4, 50])
def test_messages_finished_in_order_are_forgotten(size: int) -> None:
    in_flight = InFlight()
    run = run_of(size)
    ids = ids_of(run)
    in_flight.add(run)
    assert in_flight.finish(fin_lines(ids)) == []
    assert in_flight.count == 0
    assert in_flight.finish(fin_lines(ids[:1])) == ids[:1]


@pytest.mark.parametrize("size", [3, 4, 50])
def test_messages_finished_in_reverse_order_are_forgotten(size: int) -> None:
    in_flight = InFlight()
    run = run_of(size)
    in_flight.add(run)
    assert in_flight.finish(fin_lines(ids_of(run)[::-1])) == []
    assert in_flight.count == 0


def test_messages_finished_one_by_one_are_forgotten() -> None:
    in_flight = InFlight()
    run = run_of(10)
    in_flight.add(run)
    for left, message_id in zip(range(9, -1, -1), ids_of(run), strict=True):
        assert in_flight.finish(fin_lines([message_id])) == []
        assert in_flight.count == left


def test_one_answer_may_span_several_runs() -> None:
    in_flight = InFlight()
    runs = [run_of(5, first_id=0x1000), run_of(2, first_id=0x2000), run_of(7, first_id=0x3000)]
    for run in runs:
        in_flight.add(run)
    ids = [message_id for run in runs for message_id in ids_of(run)]
    assert in_flight.finish(fin_lines(ids)) == []
    assert in_flight.count == 0


def test_unknown_messages_are_named_in_the_order_of_the_answer() -> None:
    in_flight = InFlight()
    run = run_of(6)
    ids = ids_of(run)
    in_flight.add(run)
    stranger = b"f" * 16
    assert in_flight.finish(fin_lines([ids[0], stranger, ids[2], UNKNOWN, ids[1]])) == [stranger, UNKNOWN]
    assert in_flight.count == 3


def test_a_message_is_finished_once() -> None:
    in_flight = InFlight()
    run = run_of(6)
    ids = ids_of(run)
    in_flight.add(run)
    assert in_flight.finish(fin_lines([ids[0], ids[0], ids[1], ids[1]])) == [ids[0], ids[1]]
    assert in_flight.count == 4


def test_nothing_is_in_flight_at_first() -> None:
    in_flight = InFlight()
    assert in_flight.finish(fin_lines([UNKNOWN])) == [UNKNOWN]
    assert (in_flight.count, in_flight.next_deadline_ns) == (0, NEVER)
    assert UNKNOWN not in in_flight


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_a_message_that_is_in_flight_twice_is_settled_by_the_answers_to_it(size: int) -> None:
    in_flight = InFlight()
    ids = ids_of(run_of(size))
    in_flight.add(run_of(size))
    in_flight.add(run_of(size))
    in_flight.finish(fin_lines([*ids[::-1], *ids]))
    assert (in_flight.count, in_flight.take_all()) == (0, [])


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


def test_the_listener_is_told_of_what_is_finished_in_order_also_later_in_a_run() -> None:
    in_flight, run, heard = InFlight(), run_of(12), Heard()
    ids = ids_of(run)
    in_flight.add(run)
    for start, stop in ((0, 3), (3, 9), (9, 12)):
        assert in_flight.finish(fin_lines(ids[start:stop]), heard.listener) == []
        assert heard.count == stop


def test_the_listener_is_told_of_what_is_finished_out_of_order_and_not_of_unknown_messages() -> None:
    in_flight, run, heard = InFlight(), run_of(5), Heard()
    ids = ids_of(run)
    in_flight.add(run)
    in_flight.finish(fin_lines([ids[3], UNKNOWN, ids[1]]), heard.listener)
    assert heard.count == 2


# REQ.


def test_a_message_taken_out_keeps_its_attempts_and_leaves_the_others() -> None:
    in_flight = InFlight()
    run = run_of(6)
    run.attempts = 7
    ids = ids_of(run)
    in_flight.add(run)
    span = in_flight.take(ids[4])
    assert span is not None
    assert (span.ids(), span.attempts) == ([ids[4]], 7)
    assert in_flight.count == 5
    assert in_flight.take(ids[4]) is None
    assert in_flight.take(UNKNOWN) is None
    assert [message_id in in_flight for message_id in ids] == [True, True, True, True, False, True]


# Deadlines.


def test_a_message_is_overdue_at_its_deadline_and_not_before() -> None:
    in_flight = InFlight()
    run, single = run_of(5, deadline_ns=100), run_of(1, first_id=0x2000, deadline_ns=200)
    in_flight.add(run)
    in_flight.add(single)
    assert in_flight.next_deadline_ns == 100
    assert in_flight.take_overdue(99) == []
    assert ids_in(in_flight.take_overdue(100)) == ids_of(run)
    assert (in_flight.count, in_flight.next_deadline_ns) == (1, 200)
    assert ids_in(in_flight.take_overdue(200)) == ids_of(single)
    assert (in_flight.count, in_flight.next_deadline_ns) == (0, NEVER)


def test_only_what_is_left_of_a_run_is_overdue() -> None:
    in_flight = InFlight()
    run = run_of(8)
    ids = ids_of(run)
    in_flight.add(run)
    in_flight.finish(fin_lines(ids[:3]))
    (span,) = in_flight.take_overdue(100)
    assert span.ids() == ids[3:]


def test_a_touched_message_gets_more_time_and_the_others_do_not() -> None:
    in_flight = InFlight()
    run = run_of(4, deadline_ns=100)
    ids = ids_of(run)
    in_flight.add(run)
    assert in_flight.touch(ids[1], deadline_ns=170, max_held_ns=1000)
    assert sorted(ids_in(in_flight.take_overdue(100))) == [ids[0], ids[2], ids[3]]
    assert in_flight.next_deadline_ns == 170
    assert in_flight.take_overdue(169) == []
    assert ids_in(in_flight.take_overdue(170)) == [ids[1]]


def test_a_touch_does_not_reach_beyond_the_longest_time_a_message_may_be_held() -> None:
    in_flight = InFlight()
    run = run_of(1, delivered_ns=50, deadline_ns=100)
    (message_id,) = ids_of(run)
    in_flight.add(run)
    assert in_flight.touch(message_id, deadline_ns=500, max_held_ns=120)
    assert in_flight.touch(message_id, deadline_ns=600, max_held_ns=120)
    assert in_flight.take_overdue(169) == []
    assert ids_in(in_flight.take_overdue(170)) == [message_id]


def test_a_touch_may_shorten_the_time() -> None:
    in_flight = InFlight()
    run = run_of(5, deadline_ns=100)
    in_flight.add(run)
    assert in_flight.touch(ids_of(run)[0], deadline_ns=60, max_held_ns=1000)
    assert in_flight.next_deadline_ns == 60


def test_a_message_that_is_not_in_flight_cannot_be_touched() -> None:
    in_flight = InFlight()
    in_flight.add(run_of(5))
    assert not in_flight.touch(UNKNOWN, deadline_ns=500, max_held_ns=1000)


def test_everything_can_be_taken_or_forgotten() -> None:
    for run in (run_of(2), run_of(20)):
        in_flight = InFlight()
        in_flight.add(run)
        assert sorted(ids_in(in_flight.take_all())) == ids_of(run)
        assert (in_flight.count, in_flight.next_deadline_ns) == (0, NEVER)
        in_flight.add(run)
        in_flight.clear()
        assert (in_flight.count, in_flight.next_deadline_ns) == (0, NEVER)
        assert in_flight.take_all() == []


# Any history, against a dictionary of deadlines.

operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "finish_oldest", "finish_any", "take", "touch", "time"]), st.integers(0, 1 << 30)
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(operations)
def test_any_history_agrees_with_a_dictionary(history: list[tuple[str, int]]) -> None:
    in_flight = InFlight()
    deadlines: dict[bytes, int] = {}
    delivered: dict[bytes, int] = {}
    now_ns, batch_numbers = 0, count(1)
    for operation, number in history:
        known = list(deadlines)
        some = known[number % (len(known) + 1) :: 1 + number % 3]
        if operation == "add":
            deadline_ns = now_ns + 1 + number % 50
            run = run_of(
                1 + number % 9, first_id=next(batch_numbers) << 12, delivered_ns=now_ns, deadline_ns=deadline_ns
            )
            deadlines |= dict.fromkeys(ids_of(run), deadline_ns)
            delivered |= dict.fromkeys(ids_of(run), now_ns)
            in_flight.add(run)
        elif operation == "finish_oldest":
            ids = known[: number % (len(known) + 1)]
            assert in_flight.finish(fin_lines(ids)) == []
            deadlines = {key: deadlines[key] for key in known if key not in ids}
        elif operation == "finish_any":
            answer = [*some[::-1], UNKNOWN, *some[:1]]
            assert in_flight.finish(fin_lines(answer)) == [UNKNOWN, *some[:1]]
            deadlines = {key: deadlines[key] for key in known if key not in some}
        elif operation == "take" and some:
            span = in_flight.take(some[0])
            assert span is not None
            assert span.ids() == [some[0]]
            del deadlines[some[0]]
        elif operation == "touch" and some:
            assert in_flight.touch(some[0], deadline_ns=now_ns + 30, max_held_ns=70)
            deadlines[some[0]] = min(now_ns + 30, delivered[some[0]] + 70)
        elif operation == "time":
            now_ns += number % 40
            late = [key for key, deadline_ns in deadlines.items() if deadline_ns <= now_ns]
            assert sorted(ids_in(in_flight.take_overdue(now_ns))) == sorted(late)
            deadlines = {key: deadlines[key] for key in known if key not in late}
        assert in_flight.count == len(deadlines)
        assert in_flight.next_deadline_ns <= min(deadlines.values(), default=NEVER)
