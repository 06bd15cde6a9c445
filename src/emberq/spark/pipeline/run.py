"""Running a pipeline: every query started, watched and stopped in good order.

    from emberq.spark import session
    from emberq.spark.pipeline import PipelineRun

    run = PipelineRun(pipeline, session("clicks"))
    run.start()
    run.wait()          # until it is done (trigger "available-now"), or fails
    run.stop()

If a query fails the others are stopped, and `wait` raises PipelineFailedError with the sink and the cause. The next run
always goes on where this one was: a batch that was not finished is done again, into the same files and under the same
names.

**Changed pipelines.** A checkpoint holds how far a query has read and, for one with windows, joins of streams or
dedupe, its state: the groups and rows it remembers. Without state, Spark goes on with any SQL. State belongs to the SQL
that made it. With other SQL, Spark stops with an error about its innermost files or, worse, goes on with numbers that
mean something else.

So the definitions of each query are kept beside its checkpoint, in `SINK.definition.json`, and compared when it starts:
its SQL, and of its sources the topics, formats, schemas, watermarks and columns of dedupe.

    no state           it goes on where it was, with the new definitions, and logs that
    state              refused, with the ways out
    state, accepted    Spark decides: it takes changes that leave groups and aggregates as they are

How far a query has read is that of its topics. If it is to read one of them no longer, that is refused too, with and
without state: what it has not read of that topic would be left out, and another topic is not where the query was.
Accepted, the query goes on with the topics it has now, and reads a new one from its first message on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from emberq.spark.error import NsqSparkError
from emberq.spark.pipeline.body_format import new_fields
from emberq.spark.pipeline.build import (
    TOPIC,
    TOPIC_PATTERN,
    SinkQuery,
    build,
    cause_of,
    first_sentence,
    grow_schema,
)
from emberq.spark.pipeline.check import sink_options, trigger_seconds
from emberq.spark.pipeline.files import FileSystem, ParquetFolder
from emberq.spark.pipeline.jdbc import DatabaseTable
from emberq.spark.pipeline.model import JDBC, OutputMode, Pipeline, PipelineError, Problem, ProblemOrigin, Sink
from emberq.spark.pipeline.progress import (
    OBSERVED_OUTPUT,
    OUTPUT_COUNT,
    ProgressListener,
    QueryProgress,
    QuerySign,
    QueryState,
    rfc3339,
)
from emberq.spark.pipeline.report import ProgressReporter

# Changed pipelines.


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different in a query that has begun."""

    paths: Sequence[str]
    """The definitions that differ from those the query began with."""
    dropped_topics: Sequence[str]
    """The topics, or patterns of topics, that it does not read any more."""

    @classmethod
    def between(cls, before: Mapping[str, str], now: Mapping[str, str]) -> Changes:
        """Files of older versions tell less; what they do not tell has not changed."""
        compared = {*before, *now}
        if not _topics(before):
            compared = {path for path in compared if path in before or path.rpartition(".")[2] in _ALWAYS_KEPT}
        return cls(
            paths=sorted(path for path in compared if before.get(path) != now.get(path)),
            dropped_topics=sorted(_topics(before) - _topics(now)),
        )


_ALWAYS_KEPT = ("sql", "watermark", "dedupe")
"""How the paths end that files of every version have."""


