"""Runs the console blocks of a page, in which a reader sees what is typed and what the machine answers.

    $ curl -d 'hello' 'http://127.0.0.1:4151/pub?topic=greetings'
    OK

A line behind `$ ` is a command. The lines below it are what it prints; `…` in them stands for anything. A command
without any may print what it likes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.docs.guide import replaced
from tests.docs.shell import is_as_promised

BLOCK = re.compile(r"^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
TIMEOUT_S = 180.0
"""Starting Spark on a machine busy with other tests takes its time."""


class Command(NamedTuple):
    """What is typed, where it stands, and what is promised for it."""

    line: int
    typed: str
    promises: list[str]

    @property
    def words(self) -> str:
        """Without the remark behind it."""
        return self.typed.partition("  #")[0].rstrip()


def read_commands(page: str) -> list[Command]:
    """All commands of a page, in order."""
    commands: list[Command] = []
    for match in BLOCK.finditer(page):
        first = page.count("\n", 0, match.start("text")) + 1
        for line, text in enumerate(match["text"].splitlines(), first):
            if text.startswith(PROMPT):
                commands.append(Command(line, text.removeprefix(PROMPT), []))
            else:
                commands[-1].promises.append(text)
    return commands


def run_command(command: Command, folder: Path, *, replacements: Mapping[str, str]) -> str:
    """Run it with other addresses than those that readers see; what it printed, which is what the page says."""
    typed = replaced(command.typed, replacements)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as `activate` would have it
    ended = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", typed],
        cwd=folder,
        env={**os.environ, "PATH": path, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"line {command.line}: {ended.stderr or ended.stdout}"
    if command.promises:
        printed = ended.stdout.splitlines()
        assert len(printed) == len(command.promises), f"line {command.line} prints {printed}"
        for line, promise in zip(printed, command.promises, strict=True):
            assert is_as_promised(line, promise), f"line {command.line} prints {line!r} and not {promise!r}"
    return ended.stdout
