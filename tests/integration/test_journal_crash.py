"""nsqd is killed under load and started again: a short run of what `make chaos KILLS=200` does for many minutes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.run import ChaosRun, Plan


@pytest.mark.parametrize(("sync", "kills"), [("always", 4), ("interval", 1), ("never", 1)])
def test_nothing_confirmed_is_lost_or_stored_twice_when_nsqd_is_killed(tmp_path: Path, sync: str, kills: int) -> None:
    plan = Plan(kills, 0.0, (sync,), rate=300.0, kills={sync: kills}, has_all_topics=False)
    run = ChaosRun(plan, tmp_path, history_path=tmp_path / "history.tsv")
    outcome = asyncio.run(run.run())
    assert outcome.verdict.counts["confirmed"] > 0
    assert outcome.is_clean, "\n".join(outcome.verdict.lines() + outcome.incidents)
