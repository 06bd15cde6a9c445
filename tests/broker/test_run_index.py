"""Which run holds a message: on its page or by its whole id, whatever else stands beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.broker.batch import NO_MESSAGES
from emberq.broker.run_index import RunIndex
from emberq.broker.subscriber import Run, Subscriber
from tests.broker.rig import fin_lines
from tests.broker.test_in_flight import NoSink
from tests.support.examples import examples

FIRST = 0x3F9C0A1B2D4E57A8
EMPTY = "<RunIndex of 0 pages and 0 lone messages>"


def consumer() -> Subscriber:
    return Subscriber(NoSink(), msg_timeout_ns=1)


def run_of(holder: Subscriber) -> Run:
    return Run(holder, NO_MESSAGES, 0, 0, 1, 0, 0)


def ids(first: int, count: int) -> list[bytes]:
    return [b"%016x" % number for number in range(first, first + count)]


@pytest.fixture
def index() -> RunIndex:
    return RunIndex()


@pytest.mark.parametrize("first", [0, 7, FIRST, 0xFFFFFFFFFFFFFFD0])
@pytest.mark.parametrize("count", [1, 8, 16, 40])
def test_each_of_consecutive_messages_is_found_once_in_any_order(index: RunIndex, first: int, count: int) -> None:
    run, holder = run_of(consumer()), consumer()
    run.holder = holder
    assert index.add_consecutive(fin_lines(ids(first, count)), first, run) == []
    for message_id in ids(first, count)[::-1]:
        assert index.find(message_id) is run
        assert index.take(holder, message_id) is run
        assert index.find(message_id) is index.take(holder, message_id) is None


def test_neighbours_on_a_page_are_told_apart(index: RunIndex) -> None:
    holder = consumer()
    runs = [run_of(holder) for _ in range(4)]
    for place, run in enumerate(runs):
        index.add_consecutive(fin_lines(ids(FIRST + 3 * place, 3)), FIRST + 3 * place, run)
    taken: list[Run] = []
    lines = fin_lines(ids(FIRST, 12)[::-1])
    assert index.take_lines(holder, lines, 0, taken) == len(lines)
    assert taken == [run for run in runs[::-1] for _ in range(3)]


def test_lines_are_taken_up_to_the_first_that_is_not_held(index: RunIndex) -> None:
    holder, other = consumer(), consumer()
    own, foreign = run_of(holder), run_of(other)
    index.add_consecutive(fin_lines(ids(FIRST, 4)), FIRST, own)
    index.add_consecutive(fin_lines(ids(FIRST + 4, 4)), FIRST + 4, foreign)
    index.add(b"not-a-number-but", own)
    lines = fin_lines([ids(FIRST, 4)[2], b"not-a-number-but", *ids(FIRST + 4, 1), *ids(FIRST, 1)])
    taken: list[Run] = []
    assert index.take_lines(holder, lines, 0, taken) == 2 * 21
    assert taken == [own, own]
    assert index.take(holder, ids(FIRST + 4, 1)[0]) is None
    assert index.take(other, ids(FIRST + 4, 1)[0]) is foreign


@pytest.mark.parametrize("letter", [b"A", b"g", b"/", b":", b"`", b"\xff"])
def test_a_letter_that_is_no_digit_names_no_message(index: RunIndex, letter: bytes) -> None:
    holder = consumer()
    index.add_consecutive(fin_lines(ids(FIRST - 8, 16)), FIRST - 8, run_of(holder))
    stranger = b"%016x" % FIRST
    assert index.find(stranger[:-1] + letter) is None
    assert index.take(holder, stranger[:-1] + letter) is None


def test_who_held_a_message_before_is_told(index: RunIndex) -> None:
    holder = consumer()
    first, second, third = (run_of(holder) for _ in range(3))
    index.add_consecutive(fin_lines(ids(FIRST, 20)), FIRST, first)
    assert index.add_consecutive(fin_lines(ids(FIRST + 18, 20)), FIRST + 18, second) == [first, first]
    assert index.add(b"lone............", first) is None
    assert index.add(b"lone............", third) is first


def test_pages_go_with_the_last_run_on_them(index: RunIndex) -> None:
    holder = consumer()
    first, second = run_of(holder), run_of(holder)
    index.add_consecutive(fin_lines(ids(FIRST, 20)), FIRST, first)
    index.add_consecutive(fin_lines(ids(FIRST + 20, 4)), FIRST + 20, second)
    for message_id in ids(FIRST, 20):
        index.take(holder, message_id)
    index.forget_pages(first)
    assert [index.find(message_id) for message_id in ids(FIRST + 20, 4)] == [second] * 4
    for message_id in ids(FIRST + 20, 4):
        index.take(holder, message_id)
    index.forget_pages(second)
    assert repr(index) == EMPTY


def test_what_is_left_of_a_run_keeps_no_pages(index: RunIndex) -> None:
    holder = consumer()
    first, second = run_of(holder), run_of(holder)
    index.add_consecutive(fin_lines(ids(FIRST, 60)), FIRST, first)
    index.add_consecutive(fin_lines(ids(FIRST + 60, 60)), FIRST + 60, second)
    left = ids(FIRST, 120)[30:120:50]
    for message_id in ids(FIRST, 120):
        if message_id not in left:
            index.take(holder, message_id)
    index.leave_pages(first, left[:1])
    index.leave_pages(second, left[1:])
    assert repr(index) == "<RunIndex of 0 pages and 2 lone messages>"
    assert [index.take(holder, message_id) for message_id in left] == [first, second]
    assert repr(index) == EMPTY


def test_nothing_is_left_when_it_is_cleared(index: RunIndex) -> None:
    holder = consumer()
    index.add(b"lone............", run_of(holder))
    index.add_consecutive(fin_lines(ids(FIRST, 20)), FIRST, run_of(holder))
    assert repr(index) == "<RunIndex of 2 pages and 1 lone messages>"
    index.clear()
    assert repr(index) == EMPTY
    assert index.find(ids(FIRST, 1)[0]) is None


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from(["run", "lone", "take"]), st.integers(0, 60), st.integers(1, 40)), max_size=30)
)
def test_it_holds_what_a_dictionary_holds(steps: list[tuple[str, int, int]]) -> None:
    index, model, holder = RunIndex(), dict[bytes, Run](), consumer()
    for step, start, count in steps:
        run = run_of(holder)
        if step == "run":
            for message_id in ids(FIRST + start, count):
                assert index.take(holder, message_id) is model.pop(message_id, None)
            assert index.add_consecutive(fin_lines(ids(FIRST + start, count)), FIRST + start, run) == []
            model |= dict.fromkeys(ids(FIRST + start, count), run)
        elif step == "lone":
            message_id = ids(FIRST + start, 1)[0]
            if message_id not in model:
                index.add(message_id, run)
                model[message_id] = run
        else:
            for message_id in ids(FIRST + start, count):
                assert index.take(holder, message_id) is model.pop(message_id, None)
    for message_id in ids(FIRST, 100):
        assert index.find(message_id) is model.get(message_id)
