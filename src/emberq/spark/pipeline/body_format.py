"""Message bodies to rows, and to bad records with their reasons.

Every message is judged. None is lost, and none stops a query: a body that does not fit its source gets a reason and
goes where bad records go. The reasons:

    not UTF-8
    not JSON
    not a JSON object
    more follows the JSON object                         such as a second one, which "json-lines" reads
    does not fit the schema: amount is not a DOUBLE
    page is missing                                      for a column that the schema says is NOT NULL
    does not have the columns of the schema              for CSV
    does not meet known_page: page LIKE '/%'             a rule of the source that drops (`rule`)

A bad record in a topic is a dead letter (`emberq.wire.dead_letter`), so `emberq requeue-dead` can publish it again once
the pipeline is mended. Its channel is named after the pipeline and the source.

**JSON.** Spark's from_json takes the first document of a text and is silent about what follows. So the text is parsed
within an array, and a mark behind it: `{"documents": [TEXT], "end": 1}`. Of several documents the array gets several
elements or is no JSON, and a text that closes the array itself leaves the mark unread. Judging bodies of 170 bytes
takes a quarter more of the processor's time than it would without.

With "json-lines" each line of a body is judged by itself, and a bad line is a bad record of that line alone.

**Fields that the schema does not have** (`SchemaEvolution`). To rescue them, the object is parsed once more, as a map,
and what is not in the row goes to the column `_rescued`. To add them or to fail, a row with such a field raises an
error, which ends the batch before anything of it is committed: `new_fields` reads from the error what the field is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from emberq.spark.pipeline.model import BodyFormat, Expectation, RuleAction, SchemaEvolution, Source
from emberq.spark.pipeline.rule import (
    FAILED,
    MAX_SHOWN_CHARS,
    SAMPLES,
    failed_rules,
    first_failed,
    or_raised,
    rule_counts,
    rule_samples,
    samples,
)
from emberq.wire import envelope
from emberq.wire.dead_letter import MARK, VERSION

MESSAGE_COLUMNS = {"_topic": "topic", "_nsqd": "nsqd", "_offset": "offset", "_id": "id", "_time": "timestamp"}
"""The columns that tell of a row's message, and the columns of format("nsq") they come from."""

HEADERS = "_headers"
"""One more of them, with the option `includeHeaders`."""
RESCUED = "_rescued"
"""The column of what does not fit a schema, as a JSON object; null if everything fits."""

RESERVED = (*MESSAGE_COLUMNS, HEADERS, RESCUED)
"""No field of a message becomes a column of these names."""

MAX_LETTER_BYTES = 1_000_000
"""By default nsqd takes messages of up to 1 MiB. Where the note would not fit, the bare body is published."""

_NEW = "has the new fields "
"""In the text of an error, before the fields and their types as JSON."""
_ROW = "row"
_REASON = "reason"
_CORRUPT = "_emberq_corrupt"
_PARSED = "parsed"
_MESSAGE = "_emberq_message"
_LINE = "line"
"""The number of a line within its body, from 0."""
_DOCUMENTS, _END = "documents", "end"


def message_columns(messages: DataFrame) -> dict[str, str]:
    """`MESSAGE_COLUMNS`, and the headers if these messages have them."""
    return MESSAGE_COLUMNS | ({HEADERS: "headers"} if "headers" in messages.columns else {})


def fixed_schema(body_format: BodyFormat) -> StructType | None:
    """The columns that a format always has; None if the schema decides."""
    if body_format is BodyFormat.TEXT:
        return StructType([StructField("text", StringType())])
    if body_format is BodyFormat.BINARY:
        return StructType([StructField("body", BinaryType())])
    return None


