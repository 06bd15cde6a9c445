"""The coverage of packages is added up from modules, and compared with their floors."""

from __future__ import annotations

from pathlib import Path

import pytest

from quality.coverage_report import by_package, missed, table

MODULE = "def f(x):\n    if x:\n        return 1\n    return 2\n"
"""Four blocks: 2, 3, -2, 4."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "emberq"
    for name in ("broker/topic.py", "broker/store.py", "nsqd/api/stats.py", "sync.py", "spark/source.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MODULE)
    (folder / "wire").mkdir()
    (folder / "wire" / "__init__.py").write_text('"""Nothing to run."""\n')
    return folder


def test_the_blocks_of_a_package_count_together(source: Path) -> None:
    ran = {
        str(source / "broker" / "topic.py"): {2, 3},
        str(source / "broker" / "store.py"): {2, 3, -2, 4},
        str(source / "sync.py"): {2, 3, -2, 4},
    }
    assert by_package(ran, source) == {"broker": 75.0, "emberq": 100.0, "nsqd": 0.0}


def test_what_did_not_run_is_listed(source: Path) -> None:
    path = source / "sync.py"
    assert list(missed(path, {str(path): {2, 3}})) == [f"{path}:2: its other way: if x:", f"{path}:4: return 2"]


@pytest.mark.parametrize(("percent", "fine"), [(74.9, False), (75.0, True)])
def test_a_package_below_its_floor_is_named(percent: float, fine: bool) -> None:
    text, result = table({"broker": percent, "wire": 10.0}, {"broker": 75})
    assert result is fine
    assert [line.split()[0] for line in text.splitlines() if "below" in line] == ([] if fine else ["broker"])
