"""Where the progress of queries goes: to a topic, to Prometheus, to a table on the terminal.

**The reporter** (`ProgressReporter`) runs in a thread of its own. It adds the lag to each line of progress, shows the
line and hands it to the publisher (`ProgressPublisher`), another thread, which publishes it to a topic.

- A figure is never old: while no batch of a query ends, its figures are reported again every two seconds, with the lag
  of that moment.
- The lag subtracts two offsets of one moment. A batch is reported within milliseconds of its end, so its lag is the
  journal's end now, less the batch's end. A batch reported late keeps the lag that it had when it was planned.
- Nothing here holds a query up, and a publish that takes long does not hold the display up. What cannot be published
  is dropped. An nsqd that does not answer is left alone for a while, and told of if it then still does not.

**Prometheus** (`PipelineMetrics`): what the queries of a run have done since it started, and how they stand now.

    # HELP emberq_pipeline_rows_read_total Messages read.
    # TYPE emberq_pipeline_rows_read_total counter
    emberq_pipeline_rows_read_total{pipeline="clickstream",query="archive"} 12000

`FAMILIES` lists all metrics. The numbers are those of `progress`; an unknown number has no sample. A query that has
ended keeps its samples, with `emberq_pipeline_running` at 0.

**The table** (`ProgressTable`) has a line for each query, with what it does now and has done in this run. The column
AGE says how old the figures of the line are.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from emberq.base import metrics
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.metrics import (
    PROCESS_FAMILIES,
    DaemonScrape,
    Family,
    ProcessStats,
    Sample,
    Sampler,
    counter,
    gauge,
    info_family,
    labels,
    read_process,
    start_time_family,
    with_labels,
)
from emberq.spark.error import NsqSparkError
from emberq.spark.nsqd_http import Access, AddressBook
from emberq.spark.option import access_of
from emberq.spark.pipeline.checkpoint import JournalLag, journal_offsets
from emberq.spark.pipeline.progress import MS_PER_SECOND, QueryProgress, QuerySign, QueryState, rfc3339

SIGN_INTERVAL_S = 2.0
"""How old the figures of a query may become. A page or a scrape that shows them adds its own few seconds."""
LATE_S = 1.0
"""A batch reported later than this after its end is not compared with how far the journals reach now."""
MAX_WAITING = 1000
"""Lines that wait to be reported. There are more only if nsqd does not answer for long."""
LAG_TIMEOUT_S = 1.0
"""The display waits for the lag: a figure that is not known in time is shown as unknown."""
PUBLISH_TIMEOUT_S = 5.0
PAUSE_S = 10.0
"""How long nothing is published after a failure."""
FAILURES_TO_TELL = 2
CLOSE_TIMEOUT_S = 2.0
"""For the last lines: an nsqd that does not answer must not hold up a stop."""

_log = logging.getLogger(__name__)


# The reporter.


class ProgressReporter:
    """Reports progress from `start` to `close`, in a thread of its own. `put` may be called from any thread."""

    def __init__(
        self,
        pipeline: str,
        *,
        access_options: Mapping[str, str],
        topic: str,
        on_progress: Callable[[QueryProgress], None] | None,
        outlines: Mapping[str, Mapping[str, Any]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`outlines` has, by query, what every line of it says: its `graph` and `rules`.

        Without `access_options` the lag is unknown. Without them, or with an empty `topic`, nothing is published.
        """
        self._pipeline = pipeline
        self._on_progress = on_progress
        self._outlines = outlines or {}
        self._clock = clock or SystemClock()
        access = access_of(access_options) if access_options else None
        self._lag = JournalLag(access and _waiting_at_most(LAG_TIMEOUT_S, access))
        self._publisher = (
            ProgressPublisher(_waiting_at_most(PUBLISH_TIMEOUT_S, access), topic) if access and topic else None
        )
        self._last: dict[str, QueryProgress] = {}
        """The last line of each query. Owned by the reporter's thread."""
        self._waiting: queue.Queue[QueryProgress | QuerySign | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="emberq-progress", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._publisher is not None:
            self._publisher.start()

    def put(self, news: QueryProgress | QuerySign) -> None:
        """Queue a line to be reported. Dropped if too many wait."""
        try:
            self._waiting.put_nowait(news)
        except queue.Full:
            _log.warning("progress of %s is left out: more than %d lines wait", news.query, MAX_WAITING)

    def close(self) -> None:
        """Stop. Returns when all waiting lines are reported, or after `CLOSE_TIMEOUT_S`."""
        end_s = time.monotonic() + CLOSE_TIMEOUT_S
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._publisher is not None:
            self._publisher.close(timeout_s=max(end_s - time.monotonic(), 0.0))

    def give_signs(self) -> None:
        """Report running queries again whose figures grow old. In the reporter's thread."""
        now = self._now()
        for query, last in list(self._last.items()):
            if last.state is QueryState.RUNNING and _seconds(last.as_of, now) >= SIGN_INTERVAL_S:
                self._tell(QuerySign(query=query, time=now))

    def tell_next(self, *, timeout_s: float = 0.0) -> bool:
        """Report the oldest waiting line, if there is one in time. False at the end. In the reporter's thread."""
        try:
            news = self._waiting.get(timeout=timeout_s)
        except queue.Empty:
            return True
        if news is None:
            return False
        self._tell(news)
        return True

    def _run(self) -> None:
        while self.tell_next(timeout_s=SIGN_INTERVAL_S / 4):
            self.give_signs()
        self._lag.close()

    def _tell(self, news: QueryProgress | QuerySign) -> None:
        progress = replace(self._completed(news), **self._outlines.get(news.query, {}))
        self._last[progress.query] = progress
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._publisher is not None:
            self._publisher.put(progress)

    def _completed(self, news: QueryProgress | QuerySign) -> QueryProgress:
        if isinstance(news, QuerySign):
            blank = QueryProgress(pipeline=self._pipeline, query=news.query, time=news.time)
            last = self._last.get(news.query, blank)
            return last.sign_of_life(news, lag=self._lag_behind(last))
        if _seconds(news.as_of, self._now()) > LATE_S:
            return news
        return replace(news, lag=self._lag_behind(news))

    def _lag_behind(self, progress: QueryProgress) -> int | None:
        """What the journals hold now beyond the last batch; None if unknown."""
        offsets = journal_offsets(progress.offsets)
        return self._lag.behind(offsets) if offsets else None

    def _now(self) -> str:
        return rfc3339(datetime.fromtimestamp(self._clock.wall_ns() / NS_PER_SECOND, UTC))


class ProgressPublisher:
    """Publishes progress to a topic from `start` to `close`, in a thread of its own."""

    def __init__(self, access: Access, topic: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._book = AddressBook(access)
        self._topic = topic
        self._monotonic_s = monotonic_s
        self._waiting: queue.Queue[QueryProgress | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="emberq-progress-publisher", daemon=True)
        self._paused_until_s = 0.0
        self._failures_in_a_row = 0

    def start(self) -> None:
        self._thread.start()

    def put(self, progress: QueryProgress) -> None:
        """Queue a line to be published. Dropped if too many wait: later lines say more."""
        with suppress(queue.Full):
            self._waiting.put_nowait(progress)

    def close(self, *, timeout_s: float) -> None:
        """Stop. Returns when all waiting lines are published, or after this time."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def publish(self, progress: QueryProgress) -> None:
        """Publish a line now, or drop it. In the publisher's thread.

        A single failure is not worth a warning: an answer comes late on a busy machine, and the next line makes up for
        the one that was dropped. An nsqd that fails again after the pause is told of, once.
        """
        if self._monotonic_s() < self._paused_until_s:
            return
        try:
            self._post(json.dumps(asdict(progress)).encode())
        except NsqSparkError as failure:
            self._failures_in_a_row += 1
            level = logging.WARNING if self._failures_in_a_row == FAILURES_TO_TELL else logging.DEBUG
            _log.log(level, "progress cannot be published to topic %s: %s", self._topic, failure)
            self._paused_until_s = self._monotonic_s() + PAUSE_S
        else:
            self._failures_in_a_row = 0

    def _run(self) -> None:
        while (progress := self._waiting.get()) is not None:
            self.publish(progress)
        self._book.close()

    def _post(self, body: bytes) -> None:
        nsqds = self._book.nsqds()
        if not nsqds:
            raise NsqSparkError("nsqlookupd knows no nsqd")
        self._book.peer(nsqds[0]).post("/pub", {"topic": self._topic}, body)


def _waiting_at_most(seconds: float, access: Access) -> Access:
    return replace(access, request_timeout_s=min(access.request_timeout_s, seconds))


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds() if since else 0.0


# Totals.

DURATION_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From a batch of one row, a tenth of a second, to a batch that catches up after a long stop."""


@dataclass(slots=True)
class QueryTotals:
    """What a query has done in this run, by the lines of its progress."""

    last: QueryProgress
    rows: int = 0
    rows_out: int | None = None
    """None if the sink does not count them."""
    messages: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    failed_rules: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    failures: int = 0
    duration_ms: int = 0
    last_duration_ms: int = 0
    """The duration of the last batch."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))
    """How many batches took up to each bound and longer than the one before; the last counts longer ones."""

    def add(self, progress: QueryProgress) -> None:
        self.last = progress
        self.rows += progress.rows
        if progress.rows_out is not None:
            self.rows_out = (self.rows_out or 0) + progress.rows_out
        self.messages.update(progress.messages)
        self.bad.update(progress.bad)
        self.failed_rules.update(progress.failed_rules)
        self.failures += progress.state is QueryState.FAILED
        if progress.duration_ms:
            self.batches += 1
            self.duration_ms += progress.duration_ms
            self.last_duration_ms = progress.duration_ms
            self.durations[bisect_left(DURATION_BOUNDS_S, progress.duration_ms / MS_PER_SECOND)] += 1


# Prometheus.


class PipelineMetrics:
    """Metrics of the queries of a run. Progress is added in one thread, and rendered in another."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[tuple[str, str], QueryTotals] = {}
        self._guard = threading.Lock()

    def add(self, progress: QueryProgress) -> None:
        """Count a line of progress."""
        with self._guard:
            key = progress.pipeline, progress.query
            self._totals.setdefault(key, QueryTotals(progress)).add(progress)

    def render(self, scrape: DaemonScrape) -> bytes:
        """All families in the text format of Prometheus."""
        process, now_s = read_process(), self._clock.wall_ns() / NS_PER_SECOND
        with self._guard:
            queries = [
                (labels(pipeline=pipeline, query=query), total)
                for (pipeline, query), total in sorted(self._totals.items())
            ]
            return metrics.render(FAMILIES, _PipelineSource(queries, scrape, process, now_s))


class _PipelineSource(NamedTuple):
    """What samples are made of."""

    queries: Sequence[tuple[str, QueryTotals]]
    """Each with its labels, which are written once for all families."""
    scrape: DaemonScrape
    process: ProcessStats
    now_s: float


def _each(value: Callable[[QueryTotals], int | float | None]) -> Sampler[_PipelineSource]:
    """A sample for each query whose value is known."""

    def samples(source: _PipelineSource) -> Iterator[Sample]:
        for written, total in source.queries:
            known = value(total)
            if known is not None:
                yield written, known

    return samples


def _bad_records(source: _PipelineSource) -> Iterator[Sample]:
    for written, total in source.queries:
        for name, count in sorted(total.bad.items()):
            yield with_labels(written, source=name), count


def _failed_rules(source: _PipelineSource) -> Iterator[Sample]:
    for written, total in source.queries:
        for rule, count in sorted(total.failed_rules.items()):
            yield with_labels(written, rule=rule), count


def _watermark_ages(source: _PipelineSource) -> Iterator[Sample]:
    for written, total in source.queries:
        moment_s = _unix_time_s(total.last.watermark)
        if moment_s > 0:  # Spark begins with the year 1970
            yield written, round(source.now_s - moment_s, 3)


def _unix_time_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _durations(source: _PipelineSource) -> Iterable[Sample]:
    """A histogram as Prometheus wants it: how many batches took up to each bound, all of them, and their sum."""
    for written, total in source.queries:
        for bound, count in zip((*DURATION_BOUNDS_S, "+Inf"), accumulate(total.durations), strict=True):
            yield f"_bucket{with_labels(written, le=str(bound))}", count
        yield f"_sum{written}", total.duration_ms / MS_PER_SECOND
        yield f"_count{written}", total.batches


FAMILIES: tuple[Family[_PipelineSource], ...] = (
    counter("emberq_pipeline_rows_read_total", "Messages read.", _each(lambda total: total.rows)),
    counter("emberq_pipeline_rows_written_total", "Rows that went to the sink.", _each(lambda total: total.rows_out)),
    counter("emberq_pipeline_bad_records_total", "Messages that were not what their source says.", _bad_records),
    counter("emberq_pipeline_failed_rules_total", "Rows that did not meet a rule.", _failed_rules),
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
"""Every metric, in the order of the page."""


# The table.

_STYLES = {QueryState.RUNNING: "", QueryState.ENDED: "dim", QueryState.FAILED: "red"}


def _over_queries(counts: Iterable[Counter[str]]) -> int:
    """The sum over sources of what the query that is furthest has counted."""
    return reduce(or_, counts, Counter[str]()).total()


class ProgressTable:
    """The live table of a pipeline. Progress may be added from any thread."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lines: dict[str, QueryTotals] = {}
        self._guard = threading.Lock()

    def add(self, progress: QueryProgress) -> None:
        """Take in a line of progress."""
        with self._guard:
            self._lines.setdefault(progress.query, QueryTotals(progress)).add(progress)

    @property
    def is_empty(self) -> bool:
        """Whether no query has started yet."""
        return not self._lines

    @property
    def row_count(self) -> int:
        """The rows that all queries together have read."""
        with self._guard:
            return sum(line.rows for line in self._lines.values())

    def summary(self) -> str:
        """What this run has read and written, in a line. Every query of a source reads its messages for itself; they
        count once."""
        with self._guard:
            lines = dict(self._lines)
            read = _over_queries(line.messages for line in lines.values())
            bad = _over_queries(line.bad for line in lines.values())
        written = [f"{query} {line.rows_out:,}" for query, line in lines.items() if line.rows_out is not None]
        told = f"{read:,} messages read, {bad:,} bad records"
        return f"{told}; rows written: {', '.join(written)}" if written else told

    def bad_count(self) -> int:
        """Bad messages of this run, counted once for each source although every query of the source sees them."""
        with self._guard:
            return _over_queries(line.bad for line in self._lines.values())

    def drawn(self) -> Table:
        """The table as it stands, for a terminal of 80 columns."""
        table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
        table.add_column("QUERY", no_wrap=True)
        for title in ("BATCH", "ROWS", "IN/s", "OUT/s", "LAG", "MS", "STATE", "BAD", "AGE"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("WATERMARK", no_wrap=True)
        with self._guard:
            for name, line in sorted(self._lines.items()):
                bad = line.bad.total()
                table.add_row(
                    Text(name, style=_STYLES[line.last.state]),
                    _number(line.last.batch),
                    f"{line.rows:,}",
                    _number(line.last.rows_in_per_second),
                    _number(line.last.rows_out_per_second),
                    _number(line.last.lag),
                    f"{line.last_duration_ms:,}",
                    f"{line.last.state_rows:,}",
                    Text(f"{bad:,}", style="yellow" if bad else "dim"),
                    Text(self._age(line.last), style="dim"),
                    Text(_watermark(line.last.watermark), style="dim"),
                )
        return table

    def _age(self, progress: QueryProgress) -> str:
        """The age of the figures; a dash for a query that has ended, which has no new ones."""
        if not progress.as_of or progress.state is not QueryState.RUNNING:
            return "–"
        now_s = self._clock.wall_ns() / NS_PER_SECOND
        return f"{max(now_s - datetime.fromisoformat(progress.as_of).timestamp(), 0.0):.0f} s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _watermark(text: str) -> str:
    """The time of day in UTC; empty without a watermark, which Spark writes as 1970."""
    return "" if not text or text.startswith("1970") else f"{datetime.fromisoformat(text):%H:%M:%S}"
