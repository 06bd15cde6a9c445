"""The live table of a pipeline: a line for each query, with what it does now and has done in this run.

The column AGE says how old the figures of the line are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime

from rich.table import Table
from rich.text import Text

from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.spark.pipeline.query_progress import QueryProgress, QueryState

_STYLES = {QueryState.RUNNING: "", QueryState.ENDED: "dim", QueryState.FAILED: "red"}


@dataclass(slots=True)
class _Line:
    """What is known of a query."""

    last: QueryProgress
    row_count: int = 0
    duration_ms: int = 0
    """Of the last batch."""
    bad: dict[str, int] = field(default_factory=dict)


class ProgressTable:
    """Collects progress from any thread."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lines: dict[str, _Line] = {}
        self._guard = threading.Lock()

    def add(self, progress: QueryProgress) -> None:
        """Another batch is done, or the query is still there."""
        with self._guard:
            line = self._lines.setdefault(progress.query, _Line(progress))
            line.last = progress
            line.row_count += progress.rows
            line.duration_ms = progress.duration_ms or line.duration_ms
            for source, count in progress.bad.items():
                line.bad[source] = line.bad.get(source, 0) + count

    @property
    def is_empty(self) -> bool:
        """Whether no query has started yet."""
        return not self._lines

    @property
    def row_count(self) -> int:
        """The rows that all queries together have read."""
        with self._guard:
            return sum(line.row_count for line in self._lines.values())

    def bad_count(self) -> int:
        """Messages of this run that were not what their source says. Every query that reads a source sees them all."""
        with self._guard:
            sources: dict[str, int] = {}
            for line in self._lines.values():
                for source, count in line.bad.items():
                    sources[source] = max(sources.get(source, 0), count)
            return sum(sources.values())

    def drawn(self) -> Table:
        """The table as it stands, for a terminal of 80 columns."""
        table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
        table.add_column("QUERY", no_wrap=True)
        for title in ("BATCH", "ROWS", "IN/s", "OUT/s", "LAG", "MS", "STATE", "BAD", "AGE"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("WATERMARK", no_wrap=True)
        with self._guard:
            for name, line in sorted(self._lines.items()):
                bad = sum(line.bad.values())
                table.add_row(
                    Text(name, style=_STYLES[line.last.state]),
                    _number(line.last.batch),
                    f"{line.row_count:,}",
                    _number(line.last.rows_in_per_second),
                    _number(line.last.rows_out_per_second),
                    _number(line.last.lag),
                    f"{line.duration_ms:,}",
                    f"{line.last.state_rows:,}",
                    Text(f"{bad:,}", style="yellow" if bad else "dim"),
                    Text(self._age(line.last), style="dim"),
                    Text(_watermark(line.last.watermark), style="dim"),
                )
        return table

    def _age(self, progress: QueryProgress) -> str:
        """Of a query that has ended there is nothing new."""
        if not progress.as_of or progress.state is not QueryState.RUNNING:
            return "–"
        now_s = self._clock.wall_ns() / NS_PER_SECOND
        return f"{max(now_s - datetime.fromisoformat(progress.as_of).timestamp(), 0.0):.0f} s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _watermark(text: str) -> str:
    """The time of day, in UTC; nothing while there is none, for which Spark says 1970."""
    return "" if not text or text.startswith("1970") else f"{datetime.fromisoformat(text):%H:%M:%S}"
