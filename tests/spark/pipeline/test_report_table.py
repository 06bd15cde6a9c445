"""The live table, as a terminal shows it."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from emberq.base.clock import ManualClock
from emberq.spark.pipeline.progress import QueryProgress, QuerySign
from emberq.spark.pipeline.report import ProgressTable

NOW = datetime(2026, 11, 15, 6, 10, tzinfo=UTC)


def progress(query: str = "counts", **facts: object) -> QueryProgress:
    return QueryProgress(**{"pipeline": "shop", "query": query, "time": "", **facts})  # type: ignore[arg-type]


def shown(table: ProgressTable) -> list[list[str]]:
    """The words of each line."""
    out = io.StringIO()
    Console(file=out, width=80).print(table.drawn())
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_line_has_the_totals_of_a_query_and_its_last_rates() -> None:
    table = ProgressTable(clock=ManualClock(wall_ns=int(NOW.timestamp()) * 10**9))
    table.add(progress(batch=0, rows=1000, bad={"clicks": 2}, duration_ms=900, rows_in_per_second=50.0))
    last = progress(
        batch=1,
        rows=500,
        rows_in_per_second=120.0,
        rows_out_per_second=40.0,
        lag=12,
        duration_ms=1263,
        state_rows=310,
        bad={"clicks": 1},
        watermark="2026-11-15T06:08:00.000Z",
        as_of="2026-11-15T06:09:57.100Z",
    )
    table.add(last)
    assert shown(table)[1] == [
        *("counts", "1", "1,500", "120", "40", "12", "1,263", "310", "3", "3", "s", "06:08:00"),
    ]


def test_a_sign_of_life_leaves_totals_and_the_last_duration() -> None:
    table = ProgressTable()
    batch = progress(batch=4, rows=7, duration_ms=90)
    table.add(batch)
    table.add(batch.sign_of_life(QuerySign(query="counts", time="")))
    assert shown(table)[1] == ["counts", "4", "7", "0", "–", "–", "90", "0", "0", "–"]


def test_bad_records_that_several_queries_see_are_counted_once() -> None:
    table = ProgressTable()
    for query in ("counts", "archive"):
        table.add(progress(query, rows=10, bad={"clicks": 3}))
    assert (table.row_count, table.bad_count()) == (20, 3)


def test_the_summary_counts_messages_once_and_rows_of_each_sink() -> None:
    table = ProgressTable()
    for query, rows_out in (("counts", 7), ("archive", 995), ("console", None)):
        for _ in range(2):
            table.add(progress(query, rows=1000, rows_out=rows_out, messages={"clicks": 1000}, bad={"clicks": 5}))
    assert table.summary() == "2,000 messages read, 10 bad records; rows written: counts 14, archive 1,990"


def test_a_watermark_is_shown_when_there_is_one() -> None:
    table = ProgressTable()
    table.add(progress(batch=0, watermark="1970-01-01T00:00:00.000Z"))
    assert "1970" not in " ".join(shown(table)[1])
