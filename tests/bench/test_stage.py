"""How work is shared, and how rates are made of what the workers counted."""

from __future__ import annotations

import pytest

from bench.crew import Tally
from bench.failure import LoadFailure, Miscounted
from bench.server import Server
from bench.stage import Effort, Size, Stage, check_bytes, whole


@pytest.mark.parametrize(("messages", "batch", "expected"), [(401, 200, 600), (400, 200, 400), (1, 10, 10), (0, 10, 0)])
def test_batches_are_whole(messages: int, batch: int, expected: int) -> None:
    assert whole(messages, batch) == expected


def test_messages_are_rounded_up_to_whole_batches() -> None:
    stage = Stage(
        server=Server(("127.0.0.1", 1), None), size=Size(messages=401), topic="t", consumers=1, shuffled=False
    )
    assert stage.messages == 600


def test_a_work_over_http_says_what_it_lacks_where_no_address_is_known() -> None:
    stage = Stage(server=Server(("127.0.0.1", 1), None), size=Size(), topic="t", consumers=1, shuffled=False)
    with pytest.raises(LoadFailure, match="--http"):
        _ = stage.http_address


def test_a_rate_of_deliveries_counts_what_came_in_time_and_leaves_out_the_publishers() -> None:
    publisher = Tally(published=1000, timed=1000, started_s=10.0, timed_until_s=10.5, cpu_s=0.001)
    consumer = Tally(delivered=1000, timed=950, started_s=10.0, timed_until_s=12.0, cpu_s=0.003)
    effort = Effort(tallies=[publisher, consumer], nsqd_cpu_s=0.02)
    values = {metric.measure: metric.value for metric in effort.delivering()}
    assert values == pytest.approx({"rate": 475.0, "nsqd CPU": 20.0, "generator CPU": 4.0})


def test_a_rate_of_publishing_runs_from_the_first_start_to_the_last_end() -> None:
    early = Tally(published=100, timed=100, started_s=1.0, timed_until_s=2.0)
    late = Tally(published=100, timed=100, started_s=1.5, timed_until_s=3.0)
    rate, *_ = Effort(tallies=[early, late], nsqd_cpu_s=None).publishing()
    assert rate.value == 100.0


def test_without_a_process_to_look_at_there_is_no_cpu_of_nsqd() -> None:
    tally = Tally(published=1, timed=1, started_s=0.0, timed_until_s=1.0)
    measures = [metric.measure for metric in Effort(tallies=[tally], nsqd_cpu_s=None).publishing()]
    assert measures == ["rate", "generator CPU"]


def test_bytes_that_got_lost_on_the_way_are_a_failure() -> None:
    published = Effort(tallies=[Tally(published=2, timed=2, body_bytes=100)], nsqd_cpu_s=None)
    consumed = Effort(tallies=[Tally(delivered=2, timed=2, body_bytes=99)], nsqd_cpu_s=None)
    check_bytes(published, published)
    with pytest.raises(Miscounted, match="99 bytes of bodies came of 100"):
        check_bytes(consumed, published)
