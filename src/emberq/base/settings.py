"""One declaration per setting: flags, config keys, help and reference pages all come from it.

The options of a program are a frozen dataclass. Each field is declared through a `Group`, which stands for a heading in
help and docs:

    STORAGE = Group("Storage")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        sync_timeout_ns: int = STORAGE.duration("2s", "time between syncs to disk")

That field is the flag `--sync-timeout`, the config key `sync_timeout`, the default 2s and the line in help; there is no
second list that could say otherwise. `SettingTable` reads the flags and the config file for such a class. A flag wins
over the file, the file over the default.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from emberq.base.flag import (
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGER,
    SettingError,
    Strings,
    Text,
    ValueKind,
    Words,
    parse_flags,
)
from emberq.base.text import parse_duration

T = TypeVar("T")

_METADATA_KEY = "emberq.setting"


class OptionsError(Exception):
    """Options that a program cannot start with; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a program."""

    attribute: str
    """Field of the options class: the flag's name with `_`, and the unit last."""
    kind: ValueKind[Any]
    default: Any
    meaning: str
    """One line for help and docs."""
    heading: str
    renamed_key: str | None = None
    """Config key when it is not simply the flag's name; empty if a config file cannot set it."""
    at_least: Any = None
    at_most: Any = None
    default_text: str = ""
    """Shown in place of a default that differs from machine to machine."""

    @property
    def flag(self) -> str:
        """The flag's name without dashes in front."""
        name = self.attribute.removesuffix("_" + self.kind.unit) if self.kind.unit else self.attribute
        return name.replace("_", "-")

    @property
    def key(self) -> str:
        """The key in a config file, empty if there is none."""
        return self.flag.replace("-", "_") if self.renamed_key is None else self.renamed_key

    @property
    def shown_default(self) -> str:
        """The default as help and docs show it."""
        return self.default_text or self.kind.to_text(self.default)

    def check_range(self, value: Any) -> None:
        """SettingError unless `value` lies within the setting's bounds."""
        show = self.kind.to_text
        if self.at_least is not None and value < self.at_least:
            raise SettingError(f"--{self.flag} must be at least {show(self.at_least)}, not {show(value)}")
        if self.at_most is not None and value > self.at_most:
            raise SettingError(f"--{self.flag} must be at most {show(self.at_most)}, not {show(value)}")


@dataclass(frozen=True, slots=True)
class Group:
    """A heading, and the declarations of the fields under it.

    Each method gives what `dataclasses.field` would, with the setting in the field's metadata; as with
    `dataclasses.field` its type is that of the attribute.
    """

    heading: str

    def declare(self, kind: ValueKind[T], default: T | Callable[[], T], meaning: str, **details: Any) -> T:
        """A field of any kind. A callable default is called when the options are made."""
        make = partial(Setting, kind=kind, meaning=meaning, heading=self.heading, **details)
        metadata = {_METADATA_KEY: make}
        if callable(default):
            return field(default_factory=default, metadata=metadata)
        return field(default=default, metadata=metadata)

    def text(
        self,
        default: str | Callable[[], str],
        meaning: str,
        *,
        placeholder: str = "string",
        default_text: str = "",
    ) -> str:
        """A string."""
        return self.declare(Text(placeholder), default, meaning, default_text=default_text)

    def integer(
        self,
        default: int | Callable[[], int],
        meaning: str,
        *,
        key: str | None = None,
        at_least: int | None = None,
        at_most: int | None = None,
        default_text: str = "",
    ) -> int:
        """A whole number."""
        return self.declare(
            INTEGER,
            default,
            meaning,
            renamed_key=key,
            at_least=at_least,
            at_most=at_most,
            default_text=default_text,
        )

    def boolean(self, meaning: str, *, default: bool) -> bool:
        """A switch."""
        return self.declare(BOOLEAN, default, meaning)

    def duration(self, default: str, meaning: str, *, at_least: str = "0s") -> int:
        """A span of time in nanoseconds; default and bound are written as a user would."""
        return self.declare(DURATION, parse_duration(default), meaning, at_least=parse_duration(at_least))

    def strings(self, meaning: str, *, placeholder: str = "string", key: str | None = None) -> tuple[str, ...]:
        """A list of strings, empty by default."""
        return self.declare(Strings(placeholder), (), meaning, renamed_key=key)

    def floats(self, meaning: str, *, key: str | None = None) -> tuple[float, ...]:
        """A list of numbers, empty by default."""
        return self.declare(FLOATS, (), meaning, renamed_key=key)


def settings_of(options_class: type) -> tuple[Setting, ...]:
    """The settings that the fields of `options_class` declare, in their order."""
    found = []
    for declared in dataclasses.fields(options_class):
        make = declared.metadata.get(_METADATA_KEY)
        if make is not None:
            factory = declared.default_factory
            default = declared.default if factory is dataclasses.MISSING else factory()
            found.append(make(attribute=declared.name, default=default))
    return tuple(found)


