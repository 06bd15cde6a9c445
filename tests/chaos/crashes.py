"""Hundreds of kills; `make chaos` runs them. (The name keeps them out of `make test`, which has a short run.)

KILLS sets how many there are, SEED repeats a run as far as the machine lets it be repeated.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.crash_run import CrashRun, check, summary

KILLS = int(os.environ.get("KILLS", "200"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


@pytest.mark.timeout(60 + 10 * KILLS)
@pytest.mark.parametrize(("sync", "kills"), [("always", KILLS), ("interval", KILLS // 4), ("never", KILLS // 4)])
def test_nothing_acknowledged_is_lost_however_often_nsqd_is_killed(tmp_path: Path, sync: str, kills: int) -> None:
    print(f"\nSEED={SEED} {sync}: {kills} kills", flush=True)
    with CrashRun(tmp_path, sync=sync, seed=SEED) as run:
        run.kill(kills)
        run.drain()
        print(summary(run, sync=sync), flush=True)
        check(run)
