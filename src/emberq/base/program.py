"""From a command line to an exit status, for daemons and tools.

The exit status of a daemon:

    0  --help, --version, stopped by a signal, or --check-config and nothing is open
    1  a config file or a setting that cannot be used, or a failure: one FATAL log line; --check-config and something
       is open
    2  a mistake on the command line: standard error names it, and the flag that was most likely meant

and of a tool:

    0  --help, --version, the work is done, or a signal asked for the end
    1  options that cannot work, or a failure while running: one log line says what
    2  a mistake on the command line: standard error names it, and the flag that was most likely meant

SIGINT and SIGTERM ask for an orderly stop: a daemon brings everything to the disk, a tool still answers the messages
that are being handled. More of these signals change nothing: the stop under way goes on, because cutting it short would
lose messages. (SIGKILL remains.) SIGHUP has a daemon reload, SIGUSR1 has nsqd drain. The cyclic garbage collector is
off in a daemon; see `daemon`.

A tool logs to standard error in the form that NSQ's tools have: its own lines are bare, those of the client library
begin with their level.

    2024/05/17 09:30:00 Adding consumer for topic: clicks
    2024/05/17 09:30:00 WRN cannot consume from nsqd 127.0.0.1:4150: connection refused
"""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from emberq import NSQ_VERSION
from emberq.base import log, memory
from emberq.base.flag import FlagError, HelpRequested, SettingError
from emberq.base.settings import Given, OptionsError, SettingTable, render_help

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANG_UP_SIGNALS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""SIGHUP, which Windows does not have."""


# A daemon as a process.


_T = TypeVar("_T")


class StartError(Exception):
    """A daemon cannot start; the text says why."""


class Daemon(Protocol):
    """What `serve` runs."""

    @property
    def failed(self) -> asyncio.Event:
        """Set when the daemon cannot go on, after it logged why."""
        ...

    async def start(self) -> None:
        """Return when clients are served. StartError, with nothing left running, if that cannot be."""
        ...

    def reload(self) -> None:
        """Read again what may have changed on disk, such as certificates."""
        ...

    async def stop(self) -> None:
        """Return when everything is safe on disk and closed."""
        ...


@runtime_checkable
class Drainable(Protocol):
    """A daemon that can be emptied by its clients before it stops."""

    @property
    def done(self) -> asyncio.Event:
        """Set when it is empty."""
        ...

    def drain(self) -> None:
        """Take nothing new."""
        ...


def prepare() -> None:
    """What makes a process a good daemon: files, memory, garbage, threads. To be called when everything is imported."""
    from emberq.base.daemon import tame_collector

    _raise_open_files_limit()
    memory.keep_freed()
    tame_collector()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


SWITCH_INTERVAL_S = 0.0005
"""So long a thread waits for the interpreter beside a busy loop; Python's own is ten times as long. When a sync has
ended, its thread has little to do and publishers wait for that. It costs nothing as long as no thread waits."""


def _raise_open_files_limit() -> None:
    """Allow as many connections as the system lets us: the usual soft limit of 1024 is far too low."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(make_daemon: Callable[[], Daemon]) -> bool:
    """Run a daemon until a signal stops it (True) or it fails (False). What `start` raises comes through."""
    return _run(_serve(make_daemon))


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run it in the event loop of our programs."""
    import asyncio

    from emberq.base.task import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def _serve(make_daemon: Callable[[], Daemon]) -> bool:
    import asyncio

    asked_to_stop = asyncio.Event()
    for number in STOP_SIGNALS:
        on_signal(number, asked_to_stop.set)
    daemon = make_daemon()
    for number in HANG_UP_SIGNALS:
        on_signal(number, daemon.reload)
    ends = [asked_to_stop, daemon.failed]
    if isinstance(daemon, Drainable):
        on_signal(signal.SIGUSR1, daemon.drain)
        ends.append(daemon.done)
    await daemon.start()
    await _first_of(*ends)
    await daemon.stop()
    ignore_to_the_end(STOP_SIGNALS)
    return not daemon.failed.is_set()


def on_signal(number: signal.Signals, callback: Callable[[], object]) -> None:
    """Have the running event loop call `callback` at a signal.

    The loop of Windows takes no such handlers. There the handler is Python's, which wakes the loop.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:
        signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(callback))


