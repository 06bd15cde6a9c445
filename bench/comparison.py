"""Rounds by turns.

What else happens on the machine must hit both servers alike, so a work is done by both before anything else,
and the order is swapped each round. What slows the machine for some minutes must hit no work in all its rounds, so all
works are done once before the next round, which begins with another work. The number that counts is the median of the
rounds: of a ratio, too, for the machine is as fast for both sides of a round, and not from one round to the next.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from bench import machine
from bench.connection import reason
from bench.failure import LoadFailure
from bench.metric import Better, Metric, advantage
from bench.options import Options
from bench.scenario import Scenario
from bench.server import Source
from bench.stage import Stage

OURS, PEER = "ours", "peer"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measure of one work: the value of every round, for each server."""

    work: str
    measure: str
    unit: str
    better: Better
    values: dict[str, list[float]]

    def median(self, side: str) -> float | None:
        return median(self.values[side]) if self.values.get(side) else None

    @property
    def ratio(self) -> float | None:
        rounds = zip(self.values.get(OURS, ()), self.values.get(PEER, ()), strict=False)
        ratios = [advantage(ours, peer, self.better) for ours, peer in rounds]
        known = [ratio for ratio in ratios if ratio is not None]
        return median(known) if known else None


@dataclass(kw_only=True)
class Outcome:
    """All that a benchmark found. `failures` are sentences."""

    servers: dict[str, str]  # their versions
    load_average: float  # of the machine when we began: what others did on it
    halts_at_once: bool = False  # see `machine`
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Observer(Protocol):
    """Shows how far it is."""

    def began(self, *, work: str, side: str, round_number: int) -> None: ...

    def ended(self, metrics: list[Metric]) -> None: ...


def compare(options: Options, observer: Observer) -> Outcome:
    outcome = Outcome(
        servers={side: source.version() for side, source in _order(options, 0)},
        load_average=os.getloadavg()[0],
        halts_at_once=machine.halts_at_once(),
    )
    rows: dict[Scenario, dict[str, Row]] = {scenario: {} for scenario in options.scenarios}
    for round_index in range(options.rounds):
        for scenario in _turned(list(rows), round_index / options.rounds):
            try:
                _add_round(rows[scenario], scenario, options, round_index, observer)
            except LoadFailure as failure:
                outcome.failures.append(f"{scenario.name}: {failure}")
                del rows[scenario]
    outcome.rows += [row for of_scenario in rows.values() for row in of_scenario.values()]
    return outcome


def _turned(scenarios: list[Scenario], share: float) -> list[Scenario]:
    """The scenarios, beginning behind that share of them: the first of a round find the machine as the last left it."""
    first = int(len(scenarios) * share)
    return scenarios[first:] + scenarios[:first]


def _add_round(
    rows: dict[str, Row], scenario: Scenario, options: Options, round_index: int, observer: Observer
) -> None:
    for side, source in _order(options, round_index):
        observer.began(work=scenario.name, side=side, round_number=round_index + 1)
        os.sync()  # or the disk is still busy with what the work before has written
        try:
            metrics = _run(scenario, source, options, round_index)
        except (LoadFailure, OSError) as failure:
            raise LoadFailure(f"{side}, round {round_index + 1}: {reason(failure)}") from failure
        observer.ended(metrics)
        for metric in metrics:
            row = rows.setdefault(metric.measure, _empty_row(scenario, metric))
            row.values.setdefault(side, []).append(metric.value)


def _order(options: Options, round_index: int) -> list[tuple[str, Source]]:
    sides = [(OURS, options.ours)]
    if options.peer is not None:
        sides.append((PEER, options.peer))
    return sides if round_index % 2 == 0 else sides[::-1]


def _empty_row(scenario: Scenario, metric: Metric) -> Row:
    return Row(work=scenario.name, measure=metric.measure, unit=metric.unit, better=metric.better, values={})


def _run(scenario: Scenario, source: Source, options: Options, round_index: int) -> list[Metric]:
    size = options.size(scenario)
    flags = scenario.flags(size.messages)
    own_flags = scenario.own_flags or (*flags, "--mem-queue-bytes=0")  # a limit that other nsqds do not have
    with source.serve(own_flags if source.knows(own_flags) else flags) as server:
        stage = Stage(
            server=server,
            size=size,
            topic=f"bench_{scenario.name}_{os.getpid()}_{round_index}",
            consumers=options.consumers,
            shuffled=options.shuffled,
            bodies=scenario.bodies,
        )
        return scenario.run(stage)
