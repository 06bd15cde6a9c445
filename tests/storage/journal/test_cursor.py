"""A cursor against a model that remembers every offset by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.journal.cursor import MAX_ATTEMPTS, Cursor, from_bytes, to_bytes

JOURNAL = UUID(int=7)
END = 40

offsets = st.integers(0, END - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("acknowledge"), offsets, st.integers(0, 12)),
        st.tuples(st.just("acknowledge"), offsets, st.just(1)),
        st.tuples(st.just("try_again"), offsets, st.integers(0, 5)),
        st.tuples(st.just("put_off"), offsets, st.integers(0, 1000)),
        st.tuples(st.sampled_from(["seek", "end_at"]), offsets, st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@dataclass
class Model:
    """What a channel would know if it kept a row for each message."""

    done: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)
    due_ns: dict[int, int] = field(default_factory=dict)

    def waiting(self) -> list[int]:
        return [offset for offset in range(END) if offset not in self.done]

    def keep_notes_of_waiting(self) -> None:
        self.attempts = {offset: n for offset, n in self.attempts.items() if offset not in self.done}
        self.due_ns = {offset: ns for offset, ns in self.due_ns.items() if offset not in self.done}


class Player:
    """Does the same to a cursor and to the model."""

    def __init__(self) -> None:
        self.cursor = Cursor(JOURNAL)
        self.model = Model()

    def acknowledge(self, start: int, count: int) -> None:
        stop = min(start + count, END)
        fresh = set(range(start, stop)) - self.model.done
        assert self.cursor.acknowledge(start, stop) == len(fresh)
        self.model.done |= fresh

    def try_again(self, offset: int, attempts: int) -> None:
        self.cursor.note_attempts(offset, attempts)
        self.model.attempts.pop(offset, None)
        if attempts:
            self.model.attempts[offset] = attempts

    def put_off(self, offset: int, due_ns: int) -> None:
        self.cursor.note_due(offset, due_ns)
        self.model.due_ns.pop(offset, None)
        if due_ns:
            self.model.due_ns[offset] = due_ns

    def seek(self, offset: int, _: int) -> None:
        self.cursor.seek(offset)
        self.model = Model(done=set(range(offset)))

    def end_at(self, offset: int, _: int) -> None:
        self.cursor.end_at(offset)
        self.model.done = {number for number in self.model.done if number < offset}
        self.model.attempts = {number: n for number, n in self.model.attempts.items() if number < offset}
        self.model.due_ns = {number: ns for number, ns in self.model.due_ns.items() if number < offset}

    def restart(self, *_: int) -> None:
        self.cursor = from_bytes(to_bytes(self.cursor), journal=JOURNAL)

    def compare(self) -> None:
        model, cursor = self.model, self.cursor
        model.keep_notes_of_waiting()
        waiting = model.waiting()
        runs = list(cursor.unacknowledged(0, END))
        assert [offset for run in runs for offset in range(*run)] == waiting
        assert cursor.count_unacknowledged(END) == len(waiting)
        assert [offset for offset in range(END) if not cursor.is_acknowledged(offset)] == waiting
        assert not cursor.is_acknowledged(cursor.low_water)
        assert all(offset in model.done for offset in range(cursor.low_water))
        assert cursor.attempts == model.attempts
        assert cursor.due_ns == model.due_ns
        known = [cursor.low_water, *(offset + 1 for offset in (*model.done, *model.attempts, *model.due_ns))]
        assert cursor.high_water == max(known)


@given(operations)
def test_a_cursor_knows_what_a_row_for_each_message_would_know(history: list[tuple[str, int, int]]) -> None:
    player = Player()
    for name, offset, value in history:
        getattr(player, name)(offset, value)
        player.compare()


def test_the_low_water_mark_moves_over_what_was_acknowledged_before_its_time() -> None:
    cursor = Cursor(JOURNAL)
    assert cursor.acknowledge(5, 8) == 3
    assert cursor.acknowledge(2, 5) == 3
    assert cursor.low_water == 0
    assert list(cursor.unacknowledged(0, 10)) == [(0, 2), (8, 10)]
    assert cursor.acknowledge(0, 3) == 2
    assert cursor.low_water == 8
    assert list(cursor.acknowledged_above) == []


def test_acknowledging_forgets_attempts_and_due_times() -> None:
    cursor = Cursor(JOURNAL)
    for offset in range(20):
        cursor.note_attempts(offset, 2)
    cursor.note_due(3, 99)
    cursor.acknowledge(0, 4)
    cursor.acknowledge(6, 1000)
    assert cursor.attempts == {4: 2, 5: 2}
    assert cursor.due_ns == {}


def test_nothing_is_noted_of_what_is_done() -> None:
    cursor = Cursor(JOURNAL, low_water=10)
    cursor.note_attempts(9, 1)
    cursor.note_due(9, 1)
    assert not cursor.attempts
    assert not cursor.due_ns


def test_notes_are_bounded_and_the_oldest_go_first() -> None:
    cursor = Cursor(JOURNAL, max_notes=3)
    for offset in (5, 1, 2, 3):
        cursor.note_attempts(offset, 1)
        cursor.note_due(offset, 7)
    cursor.note_attempts(1, 2)
    cursor.note_attempts(4, 1)
    assert cursor.attempts == {3: 1, 1: 2, 4: 1}
    assert list(cursor.due_ns) == [1, 2, 3]


def test_attempts_stop_at_what_the_wire_can_tell() -> None:
    cursor = Cursor(JOURNAL)
    cursor.note_attempts(0, 1 << 20)
    assert cursor.attempts == {0: MAX_ATTEMPTS}


def test_a_cursor_ahead_of_a_journal_that_lost_its_end_goes_back_to_it() -> None:
    cursor = Cursor(JOURNAL)
    cursor.acknowledge(0, 50)
    cursor.acknowledge(60, 70)
    assert cursor.high_water == 70
    cursor.end_at(40)
    assert (cursor.low_water, cursor.high_water) == (40, 40)
    assert cursor.count_unacknowledged(40) == 0
