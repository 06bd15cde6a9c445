"""SQL over topics and archives, as they are when a statement runs: what `emberq sql` asks.

A topic is a view of its name, with _ for characters that SQL does not allow. Its columns are those of the JSON in the
bodies, or with `raw` those of format("nsq") and the body as `text`. An archive is the view `archive`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from emberq.spark.error import NsqSparkError
from emberq.spark.pipeline.body_format import good_rows, judged
from emberq.spark.pipeline.build import cause_of, newest_schema, struct_of
from emberq.spark.pipeline.model import Source

ARCHIVE = "archive"

_Item = TypeVar("_Item")


class StatementError(NsqSparkError):
    """Spark cannot run a statement."""


@dataclass(frozen=True, slots=True)
class Result(Generic[_Item]):
    """The result of a statement: rows, or lines of JSON."""

    columns: Sequence[str]
    items: Sequence[_Item]
    is_cut: bool
    """Whether there were more rows than asked for."""


class SqlConsole:
    """Runs statements over topics and archives, in a session that it does not own."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def add_topic(self, topic: str, *, access: Mapping[str, str], schema: str, raw: bool) -> None:
        """Make a view of a journaled topic. An empty `schema` is derived from the newest messages."""
        with _explained():
            options = {**access, "topic": topic}
            messages = self._spark.read.format("nsq").options(**options).load()
            if raw:
                rows = messages.selectExpr("*", "CAST(body AS STRING) AS text")
            else:
                columns = struct_of(schema) if schema else newest_schema(self._spark, options)
                if not columns.fields:
                    raise StatementError(f"the messages of {topic} are no JSON objects; take them raw")
                rows = good_rows(judged(messages, Source(topic=("any",)), columns), columns)
            rows.createOrReplaceTempView(re.sub(r"[^A-Za-z0-9_]", "_", topic))

    def add_archive(self, path: str) -> None:
        """Make a view of an archive."""
        with _explained():
            self._spark.read.parquet(path).selectExpr("*", "CAST(body AS STRING) AS text").createOrReplaceTempView(
                ARCHIVE
            )

    def rows(self, statement: str, *, max_rows: int) -> Result[tuple[Any, ...]]:
        """The rows of a statement, as values."""
        with _explained():
            found = self._spark.sql(statement)
            return _cut(found.columns, [tuple(row) for row in found.limit(max_rows + 1).collect()], max_rows)

    def json_lines(self, statement: str, *, max_rows: int) -> Result[str]:
        """The rows of a statement, each as a JSON object on one line. A value that is null has no key."""
        with _explained():
            found = self._spark.sql(statement)
            if not found.columns:  # a statement without a result, such as CREATE VIEW
                return Result(found.columns, [], is_cut=False)
            lines = found.limit(max_rows + 1).select(F.to_json(F.struct("*")))
            return _cut(found.columns, [str(row[0]) for row in lines.collect()], max_rows)


def _cut(columns: Sequence[str], items: Sequence[_Item], max_rows: int) -> Result[_Item]:
    return Result(columns, items[:max_rows], is_cut=len(items) > max_rows)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PySparkException as fault:
        raise StatementError(cause_of(fault)) from fault
