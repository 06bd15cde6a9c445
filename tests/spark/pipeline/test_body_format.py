"""Rows out of bodies, and the reasons why some are none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.pipeline.body_format import bad_records, dead_letters, fixed_schema, good_rows, judged
from emberq.spark.pipeline.build import struct_of
from emberq.spark.pipeline.model import BodyFormat, Source
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
