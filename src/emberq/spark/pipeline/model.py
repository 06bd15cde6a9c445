"""What a pipeline is, as values: where its data comes from, what is made of it, where that goes. Nothing runs here.

    from emberq.spark.pipeline import Pipeline, Sink, Source, View, Watermark

    pipeline = Pipeline(
        name="clickstream",
        checkpoint="data/checkpoint",
        nsqd=("127.0.0.1:4151",),
        sources={
            "clicks": Source(
                topic=("clicks",),
                schema="page STRING NOT NULL, at TIMESTAMP NOT NULL",
                watermark=Watermark(column="at", delay="1 minute"),
            )
        },
        views={"per_minute": View(sql="SELECT window(at, '1 minute') AS minute, page, count(*) AS clicks ...")},
        sinks={"counts": Sink(view="per_minute", topic="clicks.per-minute")},
    )

The same can be written as TOML (`toml_file`). `check` finds what is wrong with a pipeline, `run` runs it.

A source is a view of its own name: the columns of its schema, and `_topic`, `_nsqd`, `_offset`, `_id` and `_time` of
the message, and `_headers` with the option `includeHeaders`. Views may use sources, tables and the views before them.

**Problems** with a pipeline (`PipelineError`) are told all at once, each with its place and a remedy. The place is a
path, the keys that lead to it: `("sink", "counts", "from")`. If the pipeline came from a file, the path is turned into
a line:

    clicks.toml:14: sink.counts.from: there is no source or view "per_minut"; did you mean "per_minute"?
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from emberq.spark.error import NsqSparkError

DEFAULT_TRIGGER = "1s"
AVAILABLE_NOW = "available-now"
JDBC = "jdbc"
"""The format of a sink that is a table of a database."""
PROGRESS_TOPIC = "emberq.pipelines"


class BodyFormat(enum.StrEnum):
    """The format of message bodies."""

    JSON = "json"
    JSON_LINES = "json-lines"
    """A JSON object on each line of the body, and a row of each."""
    CSV = "csv"
    TEXT = "text"
    BINARY = "binary"

    @property
    def is_json(self) -> bool:
        """Whether rows are JSON objects."""
        return self in (BodyFormat.JSON, BodyFormat.JSON_LINES)


class SchemaEvolution(enum.StrEnum):
    """What becomes of fields of a JSON object that the schema does not have."""

    IGNORE = "ignore"
    """They are left out."""
    RESCUE = "rescue"
    """They are kept in the column `_rescued`, as are values that do not fit their columns."""
    ADD = "add"
    """The schema grows by them while the pipeline runs."""
    FAIL = "fail"
    """The pipeline ends."""


class OutputMode(enum.StrEnum):
    """Which rows of a result each batch writes to a sink."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class WriteMode(enum.StrEnum):
    """What becomes of a row in a database whose key the table has already."""

    APPEND = "append"
    """Every row is a new one."""
    UPSERT = "upsert"
    """It replaces the row with that key."""


class RuleAction(enum.StrEnum):
    """What becomes of a row that does not meet a rule. It is counted in any case."""

    WARN = "warn"
    """It is kept."""
    DROP = "drop"
    """It is left out; a row of a source goes to the bad records."""
    FAIL = "fail"
    """The query ends, and nothing of the batch is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A rule for rows: a condition in SQL, over the columns of its source or view."""

    sql: str
    action: RuleAction = RuleAction.WARN

    def __post_init__(self) -> None:
        object.__setattr__(self, "action", RuleAction(self.action))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How late a row may be: rows whose `column` is more than `delay` behind the latest are dropped."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecords:
    """Where messages go that do not fit their source: to a topic, or to a folder of Parquet files."""

    topic: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Messages of one or several topics, read as rows."""

    topic: tuple[str, ...] = ()
    topic_pattern: str = ""
    """Instead of `topic`: a regular expression for whole names."""
    format: BodyFormat = BodyFormat.JSON
    schema: str = ""
    """The columns as DDL. Empty for JSON: those of the newest messages. A message without a NOT NULL column is bad."""
    schema_evolution: SchemaEvolution = SchemaEvolution.IGNORE
    format_options: Mapping[str, str] = field(default_factory=dict)
    """Spark's options for the format, such as `sep` for CSV."""
    bad_records: BadRecords | None = None
    """None: bad records are counted and left out."""
    watermark: Watermark | None = None
    expect: Mapping[str, Expectation] = field(default_factory=dict)
    """Rules that rows are to meet, by name."""
    dedupe: tuple[str, ...] = ()
    """Columns that together are the same in copies of a row. Needs a watermark, which says how long copies may come."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of format("nsq"), such as `maxRowsPerTrigger`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", BodyFormat(self.format))  # a text such as "json" is taken too
        object.__setattr__(self, "schema_evolution", SchemaEvolution(self.schema_evolution))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Data that does not change while the pipeline runs, to join with."""

    path: str
    format: str = "parquet"
    schema: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A result, in Spark's SQL."""

    sql: str
    expect: Mapping[str, Expectation] = field(default_factory=dict)
    """Rules that its rows are to meet, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where the rows of a view go: a topic, a folder of files, a database, or whatever Spark can write a stream to.

    A topic gets the column `body`, or else the whole row as JSON. Parquet is written exactly once and can be compacted
    (`files`), and so is a table of a database (`jdbc`), which the fields from `url` on describe.
    """

    view: str
    topic: str = ""
    path: str = ""
    format: str = ""
    """`jdbc`, or any of Spark: `console`, `memory`, `delta`; of the files in `path`, which are Parquet without it."""
    table: str = ""
    """A table of the database, or of a catalog of Spark: `shop.orders`."""
    partition_by: tuple[str, ...] = ()
    partition_by_time: str = ""
    """A timestamp column from which partitions `date` and `hour` are made, in UTC."""
    output_mode: OutputMode = OutputMode.APPEND
    trigger: str = ""
    """The sink's own trigger; empty: the pipeline's."""
    options: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    """The database, as `jdbc:postgresql://host/name`."""
    user: str = ""
    password_env: str = ""
    """The environment variable that holds the password."""
    password_file: str = ""
    """Instead of `password_env`: the file that holds it."""
    mode: WriteMode = WriteMode.APPEND
    key: tuple[str, ...] = ()
    """To upsert: the columns by which the table knows a row."""
    jar: str = ""
    """The driver of the database; empty: Debian's, unless Spark has one already."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_mode", OutputMode(self.output_mode))
        object.__setattr__(self, "mode", WriteMode(self.mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Everything that runs together. Each sink is a query of Spark with a checkpoint of its own."""

    name: str
    checkpoint: str
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    views: Mapping[str, View] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    nsqd: tuple[str, ...] = ()
    lookupd: tuple[str, ...] = ()
    trigger: str = DEFAULT_TRIGGER
    """The interval of batches, such as `10s`. `available-now`: read what is there now, then end."""
    progress_topic: str = PROGRESS_TOPIC
    """Where progress is published; empty: nowhere."""
    samples: bool = True
    """Whether progress has samples of bad records and of rows that fail a rule."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of format("nsq") for every use of `nsqd` or `lookupd`: those of TLS, and timeouts."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the daemons at `nsqd` or `lookupd` are shown: the options `authSecret` and `lookupdSecret`."""

    @property
    def access_options(self) -> dict[str, str]:
        """The options of format("nsq") that say where NSQ is, how it is reached, and what it is shown."""
        if not (self.nsqd or self.lookupd):
            return {}
        where = {"nsqd": ",".join(self.nsqd)} if self.nsqd else {"lookupd": ",".join(self.lookupd)}
        return {**where, **self.options, **self.secrets}


