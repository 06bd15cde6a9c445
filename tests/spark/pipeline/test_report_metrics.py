"""The metrics of a pipeline, scraped over a real socket and read by Prometheus's own parser."""

from __future__ import annotations

import asyncio
import io
import socket
import urllib.request
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from emberq.base.clock import ManualClock
from emberq.cli.spark_work import metrics_endpoint
from emberq.cli.terminal import CommandError, Terminal
from emberq.spark.pipeline.progress import QueryProgress, QueryState
from emberq.spark.pipeline.report import PipelineMetrics

NOW = datetime(2026, 11, 15, 6, tzinfo=UTC)
TIME = "2026-11-15T05:59:50.000Z"


def progress(query: str = "counts", **facts: object) -> QueryProgress:
    return QueryProgress(**{"pipeline": "shop", "query": query, "time": TIME, **facts})  # type: ignore[arg-type]


def scrape(*told: QueryProgress) -> list[Metric]:
    """What Prometheus reads at 06:00 after this progress."""
    metrics = PipelineMetrics(clock=ManualClock(wall_ns=int(NOW.timestamp()) * 10**9))
    for each in told:
        metrics.add(each)

    async def served() -> str:
        terminal = Terminal("test", err=(notes := io.StringIO()))
        async with metrics_endpoint("127.0.0.1:0", metrics.render, terminal):
            url = notes.getvalue().split("metrics at ")[1].strip()
            return await asyncio.to_thread(fetched, url)

    return list(text_string_to_metric_families(asyncio.run(served())))


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        text: str = answer.read().decode()
        return text


def values(families: Iterable[Metric]) -> dict[str, float]:
    """The samples of our own families: `name query [what else]`."""
    return {
        " ".join([sample.name.removeprefix("emberq_pipeline_"), *list(sample.labels.values())[1:]]): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("pipeline") == "shop"
    }


def test_totals_add_up_over_batches_and_queries_stay_apart() -> None:
    found = values(
        scrape(
            progress(rows=100, rows_out=40, bad={"clicks": 3}, failed_rules={"clicks.known": 2}, duration_ms=400),
            progress(rows=50, rows_out=2, bad={"clicks": 1}, failed_rules={"clicks.known": 5}, duration_ms=2000),
            progress("archive", rows=7, duration_ms=100),
        )
    )
    assert (found["rows_read_total counts"], found["rows_read_total archive"]) == (150, 7)
    assert found["rows_written_total counts"] == 42
    assert "rows_written_total archive" not in found  # nobody counts them
    assert found["bad_records_total counts clicks"] == 4
    assert found["failed_rules_total counts clicks.known"] == 7


def test_durations_of_batches_are_a_histogram() -> None:
    families = scrape(*(progress(duration_ms=duration) for duration in (90, 100, 400, 700_000)))
    (durations,) = (family for family in families if family.name == "emberq_pipeline_batch_duration_seconds")
    assert durations.type == "histogram"
    found = values([durations])
    assert found["batch_duration_seconds_bucket counts 0.1"] == 2
    assert found["batch_duration_seconds_bucket counts 0.5"] == 3
    assert found["batch_duration_seconds_bucket counts 300.0"] == 3
    assert found["batch_duration_seconds_bucket counts +Inf"] == 4
    assert found["batch_duration_seconds_count counts"] == 4
    assert found["batch_duration_seconds_sum counts"] == pytest.approx(700.59)


def test_how_a_query_stands_is_what_it_told_last() -> None:
    before = progress(lag=900, state_rows=1, watermark="2026-11-15T05:00:00.000Z", duration_ms=1)
    found = values(scrape(before, progress(lag=12, state_rows=310, watermark="2026-11-15T05:58:00.000Z")))
    assert (found["lag_messages counts"], found["state_rows counts"]) == (12, 310)
    assert found["watermark_age_seconds counts"] == 120
    assert found["running counts"] == 1
    assert found["report_time_seconds counts"] == NOW.timestamp() - 10
    assert found["batch_duration_seconds_count counts"] == 1  # the second told of no batch


def test_a_failure_is_counted_and_the_query_runs_no_more() -> None:
    found = values(scrape(progress(rows=5), progress(state=QueryState.FAILED, error="no disk")))
    assert (found["failures_total counts"], found["running counts"], found["rows_read_total counts"]) == (1, 0, 5)


def test_what_is_not_known_has_no_sample() -> None:
    found = values(scrape(progress(lag=None, watermark="1970-01-01T00:00:00.000Z")))
    assert not {"lag_messages counts", "watermark_age_seconds counts"} & found.keys()


def test_the_process_and_its_version_are_told_too() -> None:
    names = {family.name for family in scrape()}
    assert {"emberq_pipeline_info", "emberq_pipeline_start_time_seconds", "process_resident_memory_bytes"} <= names


def test_a_port_that_is_taken_is_told_before_spark_starts() -> None:
    async def served(address: str) -> None:
        async with metrics_endpoint(address, lambda _scrape: b"", Terminal("test")):
            raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=rf"--metrics-address: listen \(127.0.0.1:{port}\) failed"):
            asyncio.run(served(f"127.0.0.1:{port}"))
