"""The coverage of each package, lines and branches together, beside the floor that it must not fall below.

    python -m quality.coverage_report

reads what `make test` and `make coverage` measure: the uncompiled tests without Spark, in the processes of pytest
itself. Code that only runs in commands that tests start counts as not covered, so `cli` looks worse than it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLOORS = {
    "admin": 97,
    "base": 96,
    "broker": 97,
    "cli": 57,
    "client": 96,
    "cluster": 99,
    "emberq": 90,
    "http": 99,
    "integrations": 90,
    "lookupd": 97,
    "nsqd": 97,
    "storage": 98,
    "tools": 97,
    "wire": 98,
}
"""Whole percents: what is covered, less what differs from run to run."""


def by_package(report: Mapping[str, Any]) -> dict[str, float]:
    """The percentage of lines and branches that ran, for each package of a report of coverage's in JSON."""
    covered: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for name, file in report["files"].items():
        inside = Path(name).parts[2:]  # without src/emberq
        package = inside[0] if len(inside) > 1 else "emberq"
        summary = file["summary"]
        covered[package] += summary["covered_lines"] + summary["covered_branches"]
        there[package] += summary["num_statements"] + summary["num_branches"]
    return {package: 100 * covered[package] / there[package] for package in sorted(there) if there[package]}


def table(percents: Mapping[str, float], floors: Mapping[str, int]) -> tuple[str, bool]:
    """The lines to print, and whether every package is at its floor or above."""
    lines = [f"{'package':<10} covered  floor"]
    fine = True
    for package, percent in percents.items():
        floor = floors.get(package, 0)
        below = percent < floor
        fine = fine and not below
        lines.append(f"{package:<10} {percent:6.1f}% {floor:5d}%{'  below its floor' if below else ''}")
    return "\n".join(lines), fine


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", path], check=True)
        text, fine = table(by_package(json.loads(path.read_text())), FLOORS)
    print(text)
    if not fine:
        sys.exit(1)


if __name__ == "__main__":
    main()
