"""What the documents of live views are made of; the views themselves are tested where they are shown (`test_live`)."""

from __future__ import annotations

from emberq.admin.view import slowest_ns
from emberq.cluster.stats import latency_of


def test_what_was_not_measured_has_no_slowest_message() -> None:
    nothing = {"count": 0, "percentiles": [{"quantile": 0.99, "value": 0}]}
    assert slowest_ns(latency_of(nothing)) is None
    assert slowest_ns(latency_of({"count": 1, "percentiles": [{"quantile": 0.99, "value": 7}]})) == 7