def judged(messages: DataFrame, source: Source, schema: StructType, *, name: str = "") -> DataFrame:
    """The messages, each with its row or the reason why it has none. Each line is a message where lines are read.

    `name` is that of the source, for errors.
    """
    if source.format is BodyFormat.JSON_LINES:
        messages = _by_lines(messages)
    text = F.col("body").cast("string")
    match source.format:
        case BodyFormat.BINARY:
            row, reason = F.struct("body"), F.lit(None).cast("string")
            return messages.withColumn(_ROW, row).withColumn(_REASON, reason)
        case BodyFormat.TEXT:
            messages = messages.withColumn(_ROW, F.struct(text.alias("text")))
            is_misfit, misfit = F.lit(False), F.lit(None)
        case BodyFormat.JSON | BodyFormat.JSON_LINES:
            messages = messages.withColumn(_PARSED, _from_json(text, source, schema))
            messages = messages.withColumn(_ROW, F.get(F.col(_PARSED)[_DOCUMENTS], F.lit(0)))
            is_misfit, misfit = ~_is_one_document(), _json_misfit(text, schema)
            if source.schema_evolution is SchemaEvolution.RESCUE:
                messages = messages.withColumn(RESCUED, _rescued(text, source, schema))
            else:
                is_misfit |= F.col(_PARSED)[_CORRUPT].isNotNull()
        case BodyFormat.CSV:
            messages = messages.withColumn(_ROW, _from_csv(text, source, schema))
            is_misfit = F.col(_ROW)[_CORRUPT].isNotNull()
            misfit = F.lit("does not have the columns of the schema")
    reason = F.when(~F.is_valid_utf8(text), "not UTF-8")
    if source.format is not BodyFormat.TEXT:
        reason = reason.when(F.col(_ROW).isNull() | is_misfit, misfit).otherwise(_missing(schema))
    if source.schema_evolution in (SchemaEvolution.ADD, SchemaEvolution.FAIL):
        has_new = F.size(_new_keys(text, schema)) > 0
        reason = F.when(reason.isNull() & has_new, _raised(text, source, schema, name)).otherwise(reason)
    return messages.withColumn(_REASON, reason).drop(_PARSED)  # its row is there, and not to be copied twice


def held_to(
    rules: Mapping[str, Expectation], judged_messages: DataFrame, schema: StructType, *, name: str
) -> DataFrame:
    """The judged messages with the rules that their rows fail, and those that a rule drops with a reason.

    The conditions are over the columns of the source, which may have the names of columns of messages. So these are
    put aside meanwhile.
    """
    columns = {field.name: F.col(_ROW)[field.name] for field in schema.fields}
    columns |= {column: F.col(of) for column, of in message_columns(judged_messages).items()}
    if RESCUED in judged_messages.columns:
        columns[RESCUED] = F.col(RESCUED)
    aside = judged_messages.select(F.struct("*").alias(_MESSAGE), *(at.alias(name) for name, at in columns.items()))
    is_row = F.col(_MESSAGE)[_REASON].isNull()
    found = aside.select(f"{_MESSAGE}.*", F.when(is_row, failed_rules(rules)).alias(FAILED))
    where = F.concat(F.lit(f"source {name}: the message at topic "), _place(" on nsqd "))
    dropped = F.concat(F.lit("does not meet "), first_failed(rules, RuleAction.DROP))
    return found.where(or_raised(rules, where)).withColumn(_REASON, F.coalesce(_REASON, dropped))


def good_rows(judged_messages: DataFrame, schema: StructType) -> DataFrame:
    """The good rows, with the columns that tell of their messages."""
    columns = [F.col(_ROW)[field.name].alias(field.name) for field in schema.fields]
    if RESCUED in judged_messages.columns:
        columns.append(F.col(RESCUED))
    return judged_messages.where(F.col(_REASON).isNull()).select(
        *columns, *(F.col(column).alias(name) for name, column in message_columns(judged_messages).items())
    )


def bad_records(judged_messages: DataFrame) -> DataFrame:
    """The bad records as they came, with the reason: for a table."""
    columns = message_columns(judged_messages).values()
    return judged_messages.where(F.col(_REASON).isNotNull()).select(*columns, _REASON, F.col("body"))


