"""Rows out of bodies, and the reasons why some are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.pipeline.body_format import (
    bad_records,
    counts,
    dead_letters,
    fixed_schema,
    good_rows,
    judged,
    new_fields,
)
from emberq.spark.pipeline.build import cause_of, struct_of
from emberq.spark.pipeline.model import BodyFormat, SchemaEvolution, Source
from emberq.spark.schema import MESSAGE_SCHEMA
from emberq.wire.dead_letter import decode_dead_letter

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def messages(spark: SparkSession, *bodies: bytes) -> DataFrame:
    rows = [("t", "n:1", number, f"{number:016x}", NOON, None, body) for number, body in enumerate(bodies)]
    return spark.createDataFrame(rows, MESSAGE_SCHEMA)


def reasons(spark: SparkSession, source: Source, *bodies: bytes) -> list[str | None]:
    """The reason for each body, None where it is a row."""
    schema = fixed_schema(source.format) or struct_of(source.schema)
    found = judged(messages(spark, *bodies), source, schema)
    return [row["reason"] for row in found.orderBy("offset").select("reason").collect()]


def test_json_is_judged_with_reasons(spark: SparkSession) -> None:
    source = Source(topic=("t",), schema="page STRING NOT NULL, n INT, at TIMESTAMP")
    assert reasons(
        spark,
        source,
        b'{"page": "/", "n": 1, "at": "2026-11-15T12:00:00Z", "more": [1]}',
        b'{"page": "/"}',
        b"not json",
        b"[1, 2]",
        b"null",
        b"\xff\xfe",
        b'{"page": "/", "n": "many", "at": "never"}',
        b'{"n": 1}',
    ) == [
        None,
        None,
        "not JSON",
        "not a JSON object",
        "not a JSON object",
        "not UTF-8",
        "does not fit the schema: n is not a INT, at is not a TIMESTAMP",
        "page is missing",
    ]


def test_what_follows_a_json_object_makes_a_bad_record(spark: SparkSession) -> None:
    source = Source(topic=("t",), schema="a INT")
    bad = [
        b'{"a": 1}\n{"a": 2}',
        b'{"a": 3}{"a": 4}',
        b'{"a": 5}}}garbage',
        b'{"a": 5}]}',
        b'{"a": 5}, {"a": 6}',
        b'{"a": 5}, "b": 6',
        b'{"a": 5} # a note',
    ]
    found = judged(messages(spark, *bad, b' {"a": 7}\r\n', b'{"a": 8, "s": "}]}"}'), source, struct_of(source.schema))
    records = bad_records(found).orderBy("offset").collect()
    reason = "more follows the JSON object"
    assert [(bytes(record["body"]), record["reason"]) for record in records] == [(body, reason) for body in bad]
    assert [row["a"] for row in good_rows(found, struct_of(source.schema)).orderBy("a").collect()] == [7, 8]


def test_lines_of_json_are_a_row_each_and_a_bad_line_does_not_spoil_the_others(spark: SparkSession) -> None:
    source = Source(topic=("t",), format=BodyFormat.JSON_LINES, schema="a INT")
    bodies = (b'{"a": 1}\n\n{"a": 2}\r\n{"a": 3}{"a": 4}\n{"a":', b"\n", b'{"a": 5}', b'{"a": 6}\n\xff')
    found = judged(messages(spark, *bodies), source, struct_of(source.schema))
    rows = good_rows(found, struct_of(source.schema)).orderBy("a").collect()
    assert [(row["a"], row["_offset"]) for row in rows] == [(1, 0), (2, 0), (5, 2)]
    bad = sorted((row["offset"], bytes(row["body"]), row["reason"]) for row in bad_records(found).collect())
    assert bad == [
        (0, b'{"a":', "not JSON"),
        (0, b'{"a": 3}{"a": 4}', "more follows the JSON object"),
        (1, b"\n", "not JSON"),
        (3, b'{"a": 6}\n\xff', "not UTF-8"),
    ]
    counted = found.agg(*counts(source)).first()
    assert counted is not None
    assert counted.asDict() == {"messages": 4, "bad": 4}


@pytest.mark.parametrize(
    ("source", "body", "row", "bad", "reason"),
    [
        (
            Source(topic=("t",), format=BodyFormat.CSV, schema="a STRING, n INT", format_options={"sep": ";"}),
            b"x;7",
            ("x", 7),
            b"x;seven",
            "does not have the columns of the schema",
        ),
        (Source(topic=("t",), format=BodyFormat.TEXT), "grün".encode(), ("grün",), b"\xff", "not UTF-8"),
    ],
)
def test_csv_and_text_are_judged(
    spark: SparkSession, source: Source, body: bytes, row: tuple[object, ...], bad: bytes, reason: str
) -> None:
    schema = fixed_schema(source.format) or struct_of(source.schema)
    found = judged(messages(spark, body, bad), source, schema)
    (good,) = good_rows(found, schema).collect()
    assert tuple(good)[: len(row)] == row
    assert good["_id"] == f"{0:016x}"
    assert [record["reason"] for record in bad_records(found).collect()] == [reason]


def test_bytes_are_taken_as_they_are(spark: SparkSession) -> None:
    assert reasons(spark, Source(topic=("t",), format=BodyFormat.BINARY), b"\xff\x00") == [None]


def test_a_bad_record_becomes_a_dead_letter_that_can_be_published_again(spark: SparkSession) -> None:
    source = Source(topic=("t",), schema="page STRING")
    found = judged(messages(spark, b"not json", b"\xff"), source, struct_of(source.schema))
    letters = [
        decode_dead_letter(bytes(row["body"])) for row in dead_letters(bad_records(found), channel="p.s").collect()
    ]
    assert [(letter.body, letter.reason) for letter in letters if letter is not None] == [
        (b"not json", "not JSON"),
        (b"\xff", "not UTF-8"),
    ]
    assert letters[0] is not None
    assert (letters[0].topic, letters[0].channel) == ("t", "p.s")
    assert letters[0].timestamp_ns == NOON.timestamp() * 1_000_000_000


def test_what_does_not_fit_is_rescued(spark: SparkSession) -> None:
    source = Source(
        topic=("t",), schema="a INT, b INT NOT NULL, s STRUCT<x: INT>", schema_evolution=SchemaEvolution.RESCUE
    )
    schema = struct_of(source.schema)
    bodies = (
        b'{"a": 1, "b": 0, "s": {"x": 1}}',
        b'{"a": "one", "b": 1, "more": {"x": [1, "2"]}, "A": 7}',
        b'{"a": null, "b": 2, "s": {"x": "y"}}',
        b'{"a": 1, "b": "?"}',
        b'{"a": 1',
    )
    found = judged(messages(spark, *bodies), source, schema)
    rows = {row["b"]: row for row in good_rows(found, schema).collect()}
    assert {b: row["_rescued"] and json.loads(row["_rescued"]) for b, row in rows.items()} == {
        0: None,
        1: {"a": "one", "more": {"x": [1, "2"]}, "A": 7},
        2: {"s": {"x": "y"}},
    }
    assert rows[1]["a"] is None
    reasons = [row["reason"] for row in bad_records(found).orderBy("offset").collect()]
    assert reasons == ["b is missing", "not JSON"]


def test_a_new_field_is_told_with_its_type_or_ends_the_query(spark: SparkSession) -> None:
    bodies = (b'{"a": 1, "_id": 1, "A": 2, "later": null}', b'{"a": 1, "x": 1.5, "y": {"z": [true]}, "later": null}')
    for evolution in SchemaEvolution.ADD, SchemaEvolution.FAIL:
        source = Source(topic=("t",), schema="a INT", schema_evolution=evolution)
        for number, body in enumerate(bodies):
            found = judged(messages(spark, body), source, struct_of(source.schema), name="s")
            rows = good_rows(found, struct_of(source.schema))
            if (evolution, number) == (SchemaEvolution.ADD, 0):  # a field that is null has no type yet
                assert [row["a"] for row in rows.collect()] == [1]
                continue
            with pytest.raises(PySparkException) as raised:
                rows.collect()
            if evolution is SchemaEvolution.ADD:
                assert new_fields(str(raised.value)) == ("s", {"x": "DOUBLE", "y": "STRUCT<z: ARRAY<BOOLEAN>>"})
            else:
                assert new_fields(str(raised.value)) is None
                assert cause_of(raised.value).startswith("source s: the message at topic t on nsqd n:1, offset 0 has")
