"""The columns that are read, and those that can be written.

Read, one row per message:

    topic      string      where it was published
    nsqd       string      which nsqd has it: the address of its HTTP API, or of its TCP port in channel mode
    offset     long        its place in the topic's journal on that nsqd; null if it came through a channel
    id         string      NSQ's id of the message, 16 hexadecimal digits
    timestamp  timestamp   when it was published
    attempts   int         how often it was delivered so far; null if it was read from a journal, which delivers nothing
    body       binary      the message

(nsqd, topic, offset) stays unique in journal mode. Spark checks what a source yields against the Arrow schema, to the
unit of the timestamps.

Written (`check_schema`):

    body       string or binary   the message; neither null nor empty
    topic      string             where it goes, unless the option `topic` says it for all
    defer_ms   short, int, long   after how many milliseconds it is delivered; null or 0: at once

The other columns of format("nsq") are ignored when written, so rows read from one topic can be written to another.

And the values of such columns: `constant`, `integers` and `byte_strings` make them of their bytes. `pa.scalar` and
`pa.array` look whether they were given something of pandas, and import it for that where it is installed: a third of
the time that a Python process of Spark takes to start. Arrow's functions do the same with a plain Python value.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from emberq.spark.error import OptionError, SchemaError

# Read.

TIMESTAMP = pa.timestamp("us", "UTC")

_COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "topic": (StringType(), pa.string()),
    "nsqd": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "id": (StringType(), pa.string()),
    "timestamp": (TimestampType(), TIMESTAMP),
    "attempts": (IntegerType(), pa.int32()),
    "body": (BinaryType(), pa.binary()),
}
"""The types of each column, in Spark and in Arrow."""
COLUMNS = tuple(_COLUMNS)
MESSAGE_SCHEMA = StructType([StructField(name, kind) for name, (kind, _) in _COLUMNS.items()])
ARROW_SCHEMA = pa.schema([pa.field(name, kind) for name, (_, kind) in _COLUMNS.items()])


def schema_of(columns: Collection[str]) -> StructType:
    """The schema of rows that have only these columns."""
    return StructType([field for field in MESSAGE_SCHEMA.fields if field.name in columns])


# Written.

BODY = "body"
TOPIC = "topic"
DEFER_MS = "defer_ms"

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    BODY: (StringType, BinaryType),
    TOPIC: (StringType,),
    DEFER_MS: (ShortType, IntegerType, LongType),
}


def check_schema(schema: StructType, *, topic: str | None) -> None:
    """SchemaError if such rows cannot be written, OptionError if neither option nor column names the topic."""
    types = {field.name: field.dataType for field in schema.fields}
    if BODY not in types:
        found = ", ".join(types) or "none"
        raise SchemaError(f'there is no column "{BODY}" to publish (columns: {found}); {_advice(types)}')
    for name, allowed in _TYPES.items():
        if name in types and not isinstance(types[name], allowed):
            kinds = " or ".join(kind.typeName() for kind in allowed)
            raise SchemaError(f'column "{name}" is {types[name].simpleString()}; it must be {kinds}')
    unknown = [name for name in types if name not in _TYPES and name not in MESSAGE_SCHEMA.fieldNames()]
    if unknown:
        raise SchemaError(f'column "{unknown[0]}" would be lost; drop it, or {_advice(types)}')
    if topic is None and TOPIC not in types:
        raise OptionError(f'nothing says where rows go: set option "topic", or add a column "{TOPIC}"')


def _advice(types: dict[str, DataType]) -> str:
    columns = [name for name in types if name not in _TYPES][:3]
    shown = ", ".join(columns) + (", ..." if len(columns) == 3 else "")
    return f'make the body of them, as selectExpr("to_json(struct({shown or "*"})) AS body")'


# Values.

_TYPE_CODES = {
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
}
"""What the standard library's arrays call these types."""


def constant(value: int | str | bytes, kind: pa.DataType) -> pa.Scalar:
    """One value of this type."""
    if isinstance(value, int):
        return integers([value], kind)[0]
    return byte_strings([value.encode() if isinstance(value, str) else value]).view(kind)[0]


def integers(values: Sequence[int], kind: pa.DataType) -> pa.Array:
    """A column of numbers."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(_TYPE_CODES[kind], values))])


def byte_strings(values: Sequence[bytes], lengths: Sequence[int] | None = None) -> pa.BinaryArray:
    """A column of bytes: of these values, or cut from them, back to back, by `lengths`."""
    if lengths is None:
        lengths = [len(value) for value in values]
    positions = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, pa.py_buffer(positions), pa.py_buffer(b"".join(values))]
    )
