"""From a pipeline to queries that Spark can start: sources become views, SQL is analyzed, every sink gets its rows.

Nothing is read here but schemas that the pipeline leaves open. So this also validates a pipeline: what Spark finds
wrong with SQL, columns and output modes becomes problems with the place where they stand.

Each sink is a query that reads its sources for itself. So exactly once holds for each, and a slow one does not hold up
the others. Each has a channel of its own on the topics, `PIPELINE.SINK`, which follows what the query has done:
retention keeps what it has not read, and the channel's depth is the query's lag.

**Analysis.** Whether a query can run as a stream, and whether it keeps state, is known to Spark's analyzer and has no
Python API; it is asked through py4j. A query keeps state when it must remember rows or groups from one batch to the
next. The state is in its checkpoint and belongs to its SQL.

**Schemas.** A source of JSON without a schema gets that of its newest messages. It is read once and kept in the folder
of the checkpoint, because a query that has begun with one schema must go on with it. To look anew, remove the file; to
choose the schema, write it down. Only a journaled topic can be read without taking messages from its consumers.

A schema that is to grow (`SchemaEvolution.ADD`) has its new columns in a file of that folder too, `SOURCE.added`. They
come behind the others and are no change of the pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from emberq.spark.error import NsqSparkError
from emberq.spark.journal_read import newest_bodies
from emberq.spark.option import OPTIONS, Use
from emberq.spark.pipeline.body_format import (
    RESERVED,
    bad_records,
    counts,
    dead_letters,
    fixed_schema,
    good_rows,
    held_to,
    judged,
    lines_of,
    samples_of,
)
from emberq.spark.pipeline.check import problems_of, source_options
from emberq.spark.pipeline.files import FileSystem
from emberq.spark.pipeline.jdbc import problems_with
from emberq.spark.pipeline.model import (
    JDBC,
    BodyFormat,
    Expectation,
    KeyPath,
    OutputMode,
    Pipeline,
    PipelineError,
    Problem,
    ProblemOrigin,
    SchemaEvolution,
    Sink,
    Source,
    graph_of,
    rules_of,
    used_by,
)
from emberq.spark.pipeline.rule import held_rows

# Analysis.

_ALWAYS_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "GlobalLimit",
}

_IN_FUNCTION = re.compile(r"^(?:pyspark\.errors\.[\w.]+|: [\w.$]+): (.+)", re.MULTILINE)
"""Finds the error of Spark or Java in the traceback of a function that Spark called for a batch."""


def stream_fault(rows: DataFrame, output_mode: OutputMode) -> str | None:
    """Why these rows cannot be written as a stream in this mode; None if they can."""
    jvm: Any = rows.sparkSession._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(_analyzed(rows), mode)
    except PySparkException as fault:
        return first_sentence(fault)
    except Py4JJavaError as fault:
        return str(fault.java_exception.getMessage()).partition("\n")[0]
    return None


def first_sentence(fault: Exception) -> str:
    """The first sentence of an error of Spark, without the plan printed behind it."""
    return str(fault).partition("\n")[0].partition(" SQLSTATE")[0].rstrip(".; ")


def cause_of(fault: Exception) -> str:
    """The text of our own error inside an error of Spark; else what Spark says."""
    text = str(fault)
    raised = re.search(r"\[USER_RAISED_EXCEPTION\] (.+)", text)  # by raise_error, in SQL or in `body_format`
    if raised is not None:
        return first_sentence(Exception(raised[1]))
    ours = re.findall(r"emberq\.[\w.]+: (.+)", text)
    if ours:
        return str(ours[-1]).strip()
    in_function = _IN_FUNCTION.search(text)
    if in_function is not None:
        return first_sentence(Exception(in_function[1]))
    _, _, inner = text.partition("terminated with exception: ")
    return first_sentence(Exception(inner or text))


def _analyzed(rows: DataFrame) -> Any:
    java_rows: Any = rows._jdf
    return java_rows.queryExecution().analyzed()


def _is_stateful(node: Any) -> bool:
    """Whether a stream of this plan keeps state from batch to batch."""
    if not node.isStreaming():
        return False
    children = [node.children().apply(number) for number in range(node.children().size())]
    if node.nodeName() in _ALWAYS_STATEFUL:
        return True
    if node.nodeName() == "Join" and all(child.isStreaming() for child in children):
        return True
    return any(_is_stateful(child) for child in children)


# Schemas.

NEWEST_ROWS = 1000
"""How many messages of each topic and nsqd the schema is derived from."""


def peeked_schema(
    spark: SparkSession, options: Mapping[str, str], body_format: BodyFormat = BodyFormat.JSON, *, kept_in: str
) -> StructType | None:
    """The schema kept in the file `kept_in`, else that of the newest messages; None if there are none.

    `options` are those of a batch read of the messages. NsqSparkError if they cannot be read.
    """
    files = FileSystem(spark)
    kept = files.read_text(kept_in)
    if kept is not None:
        return struct_of(kept)
    found = newest_schema(spark, options, body_format)
    if not found.fields:
        return None
    files.write_text(kept_in, ddl_of(found))
    return found


def struct_of(ddl: str) -> StructType:
    """The columns in DDL. ParseException if it is not DDL."""
    found = StructType.fromDDL(ddl)
    return found if isinstance(found, StructType) else StructType([StructField("value", found)])


def ddl_of(schema: StructType) -> str:
    """The columns as DDL, without NOT NULL."""
    columns = ((field.name.replace("`", "``"), field.dataType.simpleString()) for field in schema.fields)
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def _column(name: str, ddl_type: str) -> StructField:
    """A column of this type; of text if the type has names in it that DDL does not take."""
    try:
        return struct_of(f"`{name.replace('`', '``')}` {ddl_type}").fields[0]
    except PySparkException:
        return StructField(name, StringType())


def newest_schema(
    spark: SparkSession, options: Mapping[str, str], body_format: BodyFormat = BodyFormat.JSON
) -> StructType:
    """The columns of the newest messages; none if they are no JSON objects. NsqSparkError if they cannot be read."""
    bodies = _texts(newest_bodies(options, count=NEWEST_ROWS))
    documents = chain.from_iterable(map(lines_of, bodies)) if body_format is BodyFormat.JSON_LINES else bodies
    texts = spark.createDataFrame([(document,) for document in documents], "text STRING")
    reserved = {*RESERVED, "_corrupt_record"}
    return StructType([field for field in spark.read.json(texts).schema.fields if field.name not in reserved])


def _texts(bodies: Iterable[bytes]) -> Iterable[str]:
    for body in bodies:
        try:
            yield body.decode()
        except UnicodeDecodeError:
            continue  # not UTF-8, so not JSON


# Queries.

OBSERVED = "emberq_"
"""The prefix of what a query observes of a source's messages."""
MAX_CHANNEL_CHARS = 64
TOPIC, TOPIC_PATTERN = "topic", "topic_pattern"
"""How paths of definitions end that say what is read."""

