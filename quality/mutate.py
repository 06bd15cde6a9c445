"""Change a module in small ways, one at a time, and see which changes its tests notice.

    python -m quality.mutate src/emberq/broker/in_flight.py --count 40

A change is what a slip of a programmer would be: another comparison or operator, a constant that is off by one, a
condition turned round, a statement left out, None returned, two arguments swapped. A test that notices fails or takes
far too long, and the change is caught. A change that no test notices has survived, and is printed as a diff: either a
test is missing, or the change makes no difference (another order of the same, a bound that is never reached).

The changes are drawn from all that are possible, with a seed, so a run can be repeated. The tests are those that the
twin rule gives the module, and what `--tests` adds. They run in a copy of the tree: nothing here is touched.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib.util
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from quality.twin import ROOT, SOURCE, files_testing

COPIED = ("src", "tests", "bench", "quality", "examples", "docs", "deploy", "pyproject.toml")
"""What tests may read. Where one of them does not exist, it is left out."""

TIME_FACTOR = 4
TIME_FLOOR_S = 20.0
"""A change may make tests wait for ever. They get this many times what they take without it, and at least this."""
CPU_FILE = "cpu-seconds"
CPU_FACTOR = 2
CPU_FLOOR_S = 3
"""The same for a loop that a change makes endless. The processor time it used is its own, however busy the machine."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
REMOVABLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)


@dataclass(frozen=True, slots=True)
class Change:
    """One possible change: node `index` of the walk through the tree becomes what `make` makes of it."""

    index: int
    line: int
    what: str
    make: Callable[[ast.AST], ast.AST] = field(compare=False)


# What can be changed


def possible_changes(tree: ast.Module) -> list[Change]:
    """All changes of the code. Docstrings, annotations, slots, imports and all that only logs are left alone."""
    left_alone = set(_left_alone(tree))
    return [
        Change(index, getattr(node, "lineno", 0), what, make)
        for index, node in enumerate(ast.walk(tree))
        if id(node) not in left_alone
        for what, make in _changes_of(node)
    ]


def draw(tree: ast.Module, *, count: int, seed: int) -> list[Change]:
    """So many of the changes, or all there are, in the order of their lines."""
    changes = possible_changes(tree)
    return sorted(random.Random(seed).sample(changes, min(count, len(changes))), key=lambda change: change.line)


def apply(tree: ast.Module, change: Change) -> ast.Module:
    """A copy of the tree with the change made."""
    changed = copy.deepcopy(tree)
    target = next(node for index, node in enumerate(ast.walk(changed)) if index == change.index)
    new = change.make(target)

    class Replacing(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(new, node) if node is target else self.generic_visit(node)

    Replacing().visit(changed)
    return ast.fix_missing_locations(changed)


def _left_alone(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        match node:
            case ast.FunctionDef(name="__repr__"):  # what a debugger shows
                parts = [node]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts = [node.returns, *node.decorator_list]
            case ast.ClassDef():
                parts = [*node.decorator_list]
            case ast.arg() | ast.AnnAssign():
                parts = [node.annotation]
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
                parts = [node]
            case ast.Expr(value=ast.Constant()):
                parts = [node]
            case ast.Expr() | ast.If() if _only_logs(node):
                parts = [node]
            case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
                parts = [node]
            case ast.Assign(value=ast.Call(func=ast.Attribute(attr="getLogger"))):
                parts = [node]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript()) if _is_type_name(name):
                parts = [node]
            case ast.Raise():  # the words of an error: tests should not repeat them
                parts = [node.exc]
        for part in parts:
            if part is not None:
                yield from (id(inner) for inner in ast.walk(part))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_type_name(name: str) -> bool:
    """Whether an alias of that name stands for a type, as `Told = Callable[[], None]` does."""
    return name.lstrip("_")[:1].isupper() and not name.isupper()


def _only_logs(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name))):
            return name in {"debug", "info", "warning", "error", "exception"}
        case ast.If(body=body, orelse=[]):
            return all(map(_only_logs, body))
    return False


