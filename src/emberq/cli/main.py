"""The `emberq` command: the table of subcommands, and how this emberq was built.

`emberq nsqd …` is the same as `nsqd …`. A subcommand's module is imported only when it is called. Ctrl-C or SIGTERM
while it is being imported ends the program at once, without a traceback; so this module itself loads next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any, NamedTuple

from emberq import NSQ_VERSION, __version__

COMPILED_MODULE = "emberq.wire.decoder"
"""One of the modules that hatch_build.py compiles."""
FAILED = 1
MISUSED = 2
INTERRUPTED = 128 + signal.SIGINT
AS_PYTHON_STARTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""What the signals do before any of our programs has its say."""


POSIX_MODULES = frozenset(("fcntl", "grp", "pwd", "resource", "termios", "tty"))
"""Of the standard library, and not on Windows."""


def is_compiled() -> bool:
    """Whether the hot modules run compiled, and not as Python."""
    from importlib.util import find_spec

    spec = find_spec(COMPILED_MODULE)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def resolve(reference: str) -> Any:
    """What `module:name` refers to. A dot behind the name leads to an attribute, or to an entry of a dictionary."""
    module, _, path = reference.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


class Subcommand(NamedTuple):
    """A word after `emberq`, and the function that it runs: `module:function`, called with the words that follow."""

    name: str
    function: str
    summary: str
    flags: str = ""
    """Where its flags are declared, as `module:name`: a SettingTable, the function that makes a CommandParser, or the
    subcommands of a command that has some. Completion, man pages and reference pages are made from it (`catalog`)."""
    below: str = ""
    """Where the subcommands are declared of a command that has flags as well."""

    def run(self, argv: Sequence[str]) -> int:
        """Run it with the words that follow its name; the exit status."""
        try:
            with ended_at_once():
                function: Callable[[Sequence[str]], int] = resolve(self.function)
            return function(argv)
        except ModuleNotFoundError as missing:
            return without_posix(f"emberq {self.name}", missing)


def without_posix(program: str, missing: ModuleNotFoundError) -> int:
    """Say that a program needs more than Windows has; the exit status. Any other missing module is an error."""
    if missing.name not in POSIX_MODULES:
        raise missing
    print(f"{program} needs Linux or macOS. On Windows it runs in WSL or in a container.", file=sys.stderr)
    return FAILED


@contextmanager
def ended_at_once() -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM end the process, which has done nothing yet; a shell sees 130."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread() or before != AS_PYTHON_STARTS:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


