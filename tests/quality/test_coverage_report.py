"""The coverage of packages is added up from files, and compared with their floors."""

from __future__ import annotations

from typing import Any

import pytest

from quality.coverage_report import by_package, table


def file(lines: tuple[int, int], branches: tuple[int, int]) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": lines[0],
            "num_statements": lines[1],
            "covered_branches": branches[0],
            "num_branches": branches[1],
        }
    }


def test_lines_and_branches_of_a_package_count_together() -> None:
    report = {
        "files": {
            "src/emberq/broker/topic.py": file((8, 10), (1, 4)),
            "src/emberq/broker/store.py": file((6, 6), (0, 0)),
            "src/emberq/nsqd/api/stats.py": file((1, 2), (0, 0)),
            "src/emberq/sync.py": file((1, 1), (0, 0)),
            "src/emberq/wire/__init__.py": file((0, 0), (0, 0)),
        }
    }
    assert by_package(report) == {"broker": 75.0, "emberq": 100.0, "nsqd": 50.0}


@pytest.mark.parametrize(("percent", "fine"), [(74.9, False), (75.0, True)])
def test_a_package_below_its_floor_is_named(percent: float, fine: bool) -> None:
    text, result = table({"broker": percent, "wire": 10.0}, {"broker": 75})
    assert result is fine
    assert [line.split()[0] for line in text.splitlines() if "below" in line] == ([] if fine else ["broker"])