def dead_letters(bad: DataFrame, *, channel: str) -> DataFrame:
    """Bad records as messages of a dead-letter topic."""
    body = _as_published(bad)
    text = body.cast("string")
    is_text = F.is_valid_utf8(text)
    letter = F.to_json(
        F.struct(
            F.lit(VERSION).alias(MARK),
            F.col("topic"),
            F.lit(channel).alias("channel"),
            F.col("id"),
            F.lit(1).alias("attempts"),
            (F.unix_micros("timestamp") * 1000).alias("timestamp_ns"),
            F.col(_REASON),
            F.when(is_text, text).alias("body"),
            F.when(~is_text, F.base64(body)).alias("body_base64"),
        )
    )
    fits = F.octet_length(letter) <= MAX_LETTER_BYTES
    return bad.select(F.when(fits, letter.cast("binary")).otherwise(body).alias("body"))


def _as_published(messages: DataFrame) -> Column:
    """The bodies in the envelopes that they were read from (`emberq.wire.envelope`)."""
    if "headers" not in messages.columns:
        return F.col("body")
    headers = F.to_json("headers").cast("binary")
    length = F.unhex(F.lpad(F.hex(F.octet_length(headers)), 2 * envelope.LENGTH_BYTES, "0"))
    return F.coalesce(F.concat(F.lit(envelope.MARK), length, headers, F.col("body")), F.col("body"))


def counts(source: Source) -> Sequence[Column]:
    """What a query counts of a source: its messages, how many bad records they gave, and how many fail each rule."""
    is_first = F.col(_LINE) == 0 if source.format is BodyFormat.JSON_LINES else F.lit(True)
    return F.count_if(is_first).alias("messages"), F.count(_REASON).alias("bad"), *rule_counts(source.expect)


def samples_of(source: Source) -> Sequence[Column]:
    """Samples of its bad records, and of the messages that fail each rule."""
    text = F.substring(F.make_valid_utf8(F.col("body").cast("string")), 1, MAX_SHOWN_CHARS)
    shown = F.concat(_place(" on "), F.lit(": "), text)
    is_bad, reason = F.col(_REASON).isNotNull(), F.concat(_REASON, F.lit("; "), shown)
    return samples(is_bad, reason, SAMPLES), *rule_samples(source.expect, shown)


def _place(on: str) -> Column:
    """Where a message is, for those who read of it."""
    return F.concat("topic", F.lit(on), "nsqd", F.lit(", offset "), "offset")


def lines_of(text: str) -> list[str]:
    """The lines of a body of "json-lines" that are not empty."""
    return [line for line in text.splitlines() if line.strip()]


def _by_lines(messages: DataFrame) -> DataFrame:
    """A message for each line of a body. One that is not text, or has no lines, stays as it is and is judged so."""
    text = F.col("body").cast("string")
    lines = F.filter(F.split(text, "\r?\n"), lambda line: F.trim(line) != "")
    pieces = F.when(F.is_valid_utf8(text) & (F.size(lines) > 0), lines).otherwise(F.array(text))
    others = [name for name in messages.columns if name != "body"]
    exploded = messages.select(*others, F.posexplode(pieces).alias(_LINE, "body"))
    return exploded.withColumn("body", F.col("body").cast("binary"))


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in schema.fields])


def _from_json(text: Column, source: Source, schema: StructType) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT} | dict(source.format_options)
    parsed = StructType().add(_DOCUMENTS, ArrayType(_nullable(schema))).add(_END, IntegerType())
    # The line break ends a comment, which the option allowComments allows.
    wrapped = F.concat(F.lit(f'{{"{_DOCUMENTS}":['), text, F.lit(f'\n],"{_END}":1}}'))
    return F.from_json(wrapped, parsed.add(_CORRUPT, StringType()), options)


def _is_one_document() -> Column:
    parsed = F.col(_PARSED)
    return parsed[_END].isNotNull() & (F.size(parsed[_DOCUMENTS]) == 1)


def _from_csv(text: Column, source: Source, schema: StructType) -> Column:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT} | dict(source.format_options)
    fields = [*_nullable(schema).fields, StructField(_CORRUPT, StringType())]
    columns = [f"`{field.name}` {field.dataType.simpleString()}" for field in fields]
    return F.from_csv(text, ", ".join(columns), options)


