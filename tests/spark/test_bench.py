"""The benchmark of the Spark package does what it says, with few rows."""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.failure import LoadFailure
from bench.server import Binary
from bench.spark.messages import SteadyFlow, publish
from bench.spark.stream import drained_rate
from bench.spark.work import WORKS, Bench, Work, prepare_files
from tests.support.journal_nsqd import JournalNsqd
from tests.support.waiting import wait_until

NSQD = Path(sys.executable).parent / "nsqd"


def next_offset(nsqd: JournalNsqd, topic: str) -> int:
    connection = http.client.HTTPConnection(nsqd.http)
    connection.request("GET", f"/journal?topic={topic}")
    found: int = json.loads(connection.getresponse().read())["next_offset"]
    connection.close()
    return found


def http_address(nsqd: JournalNsqd) -> tuple[str, int]:
    host, _, port = nsqd.http.rpartition(":")
    return host, int(port)


def test_as_many_messages_are_published_as_are_asked_for(nsqd: JournalNsqd) -> None:
    publish(http_address(nsqd), "rows", 2_345)
    assert next_offset(nsqd, "rows") == 2_345


def test_a_steady_flow_comes_by_itself_and_ends(nsqd: JournalNsqd) -> None:
    publish(http_address(nsqd), "rows", 1)
    with SteadyFlow(http_address(nsqd), "rows", per_second=1_000):
        wait_until(lambda: next_offset(nsqd, "rows") > 100)
    ended_at = next_offset(nsqd, "rows")
    assert next_offset(nsqd, "rows") == ended_at


@pytest.fixture(scope="module")
def bench(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """With the files that all works read."""
    prepared = Bench(spark=spark, nsqd=Binary(path=NSQD), row_count=2_000, folder=tmp_path_factory.mktemp("bench"))
    prepare_files(prepared)
    return prepared


@pytest.mark.parametrize("work", [work for work in WORKS if len(work.sides) == 2], ids=lambda work: work.name)
def test_both_sides_of_a_work_move_all_rows(bench: Bench, work: Work) -> None:
    for measure in work.sides.values():
        assert measure(bench) > 0


def test_a_stream_that_moves_other_rows_than_expected_is_a_failure(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(LoadFailure, match="rows came of 11"):
        drained_rate(writer.start(), row_count=11)
