"""Spark and its nsqds killed at random; `make chaos-spark` runs it. (The name keeps it out of `make test`.)

KILLS sets how many there are in each mode, SEED repeats a run as far as the machine lets it be repeated.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.spark_processes import CLUSTER
from tests.chaos.spark_run import NO_SPARK, Mode, SparkRun

KILLS = int(os.environ.get("KILLS", "20"))
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
