"""A topic and its archive as one table: each message once, whatever archiver, retention and merges are doing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from emberq.cli import sql
from emberq.spark import TimeRange, archived_topic, read_topic
from emberq.spark.archive import archive_pipeline, archived_count
from emberq.spark.error import DataLossError, OptionError
from emberq.spark.pipeline import PipelineFailedError, files
from emberq.spark.pipeline.files import FileSystem, compact, data_files, finish_interrupted
from emberq.spark.pipeline.model import AVAILABLE_NOW
from emberq.wire import envelope
from tests.spark.conftest import run_to_the_end
from tests.support.journal_nsqd import JournalNsqdProcess
from tests.support.waiting import wait_until

TOPIC = "clicks"
SMALL_FILES = ("--journal", "--journal-segment-bytes=1048576", "--journal-retention-bytes=1")
"""Retention removes what all channels have passed; that of the archive holds what is not archived."""
HOUR = timedelta(hours=1)
GUIDE = Path(__file__).parents[2] / "docs" / "SPARK.md"
PARTS = ("clicks-before", "clicks-since")
"""The folders that the guide's example writes."""


@dataclass(frozen=True)
class Scene:
    """Two nsqds with a topic; an archive whose last batch was interrupted; and a copy of it that is far behind."""

    first: JournalNsqdProcess
    second: JournalNsqdProcess
    archive: Path
    lagging: Path

    @property
    def options(self) -> dict[str, str]:
        return {"nsqd": f"{self.first.http},{self.second.http}", "topic": TOPIC}