_CONNECT = Problem(
    (),
    "a pipeline asks Java about its queries and checkpoints, and Spark Connect has no Java here",
    'run it where Spark\'s driver is, in a session of emberq.spark.session() or SparkSession.builder.master("...")',
)
_WRITE_IT_DOWN = 'write it down: schema = "page STRING, at TIMESTAMP"'
_WINDOW_REMEDY = 'add a watermark to the source and group by a window of that column, or set output_mode = "update"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkQuery:
    """The query of a sink, or of the bad records of a source."""

    name: str
    rows: DataFrame
    sink: Sink
    checkpoint: str
    state: Mapping[str, str]
    """The definitions that the query's state depends on, by their paths; empty if it keeps none."""
    definitions: Mapping[str, str]
    """All definitions that its rows depend on, by their paths."""
    graph: Sequence[Mapping[str, Any]]
    """What leads to the sink, and the sink, for those who watch it: `name`, `kind`, `detail`, and `uses`, the names of
    what comes before."""
    rules: Mapping[str, Mapping[str, str]]
    """The rules on that way by source or view and name: their `action` and condition."""


def build(pipeline: Pipeline, spark: SparkSession, *, origin: ProblemOrigin | None = None) -> list[SinkQuery]:
    """The queries of a pipeline. PipelineError with all that is wrong with it."""
    if not hasattr(spark, "_jvm"):
        raise PipelineError([_CONNECT], origin)
    problems = problems_of(pipeline)
    if problems:
        raise PipelineError(problems, origin)
    builder = _Builder(pipeline, spark)
    queries = [*builder.sinks(), *builder.bad_records()]
    if builder.problems:
        raise PipelineError(list(dict.fromkeys(builder.problems)), origin)
    return queries


