"""How the `emberq` subcommands for people are called, write and end.

    def main(argv: Sequence[str] | None = None) -> int:
        parser = command_parser("emberq hello", "Say hello.")
        parser.add_argument("name")
        return run_command(parser, argv, hello)

    async def hello(arguments: argparse.Namespace, terminal: Terminal) -> int:
        terminal.write(f"hello {arguments.name}")
        return DONE

Results go to standard output, everything else (notes, progress, errors) to standard error, so that a result can be
piped. Colours and bars appear only where the stream is a terminal. `--json` turns them off, and makes every result, and
the error if there is one, a line of JSON. rich is imported only when something is to be drawn.

Exit status:

    0    done; or SIGTERM has ended a command that runs until it is stopped
    1    it did not work; standard error says why, and what to do next
    2    a mistake on the command line; standard error names it, and the flag that was most likely meant
    130  ended by Ctrl-C, or by SIGTERM before it was done
    141  the reader of the command's output closed the pipe

Flags and arguments may stand in any order, and everything behind `--` is an argument.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO, TypeAlias

from emberq.base.flag import nearest
from emberq.base.program import HANG_UP_SIGNALS, STOP_SIGNALS, off_signal, on_signal
from emberq.base.text import forget_output, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task, TaskID
    from rich.text import Text

DONE = 0
FAILED = 1
MISUSED = 2
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 141  # 128 and the number of SIGPIPE, which Windows does not have


class CommandError(Exception):
    """Why a command cannot go on, and in `hint` what the user can do about it."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class ProgressBar:
    """How far a piece of work has got. Shows a bar while the `with` block runs, if there is a console to show it on."""

    def __init__(self, console: Console | None, label: str, *, total: int | None) -> None:
        """Without a total it is a running count."""
        self._console = console
        self._label = label
        self._total = total
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self._console is not None:
            progress = _progress(self._console, has_total=self._total is not None)
            self._shown = progress, progress.add_task(self._label, total=self._total)
            progress.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._shown is not None:
            self._shown[0].stop()
            self._shown = None

    def advance(self, count: int = 1) -> None:
        """Count `count` more as done."""
        if self._shown is not None:
            progress, task = self._shown
            progress.advance(task, count)


def _progress(console: Console, *, has_total: bool) -> Progress:
    from rich import progress
    from rich.text import Text

    class RateColumn(progress.ProgressColumn):
        """Messages per second, over the last while."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")

    text = progress.TextColumn("{task.description}", markup=False)
    columns: tuple[progress.ProgressColumn, ...]
    if has_total:
        counts = progress.MofNCompleteColumn()
        columns = (text, progress.BarColumn(), counts, RateColumn(), progress.TimeRemainingColumn())
    else:
        count = progress.TextColumn("{task.completed:,.0f}")
        columns = (progress.SpinnerColumn(), text, count, RateColumn(), progress.TimeElapsedColumn())
    return progress.Progress(*columns, console=console)


class Terminal:
    """Where a command writes. The streams are those of the process, unless a test gives others."""

    def __init__(
        self, program: str, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.program = program
        self.as_json = as_json
        self.recently_logged: deque[str] = deque(maxlen=8)
        """What libraries have logged last, among which often is why a command fails; the newest is the first."""
        self._out = out if out is not None else sys.stdout
        self._err = err if err is not None else sys.stderr

    @property
    def is_rich(self) -> bool:
        """Whether results go to a terminal."""
        return not self.as_json and self._out.isatty()

    @property
    def is_watched(self) -> bool:
        """Whether standard error, where progress is shown, is a terminal."""
        return not self.as_json and self._err.isatty()

    @cached_property
    def console(self) -> Console:
        """Standard output as rich draws on it. Use it if `is_rich`."""
        from rich.console import Console

        return Console(file=self._out, highlight=False)

    @cached_property
    def error_console(self) -> Console:
        """Standard error as rich draws on it. Use it if `is_watched`."""
        from rich.console import Console

        return Console(file=self._err, highlight=False)

    def write(self, line: str) -> None:
        """Write a line of result."""
        print(line, file=self._out, flush=True)

    def write_bytes(self, line: bytes) -> None:
        """Write a line of result as bytes, for pipes: a body may have no encoding."""
        self._out.flush()
        binary = self._out.buffer
        binary.write(line + b"\n")
        binary.flush()

    def write_json(self, document: object) -> None:
        """Write a result as one line of JSON."""
        self.write(json_line(document))

    def report(self, document: object, text: str) -> None:
        """Write a result: the document with `--json`, else the text."""
        if self.as_json:
            self.write_json(document)
        else:
            self.write(text)

    def note(self, text: str) -> None:
        """Write a note to standard error. Shown with `--json` too."""
        self.show(one_line(f"{self.program}: {text}"))

    def show(self, line: str) -> None:
        """Write a line to standard error, above the progress bar or the live table if there is one."""
        if self.is_watched:
            self.error_console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=self._err, flush=True)

    def fail(self, text: str, *, hint: str = "") -> None:
        """Write why the command failed."""
        if self.as_json:
            print(json_line({"error": text, "hint": hint}), file=self._err, flush=True)
            return
        self.note(text)
        if hint:
            print(f"  {one_line(hint)}", file=self._err, flush=True)

    async def confirm(self, question: str, *, is_agreed: bool) -> bool:
        """Whether the user wants it. UsageError where no user can be asked, unless `is_agreed` by a flag."""
        if is_agreed:
            return True
        if self.as_json or not (sys.stdin.isatty() and self._err.isatty()):
            raise UsageError(
                "this destroys messages, and no terminal is there to ask", hint="Add --yes if you mean it."
            )
        print(f"{one_line(question)} [y/N] ", end="", file=self._err, flush=True)
        answer = await _typed_line()
        if answer.strip().lower() in ("y", "yes"):
            return True
        self.note("nothing was changed")
        return False

    def progress(self, label: str, *, total: int | None = None, is_shown: bool = True) -> ProgressBar:
        """A bar on standard error, if that is a terminal. `total` is None if the end is not known."""
        return ProgressBar(self.error_console if self.is_watched and is_shown else None, label, total=total)


class _Notes(logging.Handler):
    """Turns log lines of libraries into notes of the command."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        self._terminal.recently_logged.appendleft(record.getMessage())
        self._terminal.note(record.getMessage())


