"""The figures of a pipeline's queries: a listener of Spark turns every batch into one line.

Lines are shown on terminals and published as JSON to the topic `emberq.pipelines` (`report`):

    {"pipeline": "clickstream", "query": "counts", "state": "running", "error": "", "time": "2026-11-15T06:10:00.000Z",
     "as_of": "2026-11-15T06:10:01.263Z", "batch": 42, "rows": 1200, "rows_per_second": 950.2,
     "rows_in_per_second": 800.1, "rows_out": 37, "rows_out_per_second": 24.7, "lag": 12, "duration_ms": 1263,
     "durations_ms": {"addBatch": 980, …}, "state_rows": 310, "watermark": "2026-11-15T06:08:00.000Z",
     "messages": {"clicks": 1200}, "bad": {"clicks": 3},
     "failed_rules": {"clicks.has_user": 2}, "rules": {"clicks.has_user": {"action": "warn", "sql": "user IS NOT …"}},
     "samples": {"clicks.has_user": ["clicks on 127.0.0.1:4151, offset 183249: …"]},
     "offsets": [{"127.0.0.1:4151": {"clicks": …}}],
     "sources": [{"description": "nsq: clicks on 127.0.0.1:4151", "metrics": {"minOffsetsBehindLatest": 12, …}}],
     "graph": [{"name": "clicks", "kind": "source", "detail": "clicks", "uses": []},
       {"name": "counts", "kind": "sink", "detail": "clicks.counts", "uses": ["clicks"]}]}

There are lines without a batch too: when a query starts, every two seconds while no batch ends, and when the query
ends. They repeat what was last known, with the lag of that moment, no rows and no duration. So summing lines counts
nothing twice.

Spark describes a batch in one JSON document, fetched with one call. PySpark's own listener class asks Java for every
field of the event instead: 600 calls, which take longer than a batch does.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pyspark import java_gateway
from pyspark.sql import SparkSession

from emberq.spark.journal_offset import Place
from emberq.spark.pipeline.build import OBSERVED
from emberq.spark.pipeline.checkpoint import journal_offsets
from emberq.spark.pipeline.rule import OBSERVED_VIEW, RULE_COUNT, SAMPLES

OBSERVED_OUTPUT = "emberq output"
"""The name under which a query counts the rows to its sink. No source can have it."""
OUTPUT_COUNT = "rows"
NOT_COUNTED = -1
"""What Spark reports as the rows of a sink that is a function, as the one for Parquet files here."""
MAX_SAMPLES_CHARS = 8000
"""The length of all samples of a batch. nsqadmin takes reports of up to 64 KiB, with four bytes for some characters."""
MS_PER_SECOND = 1000

_log = logging.getLogger(__name__)


class QueryState(enum.StrEnum):
    """The state of a query. The last two are final."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """One batch of one query; or a sign of life of it, without rows and duration."""

    pipeline: str
    query: str
    state: QueryState = QueryState.RUNNING
    error: str = ""
    """Why the query failed."""
    time: str
    """When the batch began, or the sign of life was given; in RFC 3339."""
    as_of: str = ""
    """The moment these figures are of: the end of the batch, or of the sign of life; in RFC 3339."""
    batch: int | None = None
    """The number of the last batch; None if there was none in this run."""
    rows: int = 0
    rows_per_second: float = 0.0
    """Rows over the duration of the batch: how fast the query reads."""
    rows_in_per_second: float = 0.0
    """Rows over the time since the batch before began: how fast they arrive."""
    rows_out: int | None = None
    """Rows that went to the sink; None if the sink does not count them."""
    rows_out_per_second: float | None = None
    """Over the same time as `rows_in_per_second`."""
    lag: int | None = None
    """Messages that waited to be read at that moment; None: unknown."""
    duration_ms: int = 0
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    """The parts of the duration, by Spark's names."""
    state_rows: int = 0
    watermark: str = ""
    messages: Mapping[str, int] = field(default_factory=dict)
    """How many messages came from each source."""
    bad: Mapping[str, int] = field(default_factory=dict)
    """How many messages of each source were bad."""
    failed_rules: Mapping[str, int] = field(default_factory=dict)
    """How many rows did not meet each rule, by source or view and rule: `clicks.has_user`."""
    rules: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What those rules are: `action` and `sql`."""
    samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Some of the bad records, by source, and of the rows that did not meet a rule, by rule."""
    offsets: tuple[Any, ...] = ()
    """Where the batch ended in each source."""
    sources: tuple[Mapping[str, Any], ...] = ()
    """What each source is, and how far it is behind its journals, by the names that Spark's source for Kafka has. Spark
    itself describes a source in Python by a Java address, and asks it for no metrics."""
    graph: Sequence[Mapping[str, Any]] = ()
    """The sources, tables and views that lead to the sink, and the sink: `name`, `kind`, `detail`, `uses`."""

    def sign_of_life(self, sign: QuerySign, *, lag: int | None = None) -> QueryProgress:
        """The progress at a moment without a batch. Rates stay while there is something to read."""
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
            failed_rules={},
            samples={},
        )
        if lag and sign.state is QueryState.RUNNING:
            return told
        rows_out_per_second = None if self.rows_out_per_second is None else 0.0
        return replace(told, rows_per_second=0.0, rows_in_per_second=0.0, rows_out_per_second=rows_out_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySign:
    """A sign of life of a query: it has started, still runs, or has ended."""

    query: str
    time: str
    state: QueryState = QueryState.RUNNING
    error: str = ""


class ProgressListener:
    """Listens to all queries of a session. Calls `tell` for those of one pipeline, in a thread of Spark."""

    def __init__(
        self, pipeline: str, queries: Mapping[str, str], tell: Callable[[QueryProgress | QuerySign], None]
    ) -> None:
        """`queries` maps Spark's names of the queries to the names of their sinks."""
        self._pipeline = pipeline
        self._queries = queries
        self._tell = tell
        self._began: dict[str, datetime] = {}
        """When the last batch of each query began."""
        self._java: Any = None
        """The Java object of this listener, while it listens."""

    def listen(self, spark: SparkSession) -> None:
        """Listen to batches from now on."""
        gateway: Any = spark.sparkContext._gateway
        java_gateway.ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        self._java = wrapper(self)
        _manager(spark).addListener(self._java)

    def close(self, spark: SparkSession) -> None:
        """Stop listening."""
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
        """Nothing to do: the reporter gives signs of life by itself, and more often."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing to do: the run reports ends, because it knows whether a query was meant to end."""

    class Java:
        """Tells py4j which Java interface this object implements."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]

    def take(self, text: str) -> None:
        """Report a batch, given Spark's JSON about it."""
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
        """The time since the batch before began; for the first batch, its duration."""
        began, before = datetime.fromisoformat(document["timestamp"]), self._began.get(query)
        self._began[query] = began
        duration_s = _duration_ms(document) / MS_PER_SECOND
        return duration_s if before is None else max((began - before).total_seconds(), duration_s)


def _manager(spark: SparkSession) -> Any:
    streams: Any = spark.streams
    return streams._jsqm


def progress_of(document: Mapping[str, Any], *, pipeline: str, query: str, interval_s: float) -> QueryProgress:
    """The progress in a document of Spark. Rows came in and went out during `interval_s`."""
    observed: Mapping[str, Any] = document.get("observedMetrics") or {}
    sources = {name.removeprefix(OBSERVED): metrics for name, metrics in observed.items() if name.startswith(OBSERVED)}
    rows: int = document["numInputRows"]
    rows_out: int | None = document["sink"].get("numOutputRows", NOT_COUNTED)
    if rows_out == NOT_COUNTED:
        rows_out = observed.get(OBSERVED_OUTPUT, {}).get(OUTPUT_COUNT)
    waiting = _waiting(document["sources"])
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
        lag=None if waiting is None else sum(waiting.values()),
        duration_ms=duration_ms,
        durations_ms=dict(sorted(document.get("durationMs", {}).items())),
        state_rows=sum(operator["numRowsTotal"] for operator in document.get("stateOperators", ())),
        watermark=document.get("eventTime", {}).get("watermark", ""),
        messages={source: metrics["messages"] for source, metrics in sources.items()},
        bad={source: metrics["bad"] for source, metrics in sources.items()},
        failed_rules=_failed_rules(observed),
        samples=_samples(observed),
        offsets=tuple(_offsets(source.get("endOffset")) for source in document["sources"]),
        sources=tuple(described(source) for source in document["sources"]),
    )


