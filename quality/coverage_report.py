"""The coverage of each package, by blocks (see `blocks`), beside the floor that it must not fall below.

    python -m quality.coverage_report FOLDER
    python -m quality.coverage_report FOLDER src/emberq/broker/topic.py     the blocks of a module that did not run

reads what `make test` and `make coverage` measure: the uncompiled tests without Spark, in the processes of pytest
itself. Code that only runs in commands that tests start counts as not covered, so `cli` looks worse than it is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from quality.blocks import blocks_of, load
from quality.twin import SOURCE

NOT_MEASURED = "spark"
"""It runs in tests that start Spark."""

FLOORS = {
    "admin": 96,
    "base": 94,
    "broker": 95,
    "cli": 66,
    "client": 95,
    "cluster": 98,
    "emberq": 92,
    "http": 98,
    "integrations": 89,
    "lookupd": 94,
    "nsqd": 95,
    "storage": 96,
    "tools": 95,
    "wire": 97,
}
"""Whole percents: what is covered, less what differs from run to run."""


def by_package(ran: Mapping[str, set[int]], source: Path = SOURCE) -> dict[str, float]:
    """The percentage of blocks that ran, for each package below `source`."""
    covered: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for path in source.rglob("*.py"):
        inside = path.relative_to(source).parts
        package = inside[0] if len(inside) > 1 else source.name
        if package != NOT_MEASURED:
            blocks = blocks_of(path.read_text())
            there[package] += len(blocks)
            covered[package] += len(blocks & ran.get(str(path), set()))
    return {package: 100 * covered[package] / there[package] for package in sorted(there) if there[package]}


def missed(path: Path, ran: Mapping[str, set[int]]) -> Iterable[str]:
    """The blocks of a module that did not run, one to a line."""
    source = path.read_text()
    lines = source.splitlines()
    for block in sorted(blocks_of(source) - ran.get(str(path.resolve()), set()), key=abs):
        what = "its other way: " if block < 0 else ""
        yield f"{path}:{abs(block)}: {what}{lines[abs(block) - 1].strip()}"


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
    parser = argparse.ArgumentParser(prog="python -m quality.coverage_report", description="Show what tests have run.")
    parser.add_argument("folder", type=Path, help="where the runs were saved")
    parser.add_argument("modules", type=Path, nargs="*", help="modules whose blocks that did not run are listed")
    arguments = parser.parse_args()
    ran = load(arguments.folder)
    for path in arguments.modules:
        print(*missed(path, ran), sep="\n")
    if not arguments.modules:
        text, fine = table(by_package(ran), FLOORS)
        print(text)
        sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
