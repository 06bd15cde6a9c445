"""SQL over topics and archives."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession

from emberq.spark.error import OptionError
from emberq.spark.sql import SqlConsole, StatementError, Unparsed
from tests.support.journal_nsqd import JournalNsqd

VIEWS = [b'{"page": "/", "n": 1}', b'{"page": "/", "n": 2}', b'{"page": "/cart", "n": null}', b"?"]


@pytest.fixture
def console(spark: SparkSession) -> SqlConsole:
    return SqlConsole(spark)


def test_a_topic_is_a_view_of_its_json(console: SqlConsole, nsqd: JournalNsqd) -> None:
    nsqd.publish("page.views", VIEWS)
    console.add_topic("page.views", access={"nsqd": nsqd.http}, schema="", raw=False)
    found = console.rows("SELECT page, sum(n) AS n FROM page_views GROUP BY page ORDER BY page", max_rows=10)
    assert (found.columns, found.items, found.is_cut) == (["page", "n"], [("/", 3), ("/cart", None)], False)


def test_messages_that_are_no_rows_are_counted_and_can_be_selected(console: SqlConsole, nsqd: JournalNsqd) -> None:
    nsqd.publish("page.views", VIEWS)
    nsqd.publish("words", [b'{"word": "a"}', b'{"word": "b"}'])
    for topic in ("page.views", "words"):
        console.add_topic(topic, access={"nsqd": nsqd.http}, schema="", raw=False)
    left_out = {"page_views": Unparsed(count=1, messages=4, view="page_views_unparsed")}
    for give in (console.rows, console.json_lines):
        assert give("SELECT count(*) AS n FROM page_views", max_rows=10).unparsed == left_out
        assert give("SELECT a.n FROM page_views a JOIN page_views b ON a.n = b.n", max_rows=10).unparsed == left_out
        assert give("SELECT * FROM words", max_rows=10).unparsed == {}
    seen = console.rows("SELECT reason, text, offset FROM page_views_unparsed", max_rows=10)
    assert (seen.items, seen.unparsed) == ([("not JSON", "?", 3)], {})


def test_a_topic_can_be_taken_raw(console: SqlConsole, nsqd: JournalNsqd) -> None:
    nsqd.publish("words", [b"one", b"two"])
    console.add_topic("words", access={"nsqd": nsqd.http}, schema="", raw=True)
    assert console.rows("SELECT text FROM words ORDER BY offset", max_rows=10).items == [("one",), ("two",)]


def test_more_rows_than_asked_for_are_cut_and_said_to_be(console: SqlConsole) -> None:
    for give in (console.rows, console.json_lines):
        assert not give("SELECT 1 FROM range(3)", max_rows=3).is_cut
        cut = give("SELECT id FROM range(3)", max_rows=2)
        assert (len(cut.items), cut.is_cut) == (2, True)


def test_rows_can_be_had_as_lines_of_json(console: SqlConsole) -> None:
    found = console.json_lines("SELECT 1 AS a, NULL AS b, named_struct('c', 'x') AS s, array(1.5) AS l", max_rows=10)
    assert [json.loads(line) for line in found.items] == [{"a": 1, "s": {"c": "x"}, "l": [1.5]}]
    assert console.json_lines("SELECT 1 AS a, 2 AS a", max_rows=10).items == ['{"a":1,"a":2}']
    assert console.json_lines("CREATE OR REPLACE TEMP VIEW one AS SELECT 1", max_rows=10).items == []


def test_a_wrong_statement_is_told_in_one_sentence(console: SqlConsole) -> None:
    with pytest.raises(StatementError, match="TABLE_OR_VIEW_NOT_FOUND") as raised:
        console.rows("SELECT * FROM nowhere", max_rows=1)
    assert "\n" not in str(raised.value)


def test_a_topic_without_json_is_refused_with_the_remedy(console: SqlConsole, nsqd: JournalNsqd) -> None:
    nsqd.publish("words", [b"one"])
    with pytest.raises(StatementError, match="take them raw"):
        console.add_topic("words", access={"nsqd": nsqd.http}, schema="", raw=False)
    with pytest.raises(OptionError, match="no nsqd has topic nothing"):
        console.add_topic("nothing", access={"nsqd": nsqd.http}, schema="", raw=False)
