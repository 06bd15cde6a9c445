from __future__ import annotations

import pytest

from emberq.cluster.stats import UNTRACKED, Latency, combined, latency_of


def reported(count: int, *percentiles: tuple[float, float]) -> Latency:
    """What an nsqd reports: quantiles and values."""
    entries = [{"quantile": quantile, "value": value} for quantile, value in percentiles]
    return latency_of({"count": count, "percentiles": entries})


def test_a_percentile_of_one_nsqd_is_its_own_average_and_extremes() -> None:
    (percentile,) = reported(10, (0.99, 123.0)).percentiles or ()
    assert (percentile.value, percentile.average, percentile.min, percentile.max) == (123.0,) * 4
    assert percentile.message_count == 10


@pytest.mark.parametrize("said", [None, {}, {"count": 0, "percentiles": None}, {"count": 0, "percentiles": []}])
def test_an_nsqd_that_tracks_none_has_none(said: dict[str, object] | None) -> None:
    assert latency_of(said) == UNTRACKED


def test_averages_are_weighted_by_how_many_messages_were_counted() -> None:
    together = combined([reported(30, (0.99, 100.0)), reported(10, (0.99, 500.0))], topic="t", channel="c")
    (percentile,) = together.percentiles or ()
    assert percentile.average == pytest.approx(200.0)
    assert (percentile.min, percentile.max, percentile.message_count) == (100.0, 500.0, 40)
    assert percentile.value is None
    assert (together.message_count, together.topic, together.channel, together.host) == (40, "t", "c", "*")


def test_the_order_of_the_nsqds_does_not_matter() -> None:
    parts = [reported(3, (0.99, 5.0)), reported(2, (0.99, 1.0)), reported(1, (0.99, 9.0))]
    forwards, backwards = combined(parts, topic="t").percentiles, combined(parts[::-1], topic="t").percentiles
    assert forwards is not None
    assert backwards is not None
    assert forwards[0].average == pytest.approx(backwards[0].average)
    assert (forwards[0].min, forwards[0].max) == (backwards[0].min, backwards[0].max) == (1.0, 9.0)


def test_quantiles_are_matched_even_if_nsqds_track_different_ones() -> None:
    together = combined([reported(1, (0.99, 10.0), (0.5, 1.0)), reported(1, (0.99, 30.0))], topic="t")
    assert [(each.quantile, each.average) for each in together.percentiles or ()] == [(0.99, 20.0), (0.5, 1.0)]


def test_without_messages_the_average_is_zero() -> None:
    (percentile,) = combined([reported(0, (0.99, 7.0)), reported(0, (0.99, 8.0))], topic="t").percentiles or ()
    assert percentile.average == 0.0


def test_nsqds_that_track_none_have_none_together() -> None:
    assert combined([UNTRACKED, UNTRACKED], topic="t").percentiles is None
