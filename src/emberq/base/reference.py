"""Help on the terminal and the reference page, both rendered from a program's settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby

from emberq.base.settings import Setting, SettingTable

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
    """What help adds to the meaning; that a switch is off by default goes without saying."""
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
