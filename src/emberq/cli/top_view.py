"""What `emberq top` shows: rows, one look at the cluster, keys, drawing.

A row is a channel over the whole cluster. A topic has a row of its own only when it tells something that its channels
do not: it has none, it holds messages that no channel has taken, or it is paused.

    emberq top  2 nsqds · 3 topics · 4 channels · in 1,204/s · out 1,198/s                        05:11:02
      TOPIC          CHANNEL            ▼DEPTH  IN-FLT   DEFER    IN/s   OUT/s CLIENTS
      clicks         archive               912      20       0     602     598       4
    P orders         mail                   17       0       0     0.5       0       0
    q quit  / filter  r reverse  sort name depth in-flight deferred in out clients

Names take the room that figures leave. A narrow terminal gets fewer columns and shorter numbers. A column keeps its
width while its figures change, so that nothing jumps. Names come from outside, and are never read as markup.

A terminal sends a key as one character or as an escape sequence. The Escape key is the first character of one, alone.
`read_keys` tells them apart within what arrived at once, which is how terminals send a key.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.text import one_line
from emberq.cli.terminal import counted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from emberq.cluster.survey import ClusterReader, Survey, Total

# Rows.


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRow:
    """A channel over the whole cluster, or a topic that has a row of its own."""

    topic: str
    channel: str
    """Empty for a topic."""
    total: Total

    @property
    def came_per_s(self) -> float | None:
        """Messages that came, per second; None until there are two looks to compare."""
        return None if self.total.rates is None else self.total.rates.came

    @property
    def left_per_s(self) -> float | None:
        """Messages that were finished, per second; None until there are two looks to compare."""
        return None if self.total.rates is None else self.total.rates.left


class SortKey(enum.Enum):
    """What rows can be sorted by: the word for flags, and the key to press."""

    NAME = ("name", "n")
    DEPTH = ("depth", "d")
    IN_FLIGHT = ("in-flight", "f")
    DEFERRED = ("deferred", "e")
    CAME = ("in", "i")
    LEFT = ("out", "o")
    CLIENTS = ("clients", "c")

    def __init__(self, word: str, key: str) -> None:
        self.word = word
        self.key = key


def rows_of(seen: Survey) -> Iterator[TopRow]:
    """A row for each channel, and for the topics that need one."""
    for topic, total, channels in seen.topic_totals():
        if total.depth or total.paused or not channels:
            yield TopRow(topic=topic, channel="", total=total)
        for channel, total_of_channel in channels:
            yield TopRow(topic=topic, channel=channel, total=total_of_channel)


def arranged(rows: Iterable[TopRow], *, sort: SortKey, is_reversed: bool, pattern: str) -> list[TopRow]:
    """The rows that match: the largest figure first, names from A to Z, or the reverse."""
    matching = sorted((row for row in rows if _matches(row, pattern)), key=lambda row: (row.topic, row.channel))
    if sort is SortKey.NAME:
        return matching[::-1] if is_reversed else matching
    figure = next(figure for figure in _FIGURES if figure.sort is sort)
    return sorted(matching, key=lambda row: figure.value(row) or 0, reverse=not is_reversed)


def _matches(row: TopRow, pattern: str) -> bool:
    """Whether the name of topic or channel contains `pattern` or, with `*`, `?` or `[` in it, matches it as a whole."""
    if not pattern:
        return True
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    return fnmatchcase(row.topic.lower(), wanted) or fnmatchcase(row.channel.lower(), wanted)


# One look.

_RATE_DIGITS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenFrame:
    """One look at the cluster; after a failure, the last look and why there is no newer one."""

    taken_ns: int = 0
    """The wall clock's time of the look; 0 if there was none yet."""
    nodes: tuple[str, ...] = ()
    topic_count: int = 0
    rows: tuple[TopRow, ...] = ()
    came_per_s: float | None = None
    """Messages published, over all topics; None until there are two looks to compare."""
    left_per_s: float | None = None
    """Messages finished, over all channels."""
    warnings: tuple[str, ...] = ()
    failure: str = ""
    """Why this look failed; everything else is then from the look before."""

    @property
    def taken_at(self) -> datetime.datetime:
        """The time of the look, in local time."""
        return datetime.datetime.fromtimestamp(self.taken_ns / NS_PER_SECOND).astimezone()