# What leads where.


def used_by(pipeline: Pipeline, view: str) -> list[str]:
    """The sources, tables and earlier views that the SQL of a view names."""
    if view not in pipeline.views:
        return []
    sql, earlier = pipeline.views[view].sql, takewhile(lambda name: name != view, pipeline.views)
    known = (*pipeline.sources, *pipeline.tables, *earlier)
    return [name for name in known if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE)]


def graph_of(pipeline: Pipeline, sink: Sink, *, name: str) -> list[dict[str, Any]]:
    """What leads to a sink of this name, the first ones first, and the sink."""
    steps = [
        {"name": step, **_kind_of(pipeline, step), "uses": used_by(pipeline, step)}
        for step in _leading_to(pipeline, sink.view)
    ]
    detail = sink.topic or sink.table or sink.path or sink.format
    return [*steps, {"name": name, "kind": "sink", "detail": detail, "uses": [sink.view]}]


def rules_of(pipeline: Pipeline, view: str) -> dict[str, dict[str, str]]:
    """The rules of a view and of all that it is made of, by source or view and name."""
    held: dict[str, Source | View] = {**pipeline.sources, **pipeline.views}
    return {
        f"{step}.{name}": {"action": rule.action.value, "sql": " ".join(rule.sql.split())}
        for step in _leading_to(pipeline, view)
        if step in held
        for name, rule in held[step].expect.items()
    }


def _leading_to(pipeline: Pipeline, view: str) -> list[str]:
    found = [name for used in used_by(pipeline, view) for name in _leading_to(pipeline, used)]
    return list(dict.fromkeys([*found, view]))


def _kind_of(pipeline: Pipeline, name: str) -> dict[str, str]:
    if name in pipeline.sources:
        source = pipeline.sources[name]
        return {"kind": "source", "detail": ", ".join(source.topic) or source.topic_pattern}
    if name in pipeline.tables:
        return {"kind": "table", "detail": pipeline.tables[name].path}
    return {"kind": "view", "detail": ""}


# Problems.

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a pipeline."""

    path: KeyPath
    text: str
    remedy: str = ""
    line_offset: int = 0
    """In a text of several lines: how many lines below the key."""

    def __str__(self) -> str:
        where = f"{'.'.join(self.path)}: " if self.path else ""
        return f"{where}{self.text}{self.remedy and f'; {self.remedy}'}"


@dataclass(frozen=True, slots=True)
class ProblemOrigin:
    """The file that a pipeline was read from, and the line of each of its keys."""

    file: str
    lines: Mapping[KeyPath, int]

    def line_of(self, path: KeyPath) -> int:
        """The line of a key, or of the table around it if the key is missing."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class PipelineError(NsqSparkError, ValueError):
    """A pipeline that cannot be run. The text has a line for each problem."""

    def __init__(self, problems: Sequence[Problem], origin: ProblemOrigin | None = None) -> None:
        self.problems = tuple(problems)
        self.origin = origin
        super().__init__("\n".join(_line(problem, origin) for problem in problems))


def _line(problem: Problem, origin: ProblemOrigin | None) -> str:
    if origin is None:
        return str(problem)
    return f"{origin.file}:{origin.line_of(problem.path) + problem.line_offset}: {problem}"