def _failed_rules(observed: Mapping[str, Any]) -> dict[str, int]:
    return {
        f"{_view_of(name)}.{key.removeprefix(RULE_COUNT)}": count
        for name, metrics in sorted(observed.items())
        for key, count in metrics.items()
        if key.startswith(RULE_COUNT)
    }


def _view_of(observed: str) -> str:
    """The source or view whose observation has this name."""
    return observed.removeprefix(OBSERVED_VIEW).removeprefix(OBSERVED)


def _samples(observed: Mapping[str, Any]) -> dict[str, list[str]]:
    """The samples, as many as `MAX_SAMPLES_CHARS` has room for."""
    found: dict[str, list[str]] = {}
    room = MAX_SAMPLES_CHARS
    for name, metrics in sorted(observed.items()):
        for key, texts in metrics.items():
            if not key.startswith(SAMPLES):
                continue
            told = f"{_view_of(name)}{key.removeprefix(SAMPLES).replace(' ', '.', 1)}"
            for text in dict.fromkeys(text for text in texts if text is not None):
                room -= len(text)
                if room >= 0:
                    found.setdefault(told, []).append(text)
    return found


def described(source: Mapping[str, Any]) -> dict[str, Any]:
    """A source in Spark's progress, in words, and how many messages its journals held beyond the batch.

    A topic on an nsqd is what a partition is to Kafka. A channel has no offsets, and no metrics.
    """
    waiting = _waiting([source])
    if waiting is None:
        return {"description": "nsq", "metrics": {}}
    behind = waiting.values()
    return {
        "description": "nsq: " + ", ".join(f"{place.topic} on {place.nsqd}" for place in sorted(waiting)),
        "metrics": {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": round(sum(behind) / len(behind), 1),
        },
    }


def _waiting(sources: Sequence[Mapping[str, Any]]) -> dict[Place, int] | None:
    """What each journal held beyond the batch when it was planned, by the batch's own figures; None if unknown."""
    ends = journal_offsets(_offsets(source.get("endOffset")) for source in sources)
    latest = journal_offsets(_offsets(source.get("latestOffset")) for source in sources)
    if not ends or latest is None:
        return None
    return {place: max(latest.get(place, offset) - offset, 0) for place, offset in ends.items()}


def rfc3339(moment: datetime) -> str:
    """A moment as Spark writes it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _duration_ms(document: Mapping[str, Any]) -> int:
    duration_ms: int = document.get("durationMs", {}).get("triggerExecution", 0)
    return duration_ms


def _rate(count: int, seconds: float) -> float:
    """JSON has no infinity: a batch that took no time has the rate 0."""
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _offsets(offset: Any) -> Any:
    """An offset as a document. Spark writes some as JSON and others as text."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return offset
