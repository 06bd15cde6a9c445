"""Pipelines into a real PostgreSQL; `make test-jdbc` runs it. (The name keeps it out of `make test`.)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from emberq.spark.pipeline import (
    OutputMode,
    Pipeline,
    PipelineFailedError,
    PipelineRun,
    Sink,
    Source,
    View,
    WriteMode,
)
from emberq.spark.pipeline.jdbc import STAGE, DatabaseTable, JavaConnection, PostgresSql
from emberq.spark.pipeline.model import AVAILABLE_NOW
from tests.support.journal_nsqd import JournalNsqd
from tests.support.postgres import PASSWORD, USER, PostgresServer

pytestmark = pytest.mark.timeout(300)

SCHEMA = "id BIGINT NOT NULL, customer STRING, total DOUBLE, at TIMESTAMP, tags ARRAY<STRING>"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> PostgresServer:
    """Without the tables of the tests before."""
    postgres.rows("SET client_min_messages TO warning; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return postgres


@pytest.fixture
def orders(database: PostgresServer, nsqd: JournalNsqd, tmp_path: Path) -> Pipeline:
    """Orders to a table, row by row, to the end of what is there."""
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    sink = Sink(
        view="orders",
        format="jdbc",
        url=database.url,
        table="orders",
        user=USER,
        password_file=str(tmp_path / "password"),
    )
    return Pipeline(
        name="shop",
        checkpoint=str(tmp_path / "checkpoint"),
        nsqd=(nsqd.http,),
        trigger=AVAILABLE_NOW,
        progress_topic="",
        sources={"all_orders": Source(topic=("orders",), schema=SCHEMA)},
        views={"orders": View(sql="SELECT id, customer, total, at, tags FROM all_orders")},
        sinks={"orders": sink},
    )


def into(
    pipeline: Pipeline, *, sql: str | None = None, output_mode: OutputMode = OutputMode.APPEND, **sink: object
) -> Pipeline:
    """The pipeline with another sink, and another view before it."""
    views = {"orders": View(sql=sql)} if sql else pipeline.views
    changed = replace(pipeline.sinks["orders"], output_mode=output_mode, **sink)  # type: ignore[arg-type]
    return replace(pipeline, views=views, sinks={"orders": changed})


def run(pipeline: Pipeline, spark: SparkSession) -> None:
    running = PipelineRun(pipeline, spark)
    running.start()
    try:
        running.wait()
    finally:
        running.stop()


def publish(nsqd: JournalNsqd, *found: tuple[int, str, float]) -> None:
    at, tags = "2026-11-15T06:00:00Z", ["new", "web"]
    documents = ({"id": key, "customer": name, "total": total, "at": at, "tags": tags} for key, name, total in found)
    nsqd.publish("orders", [json.dumps(document).encode() for document in documents])


def forget_batch(pipeline: Pipeline, batch: int) -> None:
    """As if Spark had died before it could note that a batch is done."""
    commits = Path(pipeline.checkpoint) / "orders" / "commits"
    for commit in (commits / str(batch), commits / f".{batch}.crc"):
        commit.unlink(missing_ok=True)


def test_rows_are_appended_once_also_when_a_batch_is_done_again(
    spark: SparkSession, database: PostgresServer, nsqd: JournalNsqd, orders: Pipeline
) -> None:
    publish(nsqd, (1, "Ada", 2.5), (2, "Åsa", 4.0))
    run(orders, spark)
    forget_batch(orders, 0)
    run(orders, spark)
    publish(nsqd, (3, "Bob's", 1.0))
    run(orders, spark)
    assert database.rows("SELECT id, customer, total, at AT TIME ZONE 'UTC', tags FROM orders ORDER BY id") == [
        ("1", "Ada", "2.5", "2026-11-15 06:00:00", "{new,web}"),
        ("2", "Åsa", "4", "2026-11-15 06:00:00", "{new,web}"),
        ("3", "Bob's", "1", "2026-11-15 06:00:00", "{new,web}"),
    ]
    assert database.rows("SELECT sink, batch, row_count FROM emberq_batches") == [("shop/orders", "1", "1")]
    assert database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1") == [
        ("emberq_batches",),
        ("orders",),
    ]


def test_counts_that_change_are_upserted_into_a_table_that_is_made_with_its_key(
    spark: SparkSession, database: PostgresServer, nsqd: JournalNsqd, orders: Pipeline
) -> None:
    counted = into(
        orders,
        sql="SELECT customer, count(*) AS n, sum(total) AS total FROM all_orders GROUP BY customer",
        output_mode=OutputMode.UPDATE,
        mode=WriteMode.UPSERT,
        key=("customer",),
        table="public.counts",
    )
    publish(nsqd, (1, "Ada", 2.5), (2, "Bob", 4.0), (3, "Ada", 1.0))
    run(counted, spark)
    forget_batch(counted, 0)
    run(counted, spark)
    publish(nsqd, (4, "Ada", 1.0))
    run(counted, spark)
    assert database.rows("SELECT customer, n, total FROM counts ORDER BY 1") == [("Ada", "3", "4.5"), ("Bob", "1", "4")]


def test_text_becomes_what_the_table_has_and_the_last_row_of_a_key_counts(
    spark: SparkSession, database: PostgresServer, nsqd: JournalNsqd, orders: Pipeline
) -> None:
    database.rows(
        """CREATE SCHEMA "Shop"; CREATE TYPE mood AS ENUM ('new', 'old');
        CREATE TABLE "Shop"."Orders" (number serial, id int, part uuid, paid numeric(6, 2), at timestamp, mood mood,
        tags jsonb, PRIMARY KEY (id, part))"""
    )
    part = "8d9b1d1c-9c26-4a8e-8ac4-1f5b1c6f0a01"
    typed = into(
        orders,
        sql=f"SELECT id, if(total < 2, upper('{part}'), '{part}') AS part, total AS paid, at, tags[0] AS mood,"
        " to_json(tags) AS tags FROM all_orders",
        mode=WriteMode.UPSERT,
        key=("id", "part"),
        table="Shop.Orders",
    )
    publish(nsqd, (1, "Ada", 2.5), (1, "Ada", 3.255), (2, "Ada", 7.0), (1, "Ada", 1.125))
    run(typed, spark)
    assert database.rows("""SELECT id, part, paid, at, mood, tags ->> 1 FROM "Shop"."Orders" ORDER BY id""") == [
        ("1", part, "1.13", "2026-11-15 06:00:00", "new", "web"),
        ("2", part, "7.00", "2026-11-15 06:00:00", "new", "web"),
    ]
    assert database.rows("""SELECT count(*) FROM "Shop".emberq_batches""") == [("1",)]


def test_a_batch_that_fails_leaves_nothing_and_no_sign_of_the_password(
    spark: SparkSession,
    database: PostgresServer,
    nsqd: JournalNsqd,
    orders: Pipeline,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    database.rows("CREATE TABLE orders (id int, customer varchar(3), total float, at timestamptz, tags text[])")
    publish(nsqd, (1, "Ada", 2.5), (2, "Grace", 1.0))
    with pytest.raises(PipelineFailedError, match=r"value too long for type character varying\(3\)"):
        run(orders, spark)
    assert database.rows("SELECT count(*) FROM orders") == [("0",)]
    assert database.rows("SELECT count(*) FROM emberq_batches") == [("0",)]
    database.rows("ALTER TABLE orders ALTER customer TYPE text, DROP tags")
    with pytest.raises(PipelineFailedError, match='table orders has no column "tags"; it has id, customer, total, at'):
        run(orders, spark)
    (tmp_path / "password").write_text("wrong-4711-password")
    with pytest.raises(PipelineFailedError, match="password authentication failed") as refused:
        run(orders, spark)
    (tmp_path / "password").write_text(PASSWORD)
    database.rows("ALTER TABLE orders ADD tags text[]")
    run(orders, spark)
    assert database.rows("SELECT id, customer FROM orders ORDER BY 1") == [("1", "Ada"), ("2", "Grace")]
    assert database.rows(f"SELECT count(*) FROM pg_tables WHERE starts_with(tablename, '{STAGE}')") == [("0",)]
    kept = "".join(file.read_text(errors="replace") for file in tmp_path.rglob("checkpoint/**/*") if file.is_file())
    said = "".join([repr(refused.value), caplog.text, *capfd.readouterr(), kept])
    assert "4711" not in said


def test_a_stage_that_postgres_has_emptied_is_not_taken_for_the_batch(
    spark: SparkSession,
    database: PostgresServer,
    nsqd: JournalNsqd,
    orders: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill = DatabaseTable._fill

    def fill_and_crash(table: DatabaseTable, stage: str, rows: DataFrame, *rest: JavaConnection) -> int:
        count = fill(table, stage, rows, *rest)  # type: ignore[arg-type]
        database.rows(f"TRUNCATE {stage}")
        return count

    publish(nsqd, (1, "Ada", 2.5))
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseTable, "_fill", fill_and_crash)
        with pytest.raises(PipelineFailedError, match="has 0 of 1 rows: PostgreSQL has crashed"):
            run(orders, spark)
    run(orders, spark)
    assert database.rows("SELECT id FROM orders") == [("1",)]


def test_a_run_that_comes_too_late_writes_nothing(
    spark: SparkSession,
    database: PostgresServer,
    nsqd: JournalNsqd,
    orders: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two drivers try the same batch, as when the first was believed to be dead: the second commits, then the first."""
    fill = DatabaseTable._fill

    def fill_and_be_overtaken(table: DatabaseTable, stage: str, rows: DataFrame, *rest: JavaConnection) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(DatabaseTable, "_fill", fill)
            DatabaseTable(orders.sinks["orders"], name="other").write(rows, 0)
        return fill(table, stage, rows, *rest)  # type: ignore[arg-type]

    publish(nsqd, (1, "Ada", 2.5))
    monkeypatch.setattr(DatabaseTable, "_fill", fill_and_be_overtaken)
    run(orders, spark)
    assert database.rows("SELECT id FROM orders") == [("1",)]
    assert database.rows("SELECT sink, batch FROM emberq_batches") == [("other", "0")]


def test_rows_that_a_task_has_written_twice_count_once(database: PostgresServer) -> None:
    sql = PostgresSql("orders")
    database.rows("CREATE TABLE orders (id int); CREATE TABLE stage (id int, _emberq_row bigint)")
    database.rows("INSERT INTO stage VALUES (7, 0), (8, 1)")
    database.rows("INSERT INTO stage VALUES (8, 0), (7, 1)")  # by the second attempt, in another order
    database.rows(f"INSERT INTO stage VALUES (9, {1 << 33})")
    assert database.rows(sql.count("stage")) == [("3",)]
    database.rows(sql.move("stage", {"id": "int"}, ()))
    assert database.rows("SELECT id FROM orders ORDER BY 1") == [("7",), ("8",), ("9",)]
