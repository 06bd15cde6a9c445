"""Spark and its nsqds killed at random; `make chaos-spark` runs it. (The name keeps it out of `make test`.)

KILLS sets how many there are in each mode, ROWS how many messages the table of a topic and its archive has, and SEED
repeats a run as far as the machine lets it be repeated.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.spark_processes import CLUSTER
from tests.chaos.spark_run import NO_SPARK, Mode, SparkRun
from tests.chaos.spark_table import TableRun

KILLS = int(os.environ.get("KILLS", "20"))
ROWS = int(os.environ.get("ROWS", "400000"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


MODES = [
    *((mode, CLUSTER, KILLS) for mode in Mode),
    *((mode, NO_SPARK, 5 * KILLS) for mode in (Mode.CHANNEL, Mode.CLASSIC_CHANNEL)),
]
"""Without Spark a kill takes a second or two, so there are more."""


@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize(("mode", "master", "kills"), MODES)
def test_every_message_is_one_row_whatever_is_killed(tmp_path: Path, mode: Mode, master: str, kills: int) -> None:
    print(f"\nSEED={SEED} {mode}, Spark: {master}: {kills} kills", flush=True)
    with SparkRun(tmp_path, mode=mode, seed=SEED, master=master) as run:
        run.kill_often(kills)
        run.drain()
        print(run.check(), flush=True)


@pytest.mark.timeout(1200 + 120 * KILLS + ROWS // 5000)
def test_a_topic_and_its_archive_are_one_table_whenever_the_archiver_is_killed(tmp_path: Path) -> None:
    print(f"\nSEED={SEED} table: {ROWS} rows, {KILLS} kills", flush=True)
    with TableRun(tmp_path, rows=ROWS, kills=KILLS, seed=SEED) as run:
        run.count_and_kill()
        print(run.finish(), flush=True)
