"""Ids: the layout of the reference, unique and increasing whatever the clock does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.broker.classic import IdSource
from tests.support.examples import examples

WALL_NS = 1_700_000_000 * 1_000_000_000
TICK_NS = 1 << 20
"""A pseudo-millisecond."""
EPOCH_TICKS = 1_288_834_974_288


def fields(message_id: int) -> tuple[int, int, int]:
    """Tick, node and sequence number of an id."""
    return message_id >> 22, message_id >> 12 & 0x3FF, message_id & 0xFFF


def test_an_id_holds_the_time_the_node_and_a_sequence_number() -> None:
    assert fields(IdSource(517).reserve(1, WALL_NS)) == ((WALL_NS >> 20) - EPOCH_TICKS, 517, 0)


def test_ids_of_one_moment_are_consecutive() -> None:
    source = IdSource(3)
    first = source.reserve(10, WALL_NS)
    assert source.reserve(5, WALL_NS) == first + 10
    assert source.reserve(1, WALL_NS) == first + 15


def test_the_sequence_starts_anew_with_each_pseudo_millisecond() -> None:
    source = IdSource(3)
    tick, _, _ = fields(source.reserve(10, WALL_NS))
    assert fields(source.reserve(10, WALL_NS + TICK_NS)) == (tick + 1, 3, 0)


def test_a_used_up_pseudo_millisecond_makes_the_next_one_start_early() -> None:
    source = IdSource(3)
    tick, _, _ = fields(source.reserve(4096, WALL_NS))
    assert fields(source.reserve(1, WALL_NS)) == (tick + 1, 3, 0)


def test_a_batch_never_spans_two_pseudo_milliseconds() -> None:
    source = IdSource(3)
    tick, _, _ = fields(source.reserve(4000, WALL_NS))
    assert fields(source.reserve(97, WALL_NS)) == (tick + 1, 3, 0)
    assert fields(source.reserve(3999, WALL_NS)) == (tick + 1, 3, 97)


def test_a_clock_that_goes_back_does_not_repeat_ids() -> None:
    source = IdSource(3)
    first = source.reserve(1, WALL_NS)
    assert source.reserve(1, WALL_NS - 3600 * 1_000_000_000) == first + 1


def test_ids_go_on_with_the_clock_once_it_has_caught_up() -> None:
    source = IdSource(3)
    for _ in range(5):
        source.reserve(4096, WALL_NS)
    later_ns = WALL_NS + 100 * TICK_NS
    assert fields(source.reserve(1, later_ns)) == ((later_ns >> 20) - EPOCH_TICKS, 3, 0)


def test_an_id_of_any_plausible_time_has_sixteen_digits_at_most() -> None:
    year_2100_ns = 4_102_444_800 * 1_000_000_000
    assert IdSource(1023).reserve(4096, year_2100_ns) + 4095 < 1 << 64


@pytest.mark.parametrize("node_id", [-1, 1024])
def test_a_node_id_that_does_not_fit_is_refused(node_id: int) -> None:
    with pytest.raises(ValueError, match=r"not in 0\.\.1023"):
        IdSource(node_id)


@examples(100)
@given(
    node_id=st.integers(0, 1023),
    steps=st.lists(
        st.tuples(
            st.one_of(st.integers(-5, 5).map(lambda n: n * TICK_NS), st.integers(-(10**12), 10**12)),
            st.sampled_from([1, 2, 2047, 2048, 2049, 4095, 4096]),
        ),
        max_size=60,
    ),
)
def test_ids_only_ever_increase(node_id: int, steps: list[tuple[int, int]]) -> None:
    source = IdSource(node_id)
    wall_ns = WALL_NS
    next_free = 0
    for step_ns, count in steps:
        wall_ns += step_ns
        first = source.reserve(count, wall_ns)
        assert first >= next_free
        assert fields(first)[1] == node_id
        assert fields(first)[0] == fields(first + count - 1)[0]
        next_free = first + count


def test_no_id_is_of_a_time_before_the_start() -> None:
    """A clock that is set back after a restart would give the ids of the run before once more."""
    source = IdSource(3, start_ns=WALL_NS)
    assert fields(source.reserve(1, WALL_NS - (1 << 30))) == ((WALL_NS >> 20) - EPOCH_TICKS, 3, 0)
