"""docs/GUARANTEES.md: every line of its tables names tests, and each of these exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "GUARANTEES.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    """The lines of all tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    return [
        line
        for number, line in enumerate(lines)
        if line.startswith("|") and not line.startswith("|---") and number not in heads
    ]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file, those of state machines included."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    machines = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in _names(node)}
    return frozenset(name for name in functions | machines if name.startswith("test_"))


def _names(node: ast.Assign) -> list[ast.Name]:
    return [target for target in node.targets if isinstance(target, ast.Name)]


def test_every_line_names_a_test() -> None:
    assert len(rows()) > 20
    assert [row for row in rows() if not NAMED.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE.read_text())
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []
