"""A stream into files while its driver, one of its workers and an nsqd are killed: every message is one row.

`make chaos-spark` does the same with executors of a cluster, many times and at random.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.chaos.spark_run import Mode, SparkRun


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", [Mode.JOURNAL, Mode.CHANNEL])
def test_every_message_is_one_row_when_worker_nsqd_and_driver_are_killed(
    spark: SparkSession, tmp_path: Path, mode: Mode
) -> None:
    # What the killed driver held comes at once, not after its timeout.
    with SparkRun(tmp_path, mode=mode, seed=7, master="local[2,4]", nsqd_flags=["--requeue-on-disconnect"]) as run:
        run.wait_for_a_batch()
        assert run.kill_worker()
        run.wait_for_a_batch()
        run.kill_nsqd()
        run.wait_for_a_batch()
        run.kill_driver()
        run.drain(spark)
        run.check()
