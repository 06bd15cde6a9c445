"""An nsqd's answer in columns: the same figures as the reader of entries finds, however the answer is worded."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.cluster.node_stats import NodeFigures, StatsReader
from emberq.cluster.stats import TopicFigures
from emberq.cluster.upstream import MalformedDocumentError
from tests.support.cluster_rig import NODE, channel_entry, topic_entry

LATENCY = {"count": 4, "percentiles": [{"quantile": 0.99, "value": 2e6}]}
FULL = topic_entry(
    "t",
    channel_entry("c", depth=5, backend_depth=2, in_flight_count=1, deferred_count=3, message_count=20, client_count=4),
    channel_entry("d", requeue_count=6, timeout_count=7, paused=True, e2e_processing_latency=LATENCY),
    depth=7,
    backend_depth=6,
    message_count=30,
    e2e_processing_latency=LATENCY,
)
NEAR = topic_entry("near", channel_entry("c", zone_local_msg_count=2, global_msg_count=1), zone_local_msg_count=3)
OLD = {"topic_name": "old", "channels": [{"channel_name": "c", "depth": 1, "clients": [{"name": "id"}, {}]}]}
ROUND = topic_entry("round", channel_entry("c", depth=2.0), message_count=1e6)
BARE = topic_entry("bare")


def figures(*entries: dict[str, Any], before: NodeFigures | None = None, **more: Any) -> NodeFigures:
    return StatsReader(NODE, before=before).figures({"topics": list(entries), **more})


def topics(read: NodeFigures) -> list[TopicFigures]:
    """All topics, part by part."""
    names = [topic for topic, channel in read.keys if not channel]
    channels = {name: [channel for topic, channel in read.keys if topic == name and channel] for name in names}
    return [topic for name in names if (topic := read.topic(name, channels[name])) is not None]


@pytest.mark.parametrize(
    "entries", [(), (FULL,), (NEAR, FULL), (OLD, FULL), (ROUND,), (BARE, FULL, BARE | {"topic_name": "b"})]
)
def test_columns_hold_what_the_entries_say(entries: tuple[dict[str, Any], ...]) -> None:
    expected = StatsReader(NODE).topics({"topics": list(entries)})
    without_clients = [
        topic._replace(channels=tuple(channel._replace(clients=()) for channel in topic.channels)) for topic in expected
    ]
    assert topics(figures(*entries)) == without_clients


def test_an_nsqd_without_topics_says_null() -> None:
    assert StatsReader(NODE).figures({"topics": None}).keys == []


def test_what_an_nsqd_does_not_have_is_not_found() -> None:
    read = figures(FULL)
    assert read.topic("other", ["c"]) is None
    assert read.position(("t", "other")) is None
    topic = read.topic("t", ["c", "other"])
    assert topic is not None
    assert [channel.channel_name for channel in topic.channels] == ["c"]


def test_the_same_names_are_shared_with_the_answer_before() -> None:
    before = figures(FULL, BARE)
    assert figures(FULL, BARE, before=before).keys is before.keys
    assert figures(FULL, before=before).keys == [("t", ""), ("t", "c"), ("t", "d")]


def test_memory_is_what_the_nsqd_says_of_it() -> None:
    assert figures(memory={"heap_objects": 5, "odd": "text", "huge": 10**400, "inf": 1e999}).memory == {
        "heap_objects": 5
    }
    assert figures().memory is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": "many"},
        {"depth": True},
        {"message_count": 1 << 64},
        {"paused": 1},
        {"topic_name": 5},
        {"e2e_processing_latency": []},
        {"channels": {}},
        {"channels": [{"channel_name": []}]},
    ],
)
def test_nonsense_is_not_taken_for_figures(wrong: dict[str, object]) -> None:
    with pytest.raises(MalformedDocumentError):
        figures(FULL, topic_entry("u") | wrong)
