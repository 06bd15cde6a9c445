"""Blocks are found and noted, and marked modules do what they did before."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from quality.blocks import MarkingLoader, blocks_of, load, seen
from quality.twin import ROOT


def loaded(path: Path, source: str) -> ModuleType:
    path.write_text(textwrap.dedent(source).lstrip())
    loader = MarkingLoader(path.stem, str(path))
    module = module_from_spec(ModuleSpec(path.stem, loader, origin=str(path)))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "argument", "missed"),
    [
        ("if x:\n        y = 1\n    return x", True, {-3}),
        ("if x:\n        y = 1\n    return x", False, {4}),
        ("if x:\n        return 1\n    return 2", True, {-3, 5}),
        ("if x == 1:\n        y = 1\n    elif x:\n        y = 2\n    else:\n        y = 3", 1, {5, 6, 8}),
        ("for y in x:\n        break\n    return 3", [], {4}),
        ("for y in x:\n        break\n    return 3", [1], {-3}),
        ("for y in x:\n        break\n    else:\n        return 3", [1], {6}),
        ("while True:\n        if x:\n            break\n    return 1", 1, {-4}),
        (
            "try:\n        int(x)\n    except ValueError:\n        return 1\n    finally:\n        y = 2\n    return 3",
            "1",
            {6},
        ),
        (
            "try:\n        int(x)\n    except ValueError:\n        return 1\n    finally:\n        y = 2\n    return 3",
            "a",
            {9},
        ),
        ("match x:\n        case 1:\n            y = 1", 1, {-3}),
        ("match x:\n        case 1:\n            y = 1", 2, {5}),
        ("match x:\n        case 1:\n            y = 1\n        case _:\n            y = 2", 2, {5}),
        ("return [y for y in x if y]", [0], set()),
    ],
)
def test_a_block_that_did_not_run_is_missed(tmp_path: Path, source: str, argument: object, missed: set[int]) -> None:
    module = loaded(tmp_path / "m.py", f'def f(x):\n    """Not a block."""\n    {source}\n')
    module.f(argument)
    assert blocks_of((tmp_path / "m.py").read_text()) - seen[str(tmp_path / "m.py")].keys() == missed


SOURCE = '''
    """A module."""

    from __future__ import annotations

    from typing import TYPE_CHECKING

    if TYPE_CHECKING:
        import nothing_of_the_kind

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, number: Any) -> int:
            """Add."""
            if number < 0:
                raise ValueError(
                    "too small",
                )
            self.count += number
            return self.count

        def only_described(self) -> None:
            """Says what it does, and does nothing."""

        def declared(self) -> None: ...
    '''


def test_a_marked_module_behaves_like_the_unmarked_one(tmp_path: Path) -> None:
    counter = loaded(tmp_path / "m.py", SOURCE).Counter()
    assert counter.add(3) == 3
    assert (counter.add.__doc__, counter.only_described()) == ("Add.", None)
    with pytest.raises(ValueError, match="too small") as failure:
        counter.add(-1)
    assert failure.traceback[-1].lineno + 1 == 17
    assert blocks_of((tmp_path / "m.py").read_text()) == seen[str(tmp_path / "m.py")].keys()


def test_marked_code_is_kept_beside_the_usual_one_and_made_anew_when_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "m.py"
    assert loaded(path, "def f():\n    return 1\n").f() == 1
    (kept,) = tmp_path.rglob("*.pyc")
    assert "blocks" in kept.name
    assert loaded(path, "def f():\n    return 100\n").f() == 100


def test_pytest_saves_what_ran(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import pytest\n"
        "from emberq.wire.parameter import parse_int64\n"
        '@pytest.mark.parametrize("raw", [b"", b"x"])\n'
        "def test_it(raw):\n"
        "    parse_int64(raw)\n"
    )
    plugin = ("-p", "quality.blocks", "--blocks", str(tmp_path / "blocks"))
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", "/dev/null", *plugin]
    subprocess.run([*command, str(test)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    parameter = ROOT / "src" / "emberq" / "wire" / "parameter.py"
    lines = parameter.read_text().splitlines()
    ran = {lines[block - 1].strip() for block in load(tmp_path / "blocks")[str(parameter)] if block > 0}
    assert {"return 0", "return None"} <= ran
    assert not any("value = 0" in line for line in ran)
    (saved,) = (tmp_path / "blocks").iterdir()
    assert json.loads(saved.read_text())
