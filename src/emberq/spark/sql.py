"""SQL over topics and archives, as they are when a statement runs: what `emberq sql` asks.

A topic is a view of its name, with _ for characters that SQL does not allow. Its columns are those of the JSON in the
bodies, or with `raw` those of format("nsq") and the body as `text`. An archive is the view `archive`; a topic that is
archived is read from there, and from its journals only what the archive does not have yet.

Messages that are no rows of a topic's view are counted while a statement reads them, and are a view of their own:
`clicks_unparsed` beside `clicks`, with the reason of each. The count costs nothing: all messages are judged anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from emberq.base.text import format_moment
from emberq.spark.archive import TimeRange, read_topic
from emberq.spark.error import NsqSparkError
from emberq.spark.pipeline.body_format import bad_records, counts, good_rows, judged
from emberq.spark.pipeline.build import cause_of, newest_schema, struct_of
from emberq.spark.pipeline.model import Source

ARCHIVE = "archive"
UNPARSED = "_unparsed"
"""Behind the name of a topic's view: the view of its messages that are no rows."""

_Item = TypeVar("_Item")


class StatementError(NsqSparkError):
    """Spark cannot run a statement."""


@dataclass(frozen=True, slots=True)
class Unparsed:
    """How many of the messages that a statement read are no rows of their topic's view."""

    count: int
    messages: int
    """All messages of the topic that were read. With LIMIT that may be a part of them."""
    view: str
    """Where they can be seen, with the reasons."""


@dataclass(frozen=True, slots=True)
class Result(Generic[_Item]):
    """The result of a statement: rows, or lines of JSON."""

    columns: Sequence[str]
    items: Sequence[_Item]
    is_cut: bool
    """Whether there were more rows than asked for."""
    unparsed: Mapping[str, Unparsed] = field(default_factory=dict)
    """For each view whose topic has them: the messages that the statement read and that are no rows."""


class SqlConsole:
    """Runs statements over topics and archives, in a session that it does not own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._topics: set[str] = set()
        """The views of topics whose messages are judged."""
        self._definitions: dict[str, Callable[[], None]] = {}
        """What makes the view of each topic."""
        self._has_run = False

    def add_topic(
        self,
        topic: str,
        *,
        access: Mapping[str, str],
        schema: str,
        raw: bool,
        archive: str | None = None,
        times: TimeRange | None = None,
    ) -> None:
        """Make a view of a journaled topic, and of its archive if that is named.

        An empty `schema` is derived from the newest messages. With `times` the view has only what was published then.
        """
        view = re.sub(r"[^A-Za-z0-9_]", "_", topic)
        options = {**access, "topic": topic}
        with _explained():
            columns = None
            if not raw:
                columns = struct_of(schema) if schema else newest_schema(self._spark, options)
                if not columns.fields:
                    raise StatementError(f"the messages of {topic} are no JSON objects; take them raw")
            self._definitions[view] = lambda: self._define(view, self._messages(options, archive, times), columns)
            self._definitions[view]()

    def _define(self, view: str, messages: DataFrame, columns: StructType | None) -> None:
        """Make the view of a topic's messages: with these columns, or raw."""
        if columns is None:
            rows = messages.selectExpr("*", "CAST(body AS STRING) AS text")
        else:
            source = Source(topic=(view,))
            found = judged(messages, source, columns)
            self._add_unparsed(view, found)
            rows = good_rows(found.observe(view, *counts(source)), columns)
            self._topics.add(view)
        rows.createOrReplaceTempView(view)

    def _found(self, statement: str) -> DataFrame:
        """The rows of a statement over what there is now: a DataFrame that has run once gives the same rows again."""
        if self._has_run:
            for define in self._definitions.values():
                define()
        self._has_run = True
        return self._spark.sql(statement)

    def _messages(self, options: Mapping[str, str], archive: str | None, times: TimeRange | None) -> DataFrame:
        if archive is not None:
            return read_topic(self._spark, options, archive=archive, times=times)
        bounds = {}
        if times is not None and times.start_ns is not None:
            bounds["startingOffsets"] = format_moment(times.start_ns)
        if times is not None and times.end_ns is not None:
            bounds["endingOffsets"] = format_moment(times.end_ns)
        return self._spark.read.format("nsq").options(**options, **bounds).load()

    def _add_unparsed(self, view: str, judged_messages: DataFrame) -> None:
        if view + UNPARSED not in self._topics:  # a topic may have that name
            bad = bad_records(judged_messages).selectExpr("*", "CAST(body AS STRING) AS text").drop("body")
            bad.createOrReplaceTempView(view + UNPARSED)

    def add_archive(self, path: str) -> None:
        """Make a view of an archive."""
        with _explained():
            self._spark.read.parquet(path).selectExpr("*", "CAST(body AS STRING) AS text").createOrReplaceTempView(
                ARCHIVE
            )

    def rows(self, statement: str, *, max_rows: int) -> Result[tuple[Any, ...]]:
        """The rows of a statement, as values."""
        with _explained():
            found = self._found(statement)
            wanted = found.limit(max_rows + 1)
            rows = [tuple(row) for row in wanted.collect()]
            return _cut(found.columns, rows, max_rows, self._unparsed(wanted))

    def json_lines(self, statement: str, *, max_rows: int) -> Result[str]:
        """The rows of a statement, each as a JSON object on one line. A value that is null has no key."""
        with _explained():
            found = self._found(statement)
            if not found.columns:  # a statement without a result, such as CREATE VIEW
                return Result(found.columns, [], is_cut=False)
            lines = found.limit(max_rows + 1).select(F.to_json(F.struct("*")))
            texts = [str(row[0]) for row in lines.collect()]
            return _cut(found.columns, texts, max_rows, self._unparsed(lines))

    def _unparsed(self, done: DataFrame) -> dict[str, Unparsed]:
        """What a statement that has run left out, by the views it used. Only Java knows what was observed."""
        java_rows: Any = done._jdf
        observed = java_rows.queryExecution().observedMetrics()
        found = {}
        for view in self._topics:
            metrics = observed.get(view)
            if metrics.isDefined() and metrics.get().getLong(1):
                messages, bad = (metrics.get().getLong(column) for column in (0, 1))
                found[view] = Unparsed(count=bad, messages=messages, view=view + UNPARSED)
        return found


def _cut(
    columns: Sequence[str], items: Sequence[_Item], max_rows: int, unparsed: Mapping[str, Unparsed]
) -> Result[_Item]:
    return Result(columns, items[:max_rows], is_cut=len(items) > max_rows, unparsed=unparsed)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PySparkException as fault:
        raise StatementError(cause_of(fault)) from fault
