"""GET /api/live, /api/view, /api/history and /api/pipelines: for the pages, and for whoever wants to draw the same.

`/api/live` is a stream of server-sent events; `/api/view` is one of its documents. What they hold is said in `view`.

    GET /api/history                        the whole cluster since nsqadmin started
    GET /api/history?topic=t[&channel=c]    a topic or a channel
    GET /api/history?node=h:p               an nsqd, with its memory
    GET /api/history?topics=all             the last rates of every topic
"""

from __future__ import annotations

from emberq.admin.event_stream import CONTENT_TYPE
from emberq.admin.live import Gatherer, Subject, View
from emberq.http.message import JSON, V1_HEADERS, HttpError, Query, Request, Response, json

_STREAM_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Accel-Buffering", "no"),  # a proxy must pass events on as they come
)


class WatchingApi:
    """Answers from what the gatherer sees."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer

    def live(self, request: Request) -> Response:
        """A stream without an end."""
        stream = self._gatherer.open(_subject(request.query()))
        return Response(200, content_type=CONTENT_TYPE, headers=_STREAM_HEADERS, file=stream)

    async def view(self, request: Request) -> Response:
        """The document of a view, once."""
        return encoded(await self._gatherer.document(_subject(request.query())))

    async def pipelines(self, _request: Request) -> Response:
        return encoded(await self._gatherer.document(Subject(view=View.PIPELINES)))

    async def history(self, request: Request) -> Response:
        query = request.query()
        history = self._gatherer.history
        if query.get("topics") == "all":
            return encoded(await self._gatherer.recent_rates())
        if node := query.get("node"):
            return json(history.node_document(node) | {"message": ""})
        topic, channel = query.get("topic") or "", query.get("channel") or ""
        if channel and not topic:
            raise HttpError(400, "MISSING_ARG_TOPIC")
        return json(history.document(topic, channel) | {"message": ""})


def encoded(document: bytes) -> Response:
    """A V1 answer of what is JSON already."""
    return Response(200, document, content_type=JSON, headers=V1_HEADERS)


def _subject(query: Query) -> Subject:
    """What is asked for; names that the view has no use for are left out, so that equal views are one."""
    view = query.get("view") or View.TOPICS
    if view not in set(View):
        raise HttpError(400, "INVALID_ARG_VIEW")
    wanted = _WANTED.get(View(view), ())
    names = {name: query.get(name) or "" for name in wanted}
    for name, value in names.items():
        if not value:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    names |= {name: query.get(name) or "" for name in _TAKEN.get(View(view), ())}
    return Subject(view=View(view), **names)


_WANTED = {View.TOPIC: ("topic",), View.CHANNEL: ("topic", "channel"), View.NODE: ("node",)}
"""What each view has to be told."""
_TAKEN = {View.CHANNEL: ("search",)}
"""What else it may be told."""
