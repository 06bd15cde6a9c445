"""Fixtures for the tests that start a whole Spark, or several of its processes. They take minutes: `make test-cluster`.

The folder is left out where PySpark is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.spark_cluster.process_family import ProcessFamily
from tests.support.journal_nsqd import JournalNsqdProcess

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]

TIMEOUT_S = 400
"""Generous: a busy machine takes minutes for what takes 40 seconds on a quiet one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[JournalNsqdProcess]:
    """An nsqd that journals every topic."""
    with JournalNsqdProcess(tmp_path / "nsqd") as running:
        yield running


@pytest.fixture
def family(tmp_path: Path) -> Iterator[ProcessFamily]:
    """Processes that end with the test."""
    with ProcessFamily(tmp_path / "processes") as running:
        yield running
