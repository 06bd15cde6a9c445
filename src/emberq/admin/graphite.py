"""Graphite, asked for the pages.

    GET /api/graphite?metric=rate&target=…    the rate of a series: {"rate": "1.50"}, or "N/A"
    GET /render?…                             what Graphite renders, with --proxy-graphite; for browsers that cannot
                                              reach it, or must not know its password

Whatever goes wrong with Graphite is a 500 INTERNAL_ERROR, as in the reference.
"""

from __future__ import annotations

import logging
import math
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from emberq.admin.options import Options
from emberq.base.http_query import HttpClient, HttpQueryError
from emberq.http.message import HttpError, Request, Response, json

_CONTENT_TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "json": "application/json; charset=utf-8",
}
_PLAIN = "text/plain; charset=utf-8"
"""For csv, raw, pickle and whatever else there is: nothing that a browser would run."""

_log = logging.getLogger(__name__)


class GraphiteApi:
    """Owned by the table of routes."""

    def __init__(self, options: Options, http: HttpClient) -> None:
        self._url = options.graphite_url.rstrip("/")
        self._interval_s = options.statsd_interval_s
        self._http = http

    async def rate(self, request: Request) -> Response:
        """The first value of a series, per second."""
        query = request.query()
        if query.get("metric") != "rate":
            raise HttpError(400, "INVALID_ARG_METRIC")
        target = query.get("target")
        if not target:
            raise HttpError(400, "INVALID_ARG_TARGET")
        value = await self._first_value(target)
        return json({"rate": "N/A" if value < 0 else f"{value / self._interval_s:.2f}"})

    async def _first_value(self, target: str) -> float:
        interval_s = self._interval_s
        query = {
            "format": "json",
            "from": f"-{2 * interval_s}sec",
            "target": target,
            "until": f"-{interval_s}sec",
        }
        try:
            series = await self._http.get_json(f"{self._url}/render?{urlencode(query, quote_via=quote)}")
            return _value_in(series)
        except (HttpQueryError, ValueError) as failure:
            _log.error("graphite: %s", failure)
            raise HttpError(500, "INTERNAL_ERROR") from failure

    async def render(self, request: Request) -> Response:
        """What Graphite answers to the same query."""
        try:
            body = await self._http.get(f"{self._url}/render?{request.query_text}")
        except HttpQueryError as failure:
            _log.error("graphite: %s", failure)
            raise HttpError(500, "INTERNAL_ERROR") from failure
        wanted = (request.query().get("format") or "png").lower()
        return Response(200, body, content_type=_CONTENT_TYPES.get(wanted, _PLAIN))


def _value_in(series: Any) -> float:
    """ValueError unless there is a first value of a first series."""
    try:
        value = series[0]["datapoints"][0][0]
    except (LookupError, TypeError) as wrong:
        raise ValueError("no data") from wrong
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("no value")
    return float(value)


def origin_of(url: str) -> str:
    """Scheme, host and port: what a Content-Security-Policy wants to know of a URL. Empty for none."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
