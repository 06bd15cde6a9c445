"""format("nsq") as a batch source, with a real Spark and real nsqds."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from emberq.wire import envelope
from tests.spark.conftest import StartNsqd
from tests.support.journal_nsqd import JournalNsqd


def read(spark: SparkSession, **options: str | int) -> DataFrame:
    return spark.read.format("nsq").options(**options).load()


def bodies(rows: DataFrame) -> list[str]:
    return [row.body.decode() for row in rows.select("body").collect()]


def test_a_topic_on_two_nsqds_is_read_as_rows_with_their_places(
    spark: SparkSession, start_journal_nsqd: StartNsqd
) -> None:
    nsqds = [start_journal_nsqd(), start_journal_nsqd()]
    for number, nsqd in enumerate(nsqds):
        nsqd.publish("clicks", [b"%d-%d" % (number, row) for row in range(50)])
        nsqd.publish("clicks", [b"%d-%d" % (number, row) for row in range(50, 120)])
    rows = read(spark, nsqd=",".join(nsqd.http for nsqd in nsqds), topic="clicks", rowsPerPartition=25).collect()
    expected = {(nsqd.http, row, f"{number}-{row}".encode()) for number, nsqd in enumerate(nsqds) for row in range(120)}
    assert {(row.nsqd, row.offset, bytes(row.body)) for row in rows} == expected
    assert len(rows) == 240
    assert {row.id for row in rows} == {f"{offset:016x}" for offset in range(120)}
    assert {row.topic for row in rows} == {"clicks"}
    assert {row.attempts for row in rows} == {None}
    now = datetime.now(UTC).replace(tzinfo=None)
    assert all(abs((now - row.timestamp).total_seconds()) < 120 for row in rows)


def test_an_nsqd_with_two_names_is_read_once(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"%d" % row for row in range(10)])
    names = f"{nsqd.http},localhost:{nsqd.http_port}"
    assert sorted(bodies(read(spark, nsqd=names, topic="clicks"))) == [str(row) for row in range(10)]


def test_only_the_columns_that_are_asked_for_are_read(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"a", b"b"])
    rows = read(spark, nsqd=nsqd.http, topic="clicks", columns="body, offset")
    assert rows.columns == ["offset", "body"]
    assert sorted((row.offset, bytes(row.body)) for row in rows.collect()) == [(0, b"a"), (1, b"b")]
    assert [
        bytes(row.body) for row in read(spark, nsqd=nsqd.http, topic="clicks", columns="body").sort("body").collect()
    ] == [
        b"a",
        b"b",
    ]
    with pytest.raises(PySparkException, match='there is no column "bodies"; there are: topic, nsqd, offset'):
        read(spark, nsqd=nsqd.http, topic="clicks", columns="bodies")


def test_headers_are_read_beside_bodies_and_written_again(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [envelope.encode({"type": "json", "tenant": "é"}, b"one"), b"two"])
    rows = read(spark, nsqd=nsqd.http, topic="clicks", includeHeaders="true")
    assert rows.columns[-2:] == ["body", "headers"]
    rows.write.format("nsq").mode("append").options(nsqd=nsqd.http, topic="copy").save()
    copied = read(spark, nsqd=nsqd.http, topic="copy", columns="body", IncludeHeaders="TRUE").collect()
    assert sorted((bytes(row.body), row.headers) for row in copied) == [
        (b"one", {"type": "json", "tenant": "é"}),
        (b"two", None),
    ]
    as_stored = bodies(read(spark, nsqd=nsqd.http, topic="copy"))
    assert sorted(as_stored) == sorted(bodies(read(spark, nsqd=nsqd.http, topic="clicks")))


def test_a_range_of_offsets_is_read_exactly(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("clicks", [b"%d" % row for row in range(10)])
    nsqd.publish("clicks", [b"%d" % row for row in range(10, 20)])
    options = {
        "nsqd": nsqd.http,
        "topic": "clicks",
        "startingOffsets": json.dumps({nsqd.http: {"clicks": 7}}),
        "endingOffsets": json.dumps({nsqd.http: {"clicks": 13}}),
    }
    assert bodies(read(spark, **options).orderBy("offset")) == [str(row) for row in range(7, 13)]
    moment = nsqd.get("/topic/peek", topic="clicks", offset=10, count=1)["messages"][0]["timestamp"]
    start = datetime.fromtimestamp(moment // 1000 / 1_000_000, UTC).isoformat()
    from_then = read(spark, nsqd=nsqd.http, topic="clicks", startingOffsets=start)
    assert bodies(from_then.orderBy("offset")) == [str(row) for row in range(10, 20)]


def test_a_topic_with_nothing_in_it_gives_no_rows(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.post("/topic/create", topic="empty")
    assert bodies(read(spark, nsqd=nsqd.http, topic="empty")) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"topic": "clicks", "nsqs": "127.0.0.1:1"}, 'unknown option "nsqs"; did you mean "nsqd"?'),
        ({"topic": "clicks", "nsqd": "127.0.0.1:1"}, "127.0.0.1:1"),
        ({"nsqd": "HTTP"}, 'either "topic" or "topicPattern"'),
        ({"topic": "nowhere", "nsqd": "HTTP"}, "no nsqd has topic nowhere yet"),
        ({"topic": "clicks", "nsqd": "TCP"}, "give its address for HTTP"),
    ],
)
def test_mistakes_are_told_before_data_moves(
    spark: SparkSession, nsqd: JournalNsqd, options: dict[str, str], complaint: str
) -> None:
    addresses = {"HTTP": nsqd.http, "TCP": f"127.0.0.1:{nsqd.tcp_port}"}
    given = {name: addresses.get(value, value) for name, value in options.items()}
    with pytest.raises(PySparkException) as failure:
        read(spark, **given).collect()
    assert complaint in str(failure.value)


def test_a_topic_without_a_journal_is_refused_with_the_remedy(
    spark: SparkSession, start_journal_nsqd: StartNsqd
) -> None:
    nsqd = start_journal_nsqd("--journal-topic=^kept$")
    nsqd.publish("fleeting", [b"1"])
    with pytest.raises(PySparkException, match="has no journal; run that nsqd with --journal"):
        read(spark, nsqd=nsqd.http, topic="fleeting", mode="journal").collect()
