"""Rates, from two looks at the cluster."""

from __future__ import annotations

from typing import Any

from emberq.cluster.survey import Rates, Survey
from tests.support.cluster_rig import channel_entry, seen, topic_entry


def topic(name: str = "t", *, count: int = 0, **figures: int) -> list[dict[str, Any]]:
    """A topic with a channel that has been given all its messages."""
    return [topic_entry(name, channel_entry("c", message_count=count, **figures), message_count=count)]


def rates(survey: Survey) -> dict[tuple[str, str], Rates | None]:
    return {key: total.rates for key, total in survey.totals.items()}


def test_one_look_gives_no_rates() -> None:
    assert rates(seen(a=topic(count=5))) == {("t", ""): None, ("t", "c"): None}
    assert seen(a=topic(count=5)).total_rates() is None


def test_a_rate_is_the_difference_of_counts_by_the_time_between() -> None:
    before = seen(a=topic(count=5, depth=5))
    survey = seen(before=before, at_s=3, a=topic(count=25, depth=8, in_flight_count=1, deferred_count=2))
    assert rates(survey) == {("t", ""): Rates(10.0, 10.0), ("t", "c"): Rates(10.0, 7.0)}
    assert survey.total_rates() == Rates(came=10.0, left=7.0)


def test_rates_of_several_nodes_are_added_up_and_known_for_each() -> None:
    before = seen(a=topic(count=10), b=topic(count=100))
    survey = seen(before=before, at_s=3, a=topic(count=20), b=topic(count=104))
    assert survey.totals["t", "c"].rates == Rates(7.0, 7.0)
    assert survey.rates_by_node("t") == survey.rates_by_node("t", "c")
    assert survey.rates_by_node("t") == {"a:4151": Rates(5.0, 5.0), "b:4151": Rates(2.0, 2.0)}
    assert survey.rates_by_topic("a:4151") == {"t": Rates(5.0, 5.0)}
    assert survey.work["b:4151"].rates == Rates(2.0, 2.0)


def test_a_node_that_joins_or_restarts_makes_no_leap() -> None:
    before = seen(a=topic(count=10), b=topic(count=900))
    survey = seen(before=before, at_s=2, a=topic(count=15), b=topic(count=2), c=topic(count=5_000))
    assert survey.totals["t", ""].rates == Rates(5.0, 5.0)
    assert survey.rates_by_node("t") == {"a:4151": Rates(5.0, 5.0), "b:4151": None, "c:4151": None}


def test_a_topic_that_is_new_or_began_anew_has_no_rate_but_its_neighbours_have() -> None:
    before = seen(a=[*topic("old", count=1), *topic("anew", count=50), *topic("gone", count=3)])
    survey = seen(before=before, at_s=2, a=[*topic("old", count=3), *topic("anew", count=9), *topic("new", count=9)])
    assert {topic: rate for (topic, channel), rate in rates(survey).items() if channel} == {
        "old": Rates(2.0, 2.0),
        "anew": None,
        "new": None,
    }
    assert survey.total_rates() == Rates(2.0, 2.0)


def test_a_rate_is_never_negative() -> None:
    before = seen(a=topic(count=5))
    assert seen(before=before, at_s=2, a=topic(count=5, depth=1)).totals["t", "c"].rates == Rates(0.0, 0.0)
    moved = seen(before=before, at_s=2, a=[*topic("new"), *topic(count=5, depth=1)])
    assert moved.totals["t", "c"].rates == Rates(0.0, 0.0)


def fanned_out(count: int, *, own: int = 0, **figures: int) -> list[dict[str, Any]]:
    """A topic that keeps some messages to itself, with two channels that have been given all others."""
    handed_on = count - own
    channels = [
        channel_entry("c1", message_count=handed_on, depth=figures.pop("depth", 0), **figures),
        channel_entry("c2", message_count=handed_on),
    ]
    return [topic_entry("t", *channels, message_count=count, depth=own)]


def test_a_flow_counts_copies_so_that_what_comes_less_what_leaves_is_the_growth_of_depth() -> None:
    before = seen(a=fanned_out(0))
    survey = seen(before=before, at_s=3, a=fanned_out(10, depth=8))
    assert survey.totals["t", ""].rates == Rates(5.0, 5.0)
    flow = survey.topic_flow("t")
    assert flow == Rates(came=10.0, left=6.0) == survey.total_flow() == survey.work["a:4151"].flow
    assert (flow.came - flow.left) * 2 == 8


def test_a_flow_counts_what_waits_in_the_topic_itself() -> None:
    paused = seen(before=seen(a=fanned_out(0)), at_s=3, a=fanned_out(10, own=10))
    assert paused.topic_flow("t") == Rates(came=5.0, left=0.0)
    emptied = seen(before=paused, at_s=5, a=[topic_entry("t", message_count=10, depth=0)])
    assert emptied.topic_flow("t") == Rates(came=0.0, left=5.0)
    assert emptied.topic_flow("nope") is None


def test_what_was_given_up_or_given_back_is_counted_apart() -> None:
    before = seen(a=fanned_out(0))
    after = fanned_out(10, requeue_count=6, timeout_count=2, dead_letter_count=8)
    survey = seen(before=before, at_s=3, a=after)
    rates = survey.totals["t", "c1"].rates
    assert rates == Rates(came=5.0, left=5.0, requeued=4.0, dead_lettered=4.0)
    assert rates.finished == 1.0
    assert survey.total_flow() == Rates(came=10.0, left=10.0, requeued=4.0, dead_lettered=4.0)
    moved = seen(before=before, at_s=3, a=[*topic("a"), *after])
    assert moved.totals["t", "c1"].rates == rates
    assert moved.rates_by_node("t", "c1") == {"a:4151": rates}


def test_two_looks_at_the_same_time_give_no_rates() -> None:
    assert seen(before=seen(a=topic(count=5)), a=topic(count=9)).total_rates() is None
