"""How the queries of a pipeline get on: a listener of Spark turns every batch into a line of numbers.

It goes to whoever wants to show it, and as a JSON message to the topic `emberq.pipelines` (`progress_report`):

    {"pipeline": "clickstream", "query": "counts", "state": "running", "error": "", "time": "2026-11-15T06:10:00.000Z",
     "batch": 42, "rows": 1200, "rows_per_second": 950.2, "rows_in_per_second": 800.1, "rows_out": 37,
     "rows_out_per_second": 24.7, "lag": 12, "duration_ms": 1263, "durations_ms": {"addBatch": 980, …},
     "state_rows": 310, "watermark": "2026-11-15T06:08:00.000Z", "messages": {"clicks": 1200}, "bad": {"clicks": 3},
     "offsets": [{"127.0.0.1:4151": {"clicks": …}}]}

There are lines without a batch too: when a query starts, every ten seconds while there is nothing to read, and when it
ends. They repeat what was last known, with no rows and no duration, so that adding lines up counts nothing twice.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from emberq.spark.pipeline.build import OBSERVED

OBSERVED_OUTPUT = "emberq output"
"""What a query observes of the rows that go to its sink; no source can be called so."""
OUTPUT_COUNT = "rows"
NOT_COUNTED = -1
"""What Spark says of the rows that went to a sink which is a function, as that of Parquet files is here."""
MS_PER_SECOND = 1000


class QueryState(enum.StrEnum):
    """What has become of a query. The last two end its run."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """One batch of one query; or, with no rows and no duration, a sign of life from it."""

    pipeline: str
    query: str
    state: QueryState = QueryState.RUNNING
    error: str = ""
    """Why it has failed."""
    time: str
    """When the batch began, or the sign was given; in RFC 3339."""
    batch: int | None = None
    """The last one; None: there was none in this run."""
    rows: int = 0
    rows_per_second: float = 0.0
    """How fast it was: over the duration of the batch."""
    rows_in_per_second: float = 0.0
    """How fast rows arrive: over the time since the batch before began."""
    rows_out: int | None = None
    """What went to the sink; None: the sink does not tell."""
    rows_out_per_second: float | None = None
    """Over the same time as `rows_in_per_second`."""
    lag: int | None = None
    """Messages that wait to be read; None: nobody knows."""
    duration_ms: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    """The parts of it, as Spark calls them."""
    state_rows: int = 0
    watermark: str = ""
    messages: Mapping[str, int] = field(default_factory=dict)
    """How many came from each source."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """How many of those were not what the source says."""
    offsets: tuple[Any, ...] = ()
    """Where the batch ended, of each source."""

    def sign_of_life(self, sign: QuerySign) -> QueryProgress:
        """What is known of the query at a moment without a batch."""
        return replace(
            self,
            state=sign.state,
            error=sign.error,
            time=sign.time,
            rows=0,
            rows_per_second=0.0,
            rows_in_per_second=0.0,
            rows_out=None if self.rows_out is None else 0,
            rows_out_per_second=None if self.rows_out is None else 0.0,
            duration_ms=0,
            durations_ms={},
            messages={},
            bad={},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySign:
    """A moment of a query without a batch: it has started, found nothing to read, or come to an end."""

    query: str
    time: str
    state: QueryState = QueryState.RUNNING
    error: str = ""


class ProgressListener(StreamingQueryListener):
    """Hears of all queries in a session, and tells `tell` of those of one pipeline, in a thread of Spark."""

    def __init__(
        self, pipeline: str, queries: Mapping[str, str], tell: Callable[[QueryProgress | QuerySign], None]
    ) -> None:
        """`queries` are the names that Spark knows the queries by, and those of their sinks."""
        self._pipeline = pipeline
        self._queries = queries
        self._tell = tell
        self._runs: dict[UUID, str] = {}
        """Queries by their run, which is all that Spark says of one that is idle."""
        self._began: dict[str, datetime] = {}
        """The beginning of the last batch of each query."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name, as are the others
        query = self._queries.get(event.name or "")
        if query is not None:
            self._runs[event.runId] = query
            self._tell(QuerySign(query=query, time=event.timestamp))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        query = self._queries.get(event.progress.name or "")
        if query is not None:
            interval_s = self._interval_s(query, event.progress)
            self._tell(progress_of(event.progress, pipeline=self._pipeline, query=query, interval_s=interval_s))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        query = self._runs.get(event.runId)
        if query is not None:
            self._tell(QuerySign(query=query, time=event.timestamp))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Of this the run tells, which knows whether it was meant to end."""

    def _interval_s(self, query: str, progress: StreamingQueryProgress) -> float:
        """The time since the batch before began; of the first, its duration."""
        began, before = datetime.fromisoformat(progress.timestamp), self._began.get(query)
        self._began[query] = began
        duration_s = _duration_ms(progress) / MS_PER_SECOND
        return duration_s if before is None else max((began - before).total_seconds(), duration_s)


def progress_of(progress: StreamingQueryProgress, *, pipeline: str, query: str, interval_s: float) -> QueryProgress:
    """What counts of all that Spark tells. Rows came in and went out during `interval_s`."""
    observed = {name: row.asDict() for name, row in progress.observedMetrics.items()}
    sources = {name.removeprefix(OBSERVED): metrics for name, metrics in observed.items() if name.startswith(OBSERVED)}
    rows_out: int | None = progress.sink.numOutputRows
    if rows_out == NOT_COUNTED:
        rows_out = observed.get(OBSERVED_OUTPUT, {}).get(OUTPUT_COUNT)
    duration_ms = _duration_ms(progress)
    return QueryProgress(
        pipeline=pipeline,
        query=query,
        batch=progress.batchId,
        time=progress.timestamp,
        rows=progress.numInputRows,
        rows_per_second=_rate(progress.numInputRows, duration_ms / MS_PER_SECOND),
        rows_in_per_second=_rate(progress.numInputRows, interval_s),
        rows_out=rows_out,
        rows_out_per_second=None if rows_out is None else _rate(rows_out, interval_s),
        duration_ms=duration_ms,
        durations_ms=dict(sorted(progress.durationMs.items())),
        state_rows=sum(operator.numRowsTotal for operator in progress.stateOperators),
        watermark=progress.eventTime.get("watermark", ""),
        messages={source: metrics["messages"] for source, metrics in sources.items()},
        bad={source: metrics["bad"] for source, metrics in sources.items()},
        offsets=tuple(_document(source.endOffset) for source in progress.sources),
    )


def _duration_ms(progress: StreamingQueryProgress) -> int:
    return progress.durationMs.get("triggerExecution", 0)


def _rate(count: int, seconds: float) -> float:
    """JSON has no infinity: what took no time has no rate."""
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