@pytest.fixture(scope="module")
def scene(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    with JournalNsqdProcess(folder / "first", *SMALL_FILES) as first, JournalNsqdProcess(folder / "second") as second:
        scene = Scene(first, second, folder / "archive of clicks", folder / "lagging")
        publish(first, 200)
        publish(second, 50)
        archive(spark, scene)
        shutil.copytree(scene.archive, scene.lagging)
        publish(first, 300)
        archive(spark, scene)
        publish(first, 20)
        publish(second, 10)
        with pytest.raises(PipelineFailedError):
            archive(spark, scene, moves=1)
        publish(first, 40)
        wait_until(lambda: first.get("/journal", topic=TOPIC)["first_offset"] == 500)
        yield scene


def publish(nsqd: JournalNsqdProcess, count: int, *, body_bytes: int = 10_000) -> None:
    """A hundred and more fill a file of the journal."""
    nsqd.publish(TOPIC, [json.dumps({"n": number, "filling": "x" * body_bytes}).encode() for number in range(count)])


def archive(spark: SparkSession, scene: Scene, *, moves: int | None = None) -> None:
    """Archive what is there. After so many files are moved into place it ends as if it were killed."""
    pipeline = archive_pipeline(
        [TOPIC],
        str(scene.archive),
        access={"nsqd": scene.options["nsqd"]},
        trigger=AVAILABLE_NOW,
        options={"minPartitions": "4"},
    )
    left = moves
    move = FileSystem.move

    def counted_move(self: FileSystem, old: str, new: str) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left < 0:
                raise OSError("killed")
        move(self, old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystem, "move", counted_move)
        run_to_the_end(pipeline, spark, accept_changes=True)


def offsets(rows: DataFrame) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for nsqd, offset in rows.select("nsqd", "offset").collect():
        found.setdefault(nsqd, []).append(offset)
    return {nsqd: sorted(each) for nsqd, each in found.items()}


def published(scene: Scene) -> dict[str, list[int]]:
    """Every offset there ever was."""
    return {
        nsqd.http: list(range(nsqd.get("/journal", topic=TOPIC)["next_offset"])) for nsqd in (scene.first, scene.second)
    }


def test_every_message_is_there_once_when_half_a_batch_is_archived_and_the_beginning_is_gone(
    spark: SparkSession, scene: Scene
) -> None:
    newest = max(file.by.last_batch for file in data_files(scene.archive))
    assert not (scene.archive / "_checkpoint" / "files" / "commits" / str(newest)).exists()
    rows = read_topic(spark, scene.options, archive=str(scene.archive))
    assert rows.columns[-3:] == ["body", "date", "hour"]
    assert offsets(rows) == published(scene)
    assert rows.where("date >= current_date() - 1").count() == sum(map(len, published(scene).values()))


def test_what_is_published_while_rows_are_counted_makes_no_gap(spark: SparkSession, scene: Scene) -> None:
    stopping = Event()

    def go_on() -> None:
        while not stopping.is_set():
            publish(scene.first, 5, body_bytes=1)

    publisher = Thread(target=go_on)
    publisher.start()
    try:
        before = published(scene)
        found = offsets(read_topic(spark, scene.options, archive=str(scene.archive)))
    finally:
        stopping.set()
        publisher.join()
    assert all(each == list(range(len(each))) for each in found.values())
    assert all(len(found[nsqd]) >= len(each) for nsqd, each in before.items())


def test_folders_of_other_hours_are_not_read(
    spark: SparkSession, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    start_ns, end_ns = (int((now + hours * HOUR).timestamp() * 1e9) for hours in (-2, 2))
    for times, count in (
        (TimeRange(start_ns=start_ns, end_ns=end_ns), sum(map(len, published(scene).values()))),
        (TimeRange(start_ns=end_ns), 0),
        (TimeRange(end_ns=start_ns), 0),
    ):
        assert read_topic(spark, scene.options, archive=str(scene.archive), times=times).count() == count
    rows = read_topic(spark, scene.options, archive=str(scene.archive), times=TimeRange(start_ns=start_ns))
    capsys.readouterr()
    rows.where("nsqd = 'a:1'").explain("formatted")
    plan = capsys.readouterr().out
    (folders,) = re.findall(r"PartitionFilters: (.*)", plan)
    (pushed,) = re.findall(r"PushedFilters: (.*)", plan)
    assert "date" in folders
    assert "hour" in folders
    assert "EqualTo(nsqd,a:1)" in pushed


def test_an_archive_that_retention_has_overtaken_is_a_loss(
    spark: SparkSession, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataLossError, match="from offset 200 to 499 were removed by retention"):
        read_topic(spark, scene.options, archive=str(scene.lagging))
    rows = read_topic(spark, {**scene.options, "failOnDataLoss": "false"}, archive=str(scene.lagging))
    everything = published(scene)[scene.first.http]
    assert offsets(rows)[scene.first.http] == everything[:200] + everything[500:]
    assert "were removed by retention" in caplog.text


def test_files_that_are_being_merged_are_read_once(
    spark: SparkSession, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # the old files are still there,
        patch.setattr(files, "_finish_interrupted", lambda _: None)
        compact(scene.archive)
    assert list((scene.archive / "_compaction").glob("*.json"))
    assert offsets(read_topic(spark, scene.options, archive=str(scene.archive))) == published(scene)
    finish_interrupted(scene.archive)
    assert offsets(read_topic(spark, scene.options, archive=str(scene.archive))) == published(scene)


def test_a_stream_goes_on_where_the_archive_ends_as_the_guide_shows(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "past =" in block)
    shutil.copytree(scene.archive, tmp_path / "archive")
    names = {"spark": spark, "where": scene.options}
    exec(code.replace("data/", f"{tmp_path}/"), names)
    query = names["query"]
    assert isinstance(query, StreamingQuery)
    assert query.awaitTermination(200)
    parts = [spark.read.parquet(str(tmp_path / name)).select("nsqd", "offset") for name in PARTS]
    assert offsets(parts[0].union(parts[1])) == published(scene)


def test_sql_over_a_topic_with_its_archive_has_all_rows(
    spark: SparkSession, scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sql, "spark_session", lambda *_: nullcontext(spark))
    flags = [f"--nsqd-http-address={nsqd.http}" for nsqd in (scene.first, scene.second)]
    flags += [f"--topic={TOPIC}", f"--archive={scene.archive}", "--start=2026-01-01T00:00:00Z", "--json"]
    statement = "SELECT count(*) AS rows, count(DISTINCT _nsqd, _offset) AS offsets, count(n) AS numbers FROM clicks"
    assert sql.main([*flags, statement]) == 0
    count = sum(map(len, published(scene).values()))
    assert json.loads(capsys.readouterr().out) == {"rows": count, "offsets": count, "numbers": count}


def test_the_archiver_goes_on_and_all_is_as_before(spark: SparkSession, scene: Scene) -> None:
    archive(spark, scene)
    assert archived_count(scene.archive, TOPIC, TimeRange()) == sum(map(len, published(scene).values()))
    publish(scene.second, 3)
    assert offsets(read_topic(spark, scene.options, archive=str(scene.archive))) == published(scene)


def test_a_topic_that_is_not_archived_yet_is_read_from_its_journals(spark: SparkSession, scene: Scene) -> None:
    scene.second.publish("views", [b"one", b"two"])
    options = {**scene.options, "topic": "views"}
    assert offsets(read_topic(spark, options, archive=str(scene.archive))) == {scene.second.http: [0, 1]}
    both = read_topic(spark, {**options, "topic": f"views,{TOPIC}"}, archive=str(scene.archive))
    assert both.where("topic = 'views'").count() == 2
    assert both.count() == 2 + sum(map(len, published(scene).values()))


def test_headers_are_read_from_an_archive_and_its_folders_are_still_chosen_by_date(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    topic = {"nsqd": scene.second.http, "topic": "tagged"}
    scene.second.publish("tagged", [envelope.encode({"k": "archived"}, b"1"), b"2"])
    run_to_the_end(
        archive_pipeline(["tagged"], str(tmp_path), access={"nsqd": topic["nsqd"]}, trigger=AVAILABLE_NOW, options={}),
        spark,
    )
    scene.second.publish("tagged", [envelope.encode({"k": "not yet"}, b"3")])
    rows = read_topic(spark, {**topic, "includeHeaders": "true"}, archive=str(tmp_path))
    found = rows.where("date >= current_date() - 1")
    assert [(row.body.decode(), row.headers) for row in found.orderBy("offset").collect()] == [
        ("1", {"k": "archived"}),
        ("2", None),
        ("3", {"k": "not yet"}),
    ]
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert re.search(r"PartitionFilters: \[.*date#\d+ >=", plan)


def test_a_folder_that_does_not_tell_where_journals_go_on_is_refused(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="is no archive"):
        read_topic(spark, scene.options, archive=str(tmp_path))
    for name, value in {"startingOffsets": "latest", "columns": "body"}.items():
        with pytest.raises(OptionError, match=f'"{name}" has no meaning with an archive'):
            read_topic(spark, {**scene.options, name: value}, archive=str(scene.archive))
    strange = tmp_path / "strange"
    shutil.copytree(scene.lagging, strange)
    file = next(strange.rglob("*.parquet"))
    file.rename(file.with_name("part-0.parquet"))
    with pytest.raises(OptionError, match=r"do not go with its _checkpoint, such as .*/part-0\.parquet"):
        read_topic(spark, scene.options, archive=str(strange))


def test_a_topic_that_was_made_again_is_read_from_its_start_behind_what_was(spark: SparkSession, scene: Scene) -> None:
    """The last test of the scene: it deletes a topic."""
    scene.second.post("/topic/delete", topic=TOPIC)
    publish(scene.second, 7)
    with pytest.raises(DataLossError, match="was deleted and made again since the archive read it"):
        read_topic(spark, scene.options, archive=str(scene.archive))
    options = {**scene.options, "failOnDataLoss": "false"}
    past = archived_topic(spark, options, archive=str(scene.archive))
    begins = json.loads(past.starting_offsets)
    assert begins[scene.second.http][TOPIC]["offset"] == 0
    not_archived = len(published(scene)[scene.first.http]) - begins[scene.first.http][TOPIC]["offset"]
    found = offsets(read_topic(spark, options, archive=str(scene.archive)))
    assert sum(map(len, found.values())) == past.rows.count() + not_archived + 7
    assert found[scene.second.http].count(0) == 2
