"""The progress bar of the `emberq` subcommands; the module that is imported only where there is one to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _RateColumn(ProgressColumn):
    """Messages per second, over the last while."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextmanager
def progress_bar(console: Console, label: str, *, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs; what is given moves it. Without a total it is a count that runs."""
    text = TextColumn("{task.description}", markup=False)
    columns: tuple[ProgressColumn, ...]
    if total is None:
        columns = (SpinnerColumn(), text, TextColumn("{task.completed:,.0f}"), _RateColumn(), TimeElapsedColumn())
    else:
        columns = (text, BarColumn(), MofNCompleteColumn(), _RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)
