"""One loop that looks at the cluster for all browsers (see `audience`), for the history and for the rules.

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

"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

from emberq.admin.absence import Absences
from emberq.admin.alert import Alerts, findings
from emberq.admin.api.request import TopicNotFoundError, as_http_error
from emberq.admin.attention import OldestAge, channels_view, dead_letters_view, search_view
from emberq.admin.audience import MAX_VIEWS, Audiences, EventStream, LiveView, Subject, encode_event, encode_problem
from emberq.admin.document import Document, encode_in_pieces
from emberq.admin.history import History
from emberq.admin.history_store import Marks, node_mark
from emberq.admin.view import (
    MAX_CLIENTS,
    Look,
    channel_view,
    counter_view,
    node_view,
    nodes_view,
    topic_view,
    topics_view,
)
from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.cluster.cluster import Cluster
from emberq.cluster.pipeline_feed import TOPIC, PipelineFeed
from emberq.cluster.stats import ClientFigures, ClientFilter, ClientWatch, total_topic
from emberq.cluster.survey import ClusterReader, Survey, Total
from emberq.cluster.topology import Topology
from emberq.cluster.upstream import ClusterError, Findings, UpstreamsFailedError

MAX_GREETING_AGE_NS = 30 * NS_PER_SECOND
"""An older look is not shown to a browser that comes: it could be taken for the present."""

_log = logging.getLogger(__name__)


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
        self.pipelines = pipelines
        self._clock = clock
        self._interval_ns = interval_ns
        self._audiences = Audiences(clock=clock)
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
        return self._audiences.stream_count

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
        self._audiences.close()
        tasks = [task for task in (self._round, self._looking, *self._greetings) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Browsers

    def open(self, subject: Subject, viewer: str) -> EventStream:
        """A stream of the subject's documents for a viewer; HttpError if it would take the place of another."""
        stream, is_new = self._audiences.open(subject, viewer)
        if is_new:
            greeting = asyncio.get_running_loop().create_task(self._greet(subject))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)
        return stream

    async def _greet(self, subject: Subject) -> None:
        await self._show_all([subject], self._look_for_greeting(subject))
        self._alarm.set_earlier(max(self._look_ns + self._interval_ns, self._rested_ns))

    async def _look_for_greeting(self, subject: Subject) -> Look:
        """The last look, unless it is old, or the subject is missing from it and may have come since."""
        last = self._look
        look = await self._look_no_older_than(MAX_GREETING_AGE_NS)
        if look is last:
            try:
                await self._encoded(subject, look)
            except ClusterError:
                return await self.look()
        return look

    # Rounds

    def _begin_round(self) -> None:
        is_wanted = bool(self._audiences.by_subject) or self._is_kept_up
        if is_wanted and self._round is None and not self._is_closed:
            self._round = asyncio.get_running_loop().create_task(self._gather())

    async def _gather(self) -> None:
        began_ns = self._clock.monotonic_ns()
        try:
            await self._show_all(list(self._audiences.by_subject), self.look())
        finally:
            self._round = None
        now_ns = self._clock.monotonic_ns()
        self._rested_ns = now_ns + (now_ns - began_ns)
        self._alarm.set(self._next_round_ns(began_ns))

    def _next_round_ns(self, began_ns: int) -> int:
        if self._audiences.by_subject:
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
        if subject not in self._audiences.by_subject:
            return
        try:
            event = encode_event(subject.view, await self._encoded(subject, look))
        except ClusterError as failure:
            event = encode_problem(str(failure), is_missing=as_http_error(failure).status == HTTPStatus.NOT_FOUND)
        self._audiences.show(subject, event)

    def _tell_problem(self, subjects: Sequence[Subject], text: str) -> None:
        for subject in subjects:
            self._audiences.show(subject, encode_problem(text))

    # Looks and documents

    async def document(self, subject: Subject) -> bytes:
        """A subject's document once, as JSON; ClusterError."""
        # As fresh as a browser that looks all the time sees it.
        return await self._encoded(subject, await self._look_no_older_than(self._interval_ns // 2))

    def dismiss(self, node: str) -> bool:
        """Show a node that is gone no more; whether there was one."""
        is_known = self.absences.dismiss(node)
        if self._look is not None:
            self._show_from_now_on(replace(self._look, absences=self.absences.now))
        return is_known

    def apply_silences(self) -> None:
        """Show and tell at once what has changed with the silences."""
        self.alerts.apply_silences()
        if self._look is not None:
            self._show_from_now_on(replace(self._look, alerts=self.alerts.summary()))

    def _show_from_now_on(self, look: Look) -> None:
        self._look, self._kept = look, {}

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
        self.pipelines.follow(survey.producers, survey.rates_by_node(TOPIC))
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
                self._show_from_now_on(judged)

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
        audience = self._audiences.by_subject.get(subject)
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
            case LiveView.DEAD_LETTERS:
                return partial(dead_letters_view, look, self.history)
            case LiveView.TOPIC:
                topic = await self._cluster.background.run(lambda: look.survey.topic(subject.topic))
                if topic is None and subject.topic not in look.names:
                    raise _no_topic(subject)
                # One that was just created is known to nsqlookupd, and to no nsqd before the first message.
                return partial(topic_view, topic or total_topic(subject.topic, ()), look)
            case LiveView.CHANNEL:
                sieve = ClientFilter(search=subject.search, limit=MAX_CLIENTS)
                silent = {absence.producer.node for absence in look.silent}
                try:
                    channel = await self._cluster.ask_in_background(
                        lambda _, observer: observer.channel(subject.topic, subject.channel, sieve, silent=silent)
                    )
                except UpstreamsFailedError:
                    if subject.topic in look.survey.channels or subject.topic in look.names:
                        raise
                    raise _no_topic(subject) from None  # which nsqlookupd calls a failure
                watched = self._watching(subject, sieve.kept)
                total = look.survey.totals.get((subject.topic, subject.channel), Total())
                oldest = OldestAge.of(subject.topic, subject.channel, total, self.history).document()
                return lambda: channel_view(channel.value, sieve, watched(), look) | oldest
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
                reported = self.pipelines.document()
                return lambda: {**reported, **look.head}


_MADE_OF_THE_LOOK = frozenset(
    {LiveView.TOPICS, LiveView.CHANNELS, LiveView.DEAD_LETTERS, LiveView.TOPIC, LiveView.COUNTER}
)
"""Views that need no more than the look: their documents stay the same until the next one."""


def _no_topic(subject: Subject) -> TopicNotFoundError:
    return TopicNotFoundError(f"no nsqd has topic {subject.topic}")
