"""Percentiles are those of real latencies, within 1 %, over a window that slides."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, ManualClock
from emberq.broker.stats import RELATIVE_ERROR, Histogram, LatencyConfig, LatencySummary, LatencyWindow, Percentile

MINUTE_NS = 60 * NS_PER_SECOND
LATENCIES_NS = st.integers(1, 2**62)


def recorded(config: LatencyConfig, clock: ManualClock, *latencies_ns: int) -> LatencyWindow:
    window = config.new_window(clock)
    assert window is not None
    for latency_ns in latencies_ns:
        window.record(latency_ns)
    return window


def exact_value(latencies_ns: list[int], quantile: float) -> int:
    """The smallest latency that at least this part of all does not exceed."""
    return sorted(latencies_ns)[math.ceil(quantile * len(latencies_ns)) - 1]


# The histogram.


@given(st.lists(LATENCIES_NS, min_size=1), st.floats(0, 1, exclude_min=True))
def test_a_percentile_is_within_one_percent_of_a_real_one(latencies_ns: list[int], quantile: float) -> None:
    histogram = Histogram()
    for latency_ns in latencies_ns:
        histogram.record(latency_ns, 1)
    (value_ns,) = histogram.values_at([quantile])
    exact_ns = exact_value(latencies_ns, quantile)
    rounding_ns = 0.5 + exact_ns * 1e-9  # to whole nanoseconds, and in the logarithm
    assert abs(value_ns - exact_ns) <= exact_ns * RELATIVE_ERROR + rounding_ns


@given(st.lists(st.tuples(LATENCIES_NS, st.integers(1, 50)), min_size=1))
def test_a_batch_counts_as_much_as_its_messages_one_by_one(batches: list[tuple[int, int]]) -> None:
    together, one_by_one = Histogram(), Histogram()
    for latency_ns, count in batches:
        together.record(latency_ns, count)
        for _ in range(count):
            one_by_one.record(latency_ns, 1)
    quantiles = [1.0, 0.99, 0.5, 0.01]
    assert together.count == one_by_one.count
    assert together.values_at(quantiles) == one_by_one.values_at(quantiles)


@given(st.lists(LATENCIES_NS), st.lists(LATENCIES_NS))
def test_adding_histograms_is_recording_both(first_ns: list[int], second_ns: list[int]) -> None:
    parts, whole = (Histogram(), Histogram()), Histogram()
    for part, latencies_ns in zip(parts, (first_ns, second_ns), strict=True):
        for latency_ns in latencies_ns:
            part.record(latency_ns, 1)
            whole.record(latency_ns, 1)
    total = Histogram()
    for part in parts:
        total.add(part)
    assert (total.count, total.values_at([0.5, 1.0])) == (whole.count, whole.values_at([0.5, 1.0]))


@pytest.mark.parametrize("latency_ns", [0, -1, -(2**62)])
def test_a_latency_that_the_clock_made_negative_counts_as_the_shortest(latency_ns: int) -> None:
    histogram = Histogram()
    histogram.record(latency_ns, 3)
    assert histogram.count == 3
    assert histogram.values_at([1.0]) == [1]


# The window.


def test_finished_messages_count_from_their_publish_time() -> None:
    clock = ManualClock()
    config = LatencyConfig(quantiles=(1.0,))
    window = recorded(config, clock)
    published_ns = clock.wall_ns()
    clock.advance(ms=200)
    window.finished(published_ns, 7)
    summary = config.summarize([window])
    assert summary.count == 7
    assert summary.percentiles is not None
    assert summary.percentiles[0].value_ns == pytest.approx(200 * NS_PER_MS, rel=RELATIVE_ERROR)


def counts_after(*steps_s: float) -> list[int]:
    """How many messages a window of ten minutes still shows, one recorded at the start and one after each step."""
    clock = ManualClock()
    config = LatencyConfig(quantiles=(1.0,), window_ns=10 * MINUTE_NS)
    window = recorded(config, clock, 1)
    counts = []
    for step_s in steps_s:
        clock.advance(seconds=step_s)
        counts.append(config.summarize([window]).count)
        window.record(1)
    return counts


def test_a_message_is_shown_for_half_the_window_at_least_and_the_whole_at_most() -> None:
    assert counts_after(0, 299, 2, 298, 2) == [1, 2, 3, 4, 2]


def test_a_window_without_traffic_empties_itself() -> None:
    assert counts_after(299, 600) == [1, 0]
    assert counts_after(599.9) == [1]
    assert counts_after(600) == [0]
    assert counts_after(86_400) == [0]


def test_recording_after_a_long_silence_does_not_bring_old_messages_back() -> None:
    clock = ManualClock()
    config = LatencyConfig(quantiles=(1.0,), window_ns=10 * MINUTE_NS)
    window = recorded(config, clock, NS_PER_SECOND)
    clock.advance(seconds=3600)
    window.record(NS_PER_MS)
    assert config.summarize([window]).count == 1


def test_the_window_does_not_follow_a_wall_clock_that_jumps() -> None:
    clock = ManualClock()
    config = LatencyConfig(quantiles=(1.0,))
    window = recorded(config, clock, NS_PER_SECOND)
    clock.set_wall(clock.wall_ns() + 3600 * NS_PER_SECOND)
    assert config.summarize([window]).count == 1


# The summary.


def test_percentiles_come_in_the_order_they_were_configured() -> None:
    config = LatencyConfig(quantiles=(0.5, 1.0, 0.95))
    window = recorded(config, ManualClock(), *range(1, 101))
    summary = config.summarize([window])
    assert summary.percentiles is not None
    assert [percentile.quantile for percentile in summary.percentiles] == [0.5, 1.0, 0.95]
    assert [percentile.value_ns for percentile in summary.percentiles] == pytest.approx([50, 100, 95], rel=0.02)


def test_a_topic_is_all_its_channels_together() -> None:
    clock = ManualClock()
    config = LatencyConfig(quantiles=(1.0, 0.5))
    fast = recorded(config, clock, *[NS_PER_MS] * 3)
    slow = recorded(config, clock, NS_PER_SECOND)
    summary = config.summarize([fast, slow])
    assert summary.count == 4
    assert summary.percentiles is not None
    values_ns = [percentile.value_ns for percentile in summary.percentiles]
    assert values_ns == pytest.approx([NS_PER_SECOND, NS_PER_MS], rel=RELATIVE_ERROR)


def test_without_percentiles_nothing_is_kept() -> None:
    config = LatencyConfig()
    assert config.new_window(ManualClock()) is None
    assert config.summarize([None, None]) == LatencySummary(count=0, percentiles=None)


def test_with_percentiles_but_no_messages_every_value_is_zero() -> None:
    config = LatencyConfig(quantiles=(1.0, 0.5))
    nothing_yet = LatencySummary(count=0, percentiles=(Percentile(1.0, 0), Percentile(0.5, 0)))
    assert config.summarize([config.new_window(ManualClock())]) == nothing_yet
    assert config.summarize([]) == nothing_yet
