"""Pipelines as they run, with a real Spark and a real nsqd: the examples, and what happens when they are changed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from emberq.cli.demo_events import ClickGenerator, evenly_from
from emberq.spark.demo import check_clickstream
from emberq.spark.pipeline import (
    BadRecords,
    BodyFormat,
    Pipeline,
    PipelineError,
    PipelineFailedError,
    PipelineRun,
    SchemaEvolution,
    Sink,
    Source,
    View,
    Watermark,
    load_pipeline,
)
from emberq.spark.pipeline.build import build
from emberq.spark.pipeline.checkpoint import pipeline_status
from emberq.spark.pipeline.files import FileSystem
from emberq.spark.pipeline.model import AVAILABLE_NOW, OutputMode
from emberq.spark.pipeline.run import Changes, RunLock, keep
from emberq.wire import envelope
from emberq.wire.dead_letter import decode_dead_letter
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import documents_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"
SIX = datetime(2026, 11, 15, 6, tzinfo=UTC)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def with_last_batches(spark: SparkSession) -> Iterator[None]:
    """A run ends with a batch without data that writes the windows which are over."""
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "true")
    yield
    spark.conf.set(setting, before or "true")


def example(name: str, folder: Path, nsqd: JournalNsqd) -> Pipeline:
    """An example, to be run to the end of what is there, with its data in `folder`."""
    for file in (name, "products.csv"):
        shutil.copy(EXAMPLES / file, folder)
    return replace(load_pipeline(folder / name).pipeline, nsqd=(nsqd.http,), trigger=AVAILABLE_NOW)


def run(pipeline: Pipeline, spark: SparkSession) -> None:
    running = PipelineRun(pipeline, spark)
    running.start()
    try:
        running.wait()
    finally:
        running.stop()


def test_headers_go_through_a_pipeline_and_with_its_bad_records(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    tagged, broken = (envelope.encode({"tenant": "é"}, body) for body in (b'{"n": 1}', b'{"n": "?"}'))
    nsqd.publish("in", [tagged, broken, b'{"n": 2}'])
    copying = Pipeline(
        name="copying",
        nsqd=(nsqd.http,),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger=AVAILABLE_NOW,
        sources={
            "rows": Source(
                topic=("in",), schema="n INT", bad_records=BadRecords(topic="bad"), options={"includeHeaders": "true"}
            )
        },
        views={"copies": View(sql="SELECT to_json(struct(n)) AS body, _headers AS headers FROM rows")},
        sinks={"copy": Sink(view="copies", topic="out")},
    )
    run(copying, spark)
    read = spark.read.format("nsq").options(nsqd=nsqd.http, includeHeaders="true")
    copies = read.option("topic", "out").load().collect()
    assert sorted((bytes(row.body), row.headers) for row in copies) == [
        (b'{"n":1}', {"tenant": "é"}),
        (b'{"n":2}', None),
    ]
    letters = [decode_dead_letter(bytes(row.body)) for row in read.option("topic", "bad").load().collect()]
    assert [(letter.reason, letter.body) for letter in letters if letter is not None] == [
        ("does not fit the schema: n is not a INT", broken)
    ]


def sum_of(lines: list[dict[str, Any]], what: str) -> int:
    """Over all batches and sources."""
    return sum(count for line in lines for count in line[what].values())


def test_clickstream_counts_every_visit_once_over_two_runs(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    pipeline = example("clickstream.toml", tmp_path, nsqd)
    clicks = ClickGenerator(now=evenly_from(SIX, interval=timedelta(milliseconds=100)), broken_every=50)
    for _ in range(2):
        nsqd.publish("clicks", [clicks.next() for _ in range(1000)])
        run(pipeline, spark)
    made = clicks.generated
    checks = check_clickstream(pipeline, good=made.good, broken=made.broken, pages=made.pages)
    assert all(check.is_right for check in checks), checks
    assert (made.good, made.broken) == (1960, 40)

    statuses = pipeline_status(pipeline)
    assert [status.query for status in statuses] == ["archive", "clicks-bad", "final-counts", "live-counts"]
    assert {status.lag for status in statuses} == {0}

    progress = documents_of(nsqd.http, "emberq.pipelines")
    queries = {status.query: [line for line in progress if line["query"] == status.query] for status in statuses}
    for lines in queries.values():
        assert (lines[0]["state"], lines[0]["batch"]) == ("running", None)
        assert (lines[-1]["state"], lines[-1]["lag"], lines[-1]["error"]) == ("ended", 0, "")
        assert (sum(line["rows"] for line in lines), sum_of(lines, "bad")) == (2000, 40)
    written = {query: sum(line["rows_out"] or 0 for line in lines) for query, lines in queries.items()}
    assert (written["archive"], written["clicks-bad"]) == (1960, 40)
    assert written["live-counts"] == len(documents_of(nsqd.http, "clicks.per-minute"))
    final_counts = ds.dataset(tmp_path / "clickstream-data" / "per-minute", ignore_prefixes=["_", "."])
    assert written["final-counts"] == final_counts.count_rows() > 0
    reasons = {letter["reason"] for letter in documents_of(nsqd.http, "clicks.bad")}
    assert reasons == {
        "not JSON",
        "id is missing, at is missing",
        "does not fit the schema: at is not a TIMESTAMP",
    }


def test_iot_counts_each_reading_once_and_late_ones_until_the_watermark(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    def reading(minute: float, *, sequence: int, celsius: float = 20.0) -> bytes:
        at = (SIX + timedelta(minutes=minute)).isoformat()
        return json.dumps({"sensor": "a", "sequence": sequence, "celsius": celsius, "at": at}).encode()

    pipeline = example("iot.toml", tmp_path, nsqd)
    nsqd.publish(
        "readings", [reading(1, sequence=1), reading(1, sequence=1), reading(8, sequence=3), b'{"sensor": "a"}']
    )
    run(pipeline, spark)
    nsqd.publish("readings", [reading(2, sequence=2, celsius=40.0), reading(1, sequence=1), reading(30, sequence=4)])
    run(pipeline, spark)
    nsqd.publish("readings", [reading(3, sequence=5), reading(31, sequence=6)])  # the first is too late
    run(pipeline, spark)
    averages = ds.dataset(tmp_path / "iot-data" / "averages", ignore_prefixes=["_", "."]).to_table().to_pylist()
    found = [(row["since"].minute, row["readings"], row["celsius"]) for row in averages]
    assert sorted(found) == [(0, 2, 30.0), (5, 1, 20.0)]
    bad = ds.dataset(tmp_path / "iot-data" / "bad", ignore_prefixes=["_", "."]).to_table().to_pylist()
    assert [row["reason"] for row in bad] == ["sequence is missing, celsius is missing, at is missing"]


def test_enrichment_joins_a_table(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    orders = [{"order_id": f"o{number}", "product": number, "quantity": 2} for number in (1, 2, 9)]
    nsqd.publish("orders", [json.dumps(order).encode() for order in orders])
    run(example("enrichment.toml", tmp_path, nsqd), spark)
    priced = documents_of(nsqd.http, "orders.priced")
    assert sorted((order["name"], order["total"]) for order in priced) == [("hat", 49.0), ("shoes", 119.8)]
    assert documents_of(nsqd.http, "orders.unknown") == [{"order_id": "o9", "product": 9}]


def test_a_batch_of_changes_that_is_done_again_is_not_published_again(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    nsqd.publish("words", [b"to", b"be", b"or", b"not", b"to", b"be"])
    pipeline = Pipeline(
        name="count",
        checkpoint=str(tmp_path / "checkpoint"),
        nsqd=(nsqd.http,),
        trigger=AVAILABLE_NOW,
        sources={"words": Source(topic=("words",), format=BodyFormat.TEXT)},
        views={"counted": View(sql="SELECT text, count(*) AS count FROM words GROUP BY text")},
        sinks={"counted": Sink(view="counted", topic="words.counted", output_mode=OutputMode.UPDATE)},
    )
    run(pipeline, spark)
    commits = tmp_path / "checkpoint" / "counted" / "commits"
    for commit in (commits / "0", commits / ".0.crc"):  # as if Spark had died before it could note that it is done
        commit.unlink(missing_ok=True)
    run(pipeline, spark)
    assert (commits / "0").exists()
    counts = documents_of(nsqd.http, "words.counted")
    assert sorted((count["text"], count["count"]) for count in counts) == [("be", 2), ("not", 1), ("or", 1), ("to", 2)]


def test_a_query_that_fails_says_why_and_ends_the_others(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path
) -> None:
    nsqd.publish("lines", [b"one"])
    pipeline = Pipeline(
        name="broken",
        checkpoint=str(tmp_path / "checkpoint"),
        nsqd=(nsqd.http,),
        sources={"lines": Source(topic=("lines",), format=BodyFormat.TEXT)},
        views={"raised": View(sql="SELECT raise_error('no such luck') AS body FROM lines")},
        sinks={
            "good": Sink(view="lines", format="memory"),
            "raised": Sink(view="raised", path=str(tmp_path / "raised")),
        },
    )
    with pytest.raises(PipelineFailedError, match="no such luck"):
        run(pipeline, spark)
    last = {line["query"]: line for line in documents_of(nsqd.http, "emberq.pipelines")}
    assert (last["good"]["state"], last["good"]["error"]) == ("ended", "")
    assert last["raised"]["state"] == "failed"
    assert "no such luck" in last["raised"]["error"]


def test_sql_that_is_wrong_is_told_with_its_line(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    text = (EXAMPLES / "clickstream.toml").read_text().replace("FROM clicks\n", "FROM clikcs\n")
    (tmp_path / "wrong.toml").write_text(text)
    loaded = load_pipeline(tmp_path / "wrong.toml")
    line = text.splitlines().index("FROM clikcs") + 1
    with pytest.raises(PipelineError, match=rf"wrong.toml:{line}: view.per_minute.sql: .*`clikcs` cannot be found"):
        build(loaded.pipeline, spark, origin=loaded.origin)


def test_a_result_that_is_never_final_cannot_be_appended(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = load_pipeline(EXAMPLES / "clickstream.toml").pipeline
    views = {"per_minute": View(sql="SELECT page, count(*) AS clicks FROM clicks GROUP BY page")}
    with pytest.raises(PipelineError, match=r"sink.final-counts: .* add a watermark .* output_mode = \"update\""):
        build(replace(pipeline, views=views), spark)


def test_changed_sql_goes_on_without_state_and_is_refused_with_it(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.publish("orders", [b'{"order_id": "o1", "product": 1, "quantity": 1}'])
    pipeline = example("enrichment.toml", tmp_path, nsqd)
    sinks = {"priced": pipeline.sinks["priced"]}
    pipeline = replace(pipeline, sinks=sinks, sources={"orders": replace(pipeline.sources["orders"], bad_records=None)})
    run(pipeline, spark)
    changed = replace(pipeline, views={"priced": View(sql="SELECT order_id, 'free' AS total FROM orders")})
    nsqd.publish("orders", [b'{"order_id": "o2", "product": 1, "quantity": 1}'])
    with caplog.at_level(logging.WARNING, "emberq"):
        run(changed, spark)
    assert "view.priced.sql has changed; sink priced goes on where it was" in caplog.text
    assert documents_of(nsqd.http, "orders.priced")[1] == {"order_id": "o2", "total": "free"}

    grouped = View(sql="SELECT product, count(*) AS orders FROM orders GROUP BY product")
    with_state = replace(
        changed, views={"priced": grouped}, sinks={"priced": replace(sinks["priced"], output_mode=OutputMode.UPDATE)}
    )
    with pytest.raises(PipelineError, match=r"view.priced.sql: this has changed since sink priced began.*state"):
        PipelineRun(with_state, spark).start()


def test_schema_watermark_and_topic_are_judged_as_sql_is(spark: SparkSession, tmp_path: Path) -> None:
    orders = Source(
        topic=("orders",), schema="product INT, at TIMESTAMP", watermark=Watermark(column="at", delay="1 minute")
    )
    grouped = "SELECT product, count(*) AS orders FROM orders GROUP BY product"
    pipeline = Pipeline(
        name="judged",
        checkpoint=str(tmp_path),
        nsqd=("127.0.0.1:1",),
        sources={"orders": orders},
        views={"grouped": View(sql=grouped)},
        sinks={"grouped": Sink(view="grouped", format="memory", output_mode=OutputMode.UPDATE)},
    )
    files = FileSystem(spark)
    (began,) = build(pipeline, spark)
    keep(began, files)

    def complaint(*, source: Source, sink: Sink = pipeline.sinks["grouped"]) -> str:
        with pytest.raises(PipelineError) as raised:
            PipelineRun(replace(pipeline, sources={"orders": source}, sinks={"grouped": sink}), spark).start()
        return str(raised.value)

    wider = replace(orders, schema="product STRING, at TIMESTAMP")
    assert "source.orders.schema: this has changed since sink grouped began" in complaint(source=wider)
    later = replace(orders, watermark=Watermark(column="at", delay="2 minutes"))
    assert "source.orders.watermark.delay: this has changed" in complaint(source=later)
    dropped = "source.orders.topic: sink grouped has begun to read orders, which it is to read no longer"
    assert dropped in complaint(source=replace(orders, topic=("returns",)))
    assert dropped in complaint(source=replace(orders, topic=("returns",)), sink=Sink(view="orders", format="memory"))


def test_a_topic_more_is_no_topic_less_and_files_of_older_versions_are_understood() -> None:
    sql = {"view.v.sql": "SELECT 1", "source.s.watermark": "at"}
    now = sql | {"source.s.topic": "a, b", "source.s.schema": "`n` int", "source.s.watermark.delay": "1 minute"}
    assert Changes.between(sql, now) == Changes([], [])
    assert Changes.between(sql, now | {"view.v.sql": "SELECT 2"}) == Changes(["view.v.sql"], [])
    assert Changes.between(now | {"source.s.topic": "a"}, now) == Changes(["source.s.topic"], [])
    assert Changes.between(now, sql | {"source.t.topic": "b"}).dropped_topics == ["a"]


def test_a_schema_grows_by_fields_that_appear_and_fails_where_it_shall(
    spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd.publish("orders", [b'{"id": 1}'])
    orders = Source(topic=("orders",), schema="id INT", schema_evolution=SchemaEvolution.ADD)
    pipeline = Pipeline(
        name="growing",
        checkpoint=str(tmp_path / "checkpoint"),
        nsqd=(nsqd.http,),
        trigger=AVAILABLE_NOW,
        progress_topic="",
        sources={"orders": orders},
        views={"copied": View(sql="SELECT * EXCEPT (_topic, _nsqd, _offset, _id, _time) FROM orders")},
        sinks={"copied": Sink(view="copied", topic="orders.copied")},
    )
    run(pipeline, spark)
    nsqd.publish("orders", [b'{"id": 2}', b'{"id": 3, "note": "x"}', b'{"id": 4, "who": {"name": "y"}}'])
    with caplog.at_level(logging.WARNING, "emberq"):
        run(pipeline, spark)
    assert "the schema of source orders has grown: `note` string, `who` struct<name:string>" in caplog.text
    assert documents_of(nsqd.http, "orders.copied") == [
        {"id": 1},
        {"id": 2},
        {"id": 3, "note": "x"},
        {"id": 4, "who": {"name": "y"}},
    ]
    nsqd.publish("orders", [b'{"id": 5, "newer": 1}'])
    strict = replace(orders, schema_evolution=SchemaEvolution.FAIL)
    with pytest.raises(PipelineFailedError, match="the schema does not have: newer; add them"):
        run(replace(pipeline, sources={"orders": strict}), spark)


def test_a_pipeline_that_runs_is_not_started_again(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    nsqd.publish("lines", [b"one"])
    pipeline = Pipeline(
        name="once",
        checkpoint=str(tmp_path / "checkpoint"),
        nsqd=(nsqd.http,),
        progress_topic="",
        sources={"lines": Source(topic=("lines",), format=BodyFormat.TEXT)},
        sinks={"once": Sink(view="lines", format="memory")},
    )
    first = PipelineRun(pipeline, spark)
    first.start()
    try:
        with pytest.raises(PipelineError, match=rf"runs already in process {os.getpid()}.*; stop that run first"):
            PipelineRun(pipeline, spark).start()
    finally:
        first.stop()
    second = RunLock(pipeline.checkpoint)
    second.acquire()  # the first run has let go of it
    second.release()


def test_spark_connect_is_refused_with_a_sentence(tmp_path: Path) -> None:
    remote = pytest.importorskip("pyspark.sql.connect.session").SparkSession
    without_server = remote.__new__(remote)
    pipeline = load_pipeline(EXAMPLES / "clickstream.toml").pipeline
    with pytest.raises(PipelineError, match=r"Spark Connect has no Java here; run it where Spark's driver is"):
        PipelineRun(replace(pipeline, checkpoint=str(tmp_path)), without_server).start()
