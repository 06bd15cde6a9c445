"""How long deliveries took, as the log tells it."""

from __future__ import annotations

import logging

import pytest

from emberq.base.clock import NS_PER_MS
from emberq.tools.host_pool import StatusReport, status_line


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="emberq.tools.host_pool")
    return caplog


def test_the_line_tells_percentiles_and_mean() -> None:
    durations_ns = [number * NS_PER_MS for number in range(1, 201)]
    assert (
        status_line("aggregate", durations_ns)
        == "[aggregate]: finished 200 - 99th: 198.00ms - 95th: 190.00ms - avg: 100.50ms"
    )


def test_a_line_comes_each_time_there_are_enough(lines: pytest.LogCaptureFixture) -> None:
    report = StatusReport(["a"], every=100)
    for _ in range(250):
        report.record("a", elapsed_ns=NS_PER_MS)
    assert lines.messages == ["[aggregate]: finished 100 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"] * 2


def test_several_addresses_have_lines_of_their_own(lines: pytest.LogCaptureFixture) -> None:
    report = StatusReport(["a", "b"], every=100)
    report.record("a", elapsed_ns=NS_PER_MS, count=100)
    report.record("b", elapsed_ns=NS_PER_MS, count=99)
    assert [line.partition(":")[0] for line in lines.messages] == ["[aggregate]", "[a]"]


def test_many_at_a_time_make_several_lines(lines: pytest.LogCaptureFixture) -> None:
    StatusReport(["a"], every=100).record("a", elapsed_ns=NS_PER_MS, count=350)
    assert len(lines.messages) == 3


def test_too_few_values_for_a_percentile_are_warned_of(lines: pytest.LogCaptureFixture) -> None:
    StatusReport(["a"], every=5)
    assert lines.messages == ["Warning: use more than 100 status values for accurate percentiles (configured with 5)"]


def test_zero_turns_it_off(lines: pytest.LogCaptureFixture) -> None:
    StatusReport(["a", "b"], every=0).record("a", elapsed_ns=NS_PER_MS, count=1000)
    assert lines.messages == []
