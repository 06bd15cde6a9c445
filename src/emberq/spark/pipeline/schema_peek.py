"""The schema of a topic of JSON, as its newest messages show it.

Read once: what was found is kept in the folder of the checkpoint and used from then on, because a query that has begun
with one schema must go on with it. To look anew, remove the file; to have it your way, write the schema down.

Only a journaled topic can be looked at without taking messages from somebody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from emberq.spark.journal_peek import newest_bodies
from emberq.spark.pipeline.body_format import MESSAGE_COLUMNS
from emberq.spark.pipeline.file_system import FileSystem

NEWEST_ROWS = 1000
"""How many messages are looked at, of each topic and nsqd."""


def peeked_schema(spark: SparkSession, options: Mapping[str, str], *, kept_in: str) -> StructType | None:
    """The schema kept in that file, or else that of the newest messages; None if there are none.

    `options` say as those of a batch read which messages. NsqSparkError if they cannot be had.
    """
    files = FileSystem(spark)
    kept = files.read_text(kept_in)
    if kept is not None:
        return struct_of(kept)
    found = newest_schema(spark, options)
    if not found.fields:
        return None
    files.write_text(kept_in, ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in found.fields))
    return found


def struct_of(ddl: str) -> StructType:
    """The columns that DDL names. ParseException if it is none."""
    found = StructType.fromDDL(ddl)
    return found if isinstance(found, StructType) else StructType([StructField("value", found)])


def newest_schema(spark: SparkSession, options: Mapping[str, str]) -> StructType:
    """The columns of the newest messages; none if they are no JSON objects. NsqSparkError if they cannot be had."""
    texts = spark.createDataFrame(
        [(text,) for text in _texts(newest_bodies(options, count=NEWEST_ROWS))], "text STRING"
    )
    reserved = {*MESSAGE_COLUMNS, "_corrupt_record"}
    return StructType([field for field in spark.read.json(texts).schema.fields if field.name not in reserved])


def _texts(bodies: Iterable[bytes]) -> Iterable[str]:
    for body in bodies:
        try:
            yield body.decode()
        except UnicodeDecodeError:
            continue  # it is none that JSON could be in
