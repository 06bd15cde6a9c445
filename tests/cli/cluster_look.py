"""What `emberq top` shows, made up."""

from __future__ import annotations

from typing import Any

from emberq.cli.top_view import TopRow
from emberq.cluster.survey import Rates, Total

STILL = Rates(came=0.0, left=0.0)


def row(topic: str = "t", channel: str = "c", **figures: Any) -> TopRow:
    """A row with nothing in it but these figures."""
    nothing: dict[str, Any] = {"node_count": 1, "rates": STILL}
    return TopRow(topic=topic, channel=channel, total=Total(**(nothing | figures)))
