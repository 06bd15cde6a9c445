"""The twin rule: the tests of `src/emberq/x/y.py` are `tests/x/test_y.py` and `tests/x/test_y_<aspect>.py`.

Where two names fit, the longer one owns the test: `test_disk_queue_sync.py` belongs to `disk_queue_sync`, not to
`disk_queue`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "emberq"
TESTS = ROOT / "tests"

WHOLE_SYSTEM = {
    "attack",
    "bench",
    "browser",
    "chaos",
    "conformance",
    "crash",
    "docs",
    "fuzz",
    "integration",
    "quality",
    "release",
    "spark_cluster",
}
"""Folders whose tests are of the whole system, the benchmarks, the documents, releases or the tools for tests."""


def modules(source: Path = SOURCE) -> list[Path]:
    """All modules below `source`, relative to it, without the `__init__.py` files."""
    return sorted(path.relative_to(source) for path in source.rglob("*.py") if path.name != "__init__.py")


def twins(tests: Path = TESTS) -> list[Path]:
    """All test files that must have a module, relative to `tests`."""
    found = (path.relative_to(tests) for path in tests.rglob("test_*.py"))
    return sorted(path for path in found if path.parts[0] not in WHOLE_SYSTEM)


def owner(test: Path, among: list[Path]) -> Path | None:
    """The module that the test file belongs to."""
    name = test.stem.removeprefix("test_")
    fitting = [
        module
        for module in among
        if module.parent == test.parent and (name == module.stem or name.startswith(f"{module.stem}_"))
    ]
    return max(fitting, key=lambda module: len(module.stem), default=None)


def files_testing(module: Path, *, source: Path = SOURCE, tests: Path = TESTS) -> list[Path]:
    """The test files of a module, all relative to their trees."""
    among = modules(source)
    return [test for test in twins(tests) if owner(test, among) == module]
