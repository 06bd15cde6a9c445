"""python -m tests.crash.deleted_checks: leave out each test of a checksum in turn, and see whether a test tells.

A checksum is tested where a value that has "crc" in its name, or a call of `crc32`, is compared. The comparison is
replaced by what it says of sound data, in a copy of the tree.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from quality.mutate import Trial, copy_tree
from quality.twin import ROOT, SOURCE, files_testing

FOLDERS = ("storage", "wire")
TIME_LIMIT_S = 300.0


def checks(tree: ast.Module) -> Iterator[ast.Compare]:
    """The comparisons of checksums in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            names = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node)}
            if any("crc" in name for name in names):
                yield node


def without(tree: ast.Module, check: ast.Compare) -> str:
    """The source with this comparison replaced by what it says of sound data."""
    is_sound = ast.copy_location(ast.Constant(isinstance(check.ops[0], ast.Eq)), check)

    class Replacing(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return is_sound if node is check else self.generic_visit(node)

    return ast.unparse(Replacing().visit(tree)) + "\n"


def noticed(folder: Path) -> Iterator[tuple[str, bool]]:
    """Each check, as module and line, and whether a test fails without it."""
    for path in sorted(path for name in FOLDERS for path in (SOURCE / name).rglob("*.py")):
        module = path.relative_to(ROOT)
        tests = tuple(Path("tests") / test for test in files_testing(path.relative_to(SOURCE)))
        original = path.read_text()
        for number in range(len(list(checks(ast.parse(original))))):
            tree = ast.parse(original)
            check = list(checks(tree))[number]
            line = check.lineno
            (folder / module).write_text(without(tree, check))
            passed = Trial(folder, module, tests).run(time_limit_s=TIME_LIMIT_S)
            (folder / module).write_text(original)
            yield f"{module}:{line}", not passed


def main() -> int:
    """0 if every check is missed when it is left out."""
    with tempfile.TemporaryDirectory(prefix="deleted-checks-") as name:
        copy_tree(ROOT, Path(name))
        not_missed = 0
        for place, is_noticed in noticed(Path(name)):
            not_missed += not is_noticed
            print(f"{place}  {'missed' if is_noticed else 'NOT MISSED'}", flush=True)
    print(f"{not_missed} checks were not missed")
    return 1 if not_missed else 0


if __name__ == "__main__":
    sys.exit(main())
