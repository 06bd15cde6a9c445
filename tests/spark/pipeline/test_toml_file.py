"""Pipelines in TOML: what is read, and what is said about what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberq.spark.pipeline.model import (
    BadRecords,
    BodyFormat,
    Expectation,
    OutputMode,
    PipelineError,
    RuleAction,
    Watermark,
    graph_of,
    rules_of,
)
from emberq.spark.pipeline.toml_file import load_pipeline, read_pipeline

EXAMPLES = Path(__file__).parents[3] / "examples" / "spark"

GOOD = """\
name = "shop"
checkpoint = "data/checkpoint"
nsqd = ["127.0.0.1:4151"]

[source.clicks]
topic = "clicks"
schema = "page STRING NOT NULL, at TIMESTAMP"
watermark = { column = "at", delay = "1 minute" }
dedupe = "page"
bad_records = { topic = "clicks.bad" }
options = { maxRowsPerTrigger = 1000, failOnDataLoss = false }

[view.pages]
sql = "SELECT page FROM clicks"

[sink.pages]
from = "pages"
topic = "pages"
output_mode = "update"

[spark]
spark.sql.shuffle.partitions = 4

[source.clicks.expect]
known = "page LIKE '/%'"
dated = { sql = "at IS NOT NULL", action = "drop" }

