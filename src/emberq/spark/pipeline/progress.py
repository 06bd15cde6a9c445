"""How the queries of a pipeline get on: a listener of Spark turns every batch into a line of numbers.

Lines are shown to people and published as JSON to the topic `emberq.pipelines` (`progress_report`):

    {"pipeline": "clickstream", "query": "counts", "state": "running", "error": "", "time": "2026-11-15T06:10:00.000Z",
     "as_of": "2026-11-15T06:10:01.263Z", "batch": 42, "rows": 1200, "rows_per_second": 950.2,
     "rows_in_per_second": 800.1, "rows_out": 37, "rows_out_per_second": 24.7, "lag": 12, "duration_ms": 1263,
     "durations_ms": {"addBatch": 980, …}, "state_rows": 310, "watermark": "2026-11-15T06:08:00.000Z",
     "messages": {"clicks": 1200}, "bad": {"clicks": 3}, "offsets": [{"127.0.0.1:4151": {"clicks": …}}]}

There are lines without a batch too: when a query starts, every two seconds while no batch ends, and when the query
ends. They repeat what was last known, with the lag of that moment, no rows and no duration, so that adding lines up
counts nothing twice.

Spark tells of a batch in one JSON document, and one call brings it here. PySpark's own listener class asks Java for
every field of the event instead: 600 calls, which take longer than a batch does.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pyspark import java_gateway
from pyspark.sql import SparkSession

from emberq.spark.pipeline.build import OBSERVED
from emberq.spark.pipeline.checkpoint import journal_offsets

OBSERVED_OUTPUT = "emberq output"
"""What a query observes of the rows that go to its sink; no source can be called so."""
OUTPUT_COUNT = "rows"
NOT_COUNTED = -1
"""What Spark says of the rows that went to a sink which is a function, as that of Parquet files is here."""
MS_PER_SECOND = 1000

_log = logging.getLogger(__name__)


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
    as_of: str = ""
    """When these figures were right: at the end of the batch, or when the sign was given; in RFC 3339."""
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
    """Messages that waited to be read at that moment; None: unknown."""
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

    def sign_of_life(self, sign: QuerySign, *, lag: int | None = None) -> QueryProgress:
        """What is known of the query at a moment without a batch. Rates stay while it has something to read."""
        told = replace(
            self,
            state=sign.state,
            error=sign.error,
            time=sign.time,
            as_of=sign.time,
            rows=0,
            rows_out=None if self.rows_out is None else 0,
            lag=lag,
            duration_ms=0,
            durations_ms={},
            messages={},
            bad={},
        )
        if lag and sign.state is QueryState.RUNNING:
            return told
        rows_out_per_second = None if self.rows_out_per_second is None else 0.0
        return replace(told, rows_per_second=0.0, rows_in_per_second=0.0, rows_out_per_second=rows_out_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySign:
    """A moment of a query without a batch: it has started, still runs, or has come to an end."""

    query: str
    time: str
    state: QueryState = QueryState.RUNNING
    error: str = ""


class ProgressListener:
    """Hears of all queries in a session, and tells `tell` of those of one pipeline, in a thread of Spark."""

    def __init__(
        self, pipeline: str, queries: Mapping[str, str], tell: Callable[[QueryProgress | QuerySign], None]
    ) -> None:
        """`queries` are the names that Spark knows the queries by, and those of their sinks."""
        self._pipeline = pipeline
        self._queries = queries
        self._tell = tell
        self._began: dict[str, datetime] = {}
        """The beginning of the last batch of each query."""
        self._java: Any = None
        """Spark's side of it, while it listens."""

    def listen(self, spark: SparkSession) -> None:
        """Be told of all batches that end from now on."""
        gateway: Any = spark.sparkContext._gateway
        java_gateway.ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._java = wrapper(self)
        _manager(spark).addListener(self._java)

    def close(self, spark: SparkSession) -> None:
        """Be told of nothing any more."""
        if self._java is not None:
            _manager(spark).removeListener(self._java)
            self._java = None

    # Called by Java, which knows these names.

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        query = self._queries.get(event.name() or "")
        if query is not None:
            self._tell(QuerySign(query=query, time=event.timestamp()))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.take(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """The reporter gives signs of life by itself, and more often."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """The run reports ends: it knows whether a query was meant to end."""

    class Java:
        """How py4j learns what this object is to Java."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]

    def take(self, text: str) -> None:
        """Tell of a batch, given what Spark says of it."""
        try:
            document = json.loads(text)
            query = self._queries.get(document.get("name") or "")
            if query is not None:
                interval_s = self._interval_s(query, document)
                self._tell(progress_of(document, pipeline=self._pipeline, query=query, interval_s=interval_s))
        except (KeyError, TypeError, ValueError, AttributeError):
            # Raised into Spark's event thread, it would be logged there as a Java traceback.
            _log.warning("Spark told of a batch in a way that is not understood", exc_info=True)

    def _interval_s(self, query: str, document: Mapping[str, Any]) -> float:
        """The time since the batch before began; of the first, its duration."""
        began, before = datetime.fromisoformat(document["timestamp"]), self._began.get(query)
        self._began[query] = began
        duration_s = _duration_ms(document) / MS_PER_SECOND
        return duration_s if before is None else max((began - before).total_seconds(), duration_s)


def _manager(spark: SparkSession) -> Any:
    streams: Any = spark.streams
    return streams._jsqm


def progress_of(document: Mapping[str, Any], *, pipeline: str, query: str, interval_s: float) -> QueryProgress:
    """What counts of all that Spark tells. Rows came in and went out during `interval_s`."""
    observed: Mapping[str, Any] = document.get("observedMetrics") or {}
    sources = {name.removeprefix(OBSERVED): metrics for name, metrics in observed.items() if name.startswith(OBSERVED)}
    rows: int = document["numInputRows"]
    rows_out: int | None = document["sink"].get("numOutputRows", NOT_COUNTED)
    if rows_out == NOT_COUNTED:
        rows_out = observed.get(OBSERVED_OUTPUT, {}).get(OUTPUT_COUNT)
    duration_ms = _duration_ms(document)
    ended = datetime.fromisoformat(document["timestamp"]) + timedelta(milliseconds=duration_ms)
    return QueryProgress(
        pipeline=pipeline,
        query=query,
        batch=document["batchId"],
        time=document["timestamp"],
        as_of=rfc3339(ended),
        rows=rows,
        rows_per_second=_rate(rows, duration_ms / MS_PER_SECOND),
        rows_in_per_second=_rate(rows, interval_s),
        rows_out=rows_out,
        rows_out_per_second=None if rows_out is None else _rate(rows_out, interval_s),
        lag=_lag(document["sources"]),
        duration_ms=duration_ms,
        durations_ms=dict(sorted(document.get("durationMs", {}).items())),
        state_rows=sum(operator["numRowsTotal"] for operator in document.get("stateOperators", ())),
        watermark=document.get("eventTime", {}).get("watermark", ""),
        messages={source: metrics["messages"] for source, metrics in sources.items()},
        bad={source: metrics["bad"] for source, metrics in sources.items()},
        offsets=tuple(_offsets(source.get("endOffset")) for source in document["sources"]),
    )


def rfc3339(moment: datetime) -> str:
    """As Spark writes moments."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lag(sources: list[Mapping[str, Any]]) -> int | None:
    """What the journals had beyond the batch when it was planned, by the batch's own figures."""
    ends = journal_offsets(_offsets(source.get("endOffset")) for source in sources)
    latest = journal_offsets(_offsets(source.get("latestOffset")) for source in sources)
    if ends is None or latest is None or not ends:
        return None
    return sum(max(latest.get(place, offset) - offset, 0) for place, offset in ends.items())


def _duration_ms(document: Mapping[str, Any]) -> int:
    duration_ms: int = document.get("durationMs", {}).get("triggerExecution", 0)
    return duration_ms


def _rate(count: int, seconds: float) -> float:
    """JSON has no infinity: what took no time has no rate."""
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _offsets(offset: Any) -> Any:
    """Spark writes an offset that is JSON as such, and any other as text."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return offset
