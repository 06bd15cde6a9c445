"""How subcommands are called, speak and end; progress bars.

What the `emberq` subcommands for people have in common: how they are called, how they speak, how they end.

    def main(argv: Sequence[str] | None = None) -> int:
        parser = command_parser("emberq hello", "Say hello.")
        parser.add_argument("name")
        return run_command(parser, argv, hello)

    async def hello(arguments: argparse.Namespace, terminal: Terminal) -> int:
        terminal.write(f"hello {arguments.name}")
        return DONE

Results go to standard output, everything else (notes, progress, errors) to standard error, so that a result can be
piped. Colours and bars appear only where the stream is a terminal; `--json` turns them off and makes every result, and
the error if there is one, a line of JSON. rich is imported when something is to be drawn, not before.

Exit status:

    0    done
    1    it did not work; standard error says why, and what to do next
    2    a mistake on the command line
    130  interrupted by Ctrl-C or SIGTERM before it was done (0 for a command that is meant to be ended so)
    141  whoever read our output went away

The progress bar of the `emberq` subcommands; the module that is imported only where there is one to draw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any, Self, TextIO, TypeAlias

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

from emberq.base.text import forget_output, one_line

DONE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE


class CommandError(Exception):
    """A command cannot go on: what happened, and in `hint` what the user can do about it."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class ProgressBar:
    """How far a piece of work has got. As a context manager it shows a bar while the block runs, if it has one."""

    def __init__(self, make_bar: Callable[[], AbstractContextManager[Callable[[int], None]]] | None) -> None:
        self._make_bar = make_bar
        self._shown = ExitStack()
        self._move: Callable[[int], None] | None = None

    def __enter__(self) -> Self:
        if self._make_bar is not None:
            self._move = self._shown.enter_context(self._make_bar())
        return self

    def __exit__(self, *_raised: object) -> None:
        self._move = None
        self._shown.close()

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        if self._move is not None:
            self._move(count)


class Terminal:
    """Where a command writes. The streams are those of the process unless a test gives others."""

    def __init__(
        self, program: str, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.program = program
        self.as_json = as_json
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr

    @property
    def is_rich(self) -> bool:
        """Whether results are read by a person, at a terminal."""
        return not self.as_json and self._out.isatty()

    @property
    def is_watched(self) -> bool:
        """Whether a person watches standard error, where progress is shown."""
        return not self.as_json and self._err.isatty()

    @cached_property
    def console(self) -> Console:
        """Standard output, for what rich can draw. Use it where `is_rich`."""
        from rich.console import Console

        return Console(file=self._out, highlight=False)

    @cached_property
    def error_console(self) -> Console:
        """Standard error, the same way."""
        from rich.console import Console

        return Console(file=self._err, highlight=False)

    def write(self, line: str) -> None:
        """A line of result."""
        print(line, file=self._out, flush=True)

    def write_bytes(self, line: bytes) -> None:
        """A line of result as it is, for pipes: it may be in no encoding at all."""
        self._out.flush()
        binary = self._out.buffer
        binary.write(line + b"\n")
        binary.flush()

    def write_json(self, document: object) -> None:
        """A result as one line of JSON."""
        self.write(json_line(document))

    def note(self, text: str) -> None:
        """Something to know, on standard error. Shown with `--json` too."""
        self.show(one_line(f"{self.program}: {text}"))

    def show(self, line: str) -> None:
        """A line for people, on standard error; above the progress bar or the live table if there is one."""
        if self.is_watched:
            self.error_console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=self._err, flush=True)

    def fail(self, text: str, *, hint: str = "") -> None:
        """Why the command ends without having done its work."""
        if self.as_json:
            print(json_line({"error": text, "hint": hint}), file=self._err, flush=True)
            return
        self.note(text)
        if hint:
            print(f"  {one_line(hint)}", file=self._err, flush=True)

    def progress(self, label: str, *, total: int | None = None) -> ProgressBar:
        """A bar on standard error, if somebody is there to see it; `total` None: no end is known."""
        if not self.is_watched:
            return ProgressBar(None)

        def make_bar() -> AbstractContextManager[Callable[[int], None]]:

            return progress_bar(self.error_console, label, total=total)

        return ProgressBar(make_bar)


class _Notes(logging.Handler):
    """What libraries log, as notes of the command."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self._terminal.note(record.getMessage())


def json_line(document: object) -> str:
    """Compact, and readable where the text is not ASCII."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def counted(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Calling


def command_parser(program: str, description: str, *, epilog: str = "") -> argparse.ArgumentParser:
    """A parser with the flags that every command has: --json and --verbose."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog or None,
        allow_abbrev=False,  # a flag added later must not change what a script means
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="write every result as a line of JSON")
    parser.add_argument("--verbose", action="store_true", help="also tell what goes on behind the scenes")
    return parser


Command: TypeAlias = Callable[[argparse.Namespace, Terminal], Coroutine[Any, Any, int]]
"""Does the work and returns the exit status. Ctrl-C cancels it, so `async with` and `finally` clean up."""


def run_command(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    command: Command,
    *,
    interrupted_status: int = INTERRUPTED,
) -> int:
    """Parse, run and end as this module says. `interrupted_status` is 0 for a command that runs until Ctrl-C."""
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as ended:  # argparse has said what it had to say
        return ended.code if isinstance(ended.code, int) else MISUSED
    terminal = Terminal(parser.prog, as_json=arguments.json)
    with _logging_to(terminal, level=logging.INFO if arguments.verbose else logging.WARNING):
        return _run_to_the_end(command(arguments, terminal), terminal, interrupted_status=interrupted_status)


def _run_to_the_end(work: Coroutine[Any, Any, int], terminal: Terminal, *, interrupted_status: int) -> int:
    try:
        return asyncio.run(_interruptible(work))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return interrupted_status
    except BrokenPipeError:
        forget_output()
        return PIPE_CLOSED
    except CommandError as failure:
        terminal.fail(str(failure), hint=failure.hint)
    except Exception as failure:
        explained = _explained(failure)
        if explained is None:
            raise
        terminal.fail(str(failure), hint=explained)
    return FAILED


async def _interruptible(work: Coroutine[Any, Any, int]) -> int:
    """Ctrl-C, SIGTERM and a terminal that is closed cancel the work; a second one cancels its cleaning up."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _explained(failure: Exception) -> str | None:
    """What to do about a failure that is nobody's bug; None for all others."""
    from emberq.client import error
    from emberq.http.client import HttpQueryError

    match failure:
        case error.ConnectError() | error.ConnectionLostError() | error.RequestTimeoutError():
            return "Is nsqd running there? `emberq up` starts one; --nsqd-tcp-address says where to look."
        case error.AuthError():
            return "This nsqd wants a secret that permits this: see --auth-secret-file."
        case error.PublishError():
            return "This nsqd cannot store messages at present; its log and /ping tell why."
        case HttpQueryError():
            return "Is it running, and is that its HTTP address? `emberq up` starts nsqd and nsqlookupd."
        case error.NsqError() | OSError():
            return ""
    return None


@contextmanager
def _logging_to(terminal: Terminal, *, level: int) -> Iterator[None]:
    """What our libraries log becomes notes for as long as the command runs; what others log is told if `level` is INFO.

    Python shows a log line for which there is no handler, and py4j logs a traceback for each call that a stop breaks.
    """
    logger, root = logging.getLogger("emberq"), logging.getLogger()
    handler = _Notes(terminal)
    others: logging.Handler = handler if level <= logging.INFO else logging.NullHandler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    root.addHandler(others)
    try:
        yield
    finally:
        root.removeHandler(others)
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


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
