"""The browsers that look, by what they look at, and the events that they are sent.

**Server-sent events** to one browser:

    retry: 2000                    how soon to come again after a break
    event: topics
    data: {"topics":[…]}           one line: JSON has no line breaks of its own
                                   an empty line ends the event

Only the newest event waits to be sent. A browser that is slow misses what was overtaken, and costs no memory.

**Places** for browsers and for views are limited, and no viewer may take them all. When there is none left, the viewer
that has the most gives up the one it has had for longest, unless the newcomer has about as many: then it is refused.
"""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.cluster.stats import ClientWatch
from emberq.http.body import StreamBody
from emberq.http.message import HttpError, encode_json

MAX_STREAMS = 500
"""Browsers that look at once. Each holds a connection and up to one document."""
MAX_STREAM_NS = 600 * NS_PER_SECOND
"""Then a browser has to come again, which it does by itself, and show who it is: its user may have logged out."""
MAX_VIEWS = 100
"""Different views that are looked at; those with clients cost a question to the nsqds each."""

PROBLEM = "problem"


class LiveView(enum.StrEnum):
    """What can be looked at."""

    TOPICS = "topics"
    CHANNELS = "channels"
    DEAD_LETTERS = "dead_letters"
    TOPIC = "topic"
    CHANNEL = "channel"
    NODES = "nodes"
    NODE = "node"
    COUNTER = "counter"
    PIPELINES = "pipelines"
    ALERTS = "alerts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a browser looks at."""

    view: LiveView
    topic: str = ""
    channel: str = ""
    node: str = ""
    search: str = ""
    """Words that the clients of a channel are chosen by."""


_Place = tuple[Subject, tuple["EventStream", ...]]
"""What a viewer has: a view, with all streams of it, or one stream."""


@dataclass(slots=True)
class Audience:
    """The browsers that look at the same subject."""

    streams: dict[EventStream, int] = field(default_factory=dict)
    """Each with the time when it was opened, the oldest first."""
    event: bytes = b""
    """What they were shown last."""
    watch: ClientWatch | None = None
    """How the clients get on that the subject has, if it has any."""

    def show(self, event: bytes, now_ns: int) -> None:
        self.event = event
        for stream, opened_ns in self.streams.items():
            if now_ns - opened_ns > MAX_STREAM_NS:
                stream.end()
            else:
                stream.send(event)


class Audiences:
    """All browsers that look. Owned by the gatherer."""

    def __init__(self, *, clock: Clock) -> None:
        self.by_subject: dict[Subject, Audience] = {}
        """The subject that was looked at first comes first."""
        self._clock = clock
        self._is_closed = False

    @property
    def stream_count(self) -> int:
        """Browsers that look now."""
        return sum(len(audience.streams) for audience in self.by_subject.values())

    def close(self) -> None:
        """End all streams, and open no more."""
        self._is_closed = True
        for audience in list(self.by_subject.values()):
            for stream in list(audience.streams):
                stream.end()

    def open(self, subject: Subject, viewer: str) -> tuple[EventStream, bool]:
        """A stream for a viewer, and whether it has yet to be shown anything; HttpError if it would take the place of
        another."""
        if self._is_closed:
            raise HttpError(503, "TOO_MANY_VIEWERS")
        if self.stream_count >= MAX_STREAMS:
            self._make_room(viewer, self._streams_by_viewer(), "TOO_MANY_VIEWERS")
        if subject not in self.by_subject and len(self.by_subject) >= MAX_VIEWS:
            self._make_room(viewer, self._views_by_viewer(), "TOO_MANY_VIEWS")
        audience = self.by_subject.setdefault(subject, Audience())
        stream = EventStream(lambda closed: self._leave(subject, closed), viewer=viewer)
        audience.streams[stream] = self._clock.monotonic_ns()
        if audience.event:
            stream.send(audience.event)
        return stream, not audience.event

    def show(self, subject: Subject, event: bytes) -> None:
        """Send an event to the browsers that look at a subject, if there are any."""
        audience = self.by_subject.get(subject)
        if audience is not None:
            audience.show(event, self._clock.monotonic_ns())

    def _make_room(self, newcomer: str, places: dict[str, list[_Place]], refusal: str) -> None:
        """End what the viewer with the most places has had for longest; HttpError if no viewer has too many."""
        largest = max(places, key=lambda viewer: len(places[viewer]), default=newcomer)
        if len(places.get(largest, ())) <= len(places.get(newcomer, ())) + 1:
            raise HttpError(503, refusal)
        subject, streams = places[largest][0]
        for stream in streams:
            stream.end()
            self._leave(subject, stream)

    def _streams_by_viewer(self) -> dict[str, list[_Place]]:
        """Every stream is a place."""
        opened = [
            (opened_ns, subject, stream)
            for subject, audience in self.by_subject.items()
            for stream, opened_ns in audience.streams.items()
        ]
        places: dict[str, list[_Place]] = defaultdict(list)
        for _, subject, stream in sorted(opened, key=itemgetter(0)):
            places[stream.viewer].append((subject, (stream,)))
        return places

    def _views_by_viewer(self) -> dict[str, list[_Place]]:
        """A view is a place of the viewer that has looked at it for longest, with all who look at it besides."""
        places: dict[str, list[_Place]] = defaultdict(list)
        for subject, audience in self.by_subject.items():  # the oldest first
            owner = next(iter(audience.streams)).viewer
            places[owner].append((subject, tuple(audience.streams)))
        return places

    def _leave(self, subject: Subject, stream: EventStream) -> None:
        audience = self.by_subject.get(subject)
        if audience is not None:
            audience.streams.pop(stream, None)
            if not audience.streams:
                del self.by_subject[subject]


# Server-sent events

CONTENT_TYPE = "text/event-stream; charset=utf-8"
RETRY_MS = 2000


def encode_event(name: str, data: bytes) -> bytes:
    """An event as it is sent; `data` is JSON."""
    return b"event: %s\ndata: %s\n\n" % (name.encode("ascii"), data)


class EventStream(StreamBody):
    """Events to one browser: the body of an answer without an end."""

    def __init__(self, on_close: Callable[[EventStream], None], *, viewer: str = "") -> None:
        self.length = None
        self.viewer = viewer
        """By what the streams of one client are counted."""
        self._on_close = on_close
        self._newest = b"retry: %d\n\n" % RETRY_MS
        self._has_news = asyncio.Event()
        self._has_news.set()
        self._has_ended = False

    def send(self, event: bytes) -> None:
        """Send this, unless something newer comes before the browser has taken what was sent so far."""
        self._newest = event
        self._has_news.set()

    def end(self) -> None:
        """Send no more."""
        self._has_ended = True
        self._has_news.set()

    async def next_piece(self) -> bytes:
        await self._has_news.wait()
        self._has_news.clear()
        return b"" if self._has_ended else self._newest

    def close(self) -> None:
        self._on_close(self)


def encode_problem(text: str, *, is_missing: bool = False) -> bytes:
    """The event that tells what went wrong; `is_missing`: the cluster does not have what is looked at."""
    return encode_event(PROBLEM, encode_json({"message": text, "is_missing": is_missing}))