class Watcher:
    """Looks at the cluster, and compares each look with the one before."""

    def __init__(self, observer: ClusterReader, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock
        self._seen: Survey | None = None
        self._last = ScreenFrame()

    async def look(self) -> ScreenFrame:
        """One look. If the cluster does not answer, the frame says so."""
        from emberq.cluster.upstream import ClusterError

        try:
            found = await self._observer.survey(self._clock, self._seen)
        except ClusterError as failure:
            self._last = replace(self._last, failure=str(failure), warnings=())
            return self._last
        self._seen = seen = found.value
        rates = seen.total_rates()
        self._last = ScreenFrame(
            taken_ns=self._clock.wall_ns(),
            nodes=tuple(producer.node for producer in seen.producers),
            topic_count=len(seen.channels),
            rows=tuple(rows_of(seen)),
            came_per_s=None if rates is None else rates.came,
            left_per_s=None if rates is None else rates.left,
            warnings=found.warnings,
        )
        return self._last


def frame_document(frame: ScreenFrame, rows: Iterable[TopRow]) -> dict[str, Any]:
    """The frame as JSON, with these rows of it."""
    if frame.failure:
        return {"error": frame.failure}
    return {
        "time": frame.taken_at.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "nodes": list(frame.nodes),
        "topic_count": frame.topic_count,
        "came_per_s": _rounded(frame.came_per_s),
        "left_per_s": _rounded(frame.left_per_s),
        "rows": [_row_document(row) for row in rows],
        "warnings": list(frame.warnings),
    }


def _row_document(row: TopRow) -> dict[str, Any]:
    from emberq.cluster.stats import CHANNEL_FIGURES

    return {
        "topic": row.topic,
        "channel": row.channel or None,
        **{name: getattr(row.total, name) for name in (*CHANNEL_FIGURES, "node_count", "paused")},
        "came_per_s": _rounded(row.came_per_s),
        "left_per_s": _rounded(row.left_per_s),
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, _RATE_DIGITS)


# Keys.

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)

ESCAPE = "\x1b"
_UP = {"\x1b[A", "\x1bOA", "k"}
_DOWN = {"\x1b[B", "\x1bOB", "j"}
_PAGE_UP = {"\x1b[5~"}
_PAGE_DOWN = {"\x1b[6~", " "}
_HOME = {"\x1b[H", "\x1bOH", "\x1b[1~", "g"}
_ENTER = {"\r", "\n"}
_BACKSPACE = {"\x7f", "\x08"}
_QUIT = {"q", "Q", "\x03", "\x04"}

MAX_FILTER_CHARS = 64
"""The longest name that NSQ allows."""


def read_keys(text: str) -> list[str]:
    """The keys that were pressed, in order."""
    return _KEY.findall(text)


class KeyOutcome(enum.Enum):
    """What a key asks for."""

    NOTHING = enum.auto()
    REDRAW = enum.auto()
    QUIT = enum.auto()


