"""Runs the shell blocks of a guide, top to bottom in one folder, so that none of them can be wrong for long.

A line `#> text` says what the command above it prints; `…` in it stands for anything. Commands print nothing that is
not promised.
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

BLOCK = re.compile(r"^```sh\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = "#> "
ANYTHING = "…"
TIMEOUT_S = 60.0


class ShellBlock(NamedTuple):
    """Some commands, where they stand in their guide, and what they promise to print."""

    line: int
    commands: str
    promises: list[str]


def read_shell_blocks(text: str, *, replacements: Mapping[str, str]) -> list[ShellBlock]:
    """The blocks of a guide, with other addresses and folders than those that readers see."""
    blocks = []
    for match in BLOCK.finditer(text):
        lines = replaced(match["code"], replacements).splitlines()
        commands = "\n".join(line for line in lines if not line.startswith(PROMISE))
        promises = [line.removeprefix(PROMISE) for line in lines if line.startswith(PROMISE)]
        blocks.append(ShellBlock(text.count("\n", 0, match.start("code")) + 1, commands, promises))
    return blocks


def run_shell_block(block: ShellBlock, folder: Path) -> None:
    """Run it, and compare what it prints with what it promises."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the emberq command is
    ended = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", _with_line_ends(block.commands)],
        cwd=folder,
        env={**os.environ, "PATH": path, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, f"line {block.line}: {ended.stderr or ended.stdout}"
    printed = [line for line in ended.stdout.splitlines() if line]
    assert len(printed) == len(block.promises), f"line {block.line} prints {printed}"
    for line, promise in zip(printed, block.promises, strict=True):
        assert is_as_promised(line, promise), f"line {block.line} prints {line!r} and not {promise!r}"


def is_as_promised(line: str, promise: str) -> bool:
    pattern = ".+".join(re.escape(part) for part in promise.split(ANYTHING))
    return re.fullmatch(pattern, line) is not None


def _with_line_ends(commands: str) -> str:
    """Answers of a server end without a line feed, so the next command's output would stand on the same line."""
    return "\n".join(f"{line}\necho" if line else line for line in commands.split("\n"))