SUBCOMMANDS = (
    Subcommand(
        "up",
        "emberq.cli.up:main",
        "a whole NSQ on this machine: nsqlookupd and nsqd, in one command",
        "emberq.cli.up:SETTINGS",
    ),
    Subcommand(
        "nsqd",
        "emberq.cli.daemons:nsqd",
        "the daemon that receives, queues and delivers messages",
        "emberq.nsqd.options:SETTINGS",
    ),
    Subcommand(
        "nsqlookupd",
        "emberq.cli.daemons:nsqlookupd",
        "the daemon that knows which nsqd has which topic",
        "emberq.lookupd.options:SETTINGS",
    ),
    Subcommand(
        "nsqadmin",
        "emberq.cli.daemons:nsqadmin",
        "the pages that show the cluster, and act on it",
        "emberq.admin.options:SETTINGS",
    ),
    Subcommand("pub", "emberq.cli.pub:main", "publish messages: words, lines or a file", "emberq.cli.pub:make_parser"),
    Subcommand(
        "tail", "emberq.cli.tail:main", "show the messages of a topic as they come", "emberq.cli.tail:make_parser"
    ),
    Subcommand(
        "top",
        "emberq.cli.top:main",
        "a live table of topics, channels, rates and clients",
        "emberq.cli.top:make_parser",
    ),
    Subcommand(
        "topic",
        "emberq.cli.topic:topic",
        "list, create, delete, pause and empty topics",
        "emberq.cli.topic:TOPIC_SUBCOMMANDS",
    ),
    Subcommand("channel", "emberq.cli.topic:channel", "the same for channels", "emberq.cli.topic:CHANNEL_SUBCOMMANDS"),
    Subcommand("node", "emberq.cli.topic:node", "the nsqds of a cluster", "emberq.cli.topic:NODE_SUBCOMMANDS"),
    Subcommand(
        "peek",
        "emberq.cli.peek:main",
        "look at the next messages of a channel without taking them",
        "emberq.cli.peek:make_parser",
    ),
    Subcommand(
        "journal",
        "emberq.cli.journal:main",
        "look into journals, check them, and replay them to a channel",
        "emberq.cli.journal:SUBCOMMANDS",
    ),
    Subcommand(
        "requeue-dead",
        "emberq.cli.requeue_dead:main",
        "publish the messages of a dead-letter topic again",
        "emberq.cli.requeue_dead:make_parser",
    ),
    Subcommand(
        "bench", "emberq.cli.bench:main", "measure how fast an nsqd is, any nsqd", "emberq.cli.bench:make_parser"
    ),
    Subcommand(
        "pipeline",
        "emberq.cli.pipeline:main",
        "run, check or look at a pipeline on Spark",
        "emberq.cli.pipeline:make_parser",
    ),
    Subcommand(
        "archive",
        "emberq.cli.archive:main",
        "write topics to Parquet, each message once",
        "emberq.cli.archive:make_parser",
        "emberq.cli.archive:SUBCOMMANDS",
    ),
    Subcommand(
        "replay",
        "emberq.cli.replay:main",
        "publish what a journal or an archive holds again",
        "emberq.cli.replay:make_parser",
    ),
    Subcommand("sql", "emberq.cli.sql:main", "ask topics and archives in Spark SQL", "emberq.cli.sql:make_parser"),
    Subcommand(
        "prepare-spark",
        "emberq.cli.prepare_spark:main",
        "make Spark start a third sooner from now on",
        "emberq.cli.prepare_spark:make_parser",
    ),
    Subcommand(
        "demo",
        "emberq.cli.demo:main",
        "a stack with a live pipeline and events to feed it",
        "emberq.cli.demo:make_parser",
    ),
    Subcommand(
        "context", "emberq.cli.context:main", "clusters with a name, for --context", "emberq.cli.context:SUBCOMMANDS"
    ),
    Subcommand(
        "completion",
        "emberq.cli.completion:main",
        "the script with which a shell completes commands and flags",
        "emberq.cli.completion:make_parser",
    ),
    Subcommand("man", "emberq.cli.manual:main", "the man pages of all commands", "emberq.cli.manual:make_parser"),
    Subcommand(
        "nsq_tail",
        "emberq.tools.nsq_tail:main",
        "NSQ's tool: print the messages of topics",
        "emberq.tools.nsq_tail:SETTINGS",
    ),
    Subcommand(
        "nsq_stat",
        "emberq.tools.nsq_stat:main",
        "NSQ's tool: print the statistics of a channel",
        "emberq.tools.nsq_stat:SETTINGS",
    ),
    Subcommand(
        "nsq_to_file",
        "emberq.tools.nsq_to_file.program:main",
        "NSQ's tool: write messages to files",
        "emberq.tools.nsq_to_file.options:SETTINGS",
    ),
    Subcommand(
        "nsq_to_http",
        "emberq.tools.nsq_to_http:main",
        "NSQ's tool: send messages to HTTP servers",
        "emberq.tools.nsq_to_http:SETTINGS",
    ),
    Subcommand(
        "nsq_to_nsq",
        "emberq.tools.nsq_to_nsq:main",
        "NSQ's tool: copy messages to other topics and nsqds",
        "emberq.tools.nsq_to_nsq:SETTINGS",
    ),
    Subcommand(
        "to_nsq",
        "emberq.tools.to_nsq:main",
        "NSQ's tool: publish the lines of standard input",
        "emberq.tools.to_nsq:SETTINGS",
    ),
)
FLAGS = """\
Flags:
  --version  print the versions and exit
  --help     print this text and exit
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names; the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in ("-version", "--version"):
        import platform

        core = "compiled" if is_compiled() else "not compiled"
        print(f"emberq {__version__} (nsq {NSQ_VERSION}, python {platform.python_version()}, {core})")
        return 0
    try:
        return run_subcommand("emberq", SUBCOMMANDS, words, remark=FLAGS)
    except KeyboardInterrupt:  # before the subcommand's own handler of signals was there
        return INTERRUPTED


def run_subcommand(program: str, subcommands: Sequence[Subcommand], words: Sequence[str], *, remark: str) -> int:
    """Run the subcommand that the first word names; the exit status. The list of them ends with the remark."""
    width = max(len(subcommand.name) for subcommand in subcommands)
    lines = "".join(f"  {subcommand.name:{width}}  {subcommand.summary}\n" for subcommand in subcommands)
    usage = (
        f"Usage: {program} <command> [flags]\n\nCommands ({program} <command> --help tells more):\n{lines}\n{remark}"
    )
    words = _turned(words)
    first = words[0] if words else ""
    if first in ("-h", "-help", "--help"):
        sys.stdout.write(usage)
        return 0
    for subcommand in subcommands:
        if subcommand.name == first:
            return subcommand.run(words[1:])
    if not words or first in FLAGS_IN_FRONT:
        sys.stderr.write(usage)
        return MISUSED
    from emberq.base.flag import nearest
    from emberq.base.text import quoted

    is_flag = first.startswith("-")
    known = (*FLAGS_IN_FRONT, "--help", "--version") if is_flag else [subcommand.name for subcommand in subcommands]
    meant = nearest(first, known)
    suggestion = f"Did you mean {meant}? " if meant else ""
    print(f"{program}: unknown {'flag' if is_flag else 'command'} {quoted(first)}", file=sys.stderr)
    print(f"  {suggestion}{program} --help lists all commands.", file=sys.stderr)
    return MISUSED


FLAGS_IN_FRONT = {"--json": 0, "--verbose": 0, "--context": 1}
"""The flags of all commands, and how many words follow each. They may stand before the command as well."""


def _turned(words: Sequence[str]) -> Sequence[str]:
    """The words with the command before the flags that all commands have."""
    position = 0
    while position < len(words) and (name := words[position].partition("="))[0] in FLAGS_IN_FRONT:
        position += 1 + (0 if name[1] else FLAGS_IN_FRONT[name[0]])
    if not 0 < position < len(words):
        return words
    return [words[position], *words[:position], *words[position + 1 :]]


if __name__ == "__main__":
    sys.exit(main())
