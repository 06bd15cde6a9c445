"""What `emberq top` looks at, made up: topics of nsqds, and rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from emberq.cluster.aggregate import total_topics
from emberq.cluster.stats import TopicStats
from emberq.cluster.stats_document import StatsReader
from emberq.tools.top.row import Row
from tests.cluster.rig import NODE


def seen(**topics_by_node: list[dict[str, Any]]) -> tuple[TopicStats, ...]:
    """The topics of these nsqds together."""
    parts: list[TopicStats] = []
    for node, topics in topics_by_node.items():
        parts += StatsReader(replace(NODE, broadcast_address=node)).topics({"topics": topics})
    return total_topics(parts)


def row(topic: str = "t", channel: str = "c", **figures: Any) -> Row:
    """A row with nothing in it but these figures."""
    nothing: dict[str, Any] = {
        "depth": 0,
        "backend_depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
        "message_count": 0,
        "client_count": 0,
        "node_count": 1,
        "paused": False,
        "came_per_s": 0.0,
        "left_per_s": 0.0,
    }
    return Row(topic=topic, channel=channel, **(nothing | figures))
