"""The rows that Spark sees: one per message.

    topic      string      where it was published
    nsqd       string      which nsqd has it: the address of its HTTP API
    offset     long        its place in the topic's journal on that nsqd; null if it came through a channel
    id         string      NSQ's id of the message, 16 hexadecimal digits
    timestamp  timestamp   when it was published
    attempts   int         how often it was delivered so far; null if it was read from a journal, which delivers nothing
    body       binary      the message

(nsqd, topic, offset) is unique for ever in journal mode. Spark checks what a source yields against the Arrow schema,
to the unit of the timestamps.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TIMESTAMP = pa.timestamp("us", "UTC")

MESSAGE_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("nsqd", StringType()),
        StructField("offset", LongType()),
        StructField("id", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("attempts", IntegerType()),
        StructField("body", BinaryType()),
    ]
)

ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("nsqd", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("attempts", pa.int32()),
        pa.field("body", pa.binary()),
    ]
)
