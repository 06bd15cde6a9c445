"""A DataFrame of read_topic that is kept while archive and retention go on: the exact rows, or an error with advice."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from emberq.spark import read_topic
from emberq.spark.archive import _starting_offsets, archive_pipeline
from emberq.spark.error import DataLossError, OptionError
from emberq.spark.journal_offset import Place, Position, Positions, parse_start
from emberq.spark.journal_plan import JournalSurvey, start_positions
from emberq.spark.option import SourceSettings, Use
from emberq.spark.pipeline import PipelineRun
from emberq.spark.pipeline.files import compact
from emberq.spark.pipeline.model import AVAILABLE_NOW
from emberq.spark.sql import SqlConsole
from tests.spark.conftest import StartNsqd
from tests.support.journal_nsqd import JournalNsqd
from tests.support.waiting import wait_until

TOPIC = "clicks"
COUNT = f"SELECT count(*) FROM {TOPIC}"
SMALL_FILES = ("--journal", "--journal-segment-bytes=1048576", "--journal-retention-bytes=1")


def publish(nsqd: JournalNsqd, count: int) -> None:
    """A hundred and more fill a file of the journal."""
    nsqd.publish(TOPIC, [b"x" * 10_000 for _ in range(count)])


def archive(spark: SparkSession, nsqd: JournalNsqd, folder: Path) -> None:
    options = {"minPartitions": "2"}
    pipeline = archive_pipeline(
        [TOPIC], str(folder), access={"nsqd": nsqd.http}, trigger=AVAILABLE_NOW, options=options
    )
    run = PipelineRun(pipeline, spark)
    run.start()
    run.wait()
    run.stop()


def offsets(rows: DataFrame) -> list[int]:
    return sorted(offset for (offset,) in rows.select("offset").collect())


@pytest.mark.timeout(300)
def test_a_frame_that_retention_or_a_merge_has_overtaken_is_exact_or_fails_with_advice(
    spark: SparkSession, start_journal_nsqd: StartNsqd, tmp_path: Path
) -> None:
    nsqd, folder = start_journal_nsqd(*SMALL_FILES), tmp_path / "archive"

    def frame() -> DataFrame:
        return read_topic(spark, {"nsqd": nsqd.http, "topic": TOPIC}, archive=str(folder))

    publish(nsqd, 200)
    archive(spark, nsqd, folder)
    early, not_run = frame(), frame()
    publish(nsqd, 10)
    assert offsets(early) == list(range(210))  # what was archived, then the journal
    console = SqlConsole(spark)
    console.add_topic(TOPIC, access={"nsqd": nsqd.http}, schema="", raw=True, archive=str(folder))
    assert console.rows(COUNT, max_rows=1).items == [(210,)]
    publish(nsqd, 290)
    assert offsets(early.where("offset >= 0")) == list(range(210))  # Spark plans a DataFrame once
    assert console.rows(COUNT, max_rows=1).items == [(500,)]  # a statement is over what there is now
    archive(spark, nsqd, folder)  # the frame does not know these files
    publish(nsqd, 110)
    archive(spark, nsqd, folder)
    publish(nsqd, 40)
    wait_until(lambda: nsqd.get("/journal", topic=TOPIC)["first_offset"] > 200)
    with pytest.raises(PySparkException, match=r"offset 200 on was removed by retention.*call read_topic again"):
        offsets(not_run)
    with pytest.raises(PySparkException, match=r"offset 200 to 209 are lost.*make the DataFrame again"):
        offsets(early)
    late = frame()
    assert offsets(late) == list(range(650))
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        assert compact(folder).files_after < 6
        with pytest.raises(Exception, match="recreating the Dataset/DataFrame"):
            offsets(late.where("offset >= 0"))
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
    assert offsets(frame()) == list(range(650))


def settings(*nsqds: str, **options: str) -> SourceSettings:
    return SourceSettings.of({"nsqd": ",".join(nsqds), "topic": TOPIC, **options}, Use.BATCH)


def begins(document: str, reading: SourceSettings) -> Positions:
    survey = JournalSurvey(reading)
    loss = reading.fail_on_data_loss
    return start_positions(parse_start(document), survey.first_look(), survey, fail_on_data_loss=loss)


def journal_of(nsqd: JournalNsqd) -> str:
    return str(UUID(nsqd.get("/journal", topic=TOPIC)["uuid"]))


def test_an_nsqd_that_was_away_goes_on_where_the_archive_ends(start_journal_nsqd: StartNsqd) -> None:
    here, away = start_journal_nsqd(), start_journal_nsqd()
    for nsqd in (here, away):
        publish(nsqd, 9)
    archived = {Place(nsqd.http, TOPIC): Position(journal_of(nsqd), 5) for nsqd in (here, away)}
    away.kill()
    document = json.dumps(_starting_offsets(archived, settings(here.http)))
    assert begins(document, settings(here.http)) == archived  # a stream reads it when it is back
    away.start()
    assert begins(document, settings(here.http, away.http)) == archived
    with pytest.raises(OptionError, match=f"names topic {TOPIC} on nsqd {here.http}, which is not read here"):
        begins(document, settings(away.http))


def test_a_journal_is_found_where_its_nsqd_is_now(start_journal_nsqd: StartNsqd) -> None:
    nsqd = start_journal_nsqd()
    publish(nsqd, 9)
    document = json.dumps({"elsewhere:4151": {TOPIC: {"journal": journal_of(nsqd), "offset": 5}}})
    assert begins(document, settings(nsqd.http)) == {Place(nsqd.http, TOPIC): Position(journal_of(nsqd), 5)}


def test_a_journal_that_came_later_is_read_from_its_first_message_or_not_at_all(
    start_journal_nsqd: StartNsqd, caplog: pytest.LogCaptureFixture
) -> None:
    here = start_journal_nsqd()
    publish(here, 1)
    document = json.dumps(_starting_offsets({}, settings(here.http)))
    later = start_journal_nsqd(*SMALL_FILES)
    publish(later, 200)
    both, place = settings(here.http, later.http), Place(later.http, TOPIC)
    assert begins(document, both)[place].offset == 0
    later.post("/channel/create", topic=TOPIC, channel="archive")
    later.post("/channel/seek", topic=TOPIC, channel="archive", to=200)
    publish(later, 1)
    wait_until(lambda: later.get("/journal", topic=TOPIC)["first_offset"] > 0)
    with pytest.raises(DataLossError, match=r"what was from offset 0 on was removed by retention.*read_topic again"):
        begins(document, both)
    first = later.get("/journal", topic=TOPIC)["first_offset"]
    assert begins(document, settings(here.http, later.http, failOnDataLoss="false"))[place].offset == first
    assert "what was from offset 0 on was removed by retention" in caplog.text
