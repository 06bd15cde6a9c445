"""The guide to Spark says what the code says. `python -m tests.spark.pipeline.test_guide` renews its tables."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

from emberq.spark.option import Use, option_table
from emberq.spark.pipeline.model import Pipeline, Sink, Source, Table, View

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "SPARK.md"
TABLES = {"read": Use.READ, "sink": Use.SINK}


def renewed(guide: str) -> str:
    """The guide with tables of options as they are now."""
    for name, use in TABLES.items():
        head, begin, rest = guide.partition(f"<!-- options: {name} -->\n")
        _old, end, tail = rest.partition("<!-- end -->")
        guide = f"{head}{begin}{option_table(use)}\n{end}{tail}"
    return guide


def test_the_tables_of_options_are_those_of_the_code() -> None:
    assert GUIDE.read_text() == renewed(GUIDE.read_text()), "renew it: python -m tests.spark.pipeline.test_guide"


def test_every_key_of_a_pipeline_is_in_the_guide() -> None:
    guide = GUIDE.read_text()
    tables = {"sources", "tables", "views", "sinks"}
    names = {field.name for kind in (Pipeline, Source, Sink, Table, View) for field in dataclasses.fields(kind)}
    written = {"view": "from"}
    assert not [name for name in names - tables if f"`{written.get(name, name)}`" not in guide]


def test_the_pipeline_in_the_guide_is_the_example() -> None:
    found = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    example = (ROOT / "examples" / "spark" / "clickstream.toml").read_text()
    assert tomllib.loads(found[1]) == tomllib.loads(example)


if __name__ == "__main__":
    GUIDE.write_text(renewed(GUIDE.read_text()))