@dataclass(slots=True, kw_only=True)
class Choices:
    """What the user has chosen to see. Owned by the screen; keys change it."""

    sort: SortKey = SortKey.DEPTH
    is_reversed: bool = False
    pattern: str = ""
    typing: bool = False
    """The filter is being typed: letters go there."""
    first_row: int = 0
    """The topmost row shown. `draw_screen` keeps it within the rows."""
    page_rows: int = 1
    """The rows of a page. Set by `draw_screen`."""

    def of(self, rows: Iterable[TopRow]) -> list[TopRow]:
        """The rows to show, in order."""
        return arranged(rows, sort=self.sort, is_reversed=self.is_reversed, pattern=self.pattern)

    def press(self, key: str) -> KeyOutcome:
        """React to a key."""
        if self.typing:
            return self._type(key)
        if key in _QUIT:
            return KeyOutcome.QUIT
        if key == "/":
            self.typing = True
        elif key == ESCAPE:
            self._filter("")
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif (sort := _SORT_BY_KEY.get(key)) is not None:
            self.sort = sort
            self.first_row = 0
        elif not self._scroll(key):
            return KeyOutcome.NOTHING
        return KeyOutcome.REDRAW

    def _type(self, key: str) -> KeyOutcome:
        if key == "\x03":
            return KeyOutcome.QUIT
        if key in _ENTER:
            self.typing = False
        elif key == ESCAPE:
            self.typing = False
            self._filter("")
        elif key in _BACKSPACE:
            self._filter(self.pattern[:-1])
        elif key.isprintable() and len(self.pattern) < MAX_FILTER_CHARS:
            self._filter(self.pattern + key)
        else:
            return KeyOutcome.NOTHING
        return KeyOutcome.REDRAW

    def _filter(self, pattern: str) -> None:
        self.pattern = pattern
        self.first_row = 0

    def _scroll(self, key: str) -> bool:
        if key in _UP:
            self.first_row -= 1
        elif key in _DOWN:
            self.first_row += 1
        elif key in _PAGE_UP:
            self.first_row -= self.page_rows
        elif key in _PAGE_DOWN:
            self.first_row += self.page_rows
        elif key in _HOME:
            self.first_row = 0
        else:
            return False
        self.first_row = max(self.first_row, 0)
        return True


_SORT_BY_KEY = {sort.key: sort for sort in SortKey}


# Drawing.

WIDE_COLUMNS = 160
"""From this width on all figures are shown, in full. Most names still have room."""
MAX_TROUBLE_LINES = 3
"""Warnings that are shown; with more, the last line says how many."""
_FIXED_LINES = 3
"""Title, head of the table, keys."""
_MARK_WIDTH = 2
NAME_WIDTH = 20
"""So much of a name is worth more than a figure."""
_NARROW_FIGURE_WIDTH = 6
_WIDE_FIGURE_WIDTH = 10
_NARROW_SHORT_FROM = 100_000
_WIDE_SHORT_FROM = 100_000_000
"""The smallest numbers that do not fit such a column, and are written short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A column of figures."""

    title: str
    value: Callable[[TopRow], float | None]
    """None until there are two looks to compare."""
    sort: SortKey | None = None
    only_wide: bool = False
    style: str = ""

    def width(self, *, is_wide: bool) -> int:
        """One more than the title, for the arrow: a column keeps its width when it becomes the one to sort by."""
        return _WIDE_FIGURE_WIDTH if is_wide else max(_NARROW_FIGURE_WIDTH, len(self.title) + 1)


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
    _Figure(title="DEPTH", value=lambda row: row.total.depth, sort=SortKey.DEPTH, style="yellow"),
    _Figure(title="ON DISK", value=lambda row: row.total.backend_depth, only_wide=True),
    _Figure(title="IN-FLT", value=lambda row: row.total.in_flight_count, sort=SortKey.IN_FLIGHT),
    _Figure(title="DEFER", value=lambda row: row.total.deferred_count, sort=SortKey.DEFERRED),
    _Figure(title="IN/s", value=lambda row: row.came_per_s, sort=SortKey.CAME, style="green"),
    _Figure(title="OUT/s", value=lambda row: row.left_per_s, sort=SortKey.LEFT, style="cyan"),
    _Figure(title="REQUEUED", value=lambda row: row.total.requeue_count, only_wide=True),
    _Figure(title="TIMED OUT", value=lambda row: row.total.timeout_count, only_wide=True),
    _Figure(title="MESSAGES", value=lambda row: row.total.message_count, only_wide=True),
    _Figure(title="NODES", value=lambda row: row.total.node_count, only_wide=True),
    _Figure(title="CLIENTS", value=lambda row: row.total.client_count, sort=SortKey.CLIENTS),
)


def draw_page(frame: ScreenFrame, choices: Choices, *, width: int) -> RenderableType:
    """All rows, for pipes and files."""
    from rich.console import Group

    rows = choices.of(frame.rows)
    return Group(_title(frame), *_trouble(frame), _table(rows, choices, width=width))


