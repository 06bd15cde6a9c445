"""`emberq man`: man pages of all commands; and the page of docs/reference that lists them.

Both are made from the table of all commands (`catalog`). A man page is text for groff, in the macros of man(7).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from emberq import __version__
from emberq.cli import context
from emberq.cli.catalog import CommandEntry, FlagEntry, catalog, commands_of
from emberq.cli.terminal import (
    DONE,
    CommandError,
    CommandParser,
    Terminal,
    UsageError,
    command_parser,
    counted,
    run_command,
)

EXAMPLES = """\
examples:
  emberq man pub | man -l -                            read one page
  emberq man --to ~/.local/share/man/man1              install all; then: man emberq-pub, man nsqd

Pages of commands of several words are named with dashes: emberq-journal-ls.
"""
SECTION = "1"


def main(argv: Sequence[str]) -> int:
    """Write pages; the exit status."""
    return run_command(make_parser(), argv, _write)


def make_parser() -> CommandParser:
    """Its flags and arguments."""
    parser = command_parser("emberq man", "Write man pages.", epilog=EXAMPLES)
    parser.add_argument(
        "words",
        nargs="*",
        default=[],
        metavar="COMMAND",
        help="the command, such as journal ls (default emberq itself)",
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="write the pages of all commands into this folder")
    return parser


async def _write(arguments: argparse.Namespace, terminal: Terminal) -> int:
    root = catalog()
    if arguments.to is not None:
        _write_all(root, arguments.to, terminal)
        return DONE
    asked = ("emberq", *arguments.words)
    entry = next((each for each in root if each.words == asked), None)
    if entry is None:
        raise UsageError(f"there is no command {' '.join(asked)}", hint="`emberq --help` lists all of them.")
    page = man_page(entry, root)
    terminal.report({"page": page_name(entry), "text": page}, page.rstrip("\n"))
    return DONE


def _write_all(root: CommandEntry, folder: Path, terminal: Terminal) -> None:
    entries = list(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            (folder / f"{page_name(entry)}.{SECTION}").write_text(man_page(entry, root), encoding="utf-8")
    except OSError as failure:
        raise CommandError(f"--to: {failure}") from failure
    terminal.report(
        {"folder": str(folder), "pages": len(entries)}, f"wrote {counted(len(entries), 'page')} to {folder}"
    )


def page_name(entry: CommandEntry) -> str:
    """`emberq-journal-ls`, `nsqd`."""
    return entry.words[-1] if entry.is_program else "-".join(entry.words)


# A man page.


def man_page(entry: CommandEntry, root: CommandEntry) -> str:
    """The page of one command, or of a group of them."""
    lines = [
        f'.TH "{_roff(page_name(entry)).upper()}" "{SECTION}" "" "emberq {__version__}" "emberq"',
        ".SH NAME",
        f"{_roff(page_name(entry))} \\- {_roff(entry.summary)}",
        ".SH SYNOPSIS",
        *_synopsis(entry),
    ]
    if entry.description:
        lines += [".SH DESCRIPTION", _roff(entry.description)]
    if entry.commands:
        lines.append(".SH COMMANDS")
        for below in entry.commands:
            lines += [".TP", f".B {_roff(' '.join(below.words[1:]))}", _roff(below.summary)]
    lines += _arguments(entry)
    if entry.flags:
        lines.append(".SH OPTIONS")
        for flag in entry.flags:
            lines += [".TP", _roff_flag(flag), _roff(_told(flag)) or "\\ "]
    lines += _epilog(entry)
    lines += [".SH SEE ALSO", ",\n".join(f".BR {_roff(each)} ({SECTION})" for each in _neighbours(entry, root))]
    return "\n".join(lines) + "\n"


def _synopsis(entry: CommandEntry) -> Iterator[str]:
    name = entry.words[-1] if entry.is_program else entry.name
    follows = ["COMMAND"] if entry.commands else [argument.usage for argument in entry.arguments]
    yield f".B {_roff(name)}"
    yield _roff(" ".join(["[FLAGS]", *follows]))


def _arguments(entry: CommandEntry) -> list[str]:
    told = [argument for argument in entry.arguments if argument.meaning or argument.choices]
    lines = [".SH ARGUMENTS"] if told else []
    for argument in told:
        choices = f"one of {', '.join(argument.choices)}" if argument.choices and not argument.meaning else ""
        lines += [".TP", f".I {_roff(argument.value)}", _roff(argument.meaning or choices)]
    return lines


def _epilog(entry: CommandEntry) -> list[str]:
    """Examples as they are laid out, and what follows as text."""
    if not entry.epilog:
        return []
    first, _, rest = entry.epilog.partition("\n\n") if entry.epilog.startswith("examples:") else ("", "", entry.epilog)
    lines = []
    if first:
        lines += [".SH EXAMPLES", ".nf", *map(_roff, first.splitlines()[1:]), ".fi"]
    if rest:
        lines += [".SH NOTES", *(_roff(line) if line else ".PP" for line in rest.rstrip("\n").splitlines())]
    return lines


def _neighbours(entry: CommandEntry, root: CommandEntry) -> list[str]:
    """The pages of the command above, and of those beside it."""
    above = next((each for each in root if entry in each.commands), None)
    if above is None:
        return [page_name(each) for each in root.commands]
    return [page_name(above), *(page_name(each) for each in above.commands if each is not entry)]


def _roff(text: str) -> str:
    """Text in which groff sees no command. A dash must be one that can be copied into a shell."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def _roff_flag(flag: FlagEntry) -> str:
    names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in flag.names)
    return f"{names} \\fI{_roff(flag.value)}\\fR" if flag.value else names


