"""Runs a tool: from its command line to its exit status.

0  --help, --version, the work is done, or a signal asked for the end
1  options that cannot work, or a failure while running: one log line says what
2  a mistake on the command line: the mistake and the usage on standard error

The log goes to standard error in the form that NSQ's tools give it: lines of the tool itself are bare, those of the
client library say how grave they are.

    2024/05/17 09:30:00 Adding consumer for topic: clicks
    2024/05/17 09:30:00 WRN cannot consume from nsqd 127.0.0.1:4150: connection refused

SIGINT and SIGTERM ask for an orderly end, in which messages that are being handled are still answered. More of them
change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, Self, TextIO, TypeVar

import uvloop

from emberq.base import process
from emberq.base.goflag import FlagError, HelpRequested, parse_flags
from emberq.base.kinds import SettingError
from emberq.base.log import ROOT
from emberq.base.printable import one_line
from emberq.base.process import STOP_SIGNALS
from emberq.base.settings import OptionsError, SettingTable
from emberq.base.usage import print_usage, version_line

logger = logging.getLogger(__name__)


class ToolError(Exception):
    """The tool cannot go on: the text is logged, and the exit status is 1."""


class ToolOptions(Protocol):
    """What the options of every tool can do."""

    def validated(self) -> Self:
        """The options to run with; OptionsError for what cannot work."""
        ...


OptionsT = TypeVar("OptionsT", bound=ToolOptions)


def run_tool(
    table: SettingTable,
    options_class: type[OptionsT],
    run: Callable[[OptionsT, asyncio.Event], Coroutine[Any, Any, None]],
    argv: Sequence[str] | None,
    *,
    stop_signals: Sequence[signal.Signals] = STOP_SIGNALS,
    takes_arguments: bool = True,
    failures: tuple[type[Exception], ...] = (),
) -> int:
    """Run a tool to its end; the exit status.

    `run` gets the options and an event that is set when a signal asks for the end; it returns when its work is done,
    and raises `ToolError`, or one of `failures`, if it cannot be.
    Words behind the flags are ignored, unless `takes_arguments` is False.
    """
    log_to(sys.stderr)
    ends: tuple[type[Exception], ...] = (OptionsError, SettingError, ToolError, *failures)
    words = sys.argv[1:] if argv is None else argv
    try:
        options = _read_flags(table, options_class, words)
        if options is None:
            return 0
        if not takes_arguments:
            _refuse_arguments(table, words)
        options = options.validated()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_done(run, options, stop_signals))
    except FlagError as error:
        print(error, file=sys.stderr)
        print_usage(table)
        return 2
    except ends as error:
        logger.critical("%s", error)
        return 1
    return 0


def _read_flags(table: SettingTable, options_class: type[OptionsT], words: Sequence[str]) -> OptionsT | None:
    """The options that the flags ask for; None if all that was asked for has been printed."""
    try:
        given = table.load(words)
    except HelpRequested:
        print_usage(table)
        return None
    if given.version_asked:
        print(version_line(table.program))
        return None
    return options_class(**given.options)


def _refuse_arguments(table: SettingTable, words: Sequence[str]) -> None:
    rest = parse_flags(words, {setting.flag: setting.kind for setting in table}).rest
    if rest:
        raise OptionsError(f"unknown arguments: [{' '.join(rest)}]")


async def _until_done(
    run: Callable[[OptionsT, asyncio.Event], Coroutine[Any, Any, None]],
    options: OptionsT,
    stop_signals: Sequence[signal.Signals],
) -> None:
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals:
        loop.add_signal_handler(number, stop_asked.set)
    try:
        await run(options, stop_asked)
    finally:
        if stop_asked.is_set():
            process.ignore_to_the_end(stop_signals)


# Log lines


class ToolLineFormatter(logging.Formatter):
    """Makes the line. What comes from outside is escaped, so that one record is one line."""

    _WORDS = {  # noqa: RUF012 - a constant
        logging.DEBUG: "DBG ",
        logging.INFO: "INF ",
        logging.WARNING: "WRN ",
        logging.ERROR: "ERR ",
        logging.CRITICAL: "ERR ",
    }

    def format(self, record: logging.LogRecord) -> str:
        """One line, or with a traceback one line and its indented tail."""
        moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        level = "" if record.name.startswith("emberq.tools.") else self._WORDS.get(record.levelno, "")
        line = f"{moment} {level}{one_line(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line += "".join("\n\t" + one_line(part) for part in trace.splitlines())
        return line


class _ToolLineHandler(logging.StreamHandler[TextIO]):
    """The one handler that `log_to` installs; a type of its own so that it can be told from others."""


def log_to(stream: TextIO) -> None:
    """Write emberq's log lines to `stream` in the form of the tools, in place of an earlier `log_to`."""
    root = logging.getLogger(ROOT)
    stop_logging()
    handler = _ToolLineHandler(stream)
    handler.setFormatter(ToolLineFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def stop_logging() -> None:
    """Undo `log_to`: for a tool that has set up a log of its own."""
    root = logging.getLogger(ROOT)
    for handler in list(root.handlers):
        if isinstance(handler, _ToolLineHandler):
            root.removeHandler(handler)
