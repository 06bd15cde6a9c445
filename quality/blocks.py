"""Which blocks of emberq run, measured at a price that every run of the tests can pay.

    python -m pytest -p quality.blocks --blocks FOLDER tests/...

A block is a list of statements that run one after the other: the body of a function or of an arm of `if`, `for`, `try`
or `match`, and what follows such a statement. Modules are changed as they are imported: each block first notes its line
in a dict of its module.

    if ready:           if ready:
        send()              __blocks__[2] = True
                            send()
                        else:
                            __blocks__[-1] = True
    return count        __blocks__[3] = True
                        return count

An arm that is not written counts too, by the line of its statement, negative: here that `ready` was false; for a loop,
that it ended without a `break`; for a `match`, that no case fitted.

coverage.py sees the same through the interpreter's trace hook, which is called for every line and call, those of
pytest and asyncio too. Before Python 3.12 that doubles the time of our tests; this adds a few percent.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    import pytest
    from _typeshed import ReadableBuffer as Buffer

PACKAGE = "emberq"
NAME = "__blocks__"
CACHE_SUFFIX = f".blocks-{crc32(Path(__file__).read_bytes()):08x}.pyc"
"""Marked code is kept apart from the usual one, and from that which another edition of this module has marked."""

seen: dict[str, dict[int, bool]] = {}
"""The blocks that have run, by the path of their module."""


def blocks_of(source: str) -> set[int]:
    """All blocks of a module."""
    marker = _Marker()
    marker.mark(ast.parse(source))
    return marker.blocks


class _Marker:
    """Puts a mark at the beginning of each block of a module; what runs at its import has none, unless it branches."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()

    def mark(self, node: ast.AST) -> None:
        """Mark the blocks of a module or a statement."""
        match node:
            case ast.Module() | ast.ClassDef():
                for statement in node.body:
                    self.mark(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                start = 0 if ast.get_docstring(node, clean=False) is None else 1
                if not _is_ellipsis(node.body[-1]):
                    node.body[start:] = self._marked(node.body[start:])
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.For() | ast.AsyncFor() | ast.While():
                node.body = self._marked(node.body)
                node.orelse = self._marked(node.orelse)
                is_endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant)
                if not node.orelse and not is_endless:
                    node.orelse = [self._other_way(node)]
            case ast.With() | ast.AsyncWith():
                node.body = self._marked(node.body)
            case ast.Try() | ast.TryStar():
                node.body = self._marked(node.body)
                for handler in node.handlers:
                    handler.body = self._marked(handler.body)
                node.orelse = self._marked(node.orelse)
                node.finalbody = self._marked(node.finalbody)
            case ast.Match():
                for case in node.cases:
                    case.body = self._marked(case.body)
                if not _takes_all(node.cases[-1]):
                    rest = ast.copy_location(ast.MatchAs(), node)
                    node.cases.append(ast.match_case(rest, body=[self._other_way(node)]))

    def _marked(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """The same with a mark before the first statement, and before each that follows one with blocks of its own."""
        marked: list[ast.stmt] = []
        begins = True
        for statement in statements:
            if begins:
                marked.append(self._note(statement, statement.lineno))
            begins = isinstance(statement, _WITH_BLOCKS)
            self.mark(statement)
            marked.append(statement)
        return marked

    def _other_way(self, statement: ast.stmt) -> ast.stmt:
        """The arm of a statement that is not written."""
        return self._note(statement, -statement.lineno)

    def _note(self, place: ast.stmt, block: int) -> ast.stmt:
        self.blocks.add(block)
        (note,) = ast.parse(f"{NAME}[{block}] = True").body
        for node in ast.walk(note):
            ast.copy_location(node, place)  # tracebacks show what stands there in the source
        return note


_WITH_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match, ast.With, ast.AsyncWith)


def _is_ellipsis(statement: ast.stmt) -> bool:
    """Whether it stands in for a body, as in protocols."""
    return (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and statement.value.value is ...
    )


def _takes_all(case: ast.match_case) -> bool:
    return case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None


class MarkingLoader(SourceFileLoader):
    """Loads a module with its blocks marked; `seen` has those that ran, under the module's path."""

    def source_to_code(self, data, path, *, _optimize: int = -1) -> CodeType:  # type: ignore[no-untyped-def, override]
        tree = ast.parse(data)
        _Marker().mark(tree)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, NAME, seen.setdefault(self.path, {}))
        super().exec_module(module)

    def get_data(self, path: str) -> bytes:
        return super().get_data(_kept_at(path))

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0o666) -> None:
        super().set_data(_kept_at(path), data, _mode=_mode)


def _kept_at(path: str) -> str:
    return path.removesuffix(".pyc") + CACHE_SUFFIX if path.endswith(".pyc") else path


class _Finder(MetaPathFinder):
    """Finds the modules of emberq that are not compiled, before others do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = MarkingLoader(spec.loader.name, spec.loader.path)
        return spec


def begin() -> None:
    """Mark every module of emberq that is imported from now on."""
    if not is_measuring():
        sys.meta_path.insert(0, _Finder())


def is_measuring() -> bool:
    """Whether modules are marked."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def save(folder: Path) -> None:
    """Write what has run in this process to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.getpid()}.json").write_text(json.dumps({path: sorted(blocks) for path, blocks in seen.items()}))


def load(folder: Path) -> dict[str, set[int]]:
    """What has run in all processes that were saved there or below, by the path of the module."""
    blocks: dict[str, set[int]] = {}
    for file in folder.rglob("*.json"):
        for path, ran in json.loads(file.read_text()).items():
            blocks.setdefault(path, set()).update(ran)
    return blocks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Plugins are loaded before anything of emberq is, so this is the moment to begin."""
    parser.addoption("--blocks", metavar="FOLDER", help="where to save which blocks of emberq have run")
    begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.getoption("--blocks"):
        save(Path(folder))
