"""A run over several targets: each in a process of its own, so that what one leaves behind is not blamed on the next.

Inputs that reach something new are kept in <output>/corpus, and the next run begins with them. Findings are written to
<output>/findings, each with a text beside it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.engine import Arcs, Finding, Fuzzer, Score, keep, kept_inputs
from tests.fuzz.oracle import Oracle
from tests.fuzz.targets import TARGETS

PROGRESS_S = 30.0


class Order(NamedTuple):
    """What one process does."""

    target: str
    seed: int
    seconds: float
    output: Path


def run_all(orders: Sequence[Order], *, jobs: int) -> dict[str, Score]:
    """Carry out the orders, so many at a time, and show the score of each."""
    scores: dict[str, Score] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        running = {pool.submit(fuzz, order): order for order in orders}
        for done in as_completed(running):
            order = running[done]
            scores[order.target] = done.result()
            print(score_line(order.target, scores[order.target]), flush=True)
    return scores


def fuzz(order: Order) -> Score:
    """Fuzz one target for its time."""
    target = TARGETS[order.target]()
    oracle, arcs = Oracle(), Arcs(target.modules)
    shown_s = time.monotonic()
    with oracle.watching(interrupts=True), target.opened(), arcs.collecting():
        fuzzer = Fuzzer(target, oracle, seed=order.seed, arcs=arcs)
        fuzzer.load([*target.seeds(), *kept_inputs(target.name, order.output / "corpus")])
        for score in fuzzer.run(seconds=order.seconds):
            if time.monotonic() - shown_s > PROGRESS_S:
                shown_s = time.monotonic()
                print("  " + score_line(target.name, score), flush=True)
    score = fuzzer.score
    score.lines = arcs.line_count()
    for data in score.kept:
        keep(order.output / "corpus" / target.name, data)
    for finding in score.findings:
        _write_down(finding, order)
    return score


def _write_down(finding: Finding, order: Order) -> None:
    path = keep(order.output / "findings", finding.data)
    path = path.rename(path.with_name(f"{finding.target}-{path.name}"))
    verdict = finding.verdict
    alone = "" if finding.is_repeatable else " (not by itself: only behind the inputs before it)"
    path.with_suffix(".txt").write_text(
        f"{verdict.kind} {verdict.place}{alone}\nseed {order.seed}\n{finding.data!r}\n\n{verdict.text}\n"
    )
    print(f"FINDING {finding.target}: {verdict.kind} {verdict.place}{alone}", flush=True)
    print(f"  again: python -m tests.fuzz --again {path}", flush=True)


def score_line(name: str, score: Score) -> str:
    """How far a target has come, in a line."""
    rate = score.plays / score.cpu_s if score.cpu_s else 0.0
    return (
        f"{name:18} {score.plays:9} inputs  {rate:7.0f}/s  {score.cpu_s:6.0f} s CPU  corpus {len(score.kept):5}"
        f"  arcs {score.arcs:6}  lines {score.lines:6}  findings {len(score.findings)}"
    )
