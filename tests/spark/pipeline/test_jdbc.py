"""Sinks that are tables of a database, without one: their SQL, and what is said about settings that are wrong.

`jdbc_postgres.py` has the tests with a PostgreSQL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from emberq.spark.pipeline import OutputMode, Sink, WriteMode
from emberq.spark.pipeline.build import struct_of
from emberq.spark.pipeline.jdbc import PostgresSql, problems_with, quoted_name
from emberq.spark.pipeline.model import PipelineError
from emberq.spark.pipeline.toml_file import read_pipeline

FILE = """\
name = "shop"
checkpoint = "checkpoint"
nsqd = ["127.0.0.1:4151"]
[source.orders]
topic = "orders"
schema = "id BIGINT, total DOUBLE"
[sink.orders]
from = "orders"
format = "jdbc"
url = "jdbc:postgresql://127.0.0.1/shop"
table = "shop.orders"
user = "shop"
password_file = "shop.password"
mode = "upsert"
key = "id"
jar = "/opt/postgresql.jar"
options = { batchsize = 5000, sslmode = "require" }
"""
ORDERS = Sink(view="orders", format="jdbc", url="jdbc:postgresql://127.0.0.1/shop", table="orders")


def read(text: str) -> Sink:
    return read_pipeline(text, file="shop.toml", folder=Path("/shop")).pipeline.sinks["orders"]


def test_a_sink_that_is_a_table_is_read_from_toml() -> None:
    assert read(FILE) == replace(
        ORDERS,
        table="shop.orders",
        user="shop",
        password_file="/shop/shop.password",
        mode=WriteMode.UPSERT,
        key=("id",),
        jar="/opt/postgresql.jar",
        options={"batchsize": "5000", "sslmode": "require"},
    )


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("jdbc:postgresql:", "jdbc:mysql:",
         'shop.toml:10: sink.orders.url: "jdbc:mysql://127.0.0.1/shop" is not a PostgreSQL; '
         'write url = "jdbc:postgresql://HOST/DATABASE"; other databases are not known'),
        ('/shop"', '/shop?user=shop&password=x"',
         "shop.toml:10: sink.orders.url: it has a password, which everyone who reads this file sees; "),
        ('table = "shop.orders"\n', "", 'shop.toml:7: sink.orders: it does not say which table; add table = "NAME"'),
        ('key = "id"\n', "",
         'shop.toml:14: sink.orders.mode: it does not say by which columns a row is known; add key = ["id"]'),
        ('"upsert"', '"append"', "shop.toml:15: sink.orders.key: rows that are appended need none"),
        ("batchsize = 5000", 'password = "x"', "shop.toml:17: sink.orders.options.password: everyone who reads"),
        ("batchsize = 5000", 'isolationLevel = "NONE"', "sink.orders.options.isolationLevel: this is no option here"),
        ('user = "shop"', 'password_env = "P"', "sink.orders.password_env: password_file says too where"),
        ('format = "jdbc"', 'format = "console"', "sink.orders.jar: only a database has it; add format = "),
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_told(right: str, wrong: str, problem: str) -> None:
    assert right in FILE
    with pytest.raises(PipelineError) as raised:
        read(FILE.replace(right, wrong, 1))
    assert problem in str(raised.value)


def test_rows_that_change_cannot_be_appended() -> None:
    text = FILE.replace('mode = "upsert"\nkey = "id"', 'output_mode = "update"')
    with pytest.raises(PipelineError, match=r"each would be another row; add mode = \"upsert\" and key"):
        read(text)


def test_other_formats_of_tables_and_paths_are_left_to_spark() -> None:
    lake = FILE[: FILE.index("format =")]
    delta = read(lake + 'format = "delta"\npath = "lake/orders"\noutput_mode = "complete"\npartition_by = "id"\n')
    assert (delta.path, delta.output_mode) == ("/shop/lake/orders", OutputMode.COMPLETE)
    iceberg = read(lake + 'format = "iceberg"\ntable = "lake.shop.orders"\noptions = { fanout-enabled = true }\n')
    assert (iceberg.table, iceberg.options) == ("lake.shop.orders", {"fanout-enabled": "true"})
    with pytest.raises(PipelineError, match=r"date and hour are made for Parquet, and this is delta"):
        read(lake + 'format = "delta"\npath = "lake"\npartition_by_time = "at"\n')


def test_the_statements_of_a_table() -> None:
    sql = PostgresSql("shop.orders")
    types = {"id": "bigint", "total": "numeric"}
    once = (
        '(_emberq_row >> 33, xmin::text) IN (SELECT _emberq_row >> 33, min(xmin::text) FROM "shop"."stage" GROUP BY 1)'
    )
    assert sql.beside("stage") == '"shop"."stage"'
    columns = '"id", "total"'
    rows = (
        '(SELECT CAST("id" AS bigint) AS "id", CAST("total" AS numeric) AS "total", _emberq_row'
        f' FROM "shop"."stage" WHERE {once}) AS staged'
    )
    insert = f'INSERT INTO "shop"."orders" ({columns}) SELECT'
    assert sql.move('"shop"."stage"', types, ()) == f"{insert} {columns} FROM {rows}"
    assert sql.move('"shop"."stage"', types, ("id",)) == (
        f'{insert} DISTINCT ON ("id") {columns} FROM {rows} ORDER BY "id", _emberq_row DESC'
        ' ON CONFLICT ("id") DO UPDATE SET "total" = excluded."total"'
    )
    assert sql.move('"stage"', {"id": "bigint"}, ("id",)).endswith(' ON CONFLICT ("id") DO NOTHING')
    assert sql.create_table('"s"', ["id", "total"], ("id",))[1] == 'ALTER TABLE "shop"."orders" ADD PRIMARY KEY ("id")'
    assert '"shop"."emberq_batches"' in sql.take_batch
    assert quoted_name('a"; DROP TABLE b') == '"a""; DROP TABLE b"'


def test_what_keeps_rows_from_a_database_is_told_before_it_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    schema = struct_of("id BIGINT, address STRUCT<city: STRING>")
    wrong = replace(ORDERS, mode=WriteMode.UPSERT, key=("no",), jar=str(tmp_path / "no.jar"))
    told = [str(problem) for problem in problems_with("orders", wrong, schema, spark)]
    assert told[0] == "sink.orders.key: there is no column no; orders has the columns id, address"
    assert "address is a STRUCT, which no column of a database can be; make text of it" in told[1]
    assert told[2].startswith(f"sink.orders.jar: there is no file {tmp_path}/no.jar; apt-get install ")
    for sink, problem in (
        (
            replace(ORDERS, password_file=f"{tmp_path}/none"),
            f"password_file: {tmp_path}/none: No such file or directory",
        ),
        (replace(ORDERS, password_env="SHOP_PASSWORD"), "password_env: the environment has no variable SHOP_PASSWORD"),
    ):
        assert problem in str(next(problems_with("orders", sink, struct_of("id BIGINT"), spark)))
