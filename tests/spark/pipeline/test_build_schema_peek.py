"""The schema of a topic, as its newest messages show it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from emberq.spark.error import OptionError
from emberq.spark.pipeline import build
from emberq.spark.pipeline.build import newest_schema, peeked_schema
from emberq.spark.pipeline.model import BodyFormat
from tests.support.journal_nsqd import JournalNsqd


def test_a_schema_is_seen_in_messages_of_json(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("t", [b'{"n": 1}', b'{"n": 2.5, "who": {"name": "x"}, "_id": "3"}', b"\xff", b"no json"])
    found = newest_schema(spark, {"nsqd": nsqd.http, "topic": "t"})
    assert found.simpleString() == "struct<n:double,who:struct<name:string>>"


def test_each_line_of_a_body_shows_columns_where_lines_are_read(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.post("/pub", b'{"a": 1}\n{"b": true}', topic="t")
    assert newest_schema(spark, {"nsqd": nsqd.http, "topic": "t"}, BodyFormat.JSON_LINES).names == ["a", "b"]


def test_only_the_newest_messages_count(
    spark: SparkSession, nsqd: JournalNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "NEWEST_ROWS", 2)
    nsqd.publish("t", [b'{"old": 1}', b'{"new": 1}', b'{"newer": true}'])
    assert newest_schema(spark, {"nsqd": nsqd.http, "topic": "t"}).names == ["new", "newer"]


def test_what_was_seen_once_is_kept(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    options, kept_in = {"nsqd": nsqd.http, "topic": "t"}, str(tmp_path / "t.schema")
    nsqd.publish("t", [b"no json"])
    assert peeked_schema(spark, options, kept_in=kept_in) is None
    nsqd.publish("t", [b'{"n": 1}'])
    first = peeked_schema(spark, options, kept_in=kept_in)
    nsqd.publish("t", [b'{"n": "one"}'])
    assert first is not None
    assert first.simpleString() == "struct<n:bigint>"
    assert peeked_schema(spark, options, kept_in=kept_in) == first


def test_a_topic_without_a_journal_cannot_be_looked_at(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.post("/topic/create", topic="t#ephemeral")
    with pytest.raises(OptionError, match="has no journal"):
        newest_schema(spark, {"nsqd": nsqd.http, "topic": "t#ephemeral"})
