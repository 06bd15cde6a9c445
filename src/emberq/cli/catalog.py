"""All commands with their flags, read from where they are declared.

A command declares its flags once: as a `SettingTable` (the daemons, NSQ's tools, `emberq up`) or by a `CommandParser`
(all others). The table of subcommands in `main` says where. From these come what `--help` prints, the completion of
shells (`completion`), the man pages and the reference pages (`manual`), so that none of them can say something else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emberq.base.flag import Words
from emberq.base.settings import Setting, SettingTable
from emberq.cli.main import SUBCOMMANDS, Subcommand, resolve
from emberq.cli.terminal import CommandParser

NO_DEFAULT = ("", "false", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagEntry:
    """A flag."""

    names: tuple[str, ...]
    """With their dashes, the long one last."""
    value: str
    """What stands for its value; empty for a switch."""
    meaning: str
    default: str = ""
    """Empty if there is none, or the meaning tells it."""
    choices: tuple[str, ...] = ()

    @property
    def is_path(self) -> bool:
        """Whether the value names a file or a folder."""
        return self.value.lower() in ("file", "dir", "directory", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentEntry:
    """A word that is no flag."""

    value: str
    meaning: str
    is_optional: bool
    is_repeated: bool
    choices: tuple[str, ...]

    @property
    def usage(self) -> str:
        """As it stands in the usage."""
        shown = self.value + ("..." if self.is_repeated else "")
        return f"[{shown}]" if self.is_optional else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """A command, or a group of commands."""

    words: tuple[str, ...]
    """`emberq`, `journal`, `ls`."""
    summary: str
    description: str = ""
    epilog: str = ""
    """Examples and remarks, laid out for a terminal."""
    flags: tuple[FlagEntry, ...] = ()
    arguments: tuple[ArgumentEntry, ...] = ()
    commands: tuple[CommandEntry, ...] = ()
    is_program: bool = False
    """Whether it is also a program of its own, such as nsqd."""

    @property
    def name(self) -> str:
        """All its words."""
        return " ".join(self.words)

    def __iter__(self) -> Iterator[CommandEntry]:
        """It, and all that are below it."""
        yield self
        for command in self.commands:
            yield from command


def catalog() -> CommandEntry:
    """`emberq`, with everything below it. Imports the modules of all commands."""
    flags = (
        FlagEntry(names=("--version",), value="", meaning="print the versions and exit"),
        FlagEntry(names=("--help",), value="", meaning="print the list of commands and exit"),
    )
    commands = tuple(_entry(subcommand, ("emberq",)) for subcommand in SUBCOMMANDS)
    return CommandEntry(
        words=("emberq",), summary="NSQ in Python: daemons, tools and commands", flags=flags, commands=commands
    )


def _entry(subcommand: Subcommand, above: tuple[str, ...]) -> CommandEntry:
    words = (*above, subcommand.name)
    declared = resolve(subcommand.flags)
    if isinstance(declared, SettingTable):
        return _of_settings(declared, words, subcommand.summary)
    if isinstance(declared, tuple):
        below = tuple(_entry(each, words) for each in declared)
        return CommandEntry(words=words, summary=subcommand.summary, commands=below)
    below = tuple(_entry(each, words) for each in resolve(subcommand.below)) if subcommand.below else ()
    return _of_parser(declared(), words, subcommand.summary, below)


def _of_settings(table: SettingTable, words: tuple[str, ...], summary: str) -> CommandEntry:
    return CommandEntry(
        words=words,
        summary=summary,
        flags=tuple(map(_of_setting, table)),
        is_program=table.program == words[-1],
    )


def _of_setting(setting: Setting) -> FlagEntry:
    is_choice = isinstance(setting.kind, Words) and not setting.kind.stands_alone
    shown = setting.shown_default
    return FlagEntry(
        names=(f"--{setting.flag}",),
        value="" if setting.kind.stands_alone else setting.kind.placeholder,
        meaning=setting.meaning,
        default="" if shown in NO_DEFAULT else shown,
        choices=tuple(setting.kind.noun.removeprefix("one of ").split(", ")) if is_choice else (),
    )


def _of_parser(
    parser: CommandParser, words: tuple[str, ...], summary: str, below: tuple[CommandEntry, ...]
) -> CommandEntry:
    return CommandEntry(
        words=words,
        summary=summary,
        description=parser.description or "",
        epilog=parser.epilog or "",
        flags=tuple(map(_of_flag, parser.flags)),
        arguments=tuple(map(_of_argument, parser.arguments)),
        commands=below,
    )


def _of_flag(action: argparse.Action) -> FlagEntry:
    takes_value = action.nargs != 0
    return FlagEntry(
        names=tuple(action.option_strings),
        value=_value(action) if takes_value else "",
        meaning=_meaning(action),
        choices=tuple(action.choices or ()) if takes_value else (),
    )


def _of_argument(action: argparse.Action) -> ArgumentEntry:
    return ArgumentEntry(
        value=_value(action),
        meaning=_meaning(action),
        is_optional=action.nargs in ("?", "*"),
        is_repeated=action.nargs in ("*", "+"),
        choices=tuple(action.choices or ()),
    )


def _value(action: argparse.Action) -> str:
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return metavar or action.dest.upper()


def _meaning(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")


def commands_of(entry: CommandEntry) -> Sequence[CommandEntry]:
    """Those that can be run: all below, without the groups, which have no flags of their own."""
    return [each for each in entry if each.flags and each is not entry]
