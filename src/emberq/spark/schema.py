"""The columns that are read, and those that can be written.

Read, one row per message:

    topic      string      where it was published
    nsqd       string      which nsqd has it: the address of its HTTP API, or of its TCP port in channel mode
    offset     long        its place in the topic's journal on that nsqd; null if it came through a channel
    id         string      NSQ's id of the message, 16 hexadecimal digits
    timestamp  timestamp   when it was published
    attempts   int         how often it was delivered so far; null if it was read from a journal, which delivers nothing
    body       binary      the message
    headers    map         with `includeHeaders`: what its producer has put beside the body (`emberq.wire.envelope`),
                           which is then the body alone; null if the message has no envelope

(nsqd, topic, offset) stays unique in journal mode. Spark checks what a source yields against the Arrow schema, to the
unit of the timestamps.

Written (`check_schema`):

    body       string or binary   the message; neither null nor empty
    topic      string             where it goes, unless the option `topic` says it for all
    defer_ms   short, int, long   after how many milliseconds it is delivered; null or 0: at once
    headers    map of strings     put around the body as an envelope; null: it is published without one

The other columns of format("nsq") are ignored when written, so rows read from one topic can be written to another.

`opened` takes the messages of a column apart, and `in_envelopes` does the opposite. Only messages that have an envelope
are touched in Python.

And the values of such columns: `constant`, `integers` and `byte_strings` make them of their bytes. `pa.scalar` and
`pa.array` look whether they were given something of pandas, and import it for that where it is installed: a third of
the time that a Python process of Spark takes to start. Arrow's functions do the same with a plain Python value.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from emberq.spark.error import OptionError, RowError, SchemaError
from emberq.wire import envelope

# Read.

BODY = "body"
HEADERS = "headers"
TIMESTAMP = pa.timestamp("us", "UTC")

_COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "topic": (StringType(), pa.string()),
    "nsqd": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "id": (StringType(), pa.string()),
    "timestamp": (TimestampType(), TIMESTAMP),
    "attempts": (IntegerType(), pa.int32()),
    BODY: (BinaryType(), pa.binary()),
    HEADERS: (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
}
"""The types of each column, in Spark and in Arrow."""
COLUMNS = tuple(name for name in _COLUMNS if name != HEADERS)
"""Those that every message has."""


def schema_of(columns: Collection[str]) -> StructType:
    """The schema of rows that have only these columns."""
    return StructType([StructField(name, kind) for name, (kind, _) in _COLUMNS.items() if name in columns])


def arrow_schema_of(columns: Collection[str]) -> pa.Schema:
    """The same, as Arrow has it."""
    return pa.schema([pa.field(name, kind) for name, (_, kind) in _COLUMNS.items() if name in columns])


MESSAGE_SCHEMA = schema_of(COLUMNS)


# Written.

TOPIC = "topic"
DEFER_MS = "defer_ms"

_TYPES: dict[str, tuple[type[DataType], ...]] = {
    BODY: (StringType, BinaryType),
    TOPIC: (StringType,),
    DEFER_MS: (ShortType, IntegerType, LongType),
    HEADERS: (MapType,),
}


def check_schema(schema: StructType, *, topic: str | None) -> None:
    """SchemaError if such rows cannot be written, OptionError if neither option nor column names the topic."""
    types = {field.name: field.dataType for field in schema.fields}
    if BODY not in types:
        found = ", ".join(types) or "none"
        raise SchemaError(f'there is no column "{BODY}" to publish (columns: {found}); {_advice(types)}')
    for name, allowed in _TYPES.items():
        if name in types and not _is_one_of(allowed, types[name]):
            kinds = " or ".join("map<string,string>" if kind is MapType else kind.typeName() for kind in allowed)
            raise SchemaError(f'column "{name}" is {types[name].simpleString()}; it must be {kinds}')
    unknown = [name for name in types if name not in _TYPES and name not in COLUMNS]
    if unknown:
        raise SchemaError(f'column "{unknown[0]}" would be lost; drop it, or {_advice(types)}')
    if topic is None and TOPIC not in types:
        raise OptionError(f'nothing says where rows go: set option "topic", or add a column "{TOPIC}"')


def _is_one_of(allowed: tuple[type[DataType], ...], kind: DataType) -> bool:
    parts = (kind.keyType, kind.valueType) if isinstance(kind, MapType) else ()
    return isinstance(kind, allowed) and all(isinstance(part, StringType) for part in parts)


def _advice(types: dict[str, DataType]) -> str:
    columns = [name for name in types if name not in _TYPES][:3]
    shown = ", ".join(columns) + (", ..." if len(columns) == 3 else "")
    return f'make the body of them, as selectExpr("to_json(struct({shown or "*"})) AS body")'


# Headers.

_MARK = envelope.MARK.decode()


def opened(messages: pa.BinaryArray) -> tuple[pa.MapArray, pa.BinaryArray]:
    """The headers of messages, and their bodies."""
    if not pc.any(pc.starts_with(messages, _MARK)).as_py():
        return pa.nulls(len(messages), _COLUMNS[HEADERS][1]), messages
    found = [envelope.decode(message) for message in messages.to_pylist()]
    return _maps([each.headers for each in found]), byte_strings([each.body for each in found])


def _maps(headers: Sequence[Mapping[str, str]]) -> pa.MapArray:
    """A column of headers, null where there is no envelope."""
    pairs = [pair for each in headers for pair in each.items()]
    keys, values = ([pair[at].encode(errors="replace") for pair in pairs] for at in (0, 1))
    positions = accumulate(map(len, headers), initial=0)
    has_none = [each is envelope.NO_HEADERS for each in headers]
    return pa.MapArray.from_arrays(
        integers(list(positions), pa.int32()),
        byte_strings(keys).view(pa.string()),
        byte_strings(values).view(pa.string()),
        mask=integers(has_none, pa.uint8()).cast(pa.bool_()),
    )


def in_envelopes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their headers put around their bodies. RowError if they cannot be."""
    headers, bodies = rows.column(HEADERS), rows.column(BODY)
    rows = rows.drop_columns([HEADERS])
    if headers.null_count == len(headers) or bodies.null_count:  # a row without a body is refused anyway
        return rows
    pairs = zip(headers.to_pylist(), bodies.cast(pa.binary()).to_pylist(), strict=True)
    try:
        messages = [body if each is None else envelope.encode(dict(each), body) for each, body in pairs]
    except (TypeError, ValueError) as fault:
        raise RowError(f'column "{HEADERS}": {fault}') from fault
    return rows.set_column(rows.schema.get_field_index(BODY), BODY, byte_strings(messages))


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