def off_signal(number: signal.Signals) -> None:
    """Undo `on_signal`: the signal does what it does in Python."""
    import asyncio

    try:
        asyncio.get_running_loop().remove_signal_handler(number)
    except NotImplementedError:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def ignore_to_the_end(numbers: Sequence[signal.Signals]) -> None:
    """Ignore these signals to the end of the process. A late one would find Python's handlers, and print a traceback.

    Blocking them is not enough: a thread that still runs would get them. They are blocked only while the loop gives up
    its own handlers, because a loop that is closed with them would put Python's back.
    """
    can_block = hasattr(signal, "pthread_sigmask")  # Windows cannot
    if can_block:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        off_signal(number)
        signal.signal(number, signal.SIG_IGN)
    if can_block:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    import asyncio

    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    for waiter in waiters:
        waiter.cancel()


# From a command line to options.


def version_line(program: str) -> str:
    """What `--version` prints and a daemon logs first."""
    import platform

    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()})"


def print_usage(table: SettingTable) -> None:
    """The help, on standard output, as wide as the terminal within reason."""
    columns = shutil.get_terminal_size(fallback=(100, 24)).columns
    sys.stdout.write(render_help(table, width=min(max(columns, 72), 110)))


class ToolOptions(Protocol):
    """The options of a tool: they can tell whether they can work."""

    def validated(self) -> Self:
        """The options to run with; OptionsError for what cannot work."""
        ...


class LogOptions(Protocol):
    """How to log: options that every daemon has."""

    @property
    def log_prefix(self) -> str: ...

    @property
    def log_level(self) -> log.LogLevel: ...

    @property
    def log_format(self) -> log.LogFormat: ...


class DaemonOptions(LogOptions, ToolOptions, Protocol):
    """The options of a daemon."""


LogOptionsT = TypeVar("LogOptionsT", bound=LogOptions)
DaemonOptionsT = TypeVar("DaemonOptionsT", bound=DaemonOptions)
ToolOptionsT = TypeVar("ToolOptionsT", bound=ToolOptions)


class ConfigReport(Protocol):
    """What --check-config prints."""

    @property
    def text(self) -> str: ...

    @property
    def is_closed(self) -> bool:
        """Whether no door is open."""
        ...


