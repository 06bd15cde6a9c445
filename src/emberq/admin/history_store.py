"""History that outlives a restart: figures for days, and what happened meanwhile, in one SQLite file (--history-path).

**Figures** are kept at falling resolution:

    level   a point for every    reaches back
    0       minute               6 hours
    1       5 minutes            a day
    2       30 minutes           --history-retention

The points of the history in memory, one for every --history-interval, are gathered for a minute and then written, in
one transaction. At the end of its step a point of a higher level is made of those of the level below it, as they are
stored: so it is complete after a restart, too, and after a crash. Of rates it holds the mean, of all else (depth,
latency, memory) the highest, because a peak that lasted a minute is what an operator looks for days later.

    series   id | kind | topic   | channel | seen           a topic, a channel, the cluster, or a node
    points   level | series | number | figures              number: time by the step of the level
    marks    time_ns | kind | text | topic | channel | node | state
    alerts   kept                                           those that are firing, or were lately (see `alert`)
    silences kept                                           those that have not ended (see `silence`)

**Bounds.** A series has some thousand points of fifty bytes. There are at most MAX_SERIES of them; those that have not
been seen for longest make room for new ones. Of marks the last MAX_MARKS are kept.

**One thread** has the file and does all work on it, so that no request waits for a disk. What cannot be written is
logged and left out: the pages go on without it. The file belongs to one nsqadmin at a time. One that is damaged is put
aside, and another one begun.

**Marks** are what happened: nodes that came and went, actions, and what other programs tell by POST /api/marks, such as
deployments. They are kept in memory, and with a file also there.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import os
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND

FILE_NAME = "history.db"
DAMAGED_SUFFIX = ".damaged"

MAX_SERIES = 10_000
"""As many as twice the series that are kept in memory, and some that have been gone for days."""
MAX_MARKS = 1_000
"""As many as charts can show and people can read."""
MAX_WAITING = 20
"""Points that wait for a slow disk; those beyond are dropped."""
MARK_LENGTH = 200
"""A longer text could not be read in a chart."""
FORGET_COUNT = 200
"""As many series as are forgotten at a time."""

Name = tuple[str, str]
Point = Sequence[float]
T = TypeVar("T")

_log = logging.getLogger(__name__)


class Resolution(NamedTuple):
    """A resolution."""

    step_s: int
    size: int
    """Points of a series."""

    @property
    def reach_s(self) -> int:
        """How far it reaches back."""
        return self.step_s * self.size


def levels_of(retention_ns: int) -> tuple[Resolution, ...]:
    """The resolutions, the finest first."""
    coarse = max(math.ceil(retention_ns / NS_PER_SECOND / 1800), 1)
    return Resolution(60, 360), Resolution(300, 288), Resolution(1800, coarse)


class HistoryMark(NamedTuple):
    """Something that happened."""

    time_ns: int
    """By the wall clock."""
    kind: str
    """`node`, `action` or `note`."""
    text: str
    topic: str = ""
    channel: str = ""
    node: str = ""
    state: str = ""
    """Of a node: silent, gone or back."""

    def concerns(self, topic: str, channel: str) -> bool:
        """Whether it belongs into the charts of a topic or a channel; all of them belong into those of the cluster."""
        return topic in ("", self.topic or topic) and channel in ("", self.channel or channel)

    def document(self) -> dict[str, Any]:
        """The mark as pages are told of it."""
        named = {"topic": self.topic, "channel": self.channel, "node": self.node, "state": self.state}
        return {
            "time": self.time_ns // NS_PER_MS / 1000,
            "kind": self.kind,
            "text": self.text,
            **{name: value for name, value in named.items() if value},
        }


def node_mark(time_ns: int, node: str, state: str) -> HistoryMark:
    """What happened to a node."""
    return HistoryMark(time_ns, "node", f"{node} {state}", node=node, state=state)


class Marks:
    """The last marks. Owned by the daemon."""

    def __init__(self, store: HistoryStore | None = None) -> None:
        self._store = store
        self._marks: deque[HistoryMark] = deque(maxlen=MAX_MARKS)

    async def load(self) -> None:
        """Begin with those that are stored."""
        if self._store is not None:
            self._marks.extend(await self._store.marks())

    def add(self, mark: HistoryMark) -> None:
        mark = mark._replace(text=mark.text[:MARK_LENGTH])
        self._marks.append(mark)
        if self._store is not None:
            self._store.add_mark(mark)

    def document(self, topic: str = "", channel: str = "", *, since_s: float = 0) -> list[dict[str, Any]]:
        """The marks of a topic, a channel or all, the oldest first."""
        since_ns = since_s * NS_PER_SECOND
        chosen = [mark for mark in self._marks if mark.concerns(topic, channel) and mark.time_ns >= since_ns]
        return [mark.document() for mark in sorted(chosen)]


class HistoryStoreError(Exception):
    """The file cannot be used; the text says why."""


class KeptKind(enum.StrEnum):
    """What is kept as a whole, besides figures and marks; so its table is called."""

    ALERTS = "alerts"
    SILENCES = "silences"


class SeriesKind(NamedTuple):
    """What series of one kind have."""

    number: int
    figures: Sequence[str]

    @property
    def layout(self) -> struct.Struct:
        """Of a point."""
        return struct.Struct(f"<{len(self.figures)}f")


class HistoryStore:
    """The file. Owned by the daemon; `open` and `close` it. All but those return at once, or are awaited."""

    def __init__(self, folder: str, *, kinds: Iterable[SeriesKind], retention_ns: int) -> None:
        self._path = Path(folder) / FILE_NAME
        self._kinds = {kind.number: kind for kind in kinds}
        self.levels = levels_of(retention_ns)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._connection: sqlite3.Connection | None = None
        self._room = threading.Semaphore(MAX_WAITING)
        self._failure = ""
        # What follows is the thread's own.
        self._ids: dict[tuple[int, str, str], int] = {}
        self._minute = -1
        self._gathered: dict[int, list[Point]] = {}
        """Points of this minute, by series."""
        self._kind_of: dict[int, SeriesKind] = {}
        self._unsummed: set[int] = set()
        """Series with minutes that the higher levels do not have yet."""

    # Opening and closing

    async def open(self) -> None:
        """Take hold of the file; HistoryStoreError if it cannot be used."""
        try:
            await self._do(self._open)
        except (OSError, sqlite3.Error) as failure:
            raise HistoryStoreError(f"failed to open --history-path ({self._path.parent}) - {failure}") from failure

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = self._connected()
        except sqlite3.OperationalError:
            raise  # it is in use, or cannot be reached
        except sqlite3.DatabaseError as failure:
            aside = self._path.with_suffix(self._path.suffix + DAMAGED_SUFFIX)
            _log.error("%s is damaged (%s); it is put aside as %s", self._path, failure, aside.name)
            self._path.replace(aside)
            self._connection = self._connected()
        listed = self._connection.execute("SELECT id, kind, topic, channel, seen FROM series").fetchall()
        for number, kind, topic, channel, _ in listed:
            if kind in self._kinds:
                self._ids[kind, topic, channel] = number
                self._kind_of[number] = self._kinds[kind]
        (was_closed,) = self._connection.execute("PRAGMA user_version").fetchone()
        self._connection.execute("BEGIN")
        if not was_closed:  # an nsqadmin that was killed has left minutes that are in no sum
            minute = max((seen for *_, seen in listed), default=0)
            self._unsummed = {number for number, *_, seen in listed if seen == minute and number in self._kind_of}
            self._write_sums(minute)
        self._connection.execute("PRAGMA user_version = 0")
        self._connection.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=0)
        try:
            connection.executescript(_SCHEMA)
            connection.execute("BEGIN IMMEDIATE")  # takes the lock, which is held from then on
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        """Write what was gathered, and let go of the file."""
        await self._do(self._close)
        self._thread.shutdown()

    def _close(self) -> None:
        if self._connection is not None:
            self._safely(self._finish)
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        self._write_minute(is_last=True)
        self._writable().execute("PRAGMA user_version = 1")  # what is read as `was_closed`

    # Writing

    def add(self, time_ms: float, points: Iterable[tuple[int, Name, Point]]) -> None:
        """Points of one time: the number of their kind, the name of the series, the figures."""
        if not self._room.acquire(blocking=False):
            return
        taken = list(points)

        def take() -> None:
            self._room.release()
            self._safely(lambda: self._take(time_ms, taken))

        self._thread.submit(take)

    def add_mark(self, mark: HistoryMark) -> None:
        self._thread.submit(lambda: self._safely(lambda: self._write_mark(mark)))

    def keep(self, kind: KeptKind, texts: Sequence[str]) -> None:
        """Keep these, and forget those of the kind that were kept before."""
        self._thread.submit(lambda: self._safely(lambda: self._write_kept(kind, texts)))

    def _write_kept(self, kind: KeptKind, texts: Sequence[str]) -> None:
        connection = self._writable()
        connection.execute("BEGIN")
        connection.execute(f"DELETE FROM {kind}")  # noqa: S608 - a word of ours, as below
        connection.executemany(f"INSERT INTO {kind} (kept) VALUES (?)", [(each,) for each in texts])  # noqa: S608
        connection.execute("COMMIT")

    def _safely(self, work: Callable[[], None]) -> None:
        """Do it; what goes wrong is logged, once for each reason."""
        try:
            work()
        except (sqlite3.Error, OSError) as failure:
            if str(failure) != self._failure:
                _log.error("cannot write to %s: %s", self._path, failure)
            self._failure = str(failure)
            if self._connection is not None and self._connection.in_transaction:
                self._connection.rollback()
        else:
            self._failure = ""

    def _take(self, time_ms: float, points: list[tuple[int, Name, Point]]) -> None:
        minute = int(time_ms // 1000) // self.levels[0].step_s
        if minute != self._minute:
            steps = [each * self.levels[0].step_s // self.levels[1].step_s for each in (minute, self._minute)]
            self._write_minute(is_last=steps[0] != steps[1])
            self._minute = minute
        for kind, (topic, channel), point in points:
            series = self._ids.get((kind, topic, channel))
            if series is None:
                series = self._new_series(kind, topic, channel)
            self._gathered.setdefault(series, []).append(point)

    def _new_series(self, kind: int, topic: str, channel: str) -> int:
        connection = self._writable()
        if len(self._ids) >= MAX_SERIES:
            self._forget(FORGET_COUNT)
        added = connection.execute(
            "INSERT INTO series (kind, topic, channel, seen) VALUES (?, ?, ?, ?)", (kind, topic, channel, self._minute)
        )
        number = int(added.lastrowid or 0)
        self._ids[kind, topic, channel] = number
        self._kind_of[number] = self._kinds[kind]
        return number

    def _forget(self, count: int) -> None:
        """Drop the series that have not been seen for longest, unless they are there now."""
        connection = self._writable()
        oldest = connection.execute("SELECT id, kind, topic, channel FROM series ORDER BY seen LIMIT ?", (count,))
        for number, kind, topic, channel in oldest.fetchall():
            if number not in self._gathered:
                connection.execute("DELETE FROM points WHERE level IN (0, 1, 2) AND series = ?", (number,))
                connection.execute("DELETE FROM series WHERE id = ?", (number,))
                self._ids.pop((kind, topic, channel), None)

    def _write_minute(self, *, is_last: bool = False) -> None:
        """Store what was gathered in the minute that has ended; with the last of a step, what follows from the step."""
        gathered, self._gathered = self._gathered, {}
        if not gathered and not self._unsummed:
            return
        connection = self._writable()
        connection.execute("BEGIN")
        connection.executemany("UPDATE series SET seen = ? WHERE id = ?", [(self._minute, each) for each in gathered])
        self._write(0, self._minute, {series: self._combined(series, each) for series, each in gathered.items()})
        self._unsummed.update(gathered)
        if is_last:
            self._write_sums(self._minute)
        connection.execute("COMMIT")

    def _write_sums(self, minute: int) -> None:
        """Store the points of the higher levels in which the minute lies, and drop what is too old."""
        for level in range(1, len(self.levels)):
            number = minute * self.levels[0].step_s // self.levels[level].step_s
            made = ((series, self._made_of(level - 1, series, number)) for series in self._unsummed)
            self._write(level, number, {series: point for series, point in made if point is not None})
        for level, resolution in enumerate(self.levels):
            last = minute * self.levels[0].step_s // resolution.step_s - resolution.size
            self._writable().executemany(
                "DELETE FROM points WHERE level = ? AND series = ? AND number <= ?",
                [(level, series, last) for series in self._unsummed],
            )
        self._unsummed.clear()

    def _write(self, level: int, number: int, points: dict[int, bytes]) -> None:
        self._writable().executemany(
            "INSERT OR REPLACE INTO points (level, series, number, figures) VALUES (?, ?, ?, ?)",
            [(level, series, number, point) for series, point in points.items()],
        )

    def _made_of(self, lower: int, series: int, number: int) -> bytes | None:
        """The point of a level, from those of the level below; None if there are none."""
        steps = self.levels[lower + 1].step_s // self.levels[lower].step_s
        rows = self._writable().execute(_SELECT_FIGURES, (lower, series, number * steps, (number + 1) * steps - 1))
        points = [point for (figures,) in rows for point in self._unpacked(series, figures)]
        return self._combined(series, points) if points else None

    def _combined(self, series: int, points: Sequence[Point]) -> bytes:
        kind = self._kind_of[series]
        if len(points) == 1:
            return kind.layout.pack(*points[0])
        columns = zip(kind.figures, zip(*points, strict=True), strict=True)
        return kind.layout.pack(*(_mean(column) if _is_rate(name) else _highest(column) for name, column in columns))

    def _write_mark(self, mark: HistoryMark) -> None:
        connection = self._writable()
        connection.execute(
            "INSERT INTO marks (time_ns, kind, text, topic, channel, node, state) VALUES (?, ?, ?, ?, ?, ?, ?)", mark
        )
        connection.execute("DELETE FROM marks WHERE id <= (SELECT max(id) FROM marks) - ?", (MAX_MARKS,))

    # Reading

    async def marks(self) -> list[HistoryMark]:
        """All marks, the oldest first."""
        return await self._do(self._read_marks)

    def _read_marks(self) -> list[HistoryMark]:
        rows = self._writable().execute(
            "SELECT time_ns, kind, text, topic, channel, node, state FROM marks ORDER BY id"
        )
        return [HistoryMark(*row) for row in rows]

    async def kept(self, kind: KeptKind) -> list[str]:
        """What is kept of a kind, as it was given."""
        return await self._do(lambda: self._read_kept(kind))

    def _read_kept(self, kind: KeptKind) -> list[str]:
        return [text for (text,) in self._writable().execute(f"SELECT kept FROM {kind} ORDER BY id")]  # noqa: S608

    async def points(
        self, kind: int, name: Name, *, since_s: float, until_s: float, now_s: float
    ) -> tuple[Resolution, list[tuple[float, Point]]]:
        """The points of a series between two times, at the finest resolution that reaches back so far."""
        reaching = (
            number for number, level in enumerate(self.levels) if since_s >= now_s - level.reach_s - level.step_s
        )
        level = next(reaching, len(self.levels) - 1)
        return self.levels[level], await self._do(lambda: self._read(level, kind, name, since_s, until_s))

    def _read(self, level: int, kind: int, name: Name, since_s: float, until_s: float) -> list[tuple[float, Point]]:
        series = self._ids.get((kind, *name))
        if series is None or self._connection is None:
            return []
        step_s = self.levels[level].step_s
        rows = self._connection.execute(
            _SELECT_POINTS, (level, series, math.floor(since_s / step_s), math.floor(until_s / step_s))
        )
        # A point stands at the beginning of its step: what happened in the step is then never before it.
        return [
            (float(number * step_s), point) for number, figures in rows for point in self._unpacked(series, figures)
        ]

    def _unpacked(self, series: int, figures: bytes) -> Iterable[Point]:
        """The point; none if an nsqadmin with other figures has written it."""
        layout = self._kind_of[series].layout
        return [layout.unpack(figures)] if len(figures) == layout.size else []

    def _writable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the file is closed")
        return self._connection

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


_SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, topic TEXT NOT NULL, channel TEXT NOT NULL, seen INTEGER NOT NULL,
    UNIQUE (kind, topic, channel)
);
CREATE TABLE IF NOT EXISTS points (
    level INTEGER NOT NULL, series INTEGER NOT NULL, number INTEGER NOT NULL, figures BLOB NOT NULL,
    PRIMARY KEY (level, series, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks (
    id INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, topic TEXT NOT NULL,
    channel TEXT NOT NULL, node TEXT NOT NULL, state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS alerts (id INTEGER PRIMARY KEY, kept TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS silences (id INTEGER PRIMARY KEY, kept TEXT NOT NULL);
"""
_SELECT_POINTS = (
    "SELECT number, figures FROM points WHERE level = ? AND series = ? AND number BETWEEN ? AND ? ORDER BY number"
)
_SELECT_FIGURES = "SELECT figures FROM points WHERE level = ? AND series = ? AND number BETWEEN ? AND ?"


def _is_rate(figure: str) -> bool:
    return figure.endswith("rate")


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _highest(values: Iterable[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)