[view.pages.expect]
short = { sql = "length(page) < 100", action = "fail" }
"""


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineError) as raised:
        read_pipeline(text, file="shop.toml", folder=Path("/shop"))
    return str(raised.value).splitlines()


def test_every_key_becomes_a_value() -> None:
    pipeline = read_pipeline(GOOD, file="shop.toml", folder=Path("/shop")).pipeline
    clicks = pipeline.sources["clicks"]
    assert (pipeline.name, pipeline.nsqd) == ("shop", ("127.0.0.1:4151",))
    assert (clicks.topic, clicks.format, clicks.dedupe) == (("clicks",), BodyFormat.JSON, ("page",))
    assert clicks.watermark == Watermark(column="at", delay="1 minute")
    assert clicks.bad_records == BadRecords(topic="clicks.bad")
    assert clicks.expect == {
        "known": Expectation(sql="page LIKE '/%'"),
        "dated": Expectation(sql="at IS NOT NULL", action=RuleAction.DROP),
    }
    assert pipeline.views["pages"].expect["short"].action is RuleAction.FAIL
    assert clicks.options == {"maxRowsPerTrigger": "1000", "failOnDataLoss": "false"}
    assert (pipeline.sinks["pages"].view, pipeline.sinks["pages"].output_mode) == ("pages", OutputMode.UPDATE)
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "4"}


def test_what_leads_to_a_sink_and_which_rules_are_on_the_way() -> None:
    text = GOOD.replace("[view.pages]\n", '[view.shop]\nsql = "SELECT page AS pages FROM clicks"\n[view.pages]\n')
    pipeline = read_pipeline(
        text.replace('FROM clicks"\n\n[sink', 'FROM shop"\n\n[sink'), file="x", folder=Path()
    ).pipeline
    assert [
        (node["name"], node["kind"], node["uses"]) for node in graph_of(pipeline, pipeline.sinks["pages"], name="p")
    ] == [
        ("clicks", "source", []),
        ("shop", "view", ["clicks"]),
        ("pages", "view", ["shop"]),
        ("p", "sink", ["pages"]),
    ]
    assert rules_of(pipeline, "pages") == {
        "clicks.known": {"action": "warn", "sql": "page LIKE '/%'"},
        "clicks.dated": {"action": "drop", "sql": "at IS NOT NULL"},
        "pages.short": {"action": "fail", "sql": "length(page) < 100"},
    }


def test_paths_are_relative_to_the_file() -> None:
    pipeline = read_pipeline(GOOD, file="shop.toml", folder=Path("/shop")).pipeline
    assert pipeline.checkpoint == "/shop/data/checkpoint"
    elsewhere = GOOD.replace('"data/checkpoint"', '"s3a://bucket/checkpoint"')
    assert read_pipeline(elsewhere, file="x", folder=Path("/shop")).pipeline.checkpoint == "s3a://bucket/checkpoint"


@pytest.mark.parametrize("name", ["clickstream.toml", "iot.toml", "enrichment.toml"])
def test_the_examples_are_right(name: str) -> None:
    assert load_pipeline(EXAMPLES / name).pipeline.sinks


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        ("topic = \"clicks\"\n", "topik = \"clicks\"\ntopic = \"clicks\"\n",
         "shop.toml:6: source.clicks.topik: there is no such key; did you mean topic?"),
        ('from = "pages"', 'from = "pagse"',
         'shop.toml:17: sink.pages.from: there is no source or view "pagse"; did you mean "pages"?'),
        ('"update"', '"upsert"',
         'shop.toml:19: sink.pages.output_mode: "upsert" is not one of append, update, complete'),
        ('"1 minute"', '"soon"',
         'shop.toml:8: source.clicks.watermark: the delay "soon" is no interval; write it as "10 minutes"'),
        ("maxRowsPerTrigger", "maxRowPerTrigger",
         'shop.toml:11: source.clicks.options: unknown option "maxRowPerTrigger"; did you mean "maxRowsPerTrigger"?'),
        ("maxRowsPerTrigger = 1000", 'columns = "body"',
         "shop.toml:11: source.clicks.options: a pipeline needs all columns of messages; leave the option columns out"),
        ('topic = "pages"', "",
         'shop.toml:16: sink.pages: it does not say where rows go; '
         'add topic = "NAME", path = "DIR" or format = "console"'),
        ('sql = "SELECT page FROM clicks"', "", 'shop.toml:13: view.pages: sql is missing; add sql = "..."'),
        ('action = "drop"', 'action = "skip"',
         'shop.toml:26: source.clicks.expect.dated.action: "skip" is not one of warn, drop, fail'),
        ('"length(page) < 100"', '""',
         'shop.toml:29: view.pages.expect.short: it has no condition; write { sql = "user IS NOT NULL" }'),
        ('{ topic = "clicks.bad" }', "7",
         'shop.toml:10: source.clicks.bad_records: it must be a table: { topic = "...", path = "..." }'),
        ("[view.pages]", "[view.clicks]",
         "shop.toml:13: view.clicks: there is a source of that name too; rename one of them"),
    ],
)  # fmt: skip
def test_a_problem_names_file_line_and_remedy(right: str, wrong: str, problem: str) -> None:
    assert right in GOOD
    assert problem in problems(GOOD.replace(right, wrong, 1))


def test_dedupe_without_a_watermark_is_refused() -> None:
    text = GOOD.replace('watermark = { column = "at", delay = "1 minute" }\n', "")
    assert any("without a watermark every row would have to be remembered" in line for line in problems(text))


def test_files_cannot_be_updated() -> None:
    text = GOOD.replace('topic = "pages"', 'path = "pages"')
    assert any(
        line.startswith("shop.toml:19: sink.pages.output_mode: files are only added to") for line in problems(text)
    )


def test_all_problems_are_told_at_once() -> None:
    found = problems(GOOD.replace('"1 minute"', '"soon"').replace('from = "pages"', 'from = "nothing"'))
    assert [line.split(":")[1] for line in found] == ["8", "17"]


def test_a_file_that_is_no_toml_is_told_with_its_line() -> None:
    assert problems("name = 'x'\nnonsense\n")[0].startswith("shop.toml:2: this is not TOML: ")


def test_a_pipeline_without_addresses_is_told_where_to_say_them() -> None:
    found = problems(GOOD.replace('nsqd = ["127.0.0.1:4151"]\n', ""))
    assert any('either "nsqd"' in line and '"lookupd"' in line for line in found)
