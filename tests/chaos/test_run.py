"""A chaos run of some seconds, with few faults: the whole machinery, from the load to the report.

`make chaos` runs it for a quarter of an hour, with every fault there is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.history import read_history
from tests.chaos.report import Measurements, html_report, text_report
from tests.chaos.run import ChaosRun, Plan

FEW = frozenset({"kill", "stop", "freeze", "reset", "half open", "torn publish"})


def test_every_promise_is_kept_under_a_few_faults(tmp_path: Path) -> None:
    plan = Plan(5, 10.0, ("interval",), rate=60.0, pause_s=(0.2, 0.8), longest_s=1.0, only=FEW)
    outcome = asyncio.run(ChaosRun(plan, tmp_path, history_path=tmp_path / "history.tsv").run())
    words = "\n".join(outcome.verdict.lines() + outcome.incidents)
    assert outcome.is_clean, words
    assert outcome.verdict.counts["finished"] > 0, words

    measured = Measurements(outcome.nodes, backlogs=outcome.backlogs)
    measured.take(read_history(tmp_path / "history.tsv"))
    assert set(measured.fault_counts) <= FEW
    assert measured.fault_counts.total() > 0
    told = text_report("a run", outcome.verdict, measured, incidents=[], notes=["a note"])
    assert "broken promises: none" in told
    assert "interval: publish to OK" in told
    page = html_report("a run", outcome.verdict, measured, incidents=[], notes=["a note"])
    assert "every promise was kept" in page
    assert page.count("<svg") == 3
