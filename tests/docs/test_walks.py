"""docs/ARCHITECTURE.md is true: the map has every module, and the walks go along names and imports that exist."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import emberq
from tests.test_import_directions import ALLOWED, internal_imports

ROOT = Path(emberq.__file__).parent
REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text()

QUOTED = re.compile(r"`([^`]+)`")
CLASS_NAME = re.compile(r"[A-Z]\w*[a-z]\w*(\.\w+)?")
"""As `ClientSession` or `ClientSession.stats`; not `PUB`."""


class Step(NamedTuple):
    """One row of a walk."""

    module: str
    names: list[str]
    detour: str
    """How the code gets there, if not by an import."""


def section(title: str, *, level: int) -> str:
    marks = "#" * level
    found = re.search(rf"^{marks} {re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no section {title!r}"
    return found[1]


def parts(title: str) -> dict[str, str]:
    """The sections below a chapter, by their titles."""
    titles = re.findall(r"^### (.+)$", section(title, level=2), re.MULTILINE)
    return {each: section(each, level=3) for each in titles}


def rows(text: str) -> Iterator[list[str]]:
    """The rows of the tables in a section, without their heads."""
    for table in re.findall(r"^\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in table.splitlines():
            yield [cell.strip() for cell in line[1:-1].split("|")]


MAP = {
    (f"{folder}/" if folder != "emberq" else "") + module.removesuffix(" (c)"): (module.endswith(" (c)"), learned)
    for folder, text in parts("Map").items()
    for module, learned in rows(text)
}
WALKS = {
    title: [Step(cells[0], QUOTED.findall(cells[1]), cells[2]) for cells in rows(text)]
    for title, text in parts("Walks").items()
}


@functools.cache
def names_in(module: str) -> frozenset[str]:
    """Functions, classes, their methods and the constants of a module."""
    found: set[str] = set()
    for node in ast.parse((ROOT / f"{module}.py").read_text()).body:
        match node:
            case ast.ClassDef():
                found.add(node.name)
                found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, FUNCTIONS)}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return frozenset(found)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> set[str]:
    return {str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.rglob("*.py") if path.name != "__init__.py"}


def dotted(module: str) -> str:
    return "emberq." + module.replace("/", ".")


imports = functools.cache(internal_imports)


def compiled_modules() -> set[str]:
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    listed = build["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return {path.removeprefix("emberq/").removesuffix(".py") for path in listed}


def test_the_map_has_every_module_and_no_other() -> None:
    missing, unknown = modules() - MAP.keys(), MAP.keys() - modules()
    assert not missing, f"not in the map of docs/ARCHITECTURE.md: {sorted(missing)}"
    assert not unknown, f"in the map of docs/ARCHITECTURE.md, but not in the tree: {sorted(unknown)}"


def test_the_map_says_what_one_learns_in_each_module() -> None:
    assert not [module for module, (_, learned) in MAP.items() if len(learned) < 3]


def test_the_map_marks_what_is_compiled() -> None:
    assert {module for module, (is_compiled, _) in MAP.items() if is_compiled} == compiled_modules()


def test_the_table_of_folders_is_the_one_that_imports_are_checked_by() -> None:
    table = {cells[0].strip("`"): cells[1] for cells in rows(section("Folders", level=2))}
    assert table.pop("cli") == "everything"
    assert {
        folder: set() if allowed == "nothing" else set(allowed.split(", ")) for folder, allowed in table.items()
    } == ALLOWED


def test_every_class_that_the_page_names_exists() -> None:
    known = frozenset[str]().union(*(names_in(module) for module in modules()))
    named = {name for name in QUOTED.findall(PAGE) if CLASS_NAME.fullmatch(name)}
    assert not named - known


def test_every_module_that_the_page_names_exists() -> None:
    folders = "|".join(ALLOWED)
    named = {match[0] for match in re.finditer(rf"\b(?<![/-])(?:{folders}|cli)/[\w/]+", PAGE)}
    assert not named - modules()


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_shows_first_what_its_file_holds(title: str) -> None:
    files = {step.module for step in WALKS[title]}
    for step in WALKS[title]:
        assert step.names, f"{step.module}: nothing to look at"
        assert step.names[0] in names_in(step.module), f"{step.module} has no {step.names[0]}"
        elsewhere = {name for name in step.names if not any(name in names_in(file) for file in files)}
        assert not elsewhere, f"{step.module}: {elsewhere} are in no file of this walk"


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_goes_along_imports_or_says_how_else(title: str) -> None:
    graph = imports()
    passed: set[str] = set()
    for step in WALKS[title]:
        if passed and not step.detour:
            importers = [module for module in passed if dotted(step.module) in graph[dotted(module)]]
            assert importers, f"{step.module} is imported by none of {sorted(passed)}"
        passed.add(step.module)


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_takes_about_ten_files(title: str) -> None:
    assert 8 <= len(WALKS[title]) <= 14


def test_modules_that_stay_apart_exist() -> None:
    for cells in rows(section("Why some modules stay apart", level=2)):
        assert set(cells[0].split(", ")) <= modules()


def test_no_class_is_derived_across_the_border_of_what_is_compiled() -> None:
    """mypyc refuses an interpreted base, and an interpreted subclass of a compiled class cannot be relied on."""
    compiled = compiled_modules()
    homes: dict[str, set[str]] = {}
    derived: list[tuple[str, str, str]] = []
    for module in modules():
        for node in ast.walk(ast.parse((ROOT / f"{module}.py").read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(module)
                derived += [(module, node.name, base.id) for base in node.bases if isinstance(base, ast.Name)]
    wrong = [
        f"{module}.{name} derives from {base} of {home}"
        for module, name, base in derived
        for home in homes.get(base, ())
        if (module in compiled) != (home in compiled)
    ]
    assert not wrong
