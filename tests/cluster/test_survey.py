"""The whole cluster at one time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emberq.cluster.survey import Work
from tests.support.cluster_rig import channel_entry, seen, topic_entry
from tests.support.examples import examples


def latency(count: int, value: int) -> dict[str, Any]:
    return {"e2e_processing_latency": {"count": count, "percentiles": [{"quantile": 0.5, "value": value}]}}


def test_figures_are_added_up_over_the_nodes_that_have_them() -> None:
    survey = seen(
        a=[topic_entry("t", channel_entry("c", depth=1, backend_depth=1, requeue_count=3), depth=4, message_count=5)],
        b=[topic_entry("t", channel_entry("c", depth=10, timeout_count=4, client_count=2), depth=3, message_count=10)],
        c=[],
    )
    topic, channel = survey.totals["t", ""], survey.totals["t", "c"]
    assert (topic.depth, topic.message_count, topic.node_count) == (7, 15, 2)
    assert (channel.depth, channel.backend_depth, channel.client_count) == (11, 1, 2)
    assert (channel.requeue_count, channel.timeout_count, channel.node_count) == (3, 4, 2)


ages_ms = st.none() | st.integers(0, 3)
"""How old the oldest message is; an nsqd of NSQ does not tell it."""
told_topics = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 2), ages_ms), max_size=6)


@examples(200)
@given(st.lists(told_topics, max_size=5))
def test_whichever_nodes_have_a_topic_and_in_whatever_order_it_is_added_up(nodes: list[Any]) -> None:
    expected: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
    answers: dict[str, Any] = {}
    for number, topics in enumerate(nodes):
        answers[f"node{number}"] = []
        for name, depth, age_ms in topics:
            expected[name].append((depth, age_ms))
            age = {} if age_ms is None else {"oldest_age_ms": age_ms}
            answers[f"node{number}"].append(topic_entry(name, depth=depth, **age))
    survey = seen(**answers)
    assert list(survey.channels) == sorted(expected)
    for name, told in expected.items():
        total = survey.totals[name, ""]
        assert (total.depth, total.node_count) == (sum(depth for depth, _ in told), len(told))
        is_told = all(age_ms is not None for depth, age_ms in told if depth)
        assert total.oldest_ms == max((age for _, age in told if age is not None and is_told), default=None)


def test_what_is_paused_on_one_node_is_paused() -> None:
    survey = seen(a=[topic_entry("t", channel_entry("c"), paused=True)], b=[topic_entry("t", channel_entry("c"))])
    assert (survey.totals["t", ""].paused, survey.totals["t", "c"].paused) == (True, False)


def test_topics_and_channels_come_by_name() -> None:
    survey = seen(a=[topic_entry("b", channel_entry("y"), channel_entry("x"))], b=[topic_entry("a")])
    assert survey.channels == {"a": [], "b": ["x", "y"]}
    assert [(topic, [name for name, _ in channels]) for topic, _, channels in survey.topic_totals()] == [
        ("a", []),
        ("b", ["x", "y"]),
    ]


def test_percentiles_are_combined_of_the_nodes_that_track_them() -> None:
    survey = seen(a=[topic_entry("t", **latency(1, 10))], b=[topic_entry("t", **latency(3, 30))], c=[topic_entry("t")])
    combined = survey.totals["t", ""].latency
    assert (combined.message_count, combined.topic) == (4, "t")
    assert [(each.average, each.max) for each in combined.percentiles or ()] == [(25.0, 30.0)]


def test_one_topic_is_put_together_node_by_node() -> None:
    survey = seen(
        a=[topic_entry("t", channel_entry("c", depth=1), depth=2)],
        b=[topic_entry("t", channel_entry("c", depth=10), channel_entry("d"), depth=3)],
        c=[topic_entry("other")],
    )
    topic = survey.topic("t")
    assert topic is not None
    assert (topic.node, topic.depth, [part.depth for part in topic.nodes or ()]) == ("*", 5, [2, 3])
    assert [(channel.channel_name, channel.depth, channel.node) for channel in topic.channels] == [
        ("c", 11, "*"),
        ("d", 0, "b:4151"),
    ]
    assert survey.topic("none") is None


def test_each_node_has_its_work() -> None:
    channel = channel_entry("c", depth=5, client_count=2, message_count=8)
    survey = seen(a=[topic_entry("t", channel, depth=1, message_count=9), topic_entry("u", message_count=1)], b=[])
    assert survey.work == {"a:4151": Work(depth=6, message_count=10, client_count=2, topic_count=2), "b:4151": Work()}
