"""nsqd is killed under load and started again: a short run of what `make chaos` does for many minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.crash_run import CrashRun, check


@pytest.mark.parametrize(("sync", "kills"), [("always", 4), ("interval", 1), ("never", 1)])
def test_nothing_acknowledged_is_lost_when_nsqd_is_killed(tmp_path: Path, sync: str, kills: int) -> None:
    with CrashRun(tmp_path, sync=sync, seed=kills) as run:
        run.kill(kills, longest_life_s=1.2)
        run.drain()
        check(run)