# Reading flags and the config file.

GENERAL = "General"


def command_flag(attribute: str, meaning: str) -> Setting:
    """A flag that no config file can set: it has the command do something instead of running the program."""
    return Setting(attribute=attribute, kind=BOOLEAN, default=False, meaning=meaning, heading=GENERAL, renamed_key="")


def deprecated_flag(attribute: str) -> Setting:
    """A flag of earlier versions that scripts may still give."""
    return command_flag(attribute, "deprecated, has no effect")


VERSION = command_flag("version", "print the version and exit")

CHECK_CONFIG = command_flag(
    "check_config",
    "check all settings, print who may use which port and what closes it, and exit; 0 means that all is closed",
)

CONFIG = Setting(
    attribute="config",
    kind=Text("file"),
    default="",
    meaning="TOML file to read settings from; flags win over it",
    heading=GENERAL,
    renamed_key="",
)


@dataclass(frozen=True, slots=True)
class Given:
    """What the user asked for, defaults left out."""

    options: Mapping[str, Any]
    """Fields of the options class."""
    version_asked: bool
    unknown_keys: tuple[str, ...]
    """Keys of the config file that are no settings."""
    arguments: tuple[str, ...] = ()
    """The words behind the flags."""
    check_asked: bool = False


class SettingTable:
    """Every setting of one program: those of its options class and those that concern the command itself."""

    def __init__(self, program: str, *, options_class: type, command: Iterable[Setting]) -> None:
        self.program = program
        self.options = settings_of(options_class)
        self.command = tuple(command)

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.command + self.options)

    @property
    def takes_config(self) -> bool:
        """Whether settings may come from a file too."""
        return CONFIG in self.command

    def load(self, argv: Sequence[str]) -> Given:
        """Read the flags and the config file they name.

        Raises HelpRequested and FlagError; SettingError for the file.
        """
        flags, arguments = self._read_flags(argv)
        options = {setting.attribute: flags[setting.flag] for setting in self.options if setting.flag in flags}
        config = flags.get(CONFIG.flag, "")
        version_asked, check_asked = flags.get(VERSION.flag, False), flags.get(CHECK_CONFIG.flag, False)
        unknown_keys: tuple[str, ...] = ()
        if config and not version_asked:
            from_file, unknown_keys = self._read_file(config)
            options = from_file | options
        return Given(
            options,
            version_asked=version_asked,
            check_asked=check_asked,
            unknown_keys=unknown_keys,
            arguments=arguments,
        )

    def check_ranges(self, options: Any) -> None:
        """SettingError for the first setting of `options` that is out of its bounds."""
        for setting in self.options:
            setting.check_range(getattr(options, setting.attribute))

    def _read_flags(self, argv: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Value of every flag given, repeated lists added up; and the words behind the flags."""
        kinds = {setting.flag: setting.kind for setting in self}
        values: dict[str, Any] = {}
        given = parse_flags(argv, kinds)
        for flag, value in given.flags:
            values[flag] = values[flag] + value if kinds[flag].repeatable and flag in values else value
        return values, given.rest

    def _read_file(self, path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Options from a TOML file, and the keys that are none."""
        by_key = {setting.key: setting for setting in self.options if setting.key}
        document = _load_toml(path)
        options = {
            by_key[key].attribute: _from_toml(by_key[key], value, path)
            for key, value in document.items()
            if key in by_key
        }
        return options, tuple(key for key in document if key not in by_key)


def _load_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"failed to load config file {path} - {error.strerror}") from error
    except ValueError as error:  # bad TOML and bad UTF-8 alike
        raise SettingError(f"failed to load config file {path} - {error}") from error


def _from_toml(setting: Setting, value: Any, path: str) -> Any:
    try:
        return setting.kind.from_toml(value)
    except ValueError as error:
        if isinstance(setting.kind, Words):  # NSQ's own text for these
            raise SettingError(f"failed parsing {setting.key} {value}") from error
        shown = json.dumps(value, default=str, ensure_ascii=False)
        text = f"failed to load config file {path} - {setting.key} must be {setting.kind.noun}, not {shown}"
        raise SettingError(text) from error


# Secrets.

SECRET_VARIABLE = "NSQ_AUTH_SECRET"  # noqa: S105 - the name of one
"""The environment variable that holds the secret for AUTH, for programs that are given none in another way."""
LOOKUPD_SECRET_VARIABLE = "NSQ_LOOKUPD_SECRET"  # noqa: S105 - the name of one
"""The same for the HTTP API of nsqlookupds."""
MAX_SECRET_BYTES = 64 * 1024
"""More is not a secret, but the wrong file."""
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


