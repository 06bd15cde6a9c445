"""Turns, medians and failures, with works that load nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.comparison import compare
from bench.failure import LoadFailure
from bench.metric import Metric
from bench.options import Options, parse
from bench.scenario import Scenario
from bench.server import Running, Server
from bench.stage import Size, Stage

OURS_PORT, PEER_PORT = 1, 2


class Diary:
    """An observer that remembers the order of things."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def began(self, *, work: str, side: str, round_number: int) -> None:
        self.entries.append(f"{work} {side} {round_number}")

    def ended(self, metrics: list[Metric]) -> None:
        assert metrics


def options_for(*runs: Callable[[Stage], list[Metric]], rounds: int = 3) -> Options:
    """A comparison of two servers that are never connected to."""
    scenarios = tuple(
        Scenario(name=f"work{index}", summary="", size=Size(messages=1), run=run) for index, run in enumerate(runs)
    )
    base = parse(["--nsqd", f"127.0.0.1:{OURS_PORT}", "--rounds", str(rounds)])
    return replace(base, scenarios=scenarios, peer=Running(Server(("127.0.0.1", PEER_PORT), None)))


def port_as_rate(stage: Stage) -> list[Metric]:
    return [Metric("rate", float(stage.server.address[1]), "msg/s", "higher")]


def test_the_servers_take_turns_and_the_order_is_swapped_each_round() -> None:
    diary = Diary()
    compare(options_for(port_as_rate), diary)
    assert diary.entries == [
        "work0 ours 1",
        "work0 peer 1",
        "work0 peer 2",
        "work0 ours 2",
        "work0 ours 3",
        "work0 peer 3",
    ]


def test_all_works_are_done_before_the_next_round() -> None:
    diary = Diary()
    outcome = compare(options_for(port_as_rate, port_as_rate, rounds=2), diary)
    assert diary.entries == [
        "work0 ours 1",
        "work0 peer 1",
        "work1 ours 1",
        "work1 peer 1",
        "work1 peer 2",
        "work1 ours 2",
        "work0 peer 2",
        "work0 ours 2",
    ]
    assert [row.work for row in outcome.rows] == ["work0", "work1"]


def test_values_are_kept_for_each_server_and_compared_round_by_round() -> None:
    (row,) = compare(options_for(port_as_rate), Diary()).rows
    assert row.values == {"ours": [1.0] * 3, "peer": [2.0] * 3}
    assert row.ratio == 0.5


def test_the_median_forgives_one_bad_round() -> None:
    rates = iter([100.0, 50.0, 50.0, 1.0, 110.0, 50.0])
    outcome = compare(options_for(lambda _: [Metric("rate", next(rates), "msg/s", "higher")]), Diary())
    assert outcome.rows[0].median("ours") == 100.0
    assert outcome.rows[0].ratio == 2.0


def test_a_machine_that_changes_its_speed_between_rounds_changes_no_ratio() -> None:
    rates = iter([100.0, 50.0, 50.0, 90.0, 30.0, 20.0])  # ours comes first, then the peer, then ours
    outcome = compare(options_for(lambda _: [Metric("rate", next(rates), "msg/s", "higher")]), Diary())
    assert outcome.rows[0].values == {"ours": [100.0, 90.0, 30.0], "peer": [50.0, 50.0, 20.0]}
    assert outcome.rows[0].ratio == 1.8


def test_every_run_has_a_topic_of_its_own() -> None:
    topics: list[str] = []

    def remember(stage: Stage) -> list[Metric]:
        topics.append(stage.topic)
        return port_as_rate(stage)

    compare(options_for(remember, rounds=2), Diary())
    assert len(topics) == 4
    assert len(set(topics)) == 2  # one a round; the servers do not share theirs


def test_a_failed_work_is_told_and_left_out_and_the_next_is_still_done() -> None:
    def fail(_: Stage) -> list[Metric]:
        raise LoadFailure("lost a message")

    outcome = compare(options_for(fail, port_as_rate, rounds=1), Diary())
    assert outcome.failures == ["work0: ours, round 1: lost a message"]
    assert [row.work for row in outcome.rows] == ["work1"]


def test_a_work_that_fails_is_not_done_again() -> None:
    rates = iter([1.0, 1.0])

    def fail_later(_: Stage) -> list[Metric]:
        rate = next(rates, None)
        if rate is None:
            raise LoadFailure("lost a message")
        return [Metric("rate", rate, "msg/s", "higher")]

    diary = Diary()
    outcome = compare(options_for(fail_later, port_as_rate), diary)
    assert outcome.failures == ["work0: peer, round 2: lost a message"]
    assert "work0 peer 3" not in diary.entries
    assert [(row.work, row.values["ours"]) for row in outcome.rows] == [("work1", [1.0] * 3)]
