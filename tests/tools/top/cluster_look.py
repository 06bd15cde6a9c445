"""What `emberq top` shows, made up."""

from __future__ import annotations

from typing import Any

from emberq.tools.top.row import Row


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
