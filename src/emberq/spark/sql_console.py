"""SQL over topics and archives, as they are when a statement runs: what `emberq sql` asks.

A topic is a view of its name, with _ for what SQL does not allow in one: the columns of its JSON, or with `raw` the
columns of format("nsq") and the body as `text`. An archive is the view `archive`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.error import NsqSparkError
from emberq.spark.pipeline.body_format import good_rows, judged
from emberq.spark.pipeline.model import Source
from emberq.spark.pipeline.plan import cause_of
from emberq.spark.pipeline.schema_peek import newest_schema, struct_of

ARCHIVE = "archive"


class StatementError(NsqSparkError):
    """Spark cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class Result:
    """The rows that a statement gives."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    json_lines: Sequence[str]
    """The same, each as JSON."""
    is_cut: bool
    """There were more than were asked for."""


class SqlConsole:
    """Owns no session; uses one."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def add_topic(self, topic: str, *, access: Mapping[str, str], schema: str, raw: bool) -> None:
        """Make a view of a topic, which must be journaled. An empty schema is found in the newest messages."""
        with _explained():
            messages = self._spark.read.format("nsq").options(**access, topic=topic).load()
            rows = messages.selectExpr("*", "CAST(body AS STRING) AS text") if raw else self._parsed(messages, schema)
            if not raw and not rows.columns:
                raise StatementError(f"the messages of {topic} are no JSON objects; take them raw")
            rows.createOrReplaceTempView(re.sub(r"[^A-Za-z0-9_]", "_", topic))

    def add_archive(self, path: str) -> None:
        """Make a view of an archive."""
        with _explained():
            self._spark.read.parquet(path).selectExpr("*", "CAST(body AS STRING) AS text").createOrReplaceTempView(
                ARCHIVE
            )

    def run(self, statement: str, *, max_rows: int) -> Result:
        """What a statement gives."""
        with _explained():
            found = self._spark.sql(statement).limit(max_rows + 1)
            rows = found.collect()
            kept = self._spark.createDataFrame(rows[:max_rows], found.schema) if rows else found
            return Result(
                columns=found.columns,
                rows=[tuple(row) for row in rows[:max_rows]],
                json_lines=[str(line) for line in kept.toJSON().collect()],
                is_cut=len(rows) > max_rows,
            )

    def _parsed(self, messages: DataFrame, ddl: str) -> DataFrame:
        schema = struct_of(ddl) if ddl else newest_schema(self._spark, messages)
        if not schema.fields:
            return self._spark.createDataFrame([], schema)
        return good_rows(judged(messages, Source(topic=("any",)), schema), schema)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except PySparkException as fault:
        raise StatementError(cause_of(fault)) from fault
