"""What is expected of rows: rows that fail are counted, left out, or end the query."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from emberq.spark.pipeline import (
    BadRecords,
    Expectation,
    Pipeline,
    PipelineError,
    RuleAction,
    Sink,
    Source,
    View,
)
from emberq.spark.pipeline.body_format import held_to, judged
from emberq.spark.pipeline.build import build, struct_of
from emberq.spark.pipeline.model import AVAILABLE_NOW
from emberq.spark.pipeline.progress import QueryProgress
from emberq.spark.pipeline.rule import held_rows
from tests.spark.conftest import run_to_the_end
from tests.support.journal_nsqd import JournalNsqd
from tests.support.topic_reading import documents_of

ORDERS = [
    b'{"topic": "a", "n": 1}',
    b'{"topic": "b", "n": 20}',
    b'{"topic": "c", "n": -3}',
    b'{"topic": null, "n": 4}',
    b'{"topic": "e"}',
    b"?",
]
RULES = {
    "small": Expectation(sql="n < 10"),
    "positive": Expectation(sql="n > 0", action=RuleAction.DROP),
    "named": Expectation(sql="topic IS NOT NULL AND _topic = 'orders'", action="drop"),  # type: ignore[arg-type]
}


def pipeline(nsqd: str, folder: Path) -> Pipeline:
    return Pipeline(
        name="ruled",
        checkpoint=str(folder),
        nsqd=(nsqd,),
        trigger=AVAILABLE_NOW,
        progress_topic="",
        sources={
            "orders": Source(
                topic=("orders",),
                schema="topic STRING, n INT",
                expect=RULES,
                bad_records=BadRecords(topic="orders.bad"),
            )
        },
        views={
            "doubled": View(
                sql="SELECT topic, 2 * n AS twice FROM orders",
                expect={"even": Expectation(sql="twice % 2 = 0"), "low": Expectation(sql="twice < 40", action="drop")},  # type: ignore[arg-type]
            )
        },
        sinks={
            "doubled": Sink(view="doubled", topic="orders.doubled"),
            "table": Sink(view="doubled", format="json", table="doubled_orders", options={"compression": "gzip"}),
        },
    )


def test_rows_that_fail_rules_are_counted_and_left_out(spark: SparkSession, nsqd: JournalNsqd, tmp_path: Path) -> None:
    nsqd.publish("orders", ORDERS)
    ruled = pipeline(nsqd.http, tmp_path)
    failed: Counter[str] = Counter()
    samples: dict[str, list[str]] = defaultdict(list)
    graphs: dict[str, list[str]] = {}

    def add(progress: QueryProgress) -> None:
        graphs[progress.query] = [node["name"] for node in progress.graph]
        assert progress.rules["orders.positive"] == {"action": "drop", "sql": "n > 0"}
        if progress.query == "doubled":
            failed.update(progress.failed_rules)
            for name, texts in progress.samples.items():
                samples[name] += texts

    run_to_the_end(ruled, spark, on_progress=add)
    assert documents_of(nsqd.http, "orders.doubled") == [{"topic": "a", "twice": 2}]
    table = spark.table("doubled_orders")  # a format of Spark, with a table of its catalog, and an option
    assert [tuple(row) for row in table.collect()] == [("a", 2)]
    assert all(file.endswith(".json.gz") for file in table.inputFiles())
    spark.sql("DROP TABLE doubled_orders")
    letters = documents_of(nsqd.http, "orders.bad")
    assert sorted((letter["body"], letter["reason"]) for letter in letters) == sorted(
        [
            (ORDERS[2].decode(), "does not meet positive: n > 0"),
            (ORDERS[3].decode(), "does not meet named: topic IS NOT NULL AND _topic = 'orders'"),
            (ORDERS[4].decode(), "does not meet positive: n > 0"),  # null is not met
            ("?", "not JSON"),
        ]
    )
    assert failed == {
        "orders.small": 2,
        "orders.positive": 2,
        "orders.named": 1,
        "doubled.even": 0,
        "doubled.low": 1,
    }
    at = f"orders on {nsqd.http}, offset"
    assert samples["orders.small"] == [f"{at} 1: {ORDERS[1].decode()}", f"{at} 4: {ORDERS[4].decode()}"]
    assert f"not JSON; {at} 5: ?" in samples["orders"]
    assert samples["doubled.low"] == ['{"topic":"b","twice":40}']
    assert "doubled.even" not in samples
    assert graphs == {
        "doubled": ["orders", "doubled", "doubled"],
        "table": ["orders", "doubled", "table"],
        "orders-bad": ["orders", "orders-bad"],
    }


def test_a_rule_that_must_not_fail_ends_the_query_and_names_the_row(spark: SparkSession, nsqd: JournalNsqd) -> None:
    nsqd.publish("orders", ORDERS[:2])
    orders = Source(topic=("orders",), schema="topic STRING, n INT")
    strict = {"small": replace(RULES["small"], action=RuleAction.FAIL)}
    messages = spark.read.format("nsq").options(nsqd=nsqd.http, topic="orders").load()
    found = held_to(strict, judged(messages, orders, struct_of(orders.schema)), struct_of(orders.schema), name="orders")
    with pytest.raises(PySparkException, match=r"topic orders on nsqd .*, offset 1 does not meet small: n < 10"):
        found.collect()
    rows = spark.createDataFrame([(14, "a")], "twice INT, `a b` STRING")
    low = {"low": Expectation(sql="twice < 8", action=RuleAction.FAIL)}
    with pytest.raises(PySparkException, match=r'view doubled: the row {"twice":14,"a b":"a"} does not meet low: '):
        held_rows(rows, low, view="doubled").collect()


def test_a_rule_that_is_no_condition_is_told_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    ruled = pipeline("127.0.0.1:1", tmp_path)
    for sql, complaint in (
        ("m > 0", "source.orders.expect.odd: .*m"),
        ("n + 1", "expect.odd: it is no condition, its type is INT"),
    ):
        orders = replace(ruled.sources["orders"], expect={"odd": Expectation(sql=sql)})
        with pytest.raises(PipelineError, match=complaint):
            build(replace(ruled, sources={"orders": orders}), spark)
    views = {"doubled": replace(ruled.views["doubled"], expect={"odd": Expectation(sql="n > 0")})}
    with pytest.raises(PipelineError, match=r"view.doubled.expect.odd: "):
        build(replace(ruled, views=views), spark)
