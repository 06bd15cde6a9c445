"""A channel as a stream: received, read, resumed; the calls in the order in which Spark makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from emberq.embedded import EmbeddedThread
from emberq.spark import channel_spool
from emberq.spark.channel_frames import Arrived
from emberq.spark.channel_source import ChannelStreamReader
from emberq.spark.error import DataLossError, NsqdUnavailableError, OptionError
from emberq.spark.option import SourceSettings, Use
from tests.support.embedded import create, publish
from tests.support.waiting import wait_until

ALL = ReadAllAvailable()


@pytest.fixture
def options(nsq: EmbeddedThread) -> dict[str, str]:
    """A topic with a channel, on an nsqd that journals nothing."""
    create(nsq, "t", "spark")
    return {"nsqd": nsq.nsqd_http_addresses[0], "topic": "t", "channel": "spark"}


class Readers:
    """Makes readers of one spool and sees to their end."""

    def __init__(self, options: dict[str, str], folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._made: list[ChannelStreamReader] = []

    def make(self, **more: str) -> ChannelStreamReader:
        options = self._options | {"spool": str(self._folder)} | more
        reader = ChannelStreamReader(SourceSettings.of(options, Use.STREAM))
        self._made.append(reader)
        return reader

    def stop(self) -> None:
        for reader in self._made:
            reader.stop()


@pytest.fixture
def readers(options: dict[str, str], tmp_path: Path) -> Iterator[Readers]:
    made = Readers(options, tmp_path / "spool")
    yield made
    made.stop()


def bodies(reader: ChannelStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        body
        for partition in reader.partitions(start, end)
        for rows in reader.read(partition)
        for body in rows.column("body").to_pylist()
    ]


def received(reader: ChannelStreamReader, count: int) -> dict[str, Any]:
    """The offset behind `count` messages, once they are there."""
    spool = reader._opened()
    wait_until(lambda: sum(segment.row_count for segment in spool.segments) >= count, timeout_s=30)
    return {"spool": spool.uuid, "next": spool.next_number}


def messages(count: int) -> list[bytes]:
    return [b"m%d" % number for number in range(count)]


def test_messages_are_read_once_and_finished(nsq: EmbeddedThread, readers: Readers) -> None:
    publish(nsq, "t", *messages(3000))
    reader = readers.make()
    start = reader.initialOffset()
    end = received(reader, 3000)
    assert reader.latestOffset(start, ALL) == end
    assert sorted(bodies(reader, start, end)) == sorted(messages(3000))
    reader.commit(end)
    assert bodies(reader, end, reader.latestOffset(end, ALL)) == []


def test_an_unfinished_batch_is_read_again_after_a_restart(nsq: EmbeddedThread, readers: Readers) -> None:
    publish(nsq, "t", *messages(10))
    reader = readers.make()
    start = reader.initialOffset()
    end = received(reader, 10)
    reader.stop()
    publish(nsq, "t", b"later")
    again = readers.make()
    assert sorted(bodies(again, start, end)) == sorted(messages(10))
    assert bodies(again, end, received(again, 11)) == [b"later"]


def test_what_was_stored_and_not_finished_is_not_stored_again(
    nsq: EmbeddedThread, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(nsq, "t", *messages(500))
    with monkeypatch.context() as crash:
        crash.setattr(Arrived, "finish", lambda self: None)  # the receiver ends before it can say so
        reader = readers.make()
        start = reader.initialOffset()
        received(reader, 500)
        reader.stop()
    publish(nsq, "t", b"later")
    again = readers.make()
    end = received(again, 501)
    assert sorted(bodies(again, start, end)) == sorted([*messages(500), b"later"])


def test_a_batch_is_cut_at_segments_and_has_one_at_least(nsq: EmbeddedThread, readers: Readers) -> None:
    reader = readers.make()
    start = reader.initialOffset()
    for count in range(1, 4):
        publish(nsq, "t", *messages(10))
        received(reader, count * 10)
    first = reader.latestOffset(start, ReadMaxRows(5))
    assert first["next"] == start["next"] + 1
    second = reader.latestOffset(first, ReadMaxRows(20))
    assert len(bodies(reader, start, first)) + len(bodies(reader, first, second)) <= 30
    assert second["next"] > first["next"]


def test_small_segments_are_read_together_by_as_many_tasks_as_are_wanted(nsq: EmbeddedThread, readers: Readers) -> None:
    reader = readers.make(minPartitions="2")
    start = reader.initialOffset()
    for count in range(1, 5):
        publish(nsq, "t", *messages(10))
        end = received(reader, count * 10)
    partitions = reader.partitions(start, end)
    assert [[batch.num_rows for batch in reader.read(each)] for each in partitions] == [[20], [20]]


def test_available_now_ends_when_the_channel_is_empty(nsq: EmbeddedThread, readers: Readers) -> None:
    publish(nsq, "t", *messages(100))
    reader = readers.make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(start, ALL)
    assert len(bodies(reader, start, end)) == 100
    publish(nsq, "t", b"later")
    assert reader.latestOffset(end, ALL) == end
    reader.stop()
    again = readers.make()
    assert bodies(again, end, received(again, 101)) == [b"later"]  # at once: nobody else has it


def test_several_nsqds_are_found_through_nsqlookupd(tmp_path: Path) -> None:
    with EmbeddedThread(nsqd_count=2) as nsq:
        for number in range(2):
            create(nsq, "t", "spark", node=number)
            publish(nsq, "t", b"from %d" % number, node=number)
        lookupd = nsq.lookupd_http_addresses[0]
        reader = Readers({"lookupd": lookupd, "topic": "t", "channel": "spark", "discoveryInterval": "100ms"}, tmp_path)
        first = reader.make()
        start = first.initialOffset()
        assert sorted(bodies(first, start, received(first, 2))) == [b"from 0", b"from 1"]
        reader.stop()


def test_another_spool_is_not_taken_for_the_one_that_was_read(readers: Readers) -> None:
    reader = readers.make()
    other = {"spool": "another", "next": 7}
    with pytest.raises(DataLossError, match="is not the one that this query has read"):
        reader.partitions(other, other)


def test_a_segment_that_is_gone_is_told(nsq: EmbeddedThread, readers: Readers) -> None:
    publish(nsq, "t", b"x")
    reader = readers.make()
    start, end = reader.initialOffset(), received(reader, 1)
    missing = {**end, "next": end["next"] + 3}
    with pytest.raises(DataLossError, match="only 1 are there"):
        reader.partitions(start, missing)


@pytest.mark.parametrize("name", ["channel", "spool"])
def test_an_option_that_is_missing_is_named(options: dict[str, str], name: str, tmp_path: Path) -> None:
    given = {key: text for key, text in (options | {"spool": str(tmp_path)}).items() if key != name}
    with pytest.raises(OptionError, match=f'option "{name}" is missing'):
        ChannelStreamReader(SourceSettings.of(given, Use.STREAM))


def test_an_nsqd_that_does_not_answer_is_told_at_once_and_leaves_the_spool_free(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_spool, "LOCK_TIMEOUT_S", 0.0)
    reader = Readers(options | {"nsqd": "127.0.0.1:1"}, tmp_path).make()
    for _ in range(2):
        with pytest.raises(NsqdUnavailableError):
            reader.initialOffset()


@pytest.mark.timeout(300)
def test_spark_reads_a_channel_over_two_runs(
    spark: SparkSession, nsq: EmbeddedThread, options: dict[str, str], tmp_path: Path
) -> None:
    published: list[bytes] = []
    for _ in range(2):
        more = [b"%d" % number for number in range(len(published), len(published) + 1000)]
        publish(nsq, "t", *more)
        published += more
        stream = spark.readStream.format("nsq").options(**options, spool=str(tmp_path / "spool")).load()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).select("body").collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(published)
