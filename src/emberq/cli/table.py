"""Tables on a terminal. Where there is little room, names are kept and figures left out.

A column is one of three kinds:

    name     shown in full as long as the terminal has room for the names
    figure   aligned to the right; the last ones are left out first, until the names fit
    text     takes the room that is left, and is cut: a body, a folder; at most one
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from emberq.base.text import one_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Cell: TypeAlias = "Text | str"

GAP = 2
"""Between two columns."""
MIN_TEXT_WIDTH = 12
"""Less of a text says nothing."""


class ColumnKind(enum.Enum):
    """What a column holds."""

    NAME = enum.auto()
    FIGURE = enum.auto()
    TEXT = enum.auto()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    kind: ColumnKind = ColumnKind.NAME

    def width(self, cells: Sequence[Cell]) -> int:
        """What it needs to show these cells."""
        widest = max([len(self.title), *(len(cell) for cell in cells)])
        return min(widest, max(MIN_TEXT_WIDTH, len(self.title))) if self.kind is ColumnKind.TEXT else widest


def name(title: str) -> Column:
    """A column that is kept."""
    return Column(title, ColumnKind.NAME)


def figure(title: str) -> Column:
    """A column that is left out where names need its room."""
    return Column(title, ColumnKind.FIGURE)


def text(title: str) -> Column:
    """A column that is cut."""
    return Column(title, ColumnKind.TEXT)


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, width: int) -> Table:
    """The rows with as many of the columns as `width` has room for."""
    shown = fitting(columns, rows, width=width)
    fixed = sum(_width(columns, rows, number) + GAP for number in shown if columns[number].kind is not ColumnKind.TEXT)
    room = max(width - fixed, MIN_TEXT_WIDTH)
    drawn = bare_table()
    for number in shown:
        kind = columns[number].kind
        drawn.add_column(
            columns[number].title,
            justify="right" if kind is ColumnKind.FIGURE else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=room if kind is ColumnKind.TEXT else None,
        )
    for row in rows:
        drawn.add_row(*(row[number] for number in shown))
    return drawn


def bare_table() -> Table:
    """A table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")


def fitting(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, width: int) -> list[int]:
    """The numbers of the columns that are shown."""
    widths = [_width(columns, rows, number) + GAP for number in range(len(columns))]
    shown = list(range(len(columns)))
    for number in reversed(range(len(columns))):
        if sum(widths[kept] for kept in shown) <= width:
            break
        if columns[number].kind is ColumnKind.FIGURE:
            shown.remove(number)
    return shown


def _width(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], number: int) -> int:
    return columns[number].width([row[number] for row in rows])


def body_text(body: bytes, *, max_chars: int | None = None) -> Text:
    """A body in one line. Nothing of it is read as markup, or reaches the terminal as an escape sequence."""
    from rich.text import Text

    try:
        return Text(one_line(body.decode()[:max_chars]))
    except UnicodeDecodeError:
        return Text(repr(body[:max_chars])[2:-1], style="magenta")
