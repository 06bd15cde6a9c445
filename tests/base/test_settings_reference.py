"""Help and reference page say everything the settings say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from emberq.base.settings import CONFIG, VERSION, Group, SettingTable, render_help, render_markdown

_QUEUE = Group("Queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A few settings."""

    size: int = _QUEUE.integer(10, "size of the queue", key="queue_size", at_least=1)
    port: int = _QUEUE.integer(0, "port", at_least=0, at_most=9)
    host: str = _QUEUE.text(lambda: "thishost", "name of the host", default_text="the hostname")
    a_flag_with_a_very_long_name_ns: int = _QUEUE.duration("2s", "how long")
    snappy: bool = _QUEUE.boolean("compress a|b", default=True)
    peer: tuple[str, ...] = _QUEUE.strings("a peer, and so many words about it that they need a second line")


TABLE = SettingTable("queued", options_class=Options, command=(VERSION, CONFIG))

HELP = """\
Usage of queued:

General:
  --version                         print the version and exit
  --config <file>                   TOML file to read settings from; flags win
                                    over it

Queue:
  --size <int>                      size of the queue (default 10)
  --port <int>                      port (default 0)
  --host <string>                   name of the host (default the hostname)
  --a-flag-with-a-very-long-name <duration>
                                    how long (default 2s)
  --snappy                          compress a|b (default true)
  --peer <string>                   a peer, and so many words about it that they
                                    need a second line (may be given again)
"""

PAGE = """\
# queued: settings

What to know.

## General

| Flag | Config key | Type | Default | Meaning |
|---|---|---|---|---|
| `--version` | – | bool | `false` | print the version and exit |
| `--config` | – | file | – | TOML file to read settings from; flags win over it |

## Queue

| Flag | Config key | Type | Default | Meaning |
|---|---|---|---|---|
| `--size` | `queue_size` | int | `10` | size of the queue; at least 1 |
| `--port` | `port` | int | `0` | port; 0 to 9 |
| `--host` | `host` | string | the hostname | name of the host |
| `--a-flag-with-a-very-long-name` | `a_flag_with_a_very_long_name` | duration | `2s` | how long |
| `--snappy` | `snappy` | bool | `true` | compress a\\|b |
| `--peer` | `peer` | string, repeatable | – | a peer, and so many words about it that they need a second line |
"""


def test_help_lists_flags_under_their_headings_with_defaults() -> None:
    assert render_help(TABLE, width=82) == HELP


@pytest.mark.parametrize("width", [72, 100, 110])
def test_help_keeps_to_its_width(width: int) -> None:
    assert max(map(len, render_help(TABLE, width=width).splitlines())) <= width


def test_the_reference_page_has_a_row_per_setting() -> None:
    assert render_markdown(TABLE, introduction="\nWhat to know.\n") == PAGE
