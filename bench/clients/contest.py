"""Rounds by turns: each library does a work, every time on the same nsqd started anew, then the next library does it.

Each round begins with another library. The number that counts is the median of the rounds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from bench.clients.plan import LIBRARIES, OTHERS, OURS
from bench.clients.work import Work
from bench.comparison import Observer, Row
from bench.connection import reason
from bench.failure import LoadFailure
from bench.metric import Metric, advantage
from bench.options import Options
from bench.stage import UNIFORM, Stage


@dataclass(kw_only=True)
class Contest:
    """What was found. The values of the rows are those of libraries; `failures` are sentences."""

    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def hold(options: Options, observer: Observer) -> Contest:
    contest = Contest()
    for work in options.client_works:
        rows: dict[str, Row] = {}
        for round_index in range(options.rounds):
            for library in _order(round_index):
                observer.began(work=work.name, side=library, round_number=round_index + 1)
                try:
                    metrics = _run(work, library, options, round_index)
                except (LoadFailure, OSError) as failure:
                    contest.failures.append(f"{work.name}: {library}, round {round_index + 1}: {reason(failure)}")
                    continue
                observer.ended(metrics)
                _enter(rows, work, library, metrics)
        contest.rows += rows.values()
    return contest


def times_best_other(row: Row) -> float | None:
    """How many times better ours is than the best of the others; None where that means nothing."""
    ours = row.median(OURS)
    others = [median for library in OTHERS if (median := row.median(library)) is not None]
    if ours is None or not others:
        return None
    return advantage(ours, max(others) if row.better == "higher" else min(others), row.better)


def _order(round_index: int) -> list[str]:
    first = round_index % len(LIBRARIES)
    return [*LIBRARIES[first:], *LIBRARIES[:first]]


def _run(work: Work, library: str, options: Options, round_index: int) -> list[Metric]:
    size = options.size(work)
    with options.ours.serve(work.flags(size.messages)) as server:
        topic = f"bench_{work.name}_{library}_{os.getpid()}_{round_index}"
        stage = Stage(server=server, size=size, topic=topic, consumers=1, shuffled=False, bodies=UNIFORM)
        return work.run(stage, library)


def _enter(rows: dict[str, Row], work: Work, library: str, metrics: list[Metric]) -> None:
    for metric in metrics:
        if metric.measure not in rows:
            rows[metric.measure] = Row(
                work=work.name, measure=metric.measure, unit=metric.unit, better=metric.better, values={}
            )
        rows[metric.measure].values.setdefault(library, []).append(metric.value)
