"""GET /stats: JSON for programs with `format=json`, text for people otherwise.

Both are made from one report, so that they cannot differ in what they show.
"""

from __future__ import annotations

from emberq.http.message import Request, Response, json, text
from emberq.nsqd.api import stats_json, stats_text
from emberq.nsqd.api.node import Node
from emberq.nsqd.api.stats_report import take_report


class StatsApi:
    """Shows what the node holds."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def stats(self, request: Request) -> Response:
        query = request.query()
        report = take_report(self._node, query)
        if query.get("format") == "json":
            return json(stats_json.render(report))
        return text(stats_text.render(report))
