"""A stream into files while the driver and an nsqd are killed: every message that was published arrives once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import StartNsqd
from tests.spark.journal_nsqd import JournalNsqd
from tests.spark.test_stream import rows_in, run_to_the_end

ROOT = Path(__file__).parents[2]
BATCH_TIMEOUT_S = 240.0
"""A driver takes seconds to its first batch, but minutes on a machine that is busy with other things."""


@contextmanager
def driver(nsqds: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver with its Java and its workers, in a process group of its own, which is killed in the end."""
    command = [sys.executable, "-m", "tests.spark.archiving_driver", nsqds, "clicks", str(folder)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with (folder / "driver.log").open("ab") as log:
        running = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield running
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def commits(folder: Path) -> int:
    """How many micro-batches are done."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def wait_for_commit(number: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until so many micro-batches are done. Looked at rarely: it is the driver that should have the processor."""
    deadline_s = time.monotonic() + BATCH_TIMEOUT_S
    while commits(folder) < number:
        assert process.poll() is None, (folder / "driver.log").read_text()
        assert time.monotonic() < deadline_s, "no micro-batch was done in time"
        time.sleep(0.1)


def publish_some(nsqd: JournalNsqd, start: int) -> None:
    for first in range(start, start + 20_000, 1000):
        nsqd.publish("clicks", [b"%d" % number for number in range(first, first + 1000)])


@pytest.mark.timeout(600)
def test_rows_are_unique_and_are_all_when_driver_and_nsqd_are_killed(
    spark: SparkSession, start_journal_nsqd: StartNsqd, tmp_path: Path
) -> None:
    first, second = start_journal_nsqd(), start_journal_nsqd()
    nsqds = f"{first.http},{second.http}"
    for nsqd in (first, second):
        publish_some(nsqd, 0)
    with driver(nsqds, tmp_path) as process:
        wait_for_commit(1, tmp_path, process)
        first.kill()
        publish_some(second, 20_000)
        first.start()
        publish_some(first, 20_000)
        wait_for_commit(commits(tmp_path) + 1, tmp_path, process)
    # The driver is dead, most likely within a micro-batch. Another one goes on.
    publish_some(first, 40_000)
    run_to_the_end(spark, tmp_path, nsqd=nsqds, topic="clicks", maxRowsPerTrigger=30_000)
    rows = rows_in(spark, tmp_path)
    assert rows.count() == 100_000
    assert rows.select("nsqd", "offset").distinct().count() == 100_000
    assert rows.select("nsqd", "body").distinct().count() == 100_000
