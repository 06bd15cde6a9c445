"""One loop that looks at the cluster, for everybody who wants to know.

However many browsers look, the nsqds are asked once per round, each view's document is made once, and encoded once.
There are rounds only while somebody looks, and for the history:

    somebody looks          every --live-interval
    only the history        every --history-interval
    neither                 none

Whoever comes is shown what was seen last, if that is recent, and else is reason enough for a look.

A round that takes long is followed by a pause of at least its own length, so that a huge cluster keeps nsqadmin busy
for no more than half of the time. What goes wrong in a round is told to those who look, as an event `problem`; the next
round tries again.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from emberq.admin.api.failure import TopicNotFound
from emberq.admin.event_stream import EventStream, encode_event
from emberq.admin.history import History
from emberq.admin.rate import Meter
from emberq.admin.upstream import Cluster
from emberq.admin.view import (
    Document,
    Look,
    channel_view,
    counter_view,
    node_view,
    nodes_view,
    pipelines_view,
    topic_view,
    topics_view,
)
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.cluster.aggregate import total_topics
from emberq.cluster.observer import Snapshot
from emberq.cluster.pipeline_feed import PipelineFeed
from emberq.cluster.producer import Producer
from emberq.cluster.stats import TopicStats
from emberq.cluster.upstream import ClusterError, Findings
from emberq.http.message import HttpError, encode_json

MAX_STREAMS = 500
"""Browsers that look at once. Each holds a connection and up to one document."""
MAX_STREAM_NS = 600 * NS_PER_SECOND
"""Then a browser has to come again, which it does by itself, and show again who it is: somebody may have logged out."""
MAX_VIEWS = 100
"""Different views that are looked at; those with clients cost a question to the nsqds each."""

PROBLEM = "problem"

_THREAD_PARTS = 1000
"""Topics times nodes that take some ten milliseconds to reckon with."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class View(enum.StrEnum):
    """What can be looked at."""

    TOPICS = "topics"
    TOPIC = "topic"
    CHANNEL = "channel"
    NODES = "nodes"
    NODE = "node"
    COUNTER = "counter"
    PIPELINES = "pipelines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What somebody looks at."""

    view: View
    topic: str = ""
    channel: str = ""
    node: str = ""


@dataclass(slots=True)
class _Audience:
    """Those who look at the same."""

    streams: dict[EventStream, int] = field(default_factory=dict)
    """Each with the time when it was opened."""
    event: bytes = b""
    """What they were shown last."""

    def show(self, event: bytes, now_ns: int) -> None:
        self.event = event
        for stream, opened_ns in self.streams.items():
            if now_ns - opened_ns > MAX_STREAM_NS:
                stream.end()
            else:
                stream.send(event)


