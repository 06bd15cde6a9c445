"""Percentiles by nearest rank, and ratios in which above 1 is always good."""

from __future__ import annotations

import pytest

from bench.metric import advantage, percentile


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0, 1), (99.5, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_a_single_value_is_every_percentile() -> None:
    assert percentile([7.0], 1) == percentile([7.0], 99) == 7.0


def test_twice_the_rate_and_half_the_cost_are_both_twice_as_good() -> None:
    assert advantage(200.0, 100.0, "higher") == 2.0
    assert advantage(50.0, 100.0, "lower") == 2.0


def test_there_is_no_ratio_without_a_better_or_without_a_value() -> None:
    assert advantage(1.0, 2.0, "neither") is None
    assert advantage(0.0, 2.0, "lower") is None
