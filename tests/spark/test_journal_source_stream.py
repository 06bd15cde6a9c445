"""format("nsq") as a stream over journals, with a real Spark and real nsqds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import StartNsqd
from tests.support.journal_nsqd import JournalNsqd

QUERY_TIMEOUT_S = 240
"""Far more than it takes, unless the machine is busy with other things."""


def run_to_the_end(spark: SparkSession, folder: Path, **options: str | int) -> StreamingQuery:
    """Read what is there into Parquet files, going on from the last time."""
    query = (
        spark.readStream.format("nsq")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    return query


def rows_in(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.parquet(str(folder / "rows"))


def values(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(int(row.body) for row in rows_in(spark, folder).select("body").collect())


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def test_a_stream_goes_on_where_it_stopped_and_finds_new_nsqds(
    spark: SparkSession, start_journal_nsqd: StartNsqd, tmp_path: Path
) -> None:
    first, second = start_journal_nsqd(), start_journal_nsqd()
    both = f"{first.http},{second.http}"
    first.publish("clicks", numbers(0, 1000))
    query = run_to_the_end(spark, tmp_path, nsqd=both, topic="clicks", maxRowsPerTrigger=400, channel="spark")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [400, 400, 200]
    assert values(spark, tmp_path) == list(range(1000))

    first.publish("clicks", numbers(1000, 1500))
    second.publish("clicks", numbers(1500, 2000))
    run_to_the_end(spark, tmp_path, nsqd=both, topic="clicks", maxRowsPerTrigger=400, channel="spark")
    assert values(spark, tmp_path) == list(range(2000))

    # Retention may remove what was committed: all but the last micro-batch.
    (cursor,) = first.get("/journal", topic="clicks")["channels"]
    assert cursor["channel_name"] == "spark"
    assert 1000 <= cursor["low_water"] <= 1500


def test_a_topic_that_was_made_again_fails_the_query_unless_loss_is_allowed(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    nsqd.publish("clicks", numbers(0, 10))
    run_to_the_end(spark, tmp_path, nsqd=nsqd.http, topic="clicks")
    nsqd.post("/topic/delete", topic="clicks")
    nsqd.publish("clicks", numbers(100, 130))
    with pytest.raises(StreamingQueryException, match="was deleted and made again"):
        run_to_the_end(spark, tmp_path, nsqd=nsqd.http, topic="clicks")
    run_to_the_end(spark, tmp_path, nsqd=nsqd.http, topic="clicks", failOnDataLoss="false")
    assert values(spark, tmp_path) == [*range(10), *range(100, 130)]


def test_a_topic_that_was_deleted_unread_fails_the_query_unless_loss_is_allowed(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    nsqd.publish("clicks", numbers(0, 10))
    options = {"nsqd": nsqd.http, "topic": "clicks", "mode": "journal"}
    run_to_the_end(spark, tmp_path, **options)
    nsqd.publish("clicks", numbers(10, 20))
    nsqd.post("/topic/delete", topic="clicks")
    with pytest.raises(StreamingQueryException, match=r"topic clicks on nsqd .* was deleted since this query read it"):
        run_to_the_end(spark, tmp_path, **options)
    run_to_the_end(spark, tmp_path, **options, failOnDataLoss="false")
    nsqd.publish("clicks", numbers(100, 130))
    run_to_the_end(spark, tmp_path, **options)  # the loss was told, and the topic is a new one
    assert values(spark, tmp_path) == [*range(10), *range(100, 130)]


def test_a_batch_that_was_not_committed_is_read_again_row_for_row(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    nsqd.publish("clicks", numbers(0, 300))
    run_to_the_end(spark, tmp_path, nsqd=nsqd.http, topic="clicks", maxRowsPerTrigger=100)
    # As if Spark had died behind writing the last batch: its commit is missing, in its log and in that of the files.
    for log in (tmp_path / "checkpoint" / "commits", tmp_path / "rows" / "_spark_metadata"):
        (log / "2").unlink()
        (log / ".2.crc").unlink(missing_ok=True)
    nsqd.publish("clicks", numbers(300, 350))
    query = run_to_the_end(spark, tmp_path, nsqd=nsqd.http, topic="clicks", maxRowsPerTrigger=100)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [100, 50]
    assert values(spark, tmp_path) == list(range(350))
