"""What /stats shows for which parameters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emberq.broker.stats import ClientStats
from emberq.http.message import parse_query
from emberq.nsqd.api.stats import RecentMemory, StatsReport, take_report
from tests.broker.rig import Consumer, Rig
from tests.nsqd.api.rig import RigNode


class PublishingConsumer(Consumer):
    """A connection that subscribed and publishes too."""

    def stats(self) -> ClientStats:
        return ClientStats(client_id="both", pub_counts=(("t", 1), ("u", 2)))


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Topics `t` with channels `c` and `d`, `u` with channel `c`, and `v` with none."""
    with Rig() as rig:
        rig.consumer()
        rig.channel("d")
        rig.channel("c", topic="u")
        rig.topic("v")
        yield rig


@pytest.fixture
def node(rig: Rig) -> RigNode:
    node = RigNode(rig)
    node.connected_producers = [
        ClientStats(client_id="both", pub_counts=(("t", 1), ("u", 2))),
        ClientStats(client_id="other", pub_counts=(("u", 3),)),
    ]
    return node


def report(node: RigNode, query: str) -> StatsReport:
    return take_report(node, parse_query(query), RecentMemory(node))


def names(shown: StatsReport) -> dict[str, list[str]] | None:
    if shown.topics is None:
        return None
    return {topic.stats.name: [channel.stats.name for channel in topic.channels] for topic in shown.topics}


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {"t": ["c", "d"], "u": ["c"], "v": []}),
        ("topic=&channel=", {"t": ["c", "d"], "u": ["c"], "v": []}),
        ("topic=t", {"t": ["c", "d"]}),
        ("topic=v", {"v": []}),
        ("channel=c", {"t": ["c"], "u": ["c"]}),
        ("topic=t&channel=d", {"t": ["d"]}),
        ("topic=u&channel=d", {}),
        ("channel=none", {}),
        ("topic=none", None),
        ("topic=none&channel=c", None),
    ],
)
def test_filters_choose_by_exact_names(node: RigNode, query: str, shown: dict[str, list[str]] | None) -> None:
    assert names(report(node, query)) == shown


def test_a_topic_filter_narrows_what_producers_published(node: RigNode) -> None:
    assert list(report(node, "").producers) == node.connected_producers
    assert list(report(node, "topic=t").producers) == [
        ClientStats(client_id="both", pub_counts=(("t", 1),)),
        ClientStats(client_id="other"),
    ]


def test_a_topic_filter_narrows_what_consumers_published(rig: Rig, node: RigNode) -> None:
    PublishingConsumer(rig.channel("d"))
    (shown,) = report(node, "topic=t&channel=d").topics or ()
    (channel,) = shown.channels
    assert list(channel.clients) == [ClientStats(client_id="both", pub_counts=(("t", 1),))]


@pytest.mark.parametrize("query", ["include_clients=false", "include_clients=0", "topic=none"])
def test_producers_are_left_out(node: RigNode, query: str) -> None:
    assert list(report(node, query).producers) == []


@pytest.mark.parametrize(
    ("query", "shown"), [("", True), ("include_clients=x", True), ("include_clients=false", False)]
)
def test_clients_are_shown_unless_they_are_turned_off(node: RigNode, query: str, shown: bool) -> None:
    assert report(node, query).shows_clients is shown


@pytest.mark.parametrize(("query", "shown"), [("", True), ("include_mem=no", True), ("include_mem=0", False)])
def test_memory_is_shown_unless_it_is_turned_off(node: RigNode, query: str, shown: bool) -> None:
    assert (report(node, query).memory is not None) is shown