def draw_screen(frame: ScreenFrame, choices: Choices, *, width: int, height: int) -> RenderableType:
    """As many rows as fit the screen, with the keys below. Sets the page of `choices`."""
    from rich.console import Group
    from rich.text import Text

    rows = choices.of(frame.rows)
    trouble = _trouble(frame)
    choices.page_rows = max(height - _FIXED_LINES - len(trouble), 1)
    choices.first_row = max(min(choices.first_row, len(rows) - choices.page_rows), 0)
    shown = rows[choices.first_row : choices.first_row + choices.page_rows]
    blank_lines = [Text()] * (choices.page_rows - len(shown))
    table = _table(shown, choices, width=width)
    return Group(_title(frame, width=width), *trouble, table, *blank_lines, _foot(choices))


def _title(frame: ScreenFrame, *, width: int = 0) -> Text:
    from rich.text import Text

    title = Text("emberq top", style="bold", no_wrap=True, overflow="ellipsis")
    if not frame.taken_ns:
        return title
    channel_count = sum(1 for row in frame.rows if row.channel)
    facts = (
        counted(len(frame.nodes), "nsqd"),
        counted(frame.topic_count, "topic"),
        counted(channel_count, "channel"),
        f"in {_rate(frame.came_per_s, True)}/s",
        f"out {_rate(frame.left_per_s, True)}/s",
    )
    title.append("  " + " · ".join(facts), style="not bold")
    moment = f"{frame.taken_at:%H:%M:%S}"
    title.append(moment.rjust(max(width - title.cell_len, len(moment) + 2)), style="not bold dim")
    return title


def _trouble(frame: ScreenFrame) -> list[Text]:
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
    from rich.text import Text

    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")


def _table(rows: list[TopRow], choices: Choices, *, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    is_wide = width >= WIDE_COLUMNS
    figures = _fitting(rows, choices, width=width, is_wide=is_wide)
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="reverse")
    table.add_column("", width=1)
    for title in ("TOPIC", "CHANNEL"):
        marked = _marked(title, choices, SortKey.NAME if title == "TOPIC" else None)
        table.add_column(marked, ratio=1, no_wrap=True, overflow="ellipsis")
    for figure in figures:
        title = _marked(figure.title, choices, figure.sort)
        table.add_column(title, justify="right", no_wrap=True, width=figure.width(is_wide=is_wide))
    for row in rows:
        names = (
            Text("P" if row.total.paused else "", style="bold magenta"),
            _name(row.topic),
            _name(row.channel or "–"),
        )
        table.add_row(*names, *(_cell(figure, row, is_wide=is_wide) for figure in figures))
    return table


def _fitting(rows: list[TopRow], choices: Choices, *, width: int, is_wide: bool) -> list[_Figure]:
    """The figures that leave names enough room. The last ones go first, the one to sort by at the very end."""
    figures = [figure for figure in _FIGURES if is_wide or not figure.only_wide]
    longest = (max((len(row.topic) for row in rows), default=0), max((len(row.channel) for row in rows), default=0))
    room = width - _MARK_WIDTH - 2 * (1 + min(max(*longest, len("CHANNEL")), NAME_WIDTH))
    order = figures[::-1]
    order.sort(key=lambda figure: figure.sort is choices.sort)
    for figure in order:
        if sum(1 + kept.width(is_wide=is_wide) for kept in figures) <= room:
            break
        figures.remove(figure)
    return figures


def _marked(title: str, choices: Choices, sort: SortKey | None) -> str:
    """The title, with an arrow if rows are sorted by it: down if figures fall, up if they rise."""
    if sort is not choices.sort:
        return title
    falls = choices.is_reversed == (sort is SortKey.NAME)
    return ("▼" if falls else "▲") + title


def _name(name: str) -> Text:
    from rich.text import Text

    return Text(one_line(name), no_wrap=True, overflow="ellipsis")


def _cell(figure: _Figure, row: TopRow, *, is_wide: bool) -> Text:
    from rich.text import Text

    value = figure.value(row)
    text = _count(value, is_wide) if isinstance(value, int) else _rate(value, is_wide)
    return Text(text, style="dim" if text in ("0", "–") else figure.style)


def _foot(choices: Choices) -> Text:
    from rich.text import Text

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