def _changes_of(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], ast.AST]]]:
    match node:
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield "comparison", _with_comparison(position, other)
        case ast.BinOp() | ast.AugAssign():
            if type(node.op) in OPERATORS and not _is_text_operation(node):
                yield "operator", _with_operator(OPERATORS[type(node.op)])
        case ast.BoolOp():
            yield "and/or", _with_operator(ast.Or if isinstance(node.op, ast.And) else ast.And)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", lambda same: same.operand  # type: ignore[attr-defined]
        case ast.Constant(value=bool() as flag):
            yield "constant", lambda _: ast.Constant(not flag)
        case ast.Constant(value=int() as number):
            yield "constant", lambda _: ast.Constant(number + 1)
        case ast.Constant(value=bytes() as data):
            yield "constant", lambda _: ast.Constant(data + b"?")
        case ast.Call(args=[ast.expr() as first, ast.expr() as second, *_]) if not (
            isinstance(first, ast.Starred)
            or isinstance(second, ast.Starred)
            or ast.dump(first) == ast.dump(second)
            or (isinstance(node.func, ast.Name) and node.func.id in {"min", "max"})  # the order makes no difference
        ):
            yield "swapped arguments", _swap
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            # What is false anyway is taken for None by most callers; type checking finds the others.
            yield "None returned", lambda _: ast.Return(ast.Constant(None))
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition", _negate
    if isinstance(node, REMOVABLE):
        yield "removed", lambda _: ast.Pass()


def _is_text_operation(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether it formats or joins text, which is not arithmetic."""
    operands = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
    return any(isinstance(operand, ast.JoinedStr) or _is_text(operand) for operand in operands)


def _with_comparison(position: int, other: type[ast.cmpop]) -> Callable[[ast.AST], ast.AST]:
    def make(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Compare)
        operators = [other() if index == position else same for index, same in enumerate(node.ops)]
        return ast.Compare(node.left, operators, node.comparators)

    return make


def _with_operator(other: type[ast.operator] | type[ast.boolop]) -> Callable[[ast.AST], ast.AST]:
    def make(node: ast.AST) -> ast.AST:
        changed = copy.copy(node)
        changed.op = other()  # type: ignore[attr-defined]
        return changed

    return make


def _negate(node: ast.AST) -> ast.AST:
    changed = copy.copy(node)
    changed.test = ast.UnaryOp(ast.Not(), node.test)  # type: ignore[attr-defined]
    return changed


def _swap(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)
    first, second, *others = node.args
    return ast.Call(node.func, [second, first, *others], node.keywords)


# What the tests say to it


@dataclass(frozen=True, slots=True)
class Trial:
    """A copy of the tree, in which the module is changed and its tests are run."""

    folder: Path
    module: Path  # relative to the tree, as all paths here
    tests: tuple[Path, ...]

    def run(self, *, time_limit_s: float, cpu_limit_s: int = 600, keep_compiled: bool = False) -> bool:
        """Whether the tests pass. They are ended, with all that they started, when their time is over."""
        running = _FORKS.Process(target=_run_tests, args=(self.folder, self.tests, cpu_limit_s, keep_compiled))
        running.start()
        running.join(time_limit_s)
        if running.exitcode is None:
            try:
                os.killpg(running.pid or 0, signal.SIGKILL)
            except ProcessLookupError:
                running.kill()  # so early that it has no session of its own, and no children
            running.join()
        return running.exitcode == 0


_FORKS = multiprocessing.get_context("forkserver")
"""Each run is forked from a process that has imported what all tests import, which takes longer than most tests."""
_FORKS.set_forkserver_preload(["pytest", "hypothesis.stateful", "pytest_asyncio", "asyncio"])


def _run_tests(folder: Path, tests: Sequence[Path], cpu_limit_s: int, keep_compiled: bool) -> None:
    """The whole life of a forked process."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s))
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder / "src")
    sys.path[:0] = [str(folder / "src"), str(folder)]
    if not keep_compiled:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    # Rewritten assertions explain themselves, which is not asked here, and rewriting takes a second or two.
    flags = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:randomly"]
    outcome = pytest.main([*flags, *map(str, tests)], plugins=[_FirstFailure()])
    (folder / CPU_FILE).write_text(f"{time.process_time()}")
    sys.exit(outcome)


