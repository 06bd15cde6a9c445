"""Log lines as NSQ writes them, or as JSON for machines to read, on top of the standard `logging` module.

    [nsqd] 2024/05/17 09:30:00.123456 INFO: TCP: listening on 127.0.0.1:4150
    <prefix><local date and time>     <LEVEL>: <text>

    {"ts": "2024-05-17T07:30:00.123456Z", "level": "info", "program": "nsqd", "logger": "emberq.base.address",
     "message": "TCP: listening on 127.0.0.1:4150"}                            (all on one line)

Every module logs to its own `logging.getLogger("emberq.…")`; a daemon calls `configure` once. One record is one
line: text from clients is escaped, so that no client can forge a line. Only a traceback takes more lines, and those are
indented; in JSON it is the member `traceback` of the object.
"""

from __future__ import annotations

import enum
import json
import logging
import time
from abc import ABC, abstractmethod
from typing import TextIO

from emberq.base.clock import Clock
from emberq.base.text import one_line

ROOT = "emberq"
"""The logger above all of ours; the root logger of the process is left alone."""


class LogLevel(enum.IntEnum):
    """The levels with the numbers NSQ's HTTP API shows for them."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5

    @property
    def word(self) -> str:
        """How flags, config files and the HTTP API spell it."""
        return self.name.lower()

    @property
    def threshold(self) -> int:
        """The same level in `logging`'s numbers, which are ours times ten."""
        return self * 10


class LogFormat(enum.StrEnum):
    """How a record is written."""

    TEXT = "text"
    JSON = "json"


_WORD_IN_LINE = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARNING",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}


class OneLineFormatter(logging.Formatter, ABC):
    """Makes one line of a record, or with a traceback one line and its indented tail."""

    @abstractmethod
    def head(self, record: logging.LogRecord) -> str:
        """What stands before the text."""

    def format(self, record: logging.LogRecord) -> str:
        line = self.head(record) + one_line(record.getMessage())
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join("\n\t" + one_line(part) for part in trace.splitlines())
        return line


class LineFormatter(OneLineFormatter):
    """The line of a daemon. The text of the current second is kept, because a busy daemon logs many lines in one."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._second = -1
        self._second_text = ""

    def head(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        micros = int((record.created - second) * 1_000_000)
        if second != self._second:
            self._second_text = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
            self._second = second
        level = _WORD_IN_LINE.get(record.levelno, record.levelname)
        return f"{self._prefix}{self._second_text}.{micros:06} {level}: "


_WORD_IN_JSON = {level.threshold: level.word for level in LogLevel}


class JsonFormatter(logging.Formatter):
    """Makes an object of each record, in one line of ASCII. Time is UTC, as RFC 3339 writes it."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        second = int(record.created)
        micros = int((record.created - second) * 1_000_000)
        members = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(second))}.{micros:06}Z",
            "level": _WORD_IN_JSON.get(record.levelno, record.levelname.lower()),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return json.dumps(members)


class _LineHandler(logging.StreamHandler[TextIO]):
    """The one handler that `write_to` installs; a type of its own so that it can be told from others."""


def write_to(stream: TextIO | None, formatter: logging.Formatter) -> None:
    """Write emberq's log lines to `stream` (standard error if None), in place of an earlier `write_to`."""
    stop_writing()
    handler = _LineHandler(stream)
    handler.setFormatter(formatter)
    logging.getLogger(ROOT).addHandler(handler)


def stop_writing() -> None:
    """Undo `write_to`."""
    logger = logging.getLogger(ROOT)
    for handler in list(logger.handlers):
        if isinstance(handler, _LineHandler):
            logger.removeHandler(handler)


def configure(
    *,
    prefix: str,
    level: LogLevel,
    log_format: LogFormat = LogFormat.TEXT,
    program: str = "",
    stream: TextIO | None = None,
) -> None:
    """Write the log lines of a daemon. Lines of text begin with `prefix`; JSON says which `program` wrote them."""
    write_to(stream, JsonFormatter(program) if log_format is LogFormat.JSON else LineFormatter(prefix))
    set_level(level)


def set_level(level: LogLevel) -> None:
    """Show this level and graver ones from now on."""
    logging.getLogger(ROOT).setLevel(level.threshold)


# What clients can cause at will.


class RefusalLog:
    """Warns that clients were refused: one line in an interval, which counts those before it. Owned by what refuses."""

    def __init__(self, logger: logging.Logger, *, clock: Clock, interval_ns: int) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_ns = interval_ns
        self._unlogged_count = 0
        """Refusals since the last line."""
        self._next_ns = 0

    def warn(self, text: str) -> None:
        """Log it, but not each time: there may be thousands in a second."""
        self._unlogged_count += 1
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._next_ns:
            others = f"; {self._unlogged_count - 1} others were refused before" if self._unlogged_count > 1 else ""
            self._logger.warning("%s%s", text, others)
            self._next_ns = now_ns + self._interval_ns
            self._unlogged_count = 0
