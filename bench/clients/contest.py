"""Rounds by turns: each library does a work, every time on a server started anew, then the next library does it.

Each round begins with another library. The number that counts is the median of the rounds. Of the queues in
`queue_work` those are left out that this machine does not have. A run is repeated when the host of a virtual machine
took much of it away meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import machine
from bench.clients.plan import OURS
from bench.clients.queue_server import Unavailable
from bench.clients.queue_work import QueueWork
from bench.clients.work import Work
from bench.comparison import Observer, Row
from bench.connection import reason
from bench.failure import LoadFailure
from bench.metric import Metric, advantage
from bench.options import Options
from bench.stage import UNIFORM, Stage

_TOLERATED_THEFT = 0.05
_ATTEMPTS = 3


@dataclass(kw_only=True)
class Contest:
    """What was found. The values of the rows are those of libraries; `failures` and `absences` are sentences."""

    rows: list[Row] = field(default_factory=list)
    queue_rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)  # of queues and their clients
    absences: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def hold(options: Options, observer: Observer) -> Contest:
    contest = Contest()
    _look_for_queues(options, contest)
    for work in options.client_works:
        rows: dict[str, Row] = {}
        for round_index in range(options.rounds):
            for library in _order(_libraries(work, contest), round_index):
                observer.began(work=work.name, side=library, round_number=round_index + 1)
                try:
                    metrics, stolen = _undisturbed(lambda: _run(work, library, options, round_index))  # noqa: B023
                except (LoadFailure, OSError) as failure:
                    contest.failures.append(f"{work.name}: {library}, round {round_index + 1}: {reason(failure)}")
                    continue
                observer.ended(metrics)
                if stolen > _TOLERATED_THEFT:
                    run = f"{work.name}, {library}, round {round_index + 1}"
                    contest.cautions.append(f"{run}: the host took {stolen:.0%} of the machine away")
                _enter(rows, work, library, metrics)
        found = contest.queue_rows if isinstance(work, QueueWork) else contest.rows
        found += rows.values()
    return contest


def _undisturbed(run: Callable[[], list[Metric]]) -> tuple[list[Metric], float]:
    """What a run found, and the share of the machine that the host took meanwhile. If that is much, it runs again."""
    for _ in range(_ATTEMPTS):
        began_s, stolen_before_s = time.monotonic(), machine.stolen_s()
        metrics = run()
        wanted_s = (time.monotonic() - began_s) * (os.cpu_count() or 1)
        stolen = (machine.stolen_s() - stolen_before_s) / wanted_s
        if stolen <= _TOLERATED_THEFT:
            break
    return metrics, stolen


def _look_for_queues(options: Options, contest: Contest) -> None:
    wanted = {queue for work in options.client_works if isinstance(work, QueueWork) for queue in work.libraries}
    for queue in sorted(wanted):
        try:
            contest.versions[queue] = options.queue_source(queue).version(queue)
        except Unavailable as absence:
            contest.absences.append(f"{queue} is left out: {absence}")


def _libraries(work: Work | QueueWork, contest: Contest) -> list[str]:
    is_there = contest.versions if isinstance(work, QueueWork) else work.libraries
    return [library for library in work.libraries if library in is_there]


def times_best_other(row: Row) -> float | None:
    """How many times better ours is than the best of the others; None where that means nothing."""
    ours = row.median(OURS)
    others = [median for library in row.values if library != OURS and (median := row.median(library)) is not None]
    if ours is None or not others:
        return None
    return advantage(ours, max(others) if row.better == "higher" else min(others), row.better)


def _order(libraries: list[str], round_index: int) -> list[str]:
    first = round_index % len(libraries)
    return [*libraries[first:], *libraries[:first]]


def _run(work: Work | QueueWork, library: str, options: Options, round_index: int) -> list[Metric]:
    size = options.size(work)
    topic = f"bench_{work.name}_{library}_{os.getpid()}_{round_index}"
    if isinstance(work, QueueWork):
        return work.run(library, options.queue_source(library), size=size, topic=topic)
    with options.ours.serve(work.flags(size.messages)) as server:
        stage = Stage(server=server, size=size, topic=topic, consumers=1, shuffled=False, bodies=UNIFORM)
        return work.run(stage, library)


def _enter(rows: dict[str, Row], work: Work | QueueWork, library: str, metrics: list[Metric]) -> None:
    for metric in metrics:
        if metric.measure not in rows:
            rows[metric.measure] = Row(
                work=work.name, measure=metric.measure, unit=metric.unit, better=metric.better, values={}
            )
        rows[metric.measure].values.setdefault(library, []).append(metric.value)