def grow_schema(pipeline: Pipeline, spark: SparkSession, source: str, types: Mapping[str, str]) -> list[str]:
    """Let the schema of a source grow by new fields, for the next `build`; the DDL of its new columns."""
    return _Builder(pipeline, spark).grow(source, types)


class _Builder:
    def __init__(self, pipeline: Pipeline, spark: SparkSession) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._schemas: dict[str, StructType] = {}
        self._added: dict[str, StructType] = {}
        """The columns by which schemas have grown, behind those of `_schemas`."""
        self.problems: list[Problem] = []

    def sinks(self) -> Iterator[SinkQuery]:
        self._find_schemas()
        if self.problems:
            return
        self._define_tables()
        for name, sink in self._pipeline.sinks.items():
            self._define_views(query=name)
            if self.problems:
                return  # what is built on it would repeat the problem
            yield from self._checked(name, sink)

    def bad_records(self) -> Iterator[SinkQuery]:
        """A query for each source that says where its bad records go."""
        for name, source in self._pipeline.sources.items():
            if source.bad_records is None or name not in self._schemas:
                continue
            query = f"{name}-bad"
            rows = bad_records(self._judged(name, source, query=query))
            if source.bad_records.topic:
                rows = dead_letters(rows, channel=f"{self._pipeline.name}.{name}")
                sink = Sink(view=name, topic=source.bad_records.topic)
            else:
                sink = Sink(view=name, path=source.bad_records.path, partition_by_time="timestamp")
            yield self._query(query, sink, rows)

    def _checked(self, name: str, sink: Sink) -> Iterator[SinkQuery]:
        """The query of a sink, unless Spark cannot run it, which is a problem then."""
        rows = self._spark.table(sink.view)
        fault = stream_fault(rows, sink.output_mode)
        if fault is not None:
            self._problem(("sink", name), fault, _WINDOW_REMEDY if "output mode" in fault.lower() else "")
            return
        missing = {*sink.partition_by, *filter(None, [sink.partition_by_time])} - {*rows.columns}
        if missing:
            where = f"{sink.view} has the columns {', '.join(rows.columns)}"
            self._problem(("sink", name), f"there is no column {', '.join(sorted(missing))}", where)
            return
        if sink.format == JDBC:
            self.problems += problems_with(name, sink, rows.schema, self._spark)
        yield self._query(name, sink, rows)

    def _query(self, name: str, sink: Sink, rows: DataFrame) -> SinkQuery:
        definitions = dict(self._definitions(sink.view))
        return SinkQuery(
            name=name,
            rows=rows,
            sink=sink,
            checkpoint=self._checkpoint(name),
            state=definitions if _is_stateful(_analyzed(rows)) else {},
            definitions=definitions,
            graph=graph_of(self._pipeline, sink, name=name),
            rules=rules_of(self._pipeline, sink.view),
        )

    def _problem(self, path: KeyPath, text: str, remedy: str = "", *, line_offset: int = 0) -> None:
        self.problems.append(Problem(path, text, remedy, line_offset))

    def _checkpoint(self, query: str) -> str:
        return f"{self._pipeline.checkpoint.rstrip('/')}/{query}"

    # Sources

    def _find_schemas(self) -> None:
        for name, source in self._pipeline.sources.items():
            try:
                schema = fixed_schema(source.format) or self._schema_of(name, source)
            except PySparkException as fault:
                remedy = "write it as SQL does: page STRING NOT NULL, at TIMESTAMP" if source.schema else ""
                path: KeyPath = ("source", name, "schema") if source.schema else ("source", name)
                self._problem(path, cause_of(fault), remedy)
                continue
            except NsqSparkError as failure:
                self._problem(("source", name), f"its schema cannot be seen: {failure}", _WRITE_IT_DOWN)
                continue
            reserved = [field.name for field in schema.fields if field.name.lower() in RESERVED]
            if reserved:
                self._problem(("source", name, "schema"), f"{reserved[0]} tells of the message", "rename that column")
            self._schemas[name] = schema
            self._added[name] = self._added_to(name, source)

    def _added_to(self, name: str, source: Source) -> StructType:
        """The columns by which a schema has grown. One that was written down since is not among them."""
        kept = FileSystem(self._spark).read_text(self._file(name, "added"))
        if kept is None or source.schema_evolution is not SchemaEvolution.ADD:
            return StructType()
        known = {field.name.lower() for field in self._schemas[name].fields}
        return StructType([field for field in struct_of(kept).fields if field.name.lower() not in known])

    def grow(self, name: str, types: Mapping[str, str]) -> list[str]:
        """Add columns to a schema; their DDL. The newest messages may show a wider type, and more columns."""
        source = self._pipeline.sources[name]
        self._find_schemas()
        known = {field.name.lower() for field in self._columns(name).fields}
        found = {column: _column(column, ddl_type) for column, ddl_type in types.items()}
        try:
            newest = newest_schema(self._spark, self._batch_options(source), source.format)
            found |= {field.name: field for field in newest.fields}
        except NsqSparkError:
            pass  # it is read from a channel, or an nsqd is away
        new = {field.name.lower(): field for field in found.values() if field.name.lower() not in known}
        if new:
            grown = StructType([*self._added[name].fields, *new.values()])
            FileSystem(self._spark).write_text(self._file(name, "added"), ddl_of(grown))
        return [ddl_of(StructType([field])) for field in new.values()]

    def _columns(self, name: str) -> StructType:
        """The columns of a source, those by which it has grown included."""
        return StructType([*self._schemas[name].fields, *self._added[name].fields])

    def _file(self, name: str, kind: str) -> str:
        """A file of a source in the folder of the checkpoint."""
        return f"{self._pipeline.checkpoint.rstrip('/')}/{name}.{kind}"

    def _schema_of(self, name: str, source: Source) -> StructType:
        if source.schema:
            return struct_of(source.schema)
        options, kept_in = self._batch_options(source), self._file(name, "schema")
        schema = peeked_schema(self._spark, options, source.format, kept_in=kept_in)
        if schema is None:
            self._problem(("source", name), "there are no messages to see the schema by", _WRITE_IT_DOWN)
        return schema or StructType()

    def _batch_options(self, source: Source) -> dict[str, str]:
        streaming_only = {option.name.lower() for option in OPTIONS if not option.use & Use.BATCH} | {"channel"}
        options = source_options(self._pipeline, source)
        return {key: text for key, text in options.items() if key.lower() not in streaming_only}

    def _judged(self, name: str, source: Source, *, query: str) -> DataFrame:
        own = {"channel": channel_name(self._pipeline.name, query), "spool": f"{self._checkpoint(query)}.spool-{name}"}
        options = own | source_options(self._pipeline, source)
        messages = self._spark.readStream.format("nsq").options(**options).load()
        columns = self._columns(name)
        found = judged(messages, source, columns, name=name)
        if source.expect:
            if not self._are_conditions(("source", name), good_rows(found, columns), source.expect):
                return found
            found = held_to(source.expect, found, columns, name=name)
        samples = samples_of(source) if self._pipeline.samples else ()
        return found.observe(f"{OBSERVED}{name}", *counts(source), *samples)

    def _are_conditions(self, path: KeyPath, rows: DataFrame, rules: Mapping[str, Expectation]) -> bool:
        """Whether rules are conditions over the columns of these rows. If not, that is a problem."""
        known = len(self.problems)
        for name, rule in rules.items():
            where = (*path, "expect", name)
            try:
                found = rows.select(F.expr(rule.sql)).schema.fields[0].dataType
            except PySparkException as fault:
                self._problem(where, first_sentence(fault))
            else:
                if not isinstance(found, BooleanType):
                    self._problem(where, f"it is no condition, its type is {found.simpleString().upper()}")
        return len(self.problems) == known

    def _rows(self, name: str, source: Source, *, query: str) -> DataFrame:
        rows = good_rows(self._judged(name, source, query=query), self._columns(name))
        if source.watermark is not None:
            rows = rows.withWatermark(source.watermark.column, source.watermark.delay)
        return rows.dropDuplicatesWithinWatermark(list(source.dedupe)) if source.dedupe else rows

    # Views

    def _define_tables(self) -> None:
        for name, table in self._pipeline.tables.items():
            reader = self._spark.read.format(table.format).options(**table.options)
            try:
                if table.schema:
                    reader = reader.schema(table.schema)
                reader.load(table.path).createOrReplaceTempView(name)
            except PySparkException as fault:
                self._problem(("table", name), first_sentence(fault))

    def _define_views(self, *, query: str) -> None:
        """Define all views, reading from the channel of `query`."""
        for name, source in self._pipeline.sources.items():
            try:
                self._rows(name, source, query=query).createOrReplaceTempView(name)
            except PySparkException as fault:
                self._problem(("source", name), first_sentence(fault))
        if self.problems:
            return
        for name, view in self._pipeline.views.items():
            try:
                rows = self._spark.sql(view.sql)
            except PySparkException as fault:
                self._problem(("view", name, "sql"), first_sentence(fault), line_offset=_sql_line(fault, view.sql))
                return  # later views may use it
            if view.expect:
                if not self._are_conditions(("view", name), rows, view.expect):
                    return
                rows = held_rows(rows, view.expect, view=name, has_samples=self._pipeline.samples)
            rows.createOrReplaceTempView(name)

    def _definitions(self, view: str) -> Iterator[tuple[str, str]]:
        """The definitions of a view: its SQL, that of the views it uses, and what is said of its sources."""
        pipeline = self._pipeline
        if view in pipeline.sources:
            yield from self._source_definitions(view)
        if view in pipeline.views:
            yield f"view.{view}.sql", " ".join(pipeline.views[view].sql.split())
            for name in used_by(pipeline, view):
                yield from self._definitions(name)

    def _source_definitions(self, name: str) -> Iterator[tuple[str, str]]:
        """What is said of a source that decides which rows it has. Whether a column may be missing does not."""
        source, path = self._pipeline.sources[name], f"source.{name}"
        if source.topic:
            yield f"{path}.{TOPIC}", ", ".join(sorted(source.topic))
        else:
            yield f"{path}.{TOPIC_PATTERN}", source.topic_pattern
        yield f"{path}.format", source.format.value
        yield f"{path}.schema", ddl_of(self._schemas[name])
        if source.watermark is not None:
            yield f"{path}.watermark", source.watermark.column
            yield f"{path}.watermark.delay", source.watermark.delay
        if source.dedupe:
            yield f"{path}.dedupe", ", ".join(source.dedupe)


def channel_name(pipeline: str, query: str) -> str:
    """The channel that follows a query."""
    return re.sub(r"[^.a-zA-Z0-9_-]", "-", f"{pipeline}.{query}")[-MAX_CHANNEL_CHARS:]


def _sql_line(fault: Exception, sql: str) -> int:
    """How many lines below its key the fault lies. Long SQL begins on the line behind the three quotes."""
    found = re.search(r"\bline (\d+)", str(fault))
    return int(found[1]) if found and "\n" in sql.strip() else 0
