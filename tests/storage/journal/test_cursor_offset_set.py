"""Sets of offsets against sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from emberq.storage.journal.cursor import OffsetSet

numbers = st.integers(0, 30)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), numbers, numbers),
        st.tuples(st.sampled_from(["remove_before", "remove_from"]), numbers, st.just(0)),
    ),
    max_size=30,
)


@given(operations, numbers, numbers)
def test_a_set_of_ranges_is_a_set(history: list[tuple[str, int, int]], start: int, stop: int) -> None:
    ranges = OffsetSet()
    model: set[int] = set()
    for name, first, last in history:
        if name == "add":
            fresh = set(range(first, last)) - model
            assert ranges.add(first, last) == len(fresh)
            model |= fresh
        elif name == "remove_before":
            ranges.remove_before(first)
            model = {number for number in model if number >= first}
        else:
            ranges.remove_from(first)
            model = {number for number in model if number < first}
        assert {number for number in range(32) if number in ranges} == model
        assert ranges.count == len(model)
        edges = [edge for pair in ranges for edge in pair]
        assert edges == sorted(set(edges)), "ranges are in order, not empty, and do not touch"
    missing = list(ranges.missing(start, stop))
    assert [number for pair in missing for number in range(*pair)] == [n for n in range(start, stop) if n not in model]
    assert all(first < last for first, last in missing)


def test_a_set_can_be_made_of_ranges() -> None:
    ranges = OffsetSet([3, 10], [5, 12])
    assert ranges.count == 4
    assert list(ranges) == [(3, 5), (10, 12)]
    assert list(ranges.missing(0, 20)) == [(0, 3), (5, 10), (12, 20)]
