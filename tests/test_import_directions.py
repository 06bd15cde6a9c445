"""Who may import whom: read off the source, so that the house keeps its floors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import emberq

ROOT = Path(emberq.__file__).parent

ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "storage": {"base", "wire"},
    "broker": {"base", "wire", "storage"},
    "http": {"base"},
    "nsqd": {"base", "wire", "storage", "broker", "http"},
    "lookupd": {"base", "wire", "http"},
    "client": {"base", "wire", "http"},
    "cluster": {"base", "wire", "http", "client"},
    "integrations": {"base", "wire", "http", "client"},
    "spark": {"base", "wire", "http", "client"},
    "admin": {"base", "wire", "http", "client", "cluster"},
    "tools": {"base", "wire", "http", "client", "cluster"},
}
"""What each package may import of ours, besides itself. `cli` composes, and may import everything."""

FACADES = {"embedded", "sync"}
"""Modules on top of the packages, for users; of ours only `cli` may use them."""

HEAVY = {"pyspark", "pyarrow"}
"""Only `spark` may import these."""

FRAMEWORKS = {"celery", "kombu", "faststream", "fastapi", "django"}
"""Only `integrations` may import these."""


@cache
def imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Those at the top of a module, those for type checkers, and those within functions."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def modules_imported_by(path: Path) -> Iterator[str]:
    for node in imports_in(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module is not None:
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module


def packages() -> list[str]:
    return sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__")


@pytest.mark.parametrize("package", packages())
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    allowed = ALLOWED[package] | {package} if package != "cli" else {*ALLOWED, *FACADES, "cli"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / package).rglob("*.py")
        for module in modules_imported_by(path)
        if module.startswith("emberq.") and module.split(".")[1] not in allowed
    ]
    assert not wrong


def internal_imports() -> dict[str, set[str]]:
    """What each of our modules imports of the others."""
    modules = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path
        for path in ROOT.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = set()
        for node in imports_in(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        graph[name] = imported & modules.keys()
    return graph


def test_no_modules_import_each_other_in_a_circle() -> None:
    order = TopologicalSorter(internal_imports())
    try:
        order.prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(reversed(circle.args[1])))


def test_only_the_spark_package_imports_heavy_libraries() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] != "spark"
        for module in modules_imported_by(path)
        if module.split(".")[0] in HEAVY
    ]
    assert not wrong


def test_only_the_integrations_import_frameworks() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] != "integrations"
        for module in modules_imported_by(path)
        if module.split(".")[0] in FRAMEWORKS
    ]
    assert not wrong


def test_the_broker_knows_neither_the_event_loop_nor_sockets() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for package in ("broker", "wire", "storage")
        for path in (ROOT / package).rglob("*.py")
        for module in modules_imported_by(path)
        if module.split(".")[0] in {"asyncio", "socket", "uvloop", "ssl"}
    ]
    assert not wrong
