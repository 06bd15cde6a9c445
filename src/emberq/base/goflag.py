"""Command lines by the rules of Go's flag package, which NSQ's users and scripts rely on.

    -flag  --flag  -flag=value  --flag value

One dash or two make no difference. A flag that stands alone (a boolean) takes a value only after `=`; any other
takes the rest of its word after `=`, or the next word, whatever that looks like. Flags end at the first word that
is none, or after `--`. The last of several values wins, or they add up: that is the caller's business, who gets
them all in order. The first mistake ends the reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emberq.base.printable import one_line, quoted


class FlagError(Exception):
    """A mistake on the command line: say it, show the usage, exit with status 2."""


class HelpRequested(Exception):
    """`-h` or `--help`: show the usage, exit with status 0."""


class FlagKind(Protocol):
    """What the parser must know of a flag."""

    @property
    def stands_alone(self) -> bool:
        """Whether the flag without a value means `true`."""
        ...

    def from_text(self, text: str) -> Any:
        """The value; ValueError with the reason if `text` is none."""
        ...


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line taken apart."""

    flags: tuple[tuple[str, Any], ...]
    """Name and value of every flag, in the order given."""
    rest: tuple[str, ...]
    """The words after the flags."""


def parse_flags(argv: Sequence[str], kinds: Mapping[str, FlagKind]) -> CommandLine:
    """Take apart `argv`, the words after the program's name, by the flags in `kinds`."""
    flags: list[tuple[str, Any]] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        if not word.startswith("-") or word == "-":
            break
        position += 1
        if word == "--":
            break
        name, equals, text = _split(word)
        kind = _find(name, kinds)
        if kind.stands_alone:
            flags.append((name, _boolean_value(kind, name, text if equals else "true")))
            continue
        if not equals:
            if position == len(argv):
                raise FlagError(f"flag needs an argument: -{name}")
            text = argv[position]
            position += 1
        flags.append((name, _value(kind, name, text)))
    return CommandLine(tuple(flags), tuple(argv[position:]))


def _split(word: str) -> tuple[str, str, str]:
    """`--name=text` without its dashes: name, `=` if there is one, text."""
    name, equals, text = word.removeprefix("-").removeprefix("-").partition("=")
    if not name or name.startswith("-"):
        raise FlagError(f"bad flag syntax: {one_line(word)}")
    return name, equals, text


def _find(name: str, kinds: Mapping[str, FlagKind]) -> FlagKind:
    if name in kinds:
        return kinds[name]
    if name in ("h", "help"):
        raise HelpRequested
    raise FlagError(f"flag provided but not defined: -{one_line(name)}")


def _boolean_value(kind: FlagKind, name: str, text: str) -> Any:
    try:
        return kind.from_text(text)
    except ValueError as error:
        raise FlagError(f"invalid boolean value {quoted(text)} for -{name}: {error}") from error


def _value(kind: FlagKind, name: str, text: str) -> Any:
    try:
        return kind.from_text(text)
    except ValueError as error:
        raise FlagError(f"invalid value {quoted(text)} for flag -{name}: {error}") from error