def json_line(document: object) -> str:
    """Compact JSON, in which text that is not ASCII stays readable."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def counted(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Calling


class UsageError(Exception):
    """A mistake on the command line, and in `hint` what was most likely meant."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class CommandParser(argparse.ArgumentParser):
    """A parser that takes flags and arguments in any order, and raises UsageError where argparse prints its usage."""

    def __init__(self, program: str, description: str, *, epilog: str = "") -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog or None,
            allow_abbrev=False,  # else a flag added later could change what a script means
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.after_reading: list[Callable[[argparse.Namespace], None]] = []
        """Called in turn with what was read, to fill in what the flags leave open; UsageError."""

    @property
    def flags(self) -> list[argparse.Action]:
        """What begins with a dash, in the order of the help."""
        return [action for action in self._actions if action.option_strings]

    @property
    def arguments(self) -> list[argparse.Action]:
        """What does not."""
        return [action for action in self._actions if not action.option_strings]

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """What the words ask for; UsageError. SystemExit after --help."""
        flags, values = self._sorted(words)
        arguments, left_over = self.parse_known_args([*flags, "--", *values] if values else flags)
        surplus = [one_line(word) for word in left_over if word != "--"]
        if surplus:
            raise UsageError(f"too many arguments: {' '.join(surplus)}")
        for fill in self.after_reading:
            fill(arguments)
        return arguments

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def _sorted(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Flags with their values, and the other words. argparse takes arguments that are optional only together."""
        flags: list[str] = []
        values: list[str] = []
        waiting = list(reversed(words))
        while waiting:
            word = waiting.pop()
            if word == "--":
                values += reversed(waiting)
                break
            if not word.startswith("-") or _PLAIN_DASH.fullmatch(word):
                values.append(word)
                continue
            action, has_value = self._flag(word)
            flags.append(word)
            if action.nargs == 0 or has_value:
                continue
            if not waiting or waiting[-1] == "--" or waiting[-1] in self._option_string_actions:
                raise UsageError(f"{word} needs a value: {action.metavar or action.dest.upper()}")
            value = waiting.pop()
            flags[-1:] = [f"{word}={value}"]  # in one word, because it may begin with a dash
        return flags, values

    def _flag(self, word: str) -> tuple[argparse.Action, bool]:
        """The flag that a word begins with, and whether its value is in the word too."""
        name, equals, _ = word.partition("=")
        known = self._option_string_actions
        if name in known:
            return known[name], bool(equals)
        if word[:2] in known:  # -n10
            return known[word[:2]], True
        meant = nearest(name, known)
        raise UsageError(f"unknown flag {one_line(name)}", hint=f"Did you mean {meant}?" if meant else "")


_PLAIN_DASH = re.compile(r"-|-[0-9.]+")
"""Words that begin with a dash and are no flags: standard input, a number."""


def command_parser(program: str, description: str, *, epilog: str = "") -> CommandParser:
    """A parser with the flags that every command has: --json and --verbose."""
    parser = CommandParser(program, description, epilog=epilog)
    parser.add_argument("--json", action="store_true", help="write every result as a line of JSON")
    parser.add_argument("--verbose", action="store_true", help="also log what the libraries do")
    return parser


Command: TypeAlias = Callable[[argparse.Namespace, Terminal], Coroutine[Any, Any, int]]
"""Does the work and returns the exit status. Ctrl-C cancels it, so `async with` and `finally` clean up."""


async def _typed_line() -> str:
    """A line from the keyboard. Ctrl-C is heard meanwhile, except on Windows, whose loop cannot wait for a keyboard."""
    import asyncio

    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()
    try:
        loop.add_reader(sys.stdin, lambda: typed.set_result(sys.stdin.readline()))
    except NotImplementedError:
        return sys.stdin.readline()
    try:
        return await typed
    finally:
        loop.remove_reader(sys.stdin)


def run_command(
    parser: CommandParser,
    argv: Sequence[str] | None,
    command: Command,
    *,
    is_endless: Callable[[argparse.Namespace], bool] = lambda _arguments: False,
) -> int:
    """Parse `argv`, run the command and return the exit status. SIGTERM is the good end of one that `is_endless`."""
    words = sys.argv[1:] if argv is None else argv
    try:
        arguments = parser.read(words)
    except SystemExit:  # argparse has written the help
        return DONE
    except UsageError as mistake:
        hint = f"{mistake.hint} {parser.prog} --help lists all flags.".lstrip()
        Terminal(parser.prog, as_json="--json" in words).fail(str(mistake), hint=hint)
        return MISUSED
    terminal = Terminal(parser.prog, as_json=arguments.json)
    with _logging_to(terminal, level=logging.INFO if arguments.verbose else logging.WARNING):
        return _run_to_the_end(command(arguments, terminal), terminal, is_endless=is_endless(arguments))


def _run_to_the_end(work: Coroutine[Any, Any, int], terminal: Terminal, *, is_endless: bool) -> int:
    import asyncio

    received: list[signal.Signals] = []
    try:
        return asyncio.run(_interruptible(work, received))
    except (asyncio.CancelledError, KeyboardInterrupt):
        is_stopped = bool(received) and signal.SIGINT not in received
        return DONE if is_stopped and is_endless else INTERRUPTED
    except BrokenPipeError:
        forget_output()
        return PIPE_CLOSED
    except UsageError as mistake:
        terminal.fail(str(mistake), hint=mistake.hint)
        return MISUSED
    except CommandError as failure:
        terminal.fail(str(failure), hint=tls_hint(str(failure), *terminal.recently_logged) or failure.hint)
    except Exception as failure:
        explained = _explained(failure)
        if explained is None:
            raise
        terminal.fail(str(failure), hint=tls_hint(str(failure)) or explained)
    return FAILED


async def _interruptible(work: Coroutine[Any, Any, int], received: list[signal.Signals]) -> int:
    """Run the work. Ctrl-C, SIGTERM and a closed terminal cancel it; a second one cancels its cleaning up.

    The signals are added to `received`.
    """
    import asyncio

    task = asyncio.ensure_future(work)
    signals = (*STOP_SIGNALS, *HANG_UP_SIGNALS)

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in signals:
        on_signal(number, partial(cancel, number))
    try:
        return await task
    finally:
        for number in signals:
            off_signal(number)


CLUSTER_HINT = (
    "Is nsqd running? `emberq up` starts one; --nsqd-http-address and --lookupd-http-address say where to look."
)


SIGNER_HINT = (
    "Its certificate was signed by an authority that this machine does not know: --tls-root-ca-file names the one to "
    "trust."
)
OWN_CERTIFICATE_HINT = "If it takes only clients with a certificate: --tls-cert and --tls-key name yours."
TLS_HINTS = {
    "(TLS required)": "This nsqd takes only TLS: add --tls, or --tls-root-ca-file if its authority is your own.",
    "does not offer TLS": "Leave the TLS flags away, or start that nsqd with --tls-cert and --tls-key.",
    "unable to get local issuer": SIGNER_HINT,
    "self-signed certificate": SIGNER_HINT,
    "certificate is not valid for": "Its certificate is for another name: connect by a name that stands in it.",
    "certificate has expired": "Its certificate has to be renewed, or the clock of this machine is wrong.",
    "WRONG_VERSION_NUMBER": "That port speaks no TLS: leave https:// away, or name the HTTPS port.",
    "closed before the answer was complete": "If that port speaks TLS, write https:// before the address.",
    "closed while the connection was being set up": OWN_CERTIFICATE_HINT,
    "CERTIFICATE_REQUIRED": OWN_CERTIFICATE_HINT,
    "alert unknown ca": "It does not trust the certificate of --tls-cert.",
}
"""What to do about a failure whose text holds the words, as Python, OpenSSL and our client spell them."""


def tls_hint(*texts: str) -> str:
    """What to do about the first of the texts that speaks of TLS; empty if none does."""
    return next((hint for text in texts for words, hint in TLS_HINTS.items() if words in text), "")


def _explained(failure: Exception) -> str | None:
    """The hint for a failure that is not a bug; None if it may be one."""
    from emberq.client import error
    from emberq.cluster.upstream import ClusterError, UpstreamsFailedError
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
        case UpstreamsFailedError() if "UNAUTHORIZED" in str(failure):
            return (
                "They want a secret that they know: see --auth-secret-file, and --lookupd-secret-file for nsqlookupds."
            )
        case UpstreamsFailedError():
            return CLUSTER_HINT
        case error.NsqError() | ClusterError() | OSError():
            return ""
    return None


@contextmanager
def _logging_to(terminal: Terminal, *, level: int) -> Iterator[None]:
    """While the block runs, log lines of emberq become notes; those of other libraries only if `level` is INFO.

    The others get a handler in any case: Python prints log lines without one, and py4j logs a traceback for each call
    that a stop interrupts.
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
