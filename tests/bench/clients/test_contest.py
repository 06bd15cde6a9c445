"""Turns and ratios, with works that load nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from bench import machine
from bench.clients.contest import hold, times_best_other
from bench.clients.job import Way
from bench.clients.queue_work import QUEUE_WORKS, QueueWork, Setting
from bench.clients.work import Work
from bench.comparison import Row
from bench.failure import LoadFailure
from bench.metric import Better, Metric
from bench.options import Options, parse
from bench.stage import Size, Stage


class Diary:
    """An observer that remembers the order of things."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def began(self, *, work: str, side: str, round_number: int) -> None:
        self.entries.append(f"{side} {round_number}")

    def ended(self, metrics: list[Metric]) -> None:
        assert metrics


@dataclass(frozen=True, kw_only=True)
class Pretence(Work):
    """Gives the rates it was told, and fails where it was told none."""

    name: str = "pretence"
    summary: str = ""
    size: Size = field(default_factory=Size)
    way: Way = Way.HANDLER
    width: int = 1
    rates: dict[str, float] = field(default_factory=dict)

    def run(self, stage: Stage, library: str) -> list[Metric]:
        if library not in self.rates:
            raise LoadFailure("lost a message")
        return [Metric("rate", self.rates[library], "msg/s", "higher")]


def options_for(work: Work | QueueWork, *, rounds: int) -> Options:
    return replace(parse(["--nsqd", "127.0.0.1:1", "--rounds", str(rounds)]), client_works=(work,))


RATES = {"emberq": 600.0, "pynsq": 10.0, "gnsq": 20.0, "ansq": 60.0}


def test_each_round_begins_with_another_library() -> None:
    diary = Diary()
    hold(options_for(Pretence(rates=RATES), rounds=2), diary)
    assert diary.entries == [
        *("emberq 1", "pynsq 1", "gnsq 1", "ansq 1"),
        *("pynsq 2", "gnsq 2", "ansq 2", "emberq 2"),
    ]


def test_ours_is_compared_with_the_best_of_the_others() -> None:
    (row,) = hold(options_for(Pretence(rates=RATES), rounds=3), Diary()).rows
    assert row.values["ansq"] == [60.0] * 3
    assert times_best_other(row) == 10.0


def test_a_library_that_fails_is_told_and_left_out_and_the_others_go_on() -> None:
    rates = {library: rate for library, rate in RATES.items() if library != "ansq"}
    contest = hold(options_for(Pretence(rates=rates), rounds=1), Diary())
    assert contest.failures == ["pretence: ansq, round 1: lost a message"]
    assert times_best_other(contest.rows[0]) == 30.0


def test_a_queue_that_is_not_there_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    work = replace(QUEUE_WORKS[0], settings={"emberq": Setting(confirmed="yes"), "redis": Setting(confirmed="no")})
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(QueueWork, "run", lambda *_, **__: [Metric("in: rate", 5.0, "msg/s", "higher")])
    contest = hold(options_for(work, rounds=2), Diary())
    assert contest.absences == ["redis is left out: there is no redis-server on PATH"]
    assert contest.rows == []
    assert [row.values for row in contest.queue_rows] == [{"emberq": [5.0, 5.0]}]


def test_a_run_during_which_the_host_took_the_machine_away_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter(range(1, 100))
    monkeypatch.setattr(Pretence, "run", lambda *_: [Metric("rate", next(rates), "msg/s", "higher")])
    monkeypatch.setattr(Pretence, "libraries", ("emberq",))
    thefts = iter([0.0, 1e6, 1e6, 1e6])  # all of the machine during the first run, nothing during the second
    monkeypatch.setattr(machine, "stolen_s", lambda: next(thefts))
    contest = hold(options_for(Pretence(), rounds=1), Diary())
    assert contest.rows[0].values == {"emberq": [2]}
    assert contest.cautions == []


@pytest.mark.parametrize(
    ("better", "values", "expected"),
    [
        ("lower", {"emberq": [2.0], "pynsq": [40.0], "ansq": [20.0]}, 10.0),
        ("neither", {"emberq": [2.0], "ansq": [20.0]}, None),
        ("higher", {"emberq": [2.0]}, None),
        ("higher", {"ansq": [2.0]}, None),
    ],
)
def test_there_is_a_ratio_only_where_it_means_something(
    better: Better, values: dict[str, list[float]], expected: float | None
) -> None:
    row = Row(work="w", measure="m", unit="u", better=better, values=values)
    assert times_best_other(row) == expected