def _topics(definitions: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    for path, text in definitions.items():
        kind = path.rpartition(".")[2]
        if kind == TOPIC:
            found.update(text.split(", "))
        elif kind == TOPIC_PATTERN:
            found.add(text)
    return found


def changes(query: SinkQuery, files: FileSystem) -> Changes:
    """What differs from the definitions that the query began with."""
    kept = files.read_text(_file(query))
    return Changes((), ()) if kept is None else Changes.between(json.loads(kept), query.definitions)


def refusal(query: SinkQuery, changed: Changes) -> Problem | None:
    """The problem of a query that cannot go on as it was; None if it can."""
    anew = f"go back to what {_file(query)} shows; or give the sink another name (and path), with which it begins anew"
    if changed.dropped_topics:
        topics = [path for path in changed.paths if path.rpartition(".")[2] in (TOPIC, TOPIC_PATTERN)]
        return Problem(
            tuple(topics[0].split(".")),
            f"sink {query.name} has begun to read {', '.join(changed.dropped_topics)}, which it is to read no longer",
            f"{anew}; or run with --accept-changes to go on without it, and with new topics from their first messages",
        )
    if changed.paths and query.state:
        return Problem(
            tuple(changed.paths[0].split(".")),
            f"this has changed since sink {query.name} began, and the sink keeps state that belongs to what it was",
            f"{anew} from the start of its topics; or run with --accept-changes if groups and aggregates are the same "
            "as before",
        )
    return None


def keep(query: SinkQuery, files: FileSystem) -> None:
    """Keep the definitions of a query that is about to start."""
    files.write_text(_file(query), json.dumps(dict(query.definitions), indent=1, sort_keys=True))


def _file(query: SinkQuery) -> str:
    return f"{query.checkpoint}.definition.json"


# One run at a time.

CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE"
"""In Spark's error when two queries write to a checkpoint."""


class RunLock:
    """Keeps a second run of a pipeline from its checkpoint, on this machine: two would undo each other's batches.

    The lock goes with the process that holds it. A checkpoint on other machines has no lock; there Spark notices, when
    both have written a batch.
    """

    def __init__(self, checkpoint: str) -> None:
        folder = checkpoint.removeprefix("file://")
        self._path = None if "://" in folder else Path(folder) / "run.lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """PipelineError if another run holds it."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 20).decode(errors="replace").strip()
            os.close(file)
            raise PipelineError([_runs_already(f" in process {holder}" if holder else "")]) from None
        os.ftruncate(file, 0)
        os.write(file, b"%d\n" % os.getpid())
        self._file = file

    def release(self) -> None:
        """May be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _runs_already(where: str) -> Problem:
    return Problem(
        ("checkpoint",),
        f"this pipeline runs already{where}, with the same checkpoint",
        "stop that run first; or give this one another name and checkpoint, with which it begins anew",
    )


# The run.

PARQUET = "parquet"
LOOK_INTERVAL_S = 0.2
BATCH_TIMEOUT_S = 1.5
"""How long a stop waits for batches that have begun. A longer one is interrupted, and done again by the next run."""
START_TIMEOUT_S = 120.0
"""How long a query may take to begin. On an idle machine it takes two seconds."""
EVENT_TIMEOUT_MS = 1000
"""How long a stop waits for Spark's events of the last batches. Each takes milliseconds."""
MAX_ERROR_CHARS = 2000
"""The length of a published error, which may contain a whole plan."""
WORKER_TOO_LATE = "failed to connect back"
JAVA_IS_GONE = "the Java that Spark runs in has ended; it was killed, perhaps for want of memory"

_log = logging.getLogger(__name__)


class PipelineFailedError(NsqSparkError):
    """A query of a pipeline could not go on."""

    def __init__(self, query: str, cause: str) -> None:
        super().__init__(f"{query}: {cause}")
        self.query = query
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.query, self.cause)


