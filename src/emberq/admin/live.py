"""One loop that looks at the cluster for all browsers, and the events that it sends them.

However many browsers look, the nsqds are asked once per round, each view's document is made once, and encoded once.
There are rounds only while a browser looks, for the history, and for the rules that an operator has given:

    a browser looks                           every --live-interval
    only the history, or rules of a file      every --history-interval
    neither                                   none

A browser that comes is shown the last look at once, unless that is old, and the next one when it is due.

A round that takes long is followed by a pause of at least its own length, so that a huge cluster keeps nsqadmin busy
for no more than half of the time. All that takes long is done in the background, so that no request waits for it. What
goes wrong in a round is told to the browsers, as an event `problem`; the next round tries again. `is_missing` in it
says that the cluster answered, and does not have what they look at.

**Server-sent events** to one browser:

    retry: 2000                    how soon to come again after a break
    event: topics
    data: {"topics":[…]}           one line: JSON has no line breaks of its own
                                   an empty line ends the event

Only the newest event waits to be sent. A browser that is slow misses what was overtaken, and costs no memory.

**Places** for browsers and for views are limited, and no viewer may take them all. When there is none left, the viewer
that has the most gives up the one it has had for longest, unless the newcomer has about as many: then it is refused.

**Large documents** are encoded in pieces. While a document is encoded nothing else runs, not even in another thread: it
is one call into the interpreter. So long lists are encoded some rows at a time, and between two pieces other threads
get their turn. The result is the same.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from operator import itemgetter
from typing import Any

from emberq.admin.absence import Absences
from emberq.admin.alert import Alerts, findings
from emberq.admin.api.request import TopicNotFoundError, as_http_error
from emberq.admin.attention import channels_view, search_view
from emberq.admin.document import (
    MAX_CLIENTS,
    Document,
    Look,
    channel_view,
    counter_view,
    node_view,
    nodes_view,
    topic_view,
    topics_view,
)
from emberq.admin.history import History
from emberq.admin.history_store import Marks, node_mark
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.cluster.cluster import Cluster
from emberq.cluster.pipeline_feed import TOPIC, PipelineFeed
from emberq.cluster.stats import ClientFigures, ClientFilter, ClientWatch, total_topic
from emberq.cluster.survey import ClusterReader, Survey
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import ClusterError, Findings, UpstreamsFailedError
from emberq.http.body import StreamBody
from emberq.http.message import HttpError, encode_json

MAX_STREAMS = 500
"""Browsers that look at once. Each holds a connection and up to one document."""
MAX_STREAM_NS = 600 * NS_PER_SECOND
"""Then a browser has to come again, which it does by itself, and show who it is: its user may have logged out."""
MAX_VIEWS = 100
"""Different views that are looked at; those with clients cost a question to the nsqds each."""

MAX_GREETING_AGE_NS = 30 * NS_PER_SECOND
"""An older look is not shown to a browser that comes: it could be taken for the present."""

PROBLEM = "problem"

_log = logging.getLogger(__name__)


class LiveView(enum.StrEnum):
    """What can be looked at."""

    TOPICS = "topics"
    CHANNELS = "channels"
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
class _Audience:
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


@dataclass(slots=True)
class RoundCounts:
    """How looks at the cluster have gone."""

    done_count: int = 0
    failed_count: int = 0
    total_ns: int = 0
    """How long those took that are done."""
    last_ns: int = 0
    """How long the last one took."""

    def add(self, duration_ns: int) -> None:
        self.done_count += 1
        self.total_ns += duration_ns
        self.last_ns = duration_ns


class Gatherer:
    """Looks at the cluster and shows it to all browsers. Owned by the daemon."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        pipelines: PipelineFeed,
        marks: Marks,
        alerts: Alerts,
        *,
        clock: Clock,
        timers: Timers,
        interval_ns: int,
    ) -> None:
        self._cluster = cluster
        self.history = history
        self._pipelines = pipelines
        self._clock = clock
        self._interval_ns = interval_ns
        self._audiences: dict[Subject, _Audience] = {}
        self.marks = marks
        self.alerts = alerts
        self.rounds = RoundCounts()
        self.absences = Absences(tell=lambda mark: marks.add(node_mark(mark.time_ns, mark.node, mark.what)))
        self._look: Look | None = None
        self._look_ns = 0
        """When the last look began, by the monotonic clock."""
        self._rested_ns = 0
        """When the next round may begin at the earliest."""
        self._kept: dict[Subject, bytes] = {}
        """Documents of the last look, encoded."""
        self._recent: dict[str, tuple[int, bytes]] = {}
        """The last figures of all topics or channels, encoded, behind the number of points that the history had."""
        self._looking: asyncio.Task[Look] | None = None
        """A look under way, which all callers that need one share."""
        self._round: asyncio.Task[None] | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        """First documents on their way to browsers that are the first to look at their subject."""
        self._alarm = timers.alarm(self._begin_round)
        self._is_closed = False

    @property
    def stream_count(self) -> int:
        """Browsers that look now."""
        return sum(len(audience.streams) for audience in self._audiences.values())

    @property
    def is_busy(self) -> bool:
        """Whether a document is being made for a browser right now."""
        return self._round is not None or bool(self._greetings)

    def start(self) -> None:
        """Begin with the history or the rules, if there is to be one of them."""
        if self._is_kept_up:
            self._begin_round()

    @property
    def _is_kept_up(self) -> bool:
        """Whether there are rounds while no browser looks."""
        return self.history.is_kept or self.alerts.is_wanted

    @property
    def last_look(self) -> Look | None:
        """The cluster when it was last looked at."""
        return self._look

    async def stop(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._alarm.discard()
        for audience in list(self._audiences.values()):
            for stream in list(audience.streams):
                stream.end()
        tasks = [task for task in (self._round, self._looking, *self._greetings) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Browsers

    def open(self, subject: Subject, viewer: str) -> EventStream:
        """A stream of the subject's documents for a viewer; HttpError if it would take the place of another."""
        if self._is_closed:
            raise HttpError(503, "TOO_MANY_VIEWERS")
        if self.stream_count >= MAX_STREAMS:
            self._make_room(viewer, self._streams_by_viewer(), "TOO_MANY_VIEWERS")
        if subject not in self._audiences and len(self._audiences) >= MAX_VIEWS:
            self._make_room(viewer, self._views_by_viewer(), "TOO_MANY_VIEWS")
        audience = self._audiences.setdefault(subject, _Audience())
        stream = EventStream(lambda closed: self._leave(subject, closed), viewer=viewer)
        audience.streams[stream] = self._clock.monotonic_ns()
        if audience.event:
            stream.send(audience.event)
        else:
            greeting = asyncio.get_running_loop().create_task(self._greet(subject))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)
        return stream

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
            for subject, audience in self._audiences.items()
            for stream, opened_ns in audience.streams.items()
        ]
        places: dict[str, list[_Place]] = defaultdict(list)
        for _, subject, stream in sorted(opened, key=itemgetter(0)):
            places[stream.viewer].append((subject, (stream,)))
        return places

    def _views_by_viewer(self) -> dict[str, list[_Place]]:
        """A view is a place of the viewer that has looked at it for longest, with all who look at it besides."""
        places: dict[str, list[_Place]] = defaultdict(list)
        for subject, audience in self._audiences.items():  # the oldest first
            owner = next(iter(audience.streams)).viewer
            places[owner].append((subject, tuple(audience.streams)))
        return places

    async def _greet(self, subject: Subject) -> None:
        await self._show_all([subject], self._look_no_older_than(MAX_GREETING_AGE_NS))
        self._alarm.set_earlier(max(self._look_ns + self._interval_ns, self._rested_ns))

    def _leave(self, subject: Subject, stream: EventStream) -> None:
        audience = self._audiences.get(subject)
        if audience is not None:
            audience.streams.pop(stream, None)
            if not audience.streams:
                del self._audiences[subject]

    # Rounds

    def _begin_round(self) -> None:
        is_wanted = bool(self._audiences) or self._is_kept_up
        if is_wanted and self._round is None and not self._is_closed:
            self._round = asyncio.get_running_loop().create_task(self._gather())

    async def _gather(self) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            await self._show_all(list(self._audiences), self.look())
        finally:
            self._round = None
        now_ns = self._clock.monotonic_ns()
        self._rested_ns = now_ns + (now_ns - began_ns)
        self._alarm.set(self._next_round_ns(began_ns))

    def _next_round_ns(self, began_ns: int) -> int:
        if self._audiences:
            return max(began_ns + self._interval_ns, self._rested_ns)
        if self._is_kept_up:
            return max(began_ns + self.history.interval_ns, self._rested_ns)
        return NEVER

    async def _show_all(self, subjects: Sequence[Subject], looking: Awaitable[Look]) -> None:
        """Show a look to the browsers that look at these subjects, or tell them why there is none."""
        try:
            look = await looking
            for subject in subjects:
                await self._show(subject, look)
        except ClusterError as failure:
            self._tell_problem(subjects, str(failure))
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the rounds
            _log.exception("a look at the cluster failed")
            self._tell_problem(subjects, "INTERNAL_ERROR")

    async def _show(self, subject: Subject, look: Look) -> None:
        audience = self._audiences.get(subject)
        if audience is None:
            return
        try:
            event = encode_event(subject.view, await self._encoded(subject, look))
        except ClusterError as failure:
            event = _problem(str(failure), is_missing=as_http_error(failure).status == HTTPStatus.NOT_FOUND)
        audience.show(event, self._clock.monotonic_ns())

    def _tell_problem(self, subjects: Sequence[Subject], text: str) -> None:
        for subject in subjects:
            audience = self._audiences.get(subject)
            if audience is not None:
                audience.show(_problem(text), self._clock.monotonic_ns())

    # Looks and documents

    async def document(self, subject: Subject) -> bytes:
        """A subject's document once, as JSON; ClusterError."""
        # As fresh as a browser that looks all the time sees it.
        return await self._encoded(subject, await self._look_no_older_than(self._interval_ns // 2))

    def dismiss(self, node: str) -> bool:
        """Show a node that is gone no more; whether there was one."""
        is_known = self.absences.dismiss(node)
        if self._look is not None:
            self._look = replace(self._look, absences=self.absences.now)
            self._kept = {}
        return is_known

    async def recent_rates(self) -> bytes:
        """The last rates of every topic, as JSON."""
        return await self._recent_figures("topics", self.history.recent_rates)

    async def recent_depths(self) -> bytes:
        """The last depths of every channel, as JSON."""
        return await self._recent_figures("channels", self.history.recent_depths)

    async def _recent_figures(self, kind: str, make: Callable[[], Document]) -> bytes:
        count = self.history.point_count
        if self._recent.get(kind, (-1, b""))[0] != count:
            document = make() | {"message": ""}
            encoded = await self._cluster.background.run(lambda: encode_in_pieces(document))
            self._recent[kind] = count, encoded
        return self._recent[kind][1]

    async def search(self, text: str) -> bytes:
        """The topics, channels and nodes that a search finds, as JSON; ClusterError."""
        look = await self._look_no_older_than(MAX_GREETING_AGE_NS)
        return await self._cluster.background.run(lambda: encode_in_pieces(search_view(look, text)))

    async def _look_no_older_than(self, age_ns: int) -> Look:
        if self._look is not None and self._clock.monotonic_ns() - self._look_ns < age_ns:
            return self._look
        return await self.look()

    async def look(self) -> Look:
        """The cluster now; callers that ask meanwhile get the same look. ClusterError."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._take_look())
        return await asyncio.shield(self._looking)

    async def _take_look(self) -> Look:
        began_ns = self._clock.monotonic_ns()
        try:
            look = await self._taken_look(began_ns)
        except BaseException:
            self.rounds.failed_count += 1
            raise
        else:
            self.rounds.add(self._clock.monotonic_ns() - began_ns)
            return look
        finally:
            self._looking = None

    async def _taken_look(self, began_ns: int) -> Look:
        found, names = await self._cluster.ask_in_background(self._ask_all)
        survey = found.value
        taken_ns = self._clock.wall_ns()
        absences = self.absences.update(survey, taken_ns)
        look = Look(survey, names.value, taken_ns=taken_ns, warnings=found.warnings, absences=absences)
        self.history.record(look, now_ns=self._clock.monotonic_ns())
        look = await self._judged(look)
        self._look, self._look_ns = look, began_ns
        self._kept = {}
        self._pipelines.follow(survey.producers, survey.rates_by_node(TOPIC))
        return look

    async def _judged(self, look: Look) -> Look:
        """The look, with what is wrong by the rules."""
        rules = self.alerts.rules.current.rules
        self.alerts.take(await self._cluster.background.run(lambda: findings(rules, look, self.history)), look)
        return replace(look, alerts=self.alerts.summary())

    async def judge_again(self) -> None:
        """Hold the last look against rules that have changed."""
        if self._look is not None:
            look = self._look
            judged = await self._judged(look)
            if self._look is look:
                self._look, self._kept = judged, {}

    async def _ask_all(
        self, topology: Topology, observer: ClusterReader
    ) -> tuple[Findings[Survey], Findings[tuple[str, ...]]]:
        before = self._look.survey if self._look is not None else None
        return await asyncio.gather(observer.survey(self._clock, before), topology.registered_topics())

    async def _encoded(self, subject: Subject, look: Look) -> bytes:
        """A subject's document as JSON; ClusterError."""
        kept = self._kept.get(subject) if look is self._look else None
        if kept is not None:
            return kept
        make = await self._document(subject, look)
        encoded = await self._cluster.background.run(lambda: encode_in_pieces(make()))
        if subject.view in _MADE_OF_THE_LOOK and look is self._look and len(self._kept) < MAX_VIEWS:
            self._kept[subject] = encoded
        return encoded

    def _watching(self, subject: Subject, clients: Iterable[ClientFigures]) -> Callable[[], ClientWatch]:
        """A function that adds what was just seen to what is remembered of clients while a browser looks at them.

        It is called where documents are made: in one thread, for there may be many clients.
        """
        audience = self._audiences.get(subject)
        watch = (audience.watch if audience is not None else None) or ClientWatch()
        if audience is not None:
            audience.watch = watch
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()

        def add() -> ClientWatch:
            watch.add(clients, now_ns=now_ns, wall_ns=wall_ns)
            return watch

        return add

    async def _document(self, subject: Subject, look: Look) -> Callable[[], Document]:
        """Ask the cluster for what the look does not hold; the function that then makes the document may take long."""
        match subject.view:
            case LiveView.TOPICS:
                return partial(topics_view, look)
            case LiveView.CHANNELS:
                return partial(channels_view, look, self.history)
            case LiveView.TOPIC:
                topic = await self._cluster.background.run(lambda: look.survey.topic(subject.topic))
                if topic is None and subject.topic not in look.names:
                    raise _no_topic(subject)
                # One that was just created is known to nsqlookupd, and to no nsqd before the first message.
                return partial(topic_view, topic or total_topic(subject.topic, ()), look)
            case LiveView.CHANNEL:
                sieve = ClientFilter(search=subject.search, limit=MAX_CLIENTS)
                try:
                    channel = await self._cluster.ask_in_background(
                        lambda _, observer: observer.channel(subject.topic, subject.channel, sieve)
                    )
                except UpstreamsFailedError:
                    if subject.topic in look.survey.channels or subject.topic in look.names:
                        raise
                    raise _no_topic(subject) from None  # which nsqlookupd calls a failure
                watched = self._watching(subject, sieve.kept)
                return lambda: channel_view(channel.value, sieve, watched(), look)
            case LiveView.NODES:
                producers = await self._cluster.ask_in_background(lambda topology, _: topology.producers())
                return partial(nodes_view, producers.value, look)
            case LiveView.NODE:
                node = await self._cluster.ask_in_background(lambda _, observer: observer.node(subject.node))
                watched = self._watching(subject, node.value.clients)
                return lambda: node_view(node.value, watched(), look)
            case LiveView.COUNTER:
                return partial(counter_view, look)
            case LiveView.ALERTS:
                alerts = self.alerts.document()
                return lambda: {**alerts, **look.head}
            case LiveView.PIPELINES:
                reported = self._pipelines.document()
                return lambda: {**reported, **look.head}


_MADE_OF_THE_LOOK = frozenset({LiveView.TOPICS, LiveView.CHANNELS, LiveView.TOPIC, LiveView.COUNTER})
"""Views that need no more than the look: their documents stay the same until the next one."""


def _no_topic(subject: Subject) -> TopicNotFoundError:
    return TopicNotFoundError(f"no nsqd has topic {subject.topic}")


def _problem(text: str, *, is_missing: bool = False) -> bytes:
    return encode_event(PROBLEM, encode_json({"message": text, "is_missing": is_missing}))


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


# Large documents

ROWS_PER_PIECE = 250
"""Some hundred kilobytes, which take a few milliseconds."""


def encode_in_pieces(document: dict[str, Any]) -> bytes:
    """The same as `encode_json`. Long lists in the document are taken apart, and in its rows if these are few."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode_json(name), _encoded(value)) for name, value in document.items())


def _encoded(value: Any) -> bytes:
    if not isinstance(value, list):
        return encode_json(value)
    if len(value) <= ROWS_PER_PIECE:
        if not any(map(_has_long_list, value)):
            return encode_json(value)
        return b"[%b]" % b",".join(encode_in_pieces(row) if _has_long_list(row) else encode_json(row) for row in value)
    starts = range(0, len(value), ROWS_PER_PIECE)
    return b"[%b]" % b",".join(encode_json(value[start : start + ROWS_PER_PIECE])[1:-1] for start in starts)


def _has_long_list(row: Any) -> bool:
    return isinstance(row, dict) and any(isinstance(each, list) and len(each) > ROWS_PER_PIECE for each in row.values())
