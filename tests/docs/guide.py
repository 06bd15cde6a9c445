"""Runs the Python blocks of a guide, so that none of them can be wrong for long.

The word behind `python` on the opening line of a block says how it is run:

    ```python            in one session with the other blocks of the guide, top to bottom, as in a notebook: names stay,
                         and `await` may stand at the top level
    ```python script     as a file of its own, which has to end by itself
    ```python service    the same, but once it consumes, has printed what it promises and catches SIGTERM it is sent
                         one, and has to end in order
    ```python test       as a file of pytest tests

A comment `# > text` says what the block prints, and is checked line by line. The usual addresses stand for those of
the nsqd (TCP, TLS, HTTP) and the nsqlookupd that the test has started.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.caught_signal import catches
from tests.support.looking import get_json
from tests.support.waiting import PATIENCE_S, wait_until

BLOCK = re.compile(r"^```python *(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED_OUTPUT = re.compile(r"# ?> ?(.*)$", re.MULTILINE)
SCRIPT_TIMEOUT_S = 60.0
IN_NO_HURRY = {
    **{f"idle_timeout_s={shown_s})": "idle_timeout_s=3)" for shown_s in ("0.5", "1")},
    **{f"(timeout_s={shown_s})": f"(timeout_s={PATIENCE_S})" for shown_s in ("5", "10")},
    "timeout=10)": f"timeout={PATIENCE_S})",
}
"""Replacements for the times in which a reader's messages come, as they must on a machine busy with other tests."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code, where it stands in its guide, and how it is run."""

    path: Path
    line: int
    kind: str
    code: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"

    @property
    def expected_output(self) -> list[str]:
        return EXPECTED_OUTPUT.findall(self.code)

    def check_output(self, output: str) -> None:
        if self.expected_output:
            assert output.splitlines() == self.expected_output, f"{self} prints something else"


def read_blocks(path: Path, *, replacements: Mapping[str, str]) -> list[Block]:
    """The Python blocks of a guide, with other addresses than those that readers see."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    for match in BLOCK.finditer(text):
        code = replaced(match["code"], replacements)
        blocks.append(Block(path, text.count("\n", 0, match.start("code")) + 1, match["kind"], code))
    return blocks


def replaced(code: str, replacements: Mapping[str, str]) -> str:
    """The code with what is real in the place of what is shown, in one go: a real port may begin like a shown one."""
    shown = re.compile("|".join(map(re.escape, replacements)) or r"(?!)")
    return shown.sub(lambda found: replacements[found[0]], code)


class Session:
    """What the blocks without a word share: names and an event loop."""

    def __init__(self) -> None:
        self._names: dict[str, Any] = {"__name__": "__guide__"}
        self._runner = asyncio.Runner()

    def run(self, block: Block) -> None:
        padded = "\n" * (block.line - 1) + block.code  # so that a traceback shows the line in the guide
        code = compile(padded, str(block.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            result = eval(code, self._names)
            if inspect.iscoroutine(result):
                self._runner.run(result)
        block.check_output(output.getvalue())

    def close(self) -> None:
        self._runner.close()


def run_script(block: Block, folder: Path) -> None:
    """Run a block as a program of its own."""
    _check_ended_well(block, _started(_written(block, folder, "script.py")))


def run_tests(block: Block, folder: Path) -> None:
    """Run a block as a file of tests."""
    path = _written(block, folder, "test_script.py")
    _check_ended_well(block, _started("-m", "pytest", "-q", "-p", "no:cacheprovider", path))


def run_service(block: Block, folder: Path, *, nsqd_http_address: str) -> None:
    """Run a block that goes on for ever, and end it the way a supervisor would when it has printed what it promises."""
    printed = folder / "service.out"
    with printed.open("w") as output:
        program = _started(_written(block, folder, "service.py"), output=output)

    def is_at_work() -> bool:
        has_printed = len(printed.read_text().splitlines()) >= len(block.expected_output)
        return has_printed and is_consuming(nsqd_http_address) and catches(program.pid, signal.SIGTERM)

    try:
        wait_until(lambda: program.poll() is not None or is_at_work(), timeout_s=SCRIPT_TIMEOUT_S)
        program.send_signal(signal.SIGTERM)
        program.wait(SCRIPT_TIMEOUT_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, f"{block} ended with {program.returncode}:\n{printed.read_text()}"
    block.check_output(printed.read_text())


def is_consuming(nsqd_http_address: str) -> bool:
    """Whether any channel has a consumer."""
    topics = get_json(f"http://{nsqd_http_address}/stats?format=json")["topics"] or []
    return any(channel["client_count"] for topic in topics for channel in topic["channels"])


def _written(block: Block, folder: Path, name: str) -> str:
    path = folder / name
    path.write_text(block.code, encoding="utf-8")
    return str(path)


def _started(*arguments: str, output: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
    command: Sequence[str] = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=Path(arguments[-1]).parent,
    )


def _check_ended_well(block: Block, program: subprocess.Popen[str]) -> None:
    try:
        output, _ = program.communicate(timeout=SCRIPT_TIMEOUT_S)
    finally:
        program.kill()
    assert program.returncode == 0, f"{block} ended with {program.returncode}:\n{output}"
    block.check_output(output)