def _told(flag: FlagEntry) -> str:
    choices = f"; one of {', '.join(flag.choices)}" if flag.choices and flag.choices[0] not in flag.meaning else ""
    default = f" (default {flag.default})" if flag.default else ""
    return flag.meaning + choices + default


# The reference page.

_HEAD = """\
# The emberq command

<!-- Generated by `python docs/reference.py docs/reference`; do not edit. -->

Flags and arguments may stand in any order, and everything behind `--` is an argument. `--json`, `--verbose` and
`--context` may also stand before the command. The daemons, `emberq up` and NSQ's own tools have pages of their own.
They read their flags as NSQ does, and end with 0 when a signal stops them.

Exit status: 0 done, 1 it did not work, 2 a mistake on the command line, 130 ended by Ctrl-C (141: the reader of the
output closed the pipe). SIGTERM is the good end of a command that runs until it is stopped.
"""
_SHARED_HEADING = "Flags of all commands"


def reference_page(root: CommandEntry) -> str:
    """All commands that have no page of their own, in Markdown."""
    contexts = (context.__doc__ or "").partition("\n\n")[2].rstrip()
    entries = [entry for entry in commands_of(root) if not _has_own_page(entry)]
    shared = [flag for flag in entries[0].flags if all(flag in entry.flags for entry in entries)]
    parts = [_HEAD, f"\n## {_SHARED_HEADING}\n\n", _flag_table(shared), f"\n## Clusters with a name\n\n{contexts}\n"]
    for entry in entries:
        usage = " ".join([entry.name, "[flags]", *(argument.usage for argument in entry.arguments)])
        parts.append(f"\n## {entry.name}\n\n{entry.description}\n\n```\n{usage}\n```\n")
        own = [flag for flag in entry.flags if flag not in shared]
        parts.append("\n" + _flag_table(own) if own else "")
        parts.append(f"\n```\n{entry.epilog.rstrip()}\n```\n" if entry.epilog else "")
    return "".join(parts)


def _has_own_page(entry: CommandEntry) -> bool:
    return not entry.description  # declared by settings, whose table has no description


def _flag_table(flags: Sequence[FlagEntry]) -> str:
    rows = [
        f"| `{' '.join(filter(None, (', '.join(flag.names), flag.value)))}` | {_cell(_told(flag))} |\n"
        for flag in flags
    ]
    return "".join(["| flag | meaning |\n|---|---|\n", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
