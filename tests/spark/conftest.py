"""Fixtures for the tests of the Spark package: one SparkSession for all of them, and nsqds with journals.

The folder is left out where PySpark is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.hurried_java import hurry_java
from tests.support.journal_nsqd import JournalNsqd, JournalNsqdProcess, JournalNsqdThread
from tests.support.planner_server import planner_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberq.spark.pipeline import Pipeline

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_*.py"]

SPARK_TIMEOUT_S = 300

StartNsqd = Callable[..., JournalNsqdProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with Spark the time that it takes to start on a machine that is busy with other things."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _hurried_java() -> Iterator[None]:
    """Every Java that these tests start spares itself what pays only when it lives for long."""
    with pytest.MonkeyPatch.context() as patch:
        hurry_java(patch)
        yield


@pytest.fixture(scope="session")
def _quick_planners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Planners of the session for all tests are forked."""
    from emberq.spark.java import local_worker_python

    folder = tmp_path_factory.mktemp("planners")
    with planner_server(folder, usual=local_worker_python()) as launcher, pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("emberq.spark.session"), "local_worker_python", lambda: launcher)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, _quick_planners: None) -> Iterator[SparkSession]:
    """Spark on this machine, with as few threads and as little waiting as a test wants."""
    from emberq.spark import session

    folder = tmp_path_factory.mktemp("spark")
    running = session(
        "tests",
        master="local[2,4]",
        config={
            "spark.ui.enabled": False,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder),
            "spark.driver.memory": "512m",
            "spark.sql.streaming.noDataMicroBatches.enabled": False,
            "spark.sql.codegen.wholeStage": False,
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # nor are single expressions compiled
        },
    )
    running.sparkContext.setLogLevel("ERROR")
    yield running
    running.stop()


@pytest.fixture
def start_journal_nsqd(tmp_path: Path) -> Iterator[StartNsqd]:
    """Starts nsqds that journal every topic; flags may be added."""
    number = count(1)
    with ExitStack() as running:

        def start(*flags: str) -> JournalNsqdProcess:
            return running.enter_context(JournalNsqdProcess(tmp_path / f"nsqd-{next(number)}", *flags))

        yield start


@pytest.fixture
def killable_nsqd(start_journal_nsqd: StartNsqd) -> JournalNsqdProcess:
    """One nsqd that journals every topic, as a process."""
    return start_journal_nsqd()


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[JournalNsqd]:
    """One nsqd that journals every topic."""
    with JournalNsqdThread(tmp_path / "nsqd") as running:
        yield running


def run_to_the_end(pipeline: Pipeline, spark: SparkSession, **settings: Any) -> None:
    """Run a pipeline until it has read what is there; `settings` are those of `PipelineRun`."""
    from emberq.spark.pipeline import PipelineRun

    run = PipelineRun(pipeline, spark, **settings)
    try:
        run.start()
        run.wait()
    finally:
        run.stop()