class PipelineRun:
    """One run of a pipeline. Owned by one thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        *,
        origin: ProblemOrigin | None = None,
        accept_changes: bool = False,
        on_progress: Callable[[QueryProgress], None] | None = None,
    ) -> None:
        """`on_progress` is called in a thread of its own, and never after `stop` has returned."""
        self._pipeline = pipeline
        self._spark = spark
        self._origin = origin
        self._accept_changes = accept_changes
        self._on_progress = on_progress
        self._running: dict[str, StreamingQuery] = {}
        self._told_of: set[str] = set()
        """The queries whose end was reported."""
        self._listener: ProgressListener | None = None
        self._reporter: ProgressReporter | None = None
        self._lock = RunLock(pipeline.checkpoint)

    def start(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Start all queries, or as many as can be started before `until` returns true.

        PipelineError, with nothing left running, if the pipeline cannot be run.
        """
        with self._while_java_lives(until):
            self._start(until)

    def _start(self, until: Callable[[], bool]) -> None:
        queries = self._built()
        self._lock.acquire()
        try:
            self._check_changes(queries)
        except PipelineError:
            self._lock.release()
            raise
        self._listen(queries)
        for query in queries:
            if until():
                return
            try:
                self._start_one(query, until)
            except PySparkException as fault:
                self._report_end([query.name], error=first_sentence(fault))
                self.stop()
                raise PipelineError([Problem(("sink", query.name), first_sentence(fault))], self._origin) from fault

    def wait(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Returns when all queries are done, or `until` returns true. PipelineFailedError if a query fails."""
        with self._while_java_lives(until):
            self._watch(until)

    @contextmanager
    def _while_java_lives(self, until: Callable[[], bool]) -> Iterator[None]:
        """PipelineFailedError if the Java that Spark runs in ends meanwhile, unless `until` returns true then."""
        try:
            yield
        except (NsqSparkError, Py4JJavaError):
            raise  # Java lives: an nsqd does not answer, or Java has raised this
        except (Py4JError, ConnectionError) as failure:
            time.sleep(LOOK_INTERVAL_S)  # systemd ends Java and this process at once, perhaps Java first
            if not until():
                self.stop()
                raise PipelineFailedError(self._pipeline.name, JAVA_IS_GONE) from failure

    def _watch(self, until: Callable[[], bool]) -> None:
        while not until():
            for name in self._finished():
                fault = self._running[name].exception()
                if fault is not None and self._has_grown(name, fault, until):
                    continue
                if fault is not None:
                    time.sleep(LOOK_INTERVAL_S)  # Ctrl-C reaches the workers too, perhaps before this process
                    if until():
                        return
                    self._report_end([name], error=cause_of(fault))
                    self.stop()
                    if CONCURRENT in str(fault):
                        raise PipelineError([_runs_already(" elsewhere")], self._origin) from fault
                    raise PipelineFailedError(name, cause_of(fault)) from fault
                self._report_end([name])
            if len(self._told_of) == len(self._running):
                self._lock.release()
                return
            time.sleep(LOOK_INTERVAL_S)

    def _has_grown(self, name: str, fault: Exception, until: Callable[[], bool]) -> bool:
        """Whether a query ended because of new fields, and goes on with a schema that has them.

        The batch was not committed, so it is read again with the new columns. Other queries of the source come to it by
        themselves.
        """
        told = new_fields(str(fault))
        if told is None:
            return False
        source, types = told
        columns = grow_schema(self._pipeline, self._spark, source, types)
        if columns:
            _log.warning("the schema of source %s has grown: %s", source, ", ".join(columns))
        again = next(query for query in self._built() if query.name == name)
        self._start_one(again, until)
        return True

    def _built(self) -> list[SinkQuery]:
        return build(self._pipeline, self._spark, origin=self._origin)

    def stop(self) -> None:
        """Stop all queries, between two batches if possible within `BATCH_TIMEOUT_S`. Failures are only logged."""
        if self._running:
            deadline_s = time.monotonic() + BATCH_TIMEOUT_S
            with ThreadPoolExecutor(len(self._running), "emberq-stop") as pool:
                for query in self._running.values():
                    pool.submit(_stop_one, query, deadline_s=deadline_s)
        try:
            self._report_end(self._finished())
            if self._listener is not None:
                self._listener.close(self._spark)
        except (Py4JError, PySparkException, OSError) as failure:  # Java is gone, or has lost the query
            _log.info("the end of the queries is not told: %s", failure)
        self._listener = None
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None
        self._lock.release()

    def _finished(self) -> list[str]:
        """The queries that have ended, and whose end was not reported yet."""
        return [name for name, query in self._running.items() if name not in self._told_of and not query.isActive]

    def _report_end(self, names: Sequence[str], *, error: str | None = None) -> None:
        """Report that queries have ended or failed, behind the reports of their batches."""
        self._told_of.update(names)
        if self._reporter is None or not names:
            return
        _await_events(self._spark)
        state = QueryState.ENDED if error is None else QueryState.FAILED
        for name in names:
            now = rfc3339(datetime.now(UTC))
            sign = QuerySign(query=name, time=now, state=state, error=(error or "")[:MAX_ERROR_CHARS])
            self._reporter.put(sign)

    def _check_changes(self, queries: list[SinkQuery]) -> None:
        files = FileSystem(self._spark)
        changed = {query.name: changes(query, files) for query in queries}
        refused = [problem for query in queries if (problem := refusal(query, changed[query.name])) is not None]
        if refused and not self._accept_changes:
            raise PipelineError(refused, self._origin)
        for query in queries:
            if changed[query.name].paths:
                _log.warning(
                    "%s has changed; sink %s goes on where it was, with the new one",
                    ", ".join(changed[query.name].paths),
                    query.name,
                )
            keep(query, files)

    def _listen(self, queries: list[SinkQuery]) -> None:
        pipeline = self._pipeline
        self._reporter = ProgressReporter(
            pipeline.name,
            access_options=pipeline.access_options,
            topic=pipeline.progress_topic,
            on_progress=self._on_progress,
            outlines={query.name: {"graph": query.graph, "rules": query.rules} for query in queries},
        )
        self._reporter.start()
        names = {self._spark_name(query): query.name for query in queries}
        self._listener = ProgressListener(pipeline.name, names, self._reporter.put)
        self._listener.listen(self._spark)

    def _spark_name(self, query: SinkQuery) -> str:
        """The memory sink makes a table of that name, for which only the sink's will do."""
        return query.name if query.sink.format == "memory" else f"{self._pipeline.name}/{query.name}"

    def _start_one(self, query: SinkQuery, until: Callable[[], bool]) -> None:
        """Start a query and wait until its source is there.

        One by one, because each starts a Python process and Spark gives up on one that is not there after 10 seconds;
        on a busy machine, or with many queries, that happens to one or the other, which is then started again.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            running = self._running[query.name] = self._started(query)
            while running.isActive and _is_initializing(running) and time.monotonic() < deadline_s and not until():
                time.sleep(LOOK_INTERVAL_S)
            fault = running.exception()
            if fault is None or WORKER_TOO_LATE not in str(fault) or time.monotonic() > deadline_s or until():
                return  # `wait` raises the fault

    def _started(self, query: SinkQuery) -> StreamingQuery:
        sink = query.sink
        rows = _as_messages(query.rows) if sink.topic else query.rows
        rows = rows.observe(OBSERVED_OUTPUT, F.count(F.lit(1)).alias(OUTPUT_COUNT))
        writer = rows.writeStream.queryName(self._spark_name(query)).outputMode(sink.output_mode)
        writer = writer.option("checkpointLocation", query.checkpoint)
        writer = _with_trigger(writer, sink.trigger or self._pipeline.trigger)
        if sink.topic:
            return _into_topic(writer, sink, sink_options(self._pipeline, sink)).start()
        if sink.format == JDBC:
            return writer.foreachBatch(DatabaseTable(sink, name=self._spark_name(query)).write).start()
        if sink.path and sink.format in ("", PARQUET):
            folder = ParquetFolder(sink.path, partition_by=sink.partition_by, partition_by_time=sink.partition_by_time)
            return writer.foreachBatch(folder.write).start()
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer = writer.format(sink.format).options(**sink.options)
        if sink.table:
            return writer.toTable(sink.table)
        return writer.start(sink.path) if sink.path else writer.start()


def _into_topic(writer: DataStreamWriter, sink: Sink, options: Mapping[str, str]) -> DataStreamWriter:
    """Spark gives a Python sink appended rows only. Rows that change are written batch by batch, named after the query
    and the batch, so that nsqd recognizes a batch that is repeated after a crash."""
    if sink.output_mode is OutputMode.APPEND:
        return writer.format("nsq").options(**options)

    def write(rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows.write.format("nsq").mode("append").options(**options, writeId=f"{query}-{batch_id}").save()

    return writer.foreachBatch(write)


def _with_trigger(writer: DataStreamWriter, text: str) -> DataStreamWriter:
    seconds = trigger_seconds(text)
    if seconds is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(seconds * 1000)} milliseconds")


def _as_messages(rows: DataFrame) -> DataFrame:
    """The columns that a topic takes: `body`, `defer_ms` and `headers`, or else the whole row as JSON."""
    if "body" in rows.columns:
        return rows.select(*(name for name in ("body", "defer_ms", "headers") if name in rows.columns))
    return rows.select(F.to_json(F.struct("*")).alias("body"))


def _stop_one(query: StreamingQuery, *, deadline_s: float) -> None:
    try:
        while query.isActive and _is_in_a_batch(query) and time.monotonic() < deadline_s:
            time.sleep(LOOK_INTERVAL_S)
        query.stop()
    except (Py4JError, PySparkException, OSError) as failure:
        _log.info("%s was not stopped in good order: %s", query.name, failure)


def _await_events(spark: SparkSession) -> None:
    """Wait for events on their way to listeners; without this the last batch would often be missing."""
    java_context: Any = spark.sparkContext._jsc
    try:
        java_context.sc().listenerBus().waitUntilEmpty(EVENT_TIMEOUT_MS)
    except Py4JError:
        _log.info("Spark still has to tell of some batches; they are left out")


def _is_initializing(query: StreamingQuery) -> bool:
    status: dict[str, Any] = query.status
    return str(status["message"]).startswith("Initializing")


def _is_in_a_batch(query: StreamingQuery) -> bool:
    """Whether a batch runs, also one without data that writes the windows that are over."""
    status: dict[str, Any] = query.status
    has_work = status["isDataAvailable"] or str(status["message"]).startswith("No new data but cleaning up")
    return bool(status["isTriggerActive"] and has_work)
