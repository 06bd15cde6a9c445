"""Draws a frame with rich, for any width.

    emberq top  2 nsqds · 3 topics · 4 channels · in 1,204/s · out 1,198/s                        05:11:02
      TOPIC          CHANNEL            ▼DEPTH  IN-FLT   DEFER    IN/s   OUT/s CLIENTS
      clicks         archive               912      20       0     602     598       4
    P orders         mail                   17       0       0     0.5       0       0
    q quit  / filter  r reverse  sort name depth in-flight deferred in out clients

Names take the room that figures leave. A narrow terminal gets fewer columns and shorter numbers; a column keeps its
width while its figures change, so that nothing jumps. Names come from outside: they are never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emberq.base.printable import one_line
from emberq.tools.top.frame import Frame
from emberq.tools.top.keyboard import Choices
from emberq.tools.top.row import Row, SortKey

WIDE_COLUMNS = 160
"""From this width on all figures are shown, and in full; names still have room for most of them."""
MAX_TROUBLE_LINES = 3
"""Warnings that are shown; with more, the last line says how many."""
_FIXED_LINES = 3
"""Title, head of the table, keys."""
_NARROW_FIGURE_WIDTH = 6
_WIDE_FIGURE_WIDTH = 10
_NARROW_SHORT_FROM = 100_000
_WIDE_SHORT_FROM = 100_000_000
"""The smallest numbers that do not fit such a column, and are written short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A column of figures."""

    title: str
    text: Callable[[Row, bool], str]
    """What is shown of a row, in full or short."""
    sort: SortKey | None = None
    only_wide: bool = False
    style: str = ""


def _count(value: int, is_wide: bool) -> str:
    if value < (_WIDE_SHORT_FROM if is_wide else _NARROW_SHORT_FROM):
        return f"{value:,}"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 100 * size else f"{value // size}{unit}"
    return str(value)


def _rate(per_s: float | None, is_wide: bool) -> str:
    if per_s is None:
        return "–"
    return f"{per_s:.1f}" if 0 < per_s < 10 else _count(round(per_s), is_wide)


_FIGURES = (
    _Figure(title="DEPTH", text=lambda row, wide: _count(row.total.depth, wide), sort=SortKey.DEPTH, style="yellow"),
    _Figure(title="ON DISK", text=lambda row, wide: _count(row.total.backend_depth, wide), only_wide=True),
    _Figure(title="IN-FLT", text=lambda row, wide: _count(row.total.in_flight_count, wide), sort=SortKey.IN_FLIGHT),
    _Figure(title="DEFER", text=lambda row, wide: _count(row.total.deferred_count, wide), sort=SortKey.DEFERRED),
    _Figure(title="IN/s", text=lambda row, wide: _rate(row.came_per_s, wide), sort=SortKey.CAME, style="green"),
    _Figure(title="OUT/s", text=lambda row, wide: _rate(row.left_per_s, wide), sort=SortKey.LEFT, style="cyan"),
    _Figure(title="REQUEUED", text=lambda row, wide: _count(row.total.requeue_count, wide), only_wide=True),
    _Figure(title="TIMED OUT", text=lambda row, wide: _count(row.total.timeout_count, wide), only_wide=True),
    _Figure(title="MESSAGES", text=lambda row, wide: _count(row.total.message_count, wide), only_wide=True),
    _Figure(title="NODES", text=lambda row, wide: _count(row.total.node_count, wide), only_wide=True),
    _Figure(title="CLIENTS", text=lambda row, wide: _count(row.total.client_count, wide), sort=SortKey.CLIENTS),
)


def draw_page(frame: Frame, choices: Choices, *, width: int) -> RenderableType:
    """All rows, for paper and pipes."""
    rows = choices.of(frame.rows)
    return Group(_title(frame), *_trouble(frame), _table(rows, choices, width=width))


def draw_screen(frame: Frame, choices: Choices, *, width: int, height: int) -> RenderableType:
    """As many rows as fit a screen of that size, with the keys below. Tells `choices` how long a page is."""
    rows = choices.of(frame.rows)
    trouble = _trouble(frame)
    choices.page_rows = max(height - _FIXED_LINES - len(trouble), 1)
    choices.first_row = max(min(choices.first_row, len(rows) - choices.page_rows), 0)
    shown = rows[choices.first_row : choices.first_row + choices.page_rows]
    blank_lines = [Text()] * (choices.page_rows - len(shown))
    table = _table(shown, choices, width=width)
    return Group(_title(frame, width=width), *trouble, table, *blank_lines, _foot(choices))


def _title(frame: Frame, *, width: int = 0) -> Text:
    title = Text("emberq top", style="bold", no_wrap=True, overflow="ellipsis")
    if not frame.taken_ns:
        return title
    channel_count = sum(1 for row in frame.rows if row.channel)
    facts = (
        _counted(len(frame.nodes), "nsqd"),
        _counted(frame.topic_count, "topic"),
        _counted(channel_count, "channel"),
        f"in {_rate(frame.came_per_s, True)}/s",
        f"out {_rate(frame.left_per_s, True)}/s",
    )
    title.append("  " + " · ".join(facts), style="not bold")
    moment = f"{frame.taken_at:%H:%M:%S}"
    title.append(moment.rjust(max(width - title.cell_len, len(moment) + 2)), style="not bold dim")
    return title


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _trouble(frame: Frame) -> list[Text]:
    """What went wrong, a line each."""
    if frame.failure:
        since = f" (figures of {frame.taken_at:%H:%M:%S})" if frame.taken_ns else ""
        return [_line(f"no answer{since}: {frame.failure}", style="bold white on red")]
    lines = list(frame.warnings)
    if len(lines) > MAX_TROUBLE_LINES:
        rest = len(lines) - MAX_TROUBLE_LINES + 1
        lines = [*lines[: MAX_TROUBLE_LINES - 1], f"and {rest} more that did not answer"]
    return [_line(f"WARNING: {line}", style="red") for line in lines]


def _line(text: str, *, style: str) -> Text:
    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")


def _table(rows: list[Row], choices: Choices, *, width: int) -> Table:
    is_wide = width >= WIDE_COLUMNS
    figures = [figure for figure in _FIGURES if is_wide or not figure.only_wide]
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="reverse")
    table.add_column("", width=1)
    for title in ("TOPIC", "CHANNEL"):
        marked = _marked(title, choices, SortKey.NAME if title == "TOPIC" else None)
        table.add_column(marked, ratio=1, no_wrap=True, overflow="ellipsis")
    for figure in figures:
        # One more than the title, for the arrow: a column keeps its width when it becomes the one to sort by.
        figure_width = _WIDE_FIGURE_WIDTH if is_wide else max(_NARROW_FIGURE_WIDTH, len(figure.title) + 1)
        title = _marked(figure.title, choices, figure.sort)
        table.add_column(title, justify="right", no_wrap=True, width=figure_width)
    for row in rows:
        names = (
            Text("P" if row.total.paused else "", style="bold magenta"),
            _name(row.topic),
            _name(row.channel or "–"),
        )
        table.add_row(*names, *(_cell(figure, row, is_wide=is_wide) for figure in figures))
    return table


def _marked(title: str, choices: Choices, sort: SortKey | None) -> str:
    """The title with an arrow if rows are sorted by it: down where figures fall, up where they rise."""
    if sort is not choices.sort:
        return title
    falls = choices.is_reversed == (sort is SortKey.NAME)
    return ("▼" if falls else "▲") + title


def _name(name: str) -> Text:
    return Text(one_line(name), no_wrap=True, overflow="ellipsis")


def _cell(figure: _Figure, row: Row, *, is_wide: bool) -> Text:
    text = figure.text(row, is_wide)
    return Text(text, style="dim" if text in ("0", "–") else figure.style)


def _foot(choices: Choices) -> Text:
    foot = Text(no_wrap=True, overflow="ellipsis")
    if choices.typing or choices.pattern:
        foot.append("filter: ", style="bold").append(one_line(choices.pattern))
    if choices.typing:
        return foot.append("█", style="blink").append("  Enter keep  Esc clear", style="dim")
    if choices.pattern:
        foot.append("  Esc clear  ", style="dim")
    foot.append("q quit  / filter  r reverse  sort", style="dim")
    for sort in SortKey:
        word = Text(f" {sort.word}", style="bold" if sort is choices.sort else "dim")
        letter = 1 + sort.word.index(sort.key)
        word.stylize("underline", letter, letter + 1)
        foot.append_text(word)
    return foot
