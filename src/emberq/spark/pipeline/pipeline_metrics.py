"""A run of a pipeline for Prometheus: what its queries have done since it started, and how they stand now.

    # HELP emberq_pipeline_rows_read_total Messages read.
    # TYPE emberq_pipeline_rows_read_total counter
    emberq_pipeline_rows_read_total{pipeline="clickstream",query="archive"} 12000

`FAMILIES` is the whole of it. The numbers are those of `query_progress`; what is not known has no sample. A query that
has ended keeps its own, with `emberq_pipeline_running` at 0.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate

from emberq.base import prometheus
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.daemon_metrics import (
    PROCESS_FAMILIES,
    DaemonScrape,
    ProcessStats,
    info_family,
    read_process,
    start_time_family,
)
from emberq.base.prometheus import Family, Sample, Sampler, counter, gauge, labels, with_labels
from emberq.spark.pipeline.query_progress import MS_PER_SECOND, QueryProgress, QueryState

DURATION_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From a batch of one row, which takes a tenth of a second, to one that makes up for a long stop."""


@dataclass(slots=True)
class _Totals:
    """What a query has done in this run."""

    last: QueryProgress
    rows: int = 0
    rows_out: int | None = None
    bad: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    failures: int = 0
    duration_ms: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    """Batches up to each of the bounds and above the one before; the last: longer ones."""

    def add(self, progress: QueryProgress) -> None:
        self.last = progress
        self.rows += progress.rows
        if progress.rows_out is not None:
            self.rows_out = (self.rows_out or 0) + progress.rows_out
        self.bad.update(progress.bad)
        self.failures += progress.state is QueryState.FAILED
        if progress.duration_ms:
            self.batches += 1
            self.duration_ms += progress.duration_ms
            self.durations[bisect_left(DURATION_BOUNDS_S, progress.duration_ms / MS_PER_SECOND)] += 1


class PipelineMetrics:
    """Collects progress from one thread, and is rendered in another."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[tuple[str, str], _Totals] = {}
        self._guard = threading.Lock()

    def add(self, progress: QueryProgress) -> None:
        """Another batch is done, or nothing came."""
        with self._guard:
            key = progress.pipeline, progress.query
            self._totals.setdefault(key, _Totals(progress)).add(progress)

    def render(self, scrape: DaemonScrape) -> bytes:
        """All families in the text format of Prometheus."""
        process = read_process()
        now_s = self._clock.wall_ns() / NS_PER_SECOND
        with self._guard:
            return prometheus.render(FAMILIES, _Source(self._totals, scrape, process, now_s=now_s))


class _Source:
    """Where samples come from; the labels of queries are written once for all families."""

    def __init__(
        self, totals: Mapping[tuple[str, str], _Totals], scrape: DaemonScrape, process: ProcessStats, *, now_s: float
    ) -> None:
        self.scrape = scrape
        self.process = process
        self.now_s = now_s
        self.queries = [
            (labels(pipeline=pipeline, query=query), total) for (pipeline, query), total in sorted(totals.items())
        ]


def _each(value: Callable[[_Totals], int | float | None]) -> Sampler[_Source]:
    """A sample for each query of which the value is known."""

    def samples(source: _Source) -> Iterator[Sample]:
        for written, total in source.queries:
            known = value(total)
            if known is not None:
                yield written, known

    return samples


def _bad_records(source: _Source) -> Iterator[Sample]:
    for written, total in source.queries:
        for name, count in sorted(total.bad.items()):
            yield with_labels(written, source=name), count


def _watermark_ages(source: _Source) -> Iterator[Sample]:
    for written, total in source.queries:
        moment_s = _unix_time_s(total.last.watermark)
        if moment_s > 0:  # Spark begins with the year 1970
            yield written, round(source.now_s - moment_s, 3)


def _unix_time_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _durations(source: _Source) -> Iterable[Sample]:
    """A histogram as Prometheus wants it: how many batches took up to each bound, all of them, and their sum."""
    for written, total in source.queries:
        for bound, count in zip((*DURATION_BOUNDS_S, "+Inf"), accumulate(total.durations), strict=True):
            yield f"_bucket{with_labels(written, le=str(bound))}", count
        yield f"_sum{written}", total.duration_ms / MS_PER_SECOND
        yield f"_count{written}", total.batches


FAMILIES: tuple[Family[_Source], ...] = (
    counter("emberq_pipeline_rows_read_total", "Messages read.", _each(lambda total: total.rows)),
    counter("emberq_pipeline_rows_written_total", "Rows that went to the sink.", _each(lambda total: total.rows_out)),
    counter("emberq_pipeline_bad_records_total", "Messages that were not what their source says.", _bad_records),
    Family("emberq_pipeline_batch_duration_seconds", "histogram", "How long batches took.", _durations),
    counter("emberq_pipeline_failures_total", "Queries that could not go on.", _each(lambda total: total.failures)),
    gauge(
        "emberq_pipeline_running",
        "Whether the query runs: 1, or 0 when it has ended or failed.",
        _each(lambda total: int(total.last.state is QueryState.RUNNING)),
    ),
    gauge("emberq_pipeline_lag_messages", "Messages that wait to be read.", _each(lambda total: total.last.lag)),
    gauge("emberq_pipeline_state_rows", "Rows kept in state.", _each(lambda total: total.last.state_rows)),
    gauge(
        "emberq_pipeline_watermark_age_seconds",
        "How far the watermark is behind the clock; no sample without one.",
        _watermark_ages,
    ),
    gauge(
        "emberq_pipeline_report_time_seconds",
        "When the figures of the query were right, Unix time.",
        _each(lambda total: _unix_time_s(total.last.as_of or total.last.time)),
    ),
    info_family("emberq_pipeline"),
    start_time_family("emberq_pipeline"),
    *PROCESS_FAMILIES,
)
"""Every metric there is, in the order they are written."""
