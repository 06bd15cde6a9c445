"""What is shown: topics, nodes, counters; live views and history; Graphite.

**As in the reference, to the key:** GET /api/topics, /api/nodes and what lies below them; GET /api/counter. A large
cluster has megabytes to say, which take seconds to receive and to word. So it is asked, and the document made, in the
background, while other requests are served.

**For the pages**, and for programs that want to draw the same: GET /api/live, /api/view, /api/history and
/api/pipelines. `/api/live` is a stream of server-sent events; `/api/view` is one of its documents. What they hold is
said in `view`.

    GET /api/history                        the whole cluster, for --history-duration
    GET /api/history?topic=t[&channel=c]    a topic or a channel
    GET /api/history?node=h:p               an nsqd, with its memory
    GET /api/history?topics=all             the last rates of every topic
    GET /api/history?channels=all           the last depths of every channel
    GET /api/absent                         the nodes that are silent or gone
    GET /api/settings                       the settings of all nsqds, option by option, and how they differ
    GET /api/drain/<node>                   how far the drain of an nsqd is
    GET /api/alerts                         what is wrong by the rules, and what was lately (see `alert`)

With `range=SECONDS` a history reaches back so far, at the resolution that is kept for that (see `history_store`).

A history has `marks`, too, which GET /api/marks?topic=t&channel=c&range=… tells alone: [{"time", "kind" ("node",
"action", "note", "alert"), "text", "topic", "channel", "node", "state" ("silent", "gone", "back"; "firing",
"resolved")}]; what is empty is left out.

**One search** for all that has a name: every word must be in it. At most 50 of each kind are told, and how many there
are.

    GET /api/search?q=WORDS                 {"topics", "channels", "nodes", "counts": {kind: count}}
    GET /api/search/consumers?q=WORDS       {"consumers", "count"}; every nsqd is asked for its clients

**Graphite**, asked for the pages. Whatever goes wrong with it is a 500 INTERNAL_ERROR, as in the reference.

    GET /api/graphite?metric=rate&target=…    the rate of a series: {"rate": "1.50"}, or "N/A"
    GET /render?…                             what Graphite renders, with --proxy-graphite; for browsers that cannot
                                              reach it, or must not know its password
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from emberq.admin.attention import MAX_FOUND, consumers_view
from emberq.admin.audience import CONTENT_TYPE, LiveView, Subject
from emberq.admin.document import (
    Document,
    channel_document,
    counters_document,
    drain_document,
    encode_in_pieces,
    node_document,
    producer_document,
    settings_document,
    topic_document,
)
from emberq.admin.live import Gatherer
from emberq.admin.options import AdminOptions
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.cluster import Cluster
from emberq.cluster.survey import ClusterReader
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import Findings
from emberq.http.client import HttpClient, HttpQueryError
from emberq.http.message import JSON, V1_HEADERS, HttpError, Query, Request, Response, json

T = TypeVar("T")


class ReadingApi:
    """Asks the cluster anew for each request."""

    def __init__(self, cluster: Cluster, *, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def topics(self, request: Request) -> Response:
        """All topics; with `inactive=true` those that no nsqd has, and their channels."""
        if request.query().get("inactive") == "true":
            return await self._answer(
                lambda topology, _: topology.inactive_topics(),
                lambda inactive: {"topics": {topic: list(channels) for topic, channels in inactive.items()}},
            )
        # Names are few enough to be asked for at once, without waiting for the work of other requests.
        found = await self._cluster.topology.topics()
        document = {"topics": list(found.value) or None, "message": found.message}
        return encoded(await self._cluster.background.run(lambda: encode_in_pieces(document)))

    async def topic(self, request: Request) -> Response:
        name, now_ns = request.params["topic"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.topic(name), lambda topic: topic_document(topic, now_ns=now_ns)
        )

    async def channel(self, request: Request) -> Response:
        """With its clients."""
        topic, name, now_ns = request.params["topic"], request.params["channel"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.channel(topic, name),
            lambda channel: channel_document(channel, now_ns=now_ns, with_clients=True),
        )

    async def nodes(self, _request: Request) -> Response:
        return await self._answer(
            lambda topology, _: topology.producers(),
            lambda producers: {"nodes": [producer_document(each) for each in producers]},
        )

    async def node(self, request: Request) -> Response:
        name, now_ns = request.params["node"], self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.node(name), lambda node: node_document(node, now_ns=now_ns)
        )

    async def drain(self, request: Request) -> Response:
        """Whether an nsqd is being drained, and what it still holds."""
        found = await self._cluster.actions.drain_state(request.params["node"])
        return json(drain_document(found.value) | {"message": found.message})

    async def settings(self, _request: Request) -> Response:
        """The settings of all nsqds, and how they differ."""
        return await self._answer(lambda _, observer: observer.settings(), settings_document)

    async def counter(self, _request: Request) -> Response:
        return await self._answer(
            lambda _, observer: observer.counters(), lambda counters: {"stats": counters_document(counters)}
        )

    async def consumers(self, request: Request) -> Response:
        """The consumers of any channel that a search finds."""
        search, now_ns = _search(request.query()), self._clock.wall_ns()
        return await self._answer(
            lambda _, observer: observer.consumers(search, limit=MAX_FOUND),
            lambda found: consumers_view(*found, now_ns=now_ns),
        )

    async def _answer(
        self,
        ask: Callable[[Topology, ClusterReader], Coroutine[Any, Any, Findings[T]]],
        word: Callable[[T], Document],
    ) -> Response:
        """What `word` makes of the cluster's answer, with what is wrong with it."""
        found = await self._cluster.ask_in_background(ask)
        return encoded(
            await self._cluster.background.run(lambda: encode_in_pieces(word(found.value) | {"message": found.message}))
        )