class Finished(Exception):
    """Nothing is left to run: the process ends with `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _load(table: SettingTable, argv: Sequence[str] | None) -> Given:
    """What flags and config file ask for; `Finished` if that has been printed. SettingError."""
    try:
        given = table.load(sys.argv[1:] if argv is None else argv)
    except HelpRequested:
        print_usage(table)
        raise Finished(0) from None
    except FlagError as error:
        meant = f"Did you mean --{error.nearest}? " if error.nearest else ""
        print(f"{error}\n  {meant}{table.program} --help lists all flags.", file=sys.stderr)
        raise Finished(2) from error
    if given.version_asked:
        print(version_line(table.program))
        raise Finished(0)
    return given


def read_options(table: SettingTable, options_class: type[LogOptionsT], argv: Sequence[str] | None) -> LogOptionsT:
    """The options that flags and config file ask for, with logging set up as they say; or `Finished`."""
    return _read(table, options_class, argv)[0]


def _read(
    table: SettingTable, options_class: type[LogOptionsT], argv: Sequence[str] | None
) -> tuple[LogOptionsT, Given]:
    try:
        given = _load(table, argv)
    except SettingError as error:
        log.configure(prefix=f"[{table.program}] ", level=log.LogLevel.INFO)
        logger.critical("%s", error)
        raise Finished(1) from error
    options = options_class(**given.options)
    log.configure(
        prefix=options.log_prefix, level=options.log_level, log_format=options.log_format, program=table.program
    )
    for key in given.unknown_keys:
        logger.warning("config file: %s is not a setting of %s, ignored", key, table.program)
    return options, given


def run_daemon(
    table: SettingTable,
    options_class: type[DaemonOptionsT],
    load: Callable[[], Callable[[DaemonOptionsT], Daemon]],
    argv: Sequence[str] | None,
    *,
    describe: Callable[[DaemonOptionsT], ConfigReport] | None = None,
) -> int:
    """Run a daemon until it is told to stop; the exit status.

    `load` imports the daemon and returns its class. It is called late, so that --version, --help and mistakes are
    answered quickly. `describe` is for --check-config.
    """
    try:
        read, given = _read(table, options_class, argv)
        options = read.validated()
    except Finished as finished:
        return finished.status
    except OptionsError as error:
        return _refuse(table.program, error)
    make_daemon = load()
    if given.check_asked and describe is not None:
        is_closed = _check(table.program, lambda: make_daemon(options), lambda: describe(options))
        return 0 if is_closed and not given.unknown_keys else 1  # a key that is misspelled closes nothing
    logger.info("%s", version_line(table.program))
    prepare()
    try:
        stopped_by_signal = serve(lambda: make_daemon(options))
    except StartError as error:
        return _refuse(table.program, error)
    return 0 if stopped_by_signal else 1


def _check(program: str, make_daemon: Callable[[], Daemon], describe: Callable[[], ConfigReport]) -> bool:
    """Print what the configuration comes to; whether nothing is wrong or open.

    A daemon that is made has read its files and checked them. It is not started.
    """
    try:
        _run(_made(make_daemon))
    except StartError as error:
        _refuse(program, error)
        return False
    report = describe()
    print(report.text)
    return report.is_closed


async def _made(make_daemon: Callable[[], Daemon]) -> Daemon:
    return make_daemon()


def _refuse(program: str, error: Exception) -> int:
    logger.critical("failed to instantiate %s - %s", program, error)
    return 1


# Tools.


class ToolError(Exception):
    """The tool cannot go on: the text is logged, and the exit status is 1."""


def run_tool(
    table: SettingTable,
    options_class: type[ToolOptionsT],
    run: Callable[[ToolOptionsT, asyncio.Event], Coroutine[Any, Any, None]],
    argv: Sequence[str] | None,
    *,
    stop_signals: Sequence[signal.Signals] = STOP_SIGNALS,
    takes_arguments: bool = True,
    failures: tuple[type[Exception], ...] = (),
) -> int:
    """Run a tool to its end; the exit status.

    `run` gets the options and an event that is set when a signal asks for the end; it returns when its work is done,
    and raises `ToolError`, or one of `failures`, if it cannot be done. Words behind the flags are ignored, unless
    `takes_arguments` is False.
    """
    log.write_to(sys.stderr, ToolLineFormatter())
    log.set_level(log.LogLevel.INFO)
    ends: tuple[type[Exception], ...] = (OptionsError, SettingError, ToolError, *failures)
    try:
        given = _load(table, argv)
        if given.arguments and not takes_arguments:
            raise OptionsError(f"unknown arguments: [{' '.join(given.arguments)}]")
        options = options_class(**given.options).validated()
        _run(_until_done(run, options, stop_signals))
    except Finished as finished:
        return finished.status
    except ends as error:
        logger.critical("%s", error)
        return 1
    return 0


async def _until_done(
    run: Callable[[ToolOptionsT, asyncio.Event], Coroutine[Any, Any, None]],
    options: ToolOptionsT,
    stop_signals: Sequence[signal.Signals],
) -> None:
    import asyncio

    stop_asked = asyncio.Event()
    for number in stop_signals:
        on_signal(number, stop_asked.set)
    try:
        await run(options, stop_asked)
    finally:
        if stop_asked.is_set():
            ignore_to_the_end(stop_signals)


# Log lines of tools.


class ToolLineFormatter(log.OneLineFormatter):
    """The line of a tool."""

    _WORDS = {  # noqa: RUF012 - a constant
        logging.DEBUG: "DBG ",
        logging.INFO: "INF ",
        logging.WARNING: "WRN ",
        logging.ERROR: "ERR ",
        logging.CRITICAL: "ERR ",
    }

    def head(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        level = "" if record.name.startswith(("emberq.tools.", __name__)) else self._WORDS.get(record.levelno, "")
        return f"{moment} {level}"


def stop_logging() -> None:
    """For a tool that sets up a log of its own."""
    log.stop_writing()