def read_secret(path: str, *, flag: str = "auth-secret-file", variable: str = SECRET_VARIABLE) -> bytes:
    """The secret in the file that a flag names, or else in the environment; empty if it is in neither. SettingError.

    Blanks and line ends around it do not count: editors put them there. Without a `variable` the environment is not
    looked at.
    """
    if not path:
        return _one_secret(os.environb.get(variable.encode(), b""), place=variable) if variable else b""
    return _one_secret(_content(path, flag), place=f"--{flag}: {path}")


def read_secrets(path: str, *, flag: str) -> list[bytes]:
    """The secrets in the file that a flag names: one a line, without empty lines and those that begin with `#`.

    SettingError if there is none.
    """
    place, content = f"--{flag}: {path}", _content(path, flag)
    lines = [line.strip() for line in content.splitlines()]
    secrets = [line for line in lines if line and not line.startswith(b"#")]
    if not secrets:
        raise SettingError(f"{place} holds no secret")
    if len(content) > MAX_SECRET_BYTES or any(map(_CONTROL.search, secrets)):
        raise SettingError(f"{place} is not lines of text")
    return secrets


def _content(path: str, flag: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise SettingError(f"--{flag}: {path}: {error.strerror}") from error
    if not content.strip():
        raise SettingError(f"--{flag}: {path} is empty")
    return content


def _one_secret(content: bytes, *, place: str) -> bytes:
    """The content without what surrounds it. A line end within would forge a header where the secret becomes one."""
    secret = content.strip()
    if len(secret) > MAX_SECRET_BYTES or _CONTROL.search(secret):
        raise SettingError(f"{place} is not one line of text")
    return secret


# Help and the reference page.

_MEANING_COLUMN = 36
"""Where meanings start in help; a flag too long for it has its meaning on the next line."""
_NO_BREAK = "\u00a0"
"""Keeps a note together while lines are wrapped."""


def render_help(table: SettingTable, *, width: int = 100) -> str:
    """The usage text: flags under their headings, with meaning and default, wrapped to `width` columns."""
    parts = [f"Usage of {table.program}:\n"]
    for heading, settings in _by_heading(table):
        parts.append(f"\n{heading}:\n")
        parts.extend(_help_entry(setting, width=width) for setting in settings)
    return "".join(parts)


def _by_heading(table: SettingTable) -> Iterator[tuple[str, list[Setting]]]:
    for heading, settings in groupby(table, key=lambda setting: setting.heading):
        yield heading, list(settings)


def _help_entry(setting: Setting, *, width: int) -> str:
    flag = f"  --{setting.flag}"
    if not setting.kind.stands_alone:
        flag += f" <{setting.kind.placeholder}>"
    margin = " " * _MEANING_COLUMN
    lines = textwrap.wrap(
        setting.meaning + "".join(" " + _unbroken(note) for note in _notes(setting)),
        width=width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if len(flag) + 2 > _MEANING_COLUMN:
        lines.insert(0, flag)
    else:
        lines[0] = flag + lines[0][len(flag) :]
    return "\n".join(lines).replace(_NO_BREAK, " ") + "\n"


def _notes(setting: Setting) -> Iterator[str]:
    """What help adds to the meaning; the default of a switch that is off is left out."""
    if setting.kind.repeatable:
        yield "(may be given again)"
    if setting.shown_default and setting.default is not False:
        yield f"(default {setting.shown_default})"


def _unbroken(note: str) -> str:
    return note.replace(" ", _NO_BREAK)


def render_markdown(table: SettingTable, *, introduction: str) -> str:
    """The reference page of a program."""
    parts = [f"# {table.program}: settings\n\n{introduction.strip()}\n"]
    columns = ["Flag", "Config key", "Type", "Default", "Meaning"]
    if not table.takes_config:
        columns.remove("Config key")
    for heading, settings in _by_heading(table):
        parts.append(f"\n## {heading}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n")
        parts.extend(_markdown_row(setting, with_key=table.takes_config) for setting in settings)
    return "".join(parts)


def _markdown_row(setting: Setting, *, with_key: bool) -> str:
    kind = setting.kind.placeholder + (", repeatable" if setting.kind.repeatable else "")
    cells = (
        _code("--" + setting.flag),
        *((_code(setting.key),) if with_key else ()),
        kind,
        setting.default_text or _code(setting.shown_default),
        setting.meaning + _bounds(setting),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _bounds(setting: Setting) -> str:
    """The bounds in words, unless they only say that the value is not negative."""
    show = setting.kind.to_text
    if setting.at_most is not None:
        return f"; {show(setting.at_least)} to {show(setting.at_most)}"
    return f"; at least {show(setting.at_least)}" if setting.at_least else ""


def _code(text: str) -> str:
    return f"`{text}`" if text else "\u2013"