# For the pages

_STREAM_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy must pass events on as they come
)


class WatchingApi:
    """Answers from what the gatherer has seen."""

    def __init__(self, gatherer: Gatherer, *, viewer_of: Callable[[Request], str], clock: Clock) -> None:
        """`viewer_of` says by what the streams of one client are counted."""
        self._clock = clock
        self._gatherer = gatherer
        self._viewer_of = viewer_of

    def live(self, request: Request) -> Response:
        """A stream without an end."""
        stream = self._gatherer.open(_subject(request.query()), self._viewer_of(request))
        return Response(200, content_type=CONTENT_TYPE, headers=_STREAM_HEADERS, file=stream)

    async def view(self, request: Request) -> Response:
        """The document of a view, once."""
        return encoded(await self._gatherer.document(_subject(request.query())))

    async def pipelines(self, _request: Request) -> Response:
        return encoded(await self._gatherer.document(Subject(view=LiveView.PIPELINES)))

    async def samples(self, request: Request) -> Response:
        """What failed in a query of a pipeline, with samples."""
        query = request.query()
        return json(self._gatherer.pipelines.samples(query.get("pipeline", ""), query.get("query", "")))

    async def alerts(self, _request: Request) -> Response:
        return encoded(await self._gatherer.document(Subject(view=LiveView.ALERTS)))

    async def history(self, request: Request) -> Response:
        query = request.query()
        history = self._gatherer.history
        if query.get("topics") == "all":
            return encoded(await self._gatherer.recent_rates())
        if query.get("channels") == "all":
            return encoded(await self._gatherer.recent_depths())
        topic, channel = _topic_and_channel(query)
        range_s, now_s = _range(query), self._clock.wall_ns() / NS_PER_SECOND
        found = await history.recalled(topic, channel, node=query.get("node") or "", range_s=range_s, now_s=now_s)
        reach_s = range_s or history.reach_s
        since_s = now_s - reach_s if reach_s else 0.0  # without a history, marks are all there is
        return json(found | {"marks": self._gatherer.marks.document(topic, channel, since_s=since_s), "message": ""})

    def marks(self, request: Request) -> Response:
        """What happened, the oldest first."""
        query = request.query()
        topic, channel = _topic_and_channel(query)
        range_s = _range(query)
        since_s = 0 if range_s is None else self._clock.wall_ns() / NS_PER_SECOND - range_s
        return json({"marks": self._gatherer.marks.document(topic, channel, since_s=since_s), "message": ""})

    async def search(self, request: Request) -> Response:
        """Topics, channels and nodes by their names."""
        return encoded(await self._gatherer.search(_search(request.query())))

    def absent(self, _request: Request) -> Response:
        """The nodes that are silent or gone."""
        absent = [absence.document() for absence in self._gatherer.absences.now]
        return json({"nodes": absent, "message": ""})


def encoded(document: bytes) -> Response:
    """A V1 answer of what is JSON already."""
    return Response(200, document, content_type=JSON, headers=V1_HEADERS)


def _topic_and_channel(query: Query) -> tuple[str, str]:
    topic, channel = query.get("topic") or "", query.get("channel") or ""
    if channel and not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return topic, channel


_MAX_RANGE_DIGITS = 9


def _range(query: Query) -> int | None:
    """How far to look back, in seconds; None if it is not said."""
    given = query.get("range")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MAX_RANGE_DIGITS):
        raise HttpError(400, "INVALID_ARG_RANGE")
    return int(given) or None


def _search(query: Query) -> str:
    search = (query.get("q") or "").strip()
    if not search:
        raise HttpError(400, "MISSING_ARG_Q")
    return search


def _subject(query: Query) -> Subject:
    """What is asked for; names that the view has no use for are left out, so that equal views are one."""
    view = query.get("view") or LiveView.TOPICS
    if view not in set(LiveView):
        raise HttpError(400, "INVALID_ARG_VIEW")
    wanted = _WANTED.get(LiveView(view), ())
    names = {name: query.get(name) or "" for name in wanted}
    for name, value in names.items():
        if not value:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    names |= {name: query.get(name) or "" for name in _TAKEN.get(LiveView(view), ())}
    return Subject(view=LiveView(view), **names)


_WANTED = {LiveView.TOPIC: ("topic",), LiveView.CHANNEL: ("topic", "channel"), LiveView.NODE: ("node",)}
"""What each view has to be told."""
_TAKEN = {LiveView.CHANNEL: ("search",)}
"""What else it may be told."""


# Graphite

_CONTENT_TYPES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "json": "application/json; charset=utf-8",
}
_PLAIN = "text/plain; charset=utf-8"
"""For csv, raw, pickle and the like: nothing that a browser would run."""

_log = logging.getLogger(__name__)


class GraphiteApi:
    """Asks Graphite. Owned by the table of routes."""

    def __init__(self, options: AdminOptions, http: HttpClient) -> None:
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
