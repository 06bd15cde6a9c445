"""format("nsq") as a sink, with a real Spark and a real nsqd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.journal_nsqd import JournalNsqd

QUERY_TIMEOUT_S = 240
"""Far more than it takes, unless the machine is busy with other things."""


def messages(nsqd: JournalNsqd, topic: str) -> list[str]:
    """All bodies of a topic, in their order."""
    found: list[str] = []
    offset, end = 0, nsqd.get("/journal", topic=topic)["next_offset"]
    while offset < end:
        answer = nsqd.get("/topic/peek", topic=topic, offset=offset, count=100)
        found += [message["body"] for message in answer["messages"]]
        offset = answer["next_offset"]
    return found


def write(rows: DataFrame, **options: str | int) -> None:
    rows.write.format("nsq").mode("append").options(**options).save()


def test_rows_become_messages_in_the_topics_they_name(spark: SparkSession, nsqd: JournalNsqd) -> None:
    rows = spark.range(0, 300, numPartitions=2).selectExpr(
        "concat('topic-', id % 3) AS topic", "to_json(struct(id)) AS body", "cast(null AS int) AS defer_ms"
    )
    write(rows, nsqd=nsqd.http, maxBodyBytes=300)
    for number in range(3):
        found = sorted(json.loads(body)["id"] for body in messages(nsqd, f"topic-{number}"))
        assert found == list(range(number, 300, 3))


def test_a_deferred_row_is_published_to_be_delivered_later(spark: SparkSession, nsqd: JournalNsqd) -> None:
    write(spark.sql("SELECT 'later' AS body, 60000 AS defer_ms UNION ALL SELECT 'now', 0"), nsqd=nsqd.http, topic="t")
    shown = nsqd.get("/topic/peek", topic="t", offset=0, count=10)["messages"]
    due = {message["body"]: message.get("due", 0) - message["timestamp"] for message in shown}
    assert due["later"] == pytest.approx(60_000_000_000, rel=0.01)
    assert due["now"] < 0


@pytest.mark.parametrize(
    ("query", "options", "complaint"),
    [
        ("SELECT 1 AS id, 'x' AS name", {"topic": "t"}, "to_json(struct(id, name)) AS body"),
        ("SELECT 1 AS body", {"topic": "t"}, 'column "body" is int; it must be string or binary'),
        (
            "SELECT 'a' AS body, map('k', 1) AS headers",
            {"topic": "t"},
            'column "headers" is map<string,int>; it must be map<string,string>',
        ),
        ("SELECT 'a' AS body", {}, 'set option "topic"'),
        ("SELECT '' AS body", {"topic": "t"}, 'column "body" is null or empty in a row'),
        ("SELECT 'a' AS body, 'no topic' AS topic", {}, '"no topic" is not the name of a topic'),
    ],
)
def test_rows_that_are_no_messages_are_refused(
    spark: SparkSession, nsqd: JournalNsqd, query: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(PySparkException) as failure:
        write(spark.sql(query), nsqd=nsqd.http, **options)
    assert complaint in str(failure.value)


def test_a_write_that_is_repeated_under_its_name_is_stored_once(spark: SparkSession, nsqd: JournalNsqd) -> None:
    rows = spark.range(0, 10, numPartitions=1).selectExpr("cast(id AS string) AS body")
    for name in ("query-7", "query-7", "query-8"):
        write(rows, nsqd=nsqd.http, topic="t", writeId=name)
    assert sorted(messages(nsqd, "t")) == sorted(2 * [str(number) for number in range(10)])


def test_a_batch_that_is_written_again_is_stored_once(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    nsqd.publish("in", [b"%d" % number for number in range(500)])

    def run() -> None:
        query = (
            spark.readStream.format("nsq")
            .options(nsqd=nsqd.http, topic="in", maxRowsPerTrigger=250, rowsPerPartition=125)
            .load()
            .selectExpr("concat('copy of ', cast(body AS string)) AS body")
            .writeStream.format("nsq")
            .options(nsqd=nsqd.http, topic="out", maxBodyBytes=1000)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    run()
    expected = sorted(f"copy of {number}" for number in range(500))
    assert sorted(messages(nsqd, "out")) == expected
    # As if Spark had died between writing the last batch and noting that it did.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    run()
    assert sorted(messages(nsqd, "out")) == expected