def _json_misfit(text: Column, schema: StructType) -> Column:
    """The reason for a body that from_json refused."""
    misfits = [
        F.when(
            F.get_json_object(text, f"$['{field.name}']").isNotNull() & F.col(_ROW)[field.name].isNull(),
            f"{field.name} is not a {field.dataType.simpleString().upper()}",
        )
        for field in schema.fields
    ]
    return (
        F.when(F.try_parse_json(text).isNull(), "not JSON")
        .when(~F.trim(text).startswith("{"), "not a JSON object")
        .when(~F.coalesce(_is_one_document(), F.lit(False)), "more follows the JSON object")
        .otherwise(F.concat(F.lit("does not fit the schema: "), F.concat_ws(", ", *misfits)))
    )


def _missing(schema: StructType) -> Column:
    """The reason for missing NOT NULL columns; null if none is missing."""
    required = [field.name for field in schema.fields if not field.nullable]
    missing = [F.when(F.col(_ROW)[name].isNull(), f"{name} is missing") for name in required]
    return F.nullif(F.concat_ws(", ", *missing), F.lit("")) if missing else F.lit(None)


# Fields that the schema does not have.


def new_fields(fault: str) -> tuple[str, dict[str, str]] | None:
    """The source and the new fields that an error tells of, with their types in DDL; None if it tells of none."""
    found = re.search(rf"\[USER_RAISED_EXCEPTION\] source (\w+) {_NEW}", fault)
    if found is None:
        return None
    types: dict[str, str]
    types, _ = json.JSONDecoder().raw_decode(fault, found.end())
    return found[1], {name: _ddl_type(variant) for name, variant in types.items()}


def _ddl_type(variant: str) -> str:
    """A type of schema_of_variant as the type of a column. What has no type yet is text, as from_json gives it."""
    text = re.sub(r"DECIMAL\(\d+,\s*\d+\)", "DOUBLE", variant)
    return text.replace("VOID", "STRING").replace("OBJECT<>", "STRING").replace("OBJECT<", "STRUCT<")


def _as_map(text: Column, source: Source) -> Column:
    """The fields of an object as they are, by name."""
    return F.from_json(text, MapType(StringType(), VariantType()), dict(source.format_options))


def _rescued(text: Column, source: Source, schema: StructType) -> Column:
    """What is not in the row: fields of other names, and values that do not fit."""
    row, is_corrupt = F.col(_ROW), F.col(_PARSED)[_CORRUPT].isNotNull()

    def is_missed(name: Column, value: Column) -> Column:
        missed = ~name.isin([field.name for field in schema.fields]) if schema.fields else F.lit(True)
        for field in schema.fields:
            is_atomic = not isinstance(field.dataType, StructType | ArrayType | MapType)
            is_lost = row[field.name].isNull() & ~F.is_variant_null(value) if is_atomic else is_corrupt
            missed |= (name == field.name) & is_lost
        return missed

    missed = F.map_filter(_as_map(text, source), is_missed)
    return F.when(F.size(missed) > 0, F.to_json(missed))


def _new_keys(text: Column, schema: StructType) -> Column:
    """The fields that could be columns and are none. SQL does not tell apart names that differ in case."""
    known = [name.lower() for name in (*(field.name for field in schema.fields), *RESERVED)]
    return F.filter(F.json_object_keys(text), lambda key: ~F.lower(key).isin(known))


def _raised(text: Column, source: Source, schema: StructType, name: str) -> Column:
    """An error that names the new fields. Where they are to be added, a field that is null says nothing yet."""
    keys = _new_keys(text, schema)
    if source.schema_evolution is SchemaEvolution.FAIL:
        told = F.concat(
            F.lit(f"source {name}: the message at topic "),
            _place(" on nsqd "),
            F.lit(" has fields that the schema does not have: "),
            F.array_join(keys, ", "),
            F.lit('; add them to the schema, or set schema_evolution to "add", "rescue" or "ignore"'),
        )
        return F.raise_error(told).cast("string")
    values = F.map_filter(
        _as_map(text, source), lambda key, value: F.array_contains(keys, key) & ~F.is_variant_null(value)
    )
    types = F.to_json(F.transform_values(values, lambda _, value: F.schema_of_variant(value)))
    told = F.concat(F.lit(f"source {name} {_NEW}"), types)
    return F.when(F.size(values) > 0, F.raise_error(told).cast("string"))
