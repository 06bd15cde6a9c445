"""Lines of keys in TOML."""

from __future__ import annotations

from emberq.spark.pipeline.toml_file import key_lines

DOCUMENT = '''\
name = "x"            # 1

[source.clicks]       # 3
topic = "clicks"
schema = """
  page = STRING,
  [not.a.table]
"""
options = { a = 1, b.c = 2 }
topics = [
  "one",              # 11
  "two",
]
[view."odd name"]
sql = 'SELECT 1'
spark.sql.x = 1
'''


def test_tables_and_keys_have_the_line_on_which_they_begin() -> None:
    lines = key_lines(DOCUMENT)
    assert lines["name",] == 1
    assert lines["source", "clicks"] == 3
    assert lines["source", "clicks", "schema"] == 5
    assert lines["view", "odd name", "sql"] == 15


def test_a_value_of_several_lines_hides_what_looks_like_keys_in_it() -> None:
    lines = key_lines(DOCUMENT)
    assert ("not", "a", "table") not in lines
    assert lines["source", "clicks", "topics"] == 10
    assert lines["view", "odd name"] == 14


def test_keys_in_braces_and_behind_dots_have_the_line_of_what_they_stand_in() -> None:
    lines = key_lines(DOCUMENT)
    assert lines["source", "clicks", "options", "a"] == 9
    assert lines["view", "odd name", "spark", "sql", "x"] == 16
