"""The schema of a topic of JSON, as its newest messages show it.

Read once: what was found is kept in the folder of the checkpoint and used from then on, because a query that has begun
with one schema must go on with it. To look anew, remove the file; to have it your way, write the schema down.

Only a journaled topic can be looked at without taking messages from somebody.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from emberq.spark.pipeline.body_format import MESSAGE_COLUMNS
from emberq.spark.pipeline.file_system import FileSystem

NEWEST_ROWS = 1000
"""How many messages are looked at, of each topic and nsqd."""


def peeked_schema(spark: SparkSession, messages: DataFrame, *, kept_in: str) -> StructType | None:
    """The schema kept in that file, or else that of the newest of these messages; None if there are none."""
    files = FileSystem(spark)
    kept = files.read_text(kept_in)
    if kept is not None:
        return struct_of(kept)
    found = newest_schema(spark, messages)
    if not found.fields:
        return None
    files.write_text(kept_in, ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in found.fields))
    return found


def struct_of(ddl: str) -> StructType:
    """The columns that DDL names. ParseException if it is none."""
    found = StructType.fromDDL(ddl)
    return found if isinstance(found, StructType) else StructType([StructField("value", found)])


def newest_schema(spark: SparkSession, messages: DataFrame) -> StructType:
    """The columns of the newest of these messages; none if they are no JSON objects."""
    place = ["topic", "nsqd"]
    ends = messages.groupBy(*place).agg(F.max("offset").alias("end"))
    newest = messages.join(ends, place).where(F.col("offset") > F.col("end") - NEWEST_ROWS)
    texts = newest.select(F.col("body").cast("string").alias("text")).where("is_valid_utf8(text)")
    inferred = spark.read.json(spark.sparkContext.parallelize([row["text"] for row in texts.collect()]))
    reserved = {*MESSAGE_COLUMNS, "_corrupt_record"}
    return StructType([field for field in inferred.schema.fields if field.name not in reserved])
