"""The guide to Spark says what the code says. `python -m tests.spark.pipeline.test_guide` renews its tables."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path

from emberq.spark.option import OPTIONS, Use
from emberq.spark.pipeline.model import Pipeline, Sink, Source, Table, View
from emberq.spark.pipeline.progress import QueryProgress
from emberq.spark.pipeline.report import FAMILIES

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "SPARK.md"
TABLES = {"read": Use.READ, "sink": Use.SINK}


def renewed(guide: str) -> str:
    """The guide with its tables as they should be now."""
    for name, use in TABLES.items():
        guide = _with_table(guide, f"options: {name}", option_table(use))
    return _with_table(guide, "metrics", metrics_table())


def option_table(use: Use) -> str:
    """The options of this use."""
    rows = [
        f"| `{option.name}` | {f'`{option.default}`' if option.default is not None else ''} | {option.help} |"
        for option in OPTIONS
        if option.use & use
    ]
    return "\n".join(["| option | default | what it does |", "|---|---|---|", *rows])


def metrics_table() -> str:
    """What /metrics has of pipelines; that of the process is as everywhere."""
    rows = [
        f"| `{family.name}` | {family.kind} | {family.meaning} |"
        for family in FAMILIES
        if family.name.startswith("emberq_")
    ]
    return "\n".join(["| metric | type | what it tells |", "|---|---|---|", *rows])


def _with_table(guide: str, name: str, table: str) -> str:
    head, begin, rest = guide.partition(f"<!-- {name} -->\n")
    _old, end, tail = rest.partition("<!-- end -->")
    assert end, f"the guide has no table of {name}"
    return f"{head}{begin}{table}\n{end}{tail}"


def test_the_tables_are_those_of_the_code() -> None:
    assert GUIDE.read_text() == renewed(GUIDE.read_text()), "renew it: python -m tests.spark.pipeline.test_guide"


def test_every_key_of_a_pipeline_is_in_the_guide() -> None:
    guide = GUIDE.read_text()
    tables = {"sources", "tables", "views", "sinks"}
    names = {field.name for kind in (Pipeline, Source, Sink, Table, View) for field in dataclasses.fields(kind)}
    written = {"view": "from"}
    assert not [name for name in names - tables if f"`{written.get(name, name)}`" not in guide]


def test_the_progress_in_the_guide_has_every_field() -> None:
    found = re.search(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    assert json.loads(found[1]).keys() == {field.name for field in dataclasses.fields(QueryProgress)}


def test_the_pipeline_in_the_guide_is_the_example() -> None:
    found = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    example = (ROOT / "examples" / "spark" / "clickstream.toml").read_text()
    assert tomllib.loads(found[1]) == tomllib.loads(example)


if __name__ == "__main__":
    GUIDE.write_text(renewed(GUIDE.read_text()))