class Gatherer:
    """Owned by the daemon."""

    def __init__(
        self,
        cluster: Cluster,
        history: History,
        pipelines: PipelineFeed,
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
        self._meter = Meter()
        self._audiences: dict[Subject, _Audience] = {}
        self._look: Look | None = None
        self._look_ns = 0
        """When the last look began, by the monotonic clock."""
        self._looking: asyncio.Task[Look] | None = None
        """A look under way, which all who need one share."""
        self._round: asyncio.Task[None] | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        """First documents on their way to those who came for something that nobody looked at before."""
        self._alarm = timers.alarm(self._begin_round)
        self._is_closed = False

    @property
    def stream_count(self) -> int:
        """Browsers that look now."""
        return sum(len(audience.streams) for audience in self._audiences.values())

    @property
    def is_busy(self) -> bool:
        """Whether somebody is being shown something right now."""
        return self._round is not None or bool(self._greetings)

    def start(self) -> None:
        """Begin with the history, if there is to be one."""
        if self.history.is_kept:
            self._begin_round()

    async def stop(self) -> None:
        """Send everybody away."""
        self._is_closed = True
        self._alarm.discard()
        for audience in list(self._audiences.values()):
            for stream in list(audience.streams):
                stream.end()
        tasks = [task for task in (self._round, self._looking, *self._greetings) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Those who look.

    def open(self, subject: Subject) -> EventStream:
        """A stream of the subject's documents; HttpError if too many are open."""
        if self._is_closed or self.stream_count >= MAX_STREAMS:
            raise HttpError(503, "TOO_MANY_VIEWERS")
        audience = self._audiences.get(subject)
        if audience is None:
            if len(self._audiences) >= MAX_VIEWS:
                raise HttpError(503, "TOO_MANY_VIEWS")
            audience = self._audiences[subject] = _Audience()
        stream = EventStream(lambda closed: self._leave(subject, closed))
        audience.streams[stream] = self._clock.monotonic_ns()
        if audience.event:
            stream.send(audience.event)
        else:
            greeting = asyncio.get_running_loop().create_task(self._greet(subject))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)
        return stream

    async def _greet(self, subject: Subject) -> None:
        await self._show_all([subject], self._recent_look())
        self._alarm.set_earlier(self._look_ns + self._interval_ns)

    def _leave(self, subject: Subject, stream: EventStream) -> None:
        audience = self._audiences.get(subject)
        if audience is not None:
            audience.streams.pop(stream, None)
            if not audience.streams:
                del self._audiences[subject]

    # The rounds.

    def _begin_round(self) -> None:
        is_wanted = bool(self._audiences) or self.history.is_kept
        if is_wanted and self._round is None and not self._is_closed:
            self._round = asyncio.get_running_loop().create_task(self._gather())

    async def _gather(self) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            await self._show_all(list(self._audiences), self.look())
        finally:
            self._round = None
        self._alarm.set(self._next_round_ns(began_ns, self._clock.monotonic_ns()))

    def _next_round_ns(self, began_ns: int, now_ns: int) -> int:
        rested_ns = now_ns + (now_ns - began_ns)
        if self._audiences:
            return max(began_ns + self._interval_ns, rested_ns)
        if self.history.is_kept:
            return max(began_ns + self.history.interval_ns, rested_ns)
        return NEVER

    async def _show_all(self, subjects: Sequence[Subject], looking: Awaitable[Look]) -> None:
        """Show a look to those who look at these, or tell them why there is none."""
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
            event = _problem(str(failure))
        audience.show(event, self._clock.monotonic_ns())

    def _tell_problem(self, subjects: Sequence[Subject], text: str) -> None:
        for subject in subjects:
            audience = self._audiences.get(subject)
            if audience is not None:
                audience.show(_problem(text), self._clock.monotonic_ns())

    # What is to be seen.

    async def document(self, subject: Subject) -> bytes:
        """A subject's document once, as JSON; ClusterError."""
        return await self._encoded(subject, await self._recent_look())

    async def _recent_look(self) -> Look:
        """Not older than those who look all the time see it."""
        if self._look is not None and self._clock.monotonic_ns() - self._look_ns < self._interval_ns // 2:
            return self._look
        return await self.look()

    async def look(self) -> Look:
        """The cluster now; whoever else asks meanwhile gets the same. ClusterError."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._take_look())
        return await asyncio.shield(self._looking)

    async def _take_look(self) -> Look:
        began_ns = self._clock.monotonic_ns()
        try:
            producers = await self._cluster.topology.identities()
            parts = await self._parts(producers.value)
            look = await _computed(
                lambda: self._reckon(producers.value, parts.value, producers.warnings + parts.warnings),
                size=len(parts.value),
            )
        finally:
            self._looking = None
        self._look, self._look_ns = look, began_ns
        self.history.record(look, now_ns=self._clock.monotonic_ns())
        self._pipelines.follow(look.snapshot)
        return look

    async def _parts(self, producers: Sequence[Producer]) -> Findings[list[TopicStats]]:
        """The topics of every node. A cluster without a single nsqd has none, and nothing is wrong with it."""
        if not producers:
            return Findings([])
        return await self._cluster.observer.of_producers(producers)

    def _reckon(self, producers: tuple[Producer, ...], parts: list[TopicStats], warnings: tuple[str, ...]) -> Look:
        """Sums and rates. Only one look is taken at a time, so nobody else has the meter."""
        topics = total_topics(parts)
        rates = self._meter.measure(topics, now_ns=self._clock.monotonic_ns())
        return Look(Snapshot(producers=producers, topics=topics), rates, self._clock.wall_ns(), warnings)

    async def _encoded(self, subject: Subject, look: Look) -> bytes:
        """A subject's document as JSON; ClusterError."""
        make = await self._document(subject, look)
        return await _computed(lambda: encode_json(make()), size=look.part_count)

    async def _document(self, subject: Subject, look: Look) -> Callable[[], Document]:
        """Asks what has to be asked for, and gives what makes the document of it, which may take long."""
        match subject.view:
            case View.TOPICS:
                names = await self._cluster.topology.topics()
                return partial(topics_view, look, names.value)
            case View.TOPIC:
                topic = look.topic(subject.topic)
                if topic is None:
                    raise TopicNotFound(f"no nsqd has topic {subject.topic}")
                return partial(topic_view, topic, look)
            case View.CHANNEL:
                found = await self._cluster.observer.channel(subject.topic, subject.channel, include_clients=True)
                return partial(channel_view, found.value, look)
            case View.NODES:
                producers = await self._cluster.topology.producers()
                return partial(nodes_view, producers.value, look)
            case View.NODE:
                node = await self._cluster.observer.node(subject.node)
                return partial(node_view, node.value, look)
            case View.COUNTER:
                return partial(counter_view, look)
            case View.PIPELINES:
                return partial(pipelines_view, self._pipelines.document(), look)


async def _computed(compute: Callable[[], T], *, size: int) -> T:
    """What takes long is computed in a thread, so that nobody has to wait for it."""
    return compute() if size < _THREAD_PARTS else await asyncio.to_thread(compute)


def _problem(text: str) -> bytes:
    return encode_event(PROBLEM, encode_json({"message": text}))
