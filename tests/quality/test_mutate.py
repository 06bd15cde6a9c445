"""Changes that tests should notice, made to a toy module with tests that notice some of them."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from quality.mutate import Trial, apply, draw, mutate, possible_changes

TOY = '''
def clamp(value: int, low: int, high: int) -> int:
    """Text is left alone."""
    if value < low:
        return low
    return min(value, high)
'''

TESTS = """
from toy import clamp

def test_values():
    assert [clamp(value, 2, 5) for value in (1, 2, 4, 5, 6)] == [2, 2, 4, 5, 5]
"""


def changed_sources(source: str) -> set[str]:
    tree = ast.parse(textwrap.dedent(source))
    return {ast.unparse(apply(tree, change)) for change in possible_changes(tree)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a is None", {"a is not None"}),
        ("x = a + 7", {"x = a - 7", "x = a + 8", "pass"}),
        ("x = True", {"x = False", "pass"}),
        ("a and b", {"a or b"}),
        ("not a", {"a"}),
        ("f(a, b, key=c)", {"pass", "f(b, a, key=c)"}),
        ("total += step", {"total -= step", "pass"}),
    ],
)
def test_small_slips_are_made(source: str, expected: set[str]) -> None:
    assert changed_sources(source) >= expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "import os",
        "def f(a: int | None) -> list[int]: ...",
        "log.warning('%d lost', 3 + 4)",
        "if lost > 3:\n    log.warning('%d lost', lost)",
        "def __repr__(self): return f'{self.depth + 1}'",
        "name: int | None",
        "__slots__ = ('a', 'b')",
        "_log = logging.getLogger(__name__)",
        "Told = Callable[[int], None]",
        "if TYPE_CHECKING:\n    x = 1",
    ],
)
def test_what_no_test_should_notice_is_left_alone(source: str) -> None:
    assert changed_sources(source) == set()


@pytest.mark.parametrize("source", ["x = '%d lost' % count", "x = b'%d lost' % count", "x = f'{count}' + end"])
def test_formatting_is_not_taken_for_arithmetic(source: str) -> None:
    assert "operator" not in {change.what for change in possible_changes(ast.parse(source))}


def test_only_the_chosen_place_changes() -> None:
    tree = ast.parse("x = 1\ny = 1\n")
    second = next(change for change in possible_changes(tree) if (change.line, change.what) == (2, "constant"))
    assert ast.unparse(apply(tree, second)) == "x = 1\ny = 2"
    assert ast.unparse(tree) == "x = 1\ny = 1"


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy needs none, and each takes its time to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def trial(folder: Path, tests: str) -> Trial:
    (folder / "src").mkdir()
    (folder / "src" / "toy.py").write_text(TOY)
    (folder / "test_toy.py").write_text(tests)
    return Trial(folder, Path("src/toy.py"), (Path("test_toy.py"),))


def test_what_makes_a_difference_is_caught_and_the_rest_is_shown(tmp_path: Path) -> None:
    outcomes = list(mutate(trial(tmp_path, TESTS), count=100, seed=1))
    (same,) = (outcome.diff for outcome in outcomes if not outcome.caught)  # it gives the same values
    assert "-    if value < low:\n+    if value <= low:\n" in same
    assert len(outcomes) == 5
    assert (tmp_path / "src" / "toy.py").read_text() == TOY


def test_the_changes_of_some_lines_can_be_tried_again(tmp_path: Path) -> None:
    outcomes = mutate(trial(tmp_path, TESTS), count=100, seed=1, lines=[5, 6])
    assert {outcome.change.line for outcome in outcomes} == {5, 6}


def test_an_endless_loop_is_caught(tmp_path: Path) -> None:
    toy = trial(tmp_path, "def test_endless():\n    while True: pass\n")
    assert not toy.run(time_limit_s=60, cpu_limit_s=2)


def test_a_wait_without_end_is_caught(tmp_path: Path) -> None:
    toy = trial(tmp_path, "import threading\ndef test_waiting():\n    threading.Event().wait()\n")
    assert not toy.run(time_limit_s=1)


def test_tests_that_fail_anyway_judge_nothing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="before anything is changed"):
        next(mutate(trial(tmp_path, "def test_wrong():\n    assert False\n"), count=1, seed=1))


def test_the_same_seed_draws_the_same_changes() -> None:
    tree = ast.parse(TOY)
    assert draw(tree, count=3, seed=5) == draw(tree, count=3, seed=5)
    assert len(draw(tree, count=3, seed=5)) == 3
    assert len(draw(tree, count=100, seed=5)) == len(possible_changes(tree))
