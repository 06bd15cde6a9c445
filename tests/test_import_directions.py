"""Who may import whom: read off the source, so that the house keeps its floors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import emberq

ROOT = Path(emberq.__file__).parent

ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": set(),
    "storage": {"base", "wire"},
    "broker": {"base", "storage", "wire"},
    "http": {"base"},
    "nsqd": {"base", "wire", "storage", "broker", "http"},
    "lookupd": {"base", "wire", "http"},
    "client": {"base", "wire"},
    "cluster": {"base", "client"},
    "admin": {"base", "wire", "http", "client", "cluster"},
    "tools": {"base", "wire", "client", "cluster"},
    "spark": {"base", "wire", "client"},
}
"""What each package may import of ours, besides itself. `cli` composes, and may import everything."""

FACADES = {"embedded", "sync"}
"""Modules on top of the packages, for users; of ours only `cli` may use them."""

HEAVY = {"pyspark", "pyarrow"}
"""Only `spark` may import these."""


def modules_imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
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


def test_only_the_spark_package_imports_heavy_libraries() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] != "spark"
        for module in modules_imported_by(path)
        if module.split(".")[0] in HEAVY
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
