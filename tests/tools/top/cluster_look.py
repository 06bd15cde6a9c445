"""What `emberq top` shows, made up."""

from __future__ import annotations

from typing import Any

from emberq.cluster.rate import Rates
from emberq.cluster.survey import Total
from emberq.tools.top.row import Row

STILL = Rates(came=0.0, left=0.0)


def row(topic: str = "t", channel: str = "c", **figures: Any) -> Row:
    """A row with nothing in it but these figures."""
    nothing: dict[str, Any] = {"node_count": 1, "rates": STILL}
    return Row(topic=topic, channel=channel, total=Total(**(nothing | figures)))