class _FirstFailure:
    """A plugin that ends a property with the first example that fails: here a smaller one is of no use."""

    def pytest_configure(self) -> None:
        """Called when the tests' own settings are loaded."""
        phases = (Phase.explicit, Phase.reuse, Phase.generate)
        settings.register_profile("first failure", parent=settings(), phases=phases, report_multiple_bugs=False)
        settings.load_profile("first failure")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one change. `diff` shows it between two sources in the same spelling, that of `ast.unparse`."""

    change: Change
    caught: bool
    diff: str


def mutate(trial: Trial, *, count: int, seed: int, lines: Sequence[int] = ()) -> Iterator[Outcome]:
    """Try as many changes as `draw` gives, or those of them in `lines`. The tests must pass as long as none is made."""
    path = trial.folder / trial.module
    original = path.read_text()
    tree = ast.parse(original)
    before = _text(tree).splitlines(keepends=True)
    started = time.monotonic()
    if not trial.run(time_limit_s=600, keep_compiled=True):
        raise SystemExit("The tests fail before anything is changed.")
    took_s = time.monotonic() - started
    time_limit_s = max(TIME_FLOOR_S, TIME_FACTOR * took_s)
    cpu_limit_s = max(CPU_FLOOR_S, math.ceil(CPU_FACTOR * float((trial.folder / CPU_FILE).read_text())))
    # All but the module stays compiled, which saves time. Two changes of it within one second would look the same.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    for change in draw(tree, count=count, seed=seed):
        if lines and change.line not in lines:
            continue
        source = _text(apply(tree, change))
        path.write_text(source)
        caught = not trial.run(time_limit_s=time_limit_s, cpu_limit_s=cpu_limit_s)
        name = f"{trial.module}:{change.line} ({change.what})"
        diff = "".join(difflib.unified_diff(before, source.splitlines(keepends=True), name, "changed", n=2))
        yield Outcome(change, caught, diff)
    path.write_text(original)


def _text(tree: ast.Module) -> str:
    return ast.unparse(tree) + "\n"


def copy_tree(root: Path, folder: Path) -> None:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        elif (root / name).is_file():
            shutil.copy(root / name, folder / name)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make mutate", description="See which small changes its tests notice.")
    parser.add_argument("module", type=Path, help="a path such as src/emberq/broker/in_flight.py")
    parser.add_argument("--count", type=int, default=40, help="how many changes to try")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--tests", type=Path, nargs="*", default=[], help="test files besides those of the module")
    parser.add_argument("--lines", type=int, nargs="*", default=[], help="try only the changes of these lines, again")
    options = parser.parse_args(arguments)
    module = options.module.resolve().relative_to(ROOT)
    own = [Path("tests") / test for test in files_testing((ROOT / module).relative_to(SOURCE))]
    if not own and not options.tests:
        parser.error(f"{module} has no tests of its own; name some with --tests.")
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        folder = Path(name)
        copy_tree(ROOT, folder)
        caught = tried = 0
        trial = Trial(folder, module, (*own, *options.tests))
        for outcome in mutate(trial, count=options.count, seed=options.seed, lines=options.lines):
            tried += 1
            caught += outcome.caught
            if not outcome.caught:
                print(outcome.diff, flush=True)
    print(f"{module}: {caught} of {tried} changes caught")


if __name__ == "__main__":
    main()
