"""Figures that follow from others."""

from __future__ import annotations

from typing import Any

import pytest

from emberq.base.clock import NS_PER_SECOND
from emberq.cluster.node_stats import StatsReader
from emberq.cluster.stats import ChannelFigures, ClientFigures, TopicFigures
from tests.support.cluster_rig import NODE, channel_entry, topic_entry


def topic_with(**figures: Any) -> TopicFigures:
    """A topic whose only channel has these figures."""
    (topic,) = StatsReader(NODE).topics({"topics": [topic_entry("t", channel_entry("c", **figures))]})
    return topic


def channel_with(**figures: Any) -> ChannelFigures:
    return topic_with(**figures).channels[0]


def client_with(**facts: Any) -> ClientFigures:
    return channel_with(clients=[facts]).clients[0]


def test_how_long_a_client_is_connected_is_counted_in_whole_seconds() -> None:
    client = client_with(connect_ts=1_700_000_000)
    assert client.connected_ns(1_700_000_060 * NS_PER_SECOND + 999) == 60 * NS_PER_SECOND


def test_a_client_whose_clock_is_ahead_is_not_connected_for_less_than_no_time() -> None:
    assert client_with(connect_ts=1_700_000_000).connected_ns(1_600_000_000 * NS_PER_SECOND) == 0


@pytest.mark.parametrize(
    ("region", "zone", "distance"), [("eu", "eu-1", 0), ("eu", "eu-2", 1), ("us", "eu-1", 2), ("", "", 2)]
)
def test_a_client_is_in_the_zone_of_its_node_or_its_region_or_elsewhere(region: str, zone: str, distance: int) -> None:
    assert client_with(topology_region=region, topology_zone=zone).distance == distance


def test_deliveries_by_distance_add_up() -> None:
    topic = topic_with(zone_local_msg_count=1, global_msg_count=4)
    assert (topic.channels[0].delivery_msg_count, topic.delivery_msg_count) == (5, 0)


def test_what_is_not_on_disk_is_in_memory() -> None:
    assert channel_with(depth=5, backend_depth=2).memory_depth == 3
