"""Draining: a node that is to go takes nothing new, is emptied by its consumers, and stops when it is empty.

    begin ──> publishes and new topics are refused (DRAINING), /ping?ready=true answers 503
              consumers go on, also those that come now: a topic stays registered with nsqlookupd as long as it holds
              something
    empty ──> a topic that holds nothing is unregistered; when none holds anything, the node stops, with status 0
    cancel ─> everything is as before

A message is held while it waits in a topic or a channel, is in flight, or is deferred. Dead letters go on to their
topic, or the channel that they come from would never be empty; there they are held like any message. What no consumer
comes for keeps the node waiting, and `report` says what that is. An operator who does not want to wait stops the node
as ever: what it holds stays on the disk.

Topics are looked at in portions, so that thousands of them hold up no one; all at once only before the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.broker import Broker, TopologyChange
from emberq.broker.topic import Topic

LOOK_NS = 100 * NS_PER_MS
"""How often it is checked which topics have become empty."""
LOOK_COUNT = 256
"""How many topics are looked at in one turn of the event loop."""
MAX_REPORTED = 100
"""How many topics a report names."""

REASON = "this nsqd is being drained: publish to another one"

_log = logging.getLogger(__name__)


class Held(NamedTuple):
    """What a topic and its channels hold."""

    topic: str
    depth: int
    in_flight: int
    deferred: int
    waits_for: str
    """What would make it less."""

    @property
    def message_count(self) -> int:
        return self.depth + self.in_flight + self.deferred


class DrainReport(NamedTuple):
    """How far it is."""

    since_s: int
    """When it began, in seconds since the Unix epoch."""
    topic_count: int
    """Topics that hold something."""
    message_count: int
    topics: list[Held]
    """The first of them."""


class Drain:
    """Empties the node. Owned by the daemon.

    `refuse` closes the node to publishers for this reason, or opens it for None; `announce` tells nsqlookupd of a topic
    or channel; `on_empty` is called once, when nothing is held any more.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        timers: Timers,
        refuse: Callable[[str | None], None],
        announce: Callable[[TopologyChange], None],
        on_empty: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._refuse = refuse
        self._announce = announce
        self._on_empty = on_empty
        self._alarm = timers.alarm(self._look)
        self._since_s: int | None = None
        self._to_look_at: list[str] = []
        """The topics whose turn comes, the last one first. When there is none, all begin anew."""
        self._holds_any = False
        """Whether one of those that were looked at since all began anew holds something."""
        self._unregistered: set[str] = set()

    @property
    def is_on(self) -> bool:
        return self._since_s is not None

    def begin(self) -> None:
        """Take nothing new, and stop when the node is empty."""
        if self.is_on:
            return
        self._since_s = self._clock.wall_ns() // NS_PER_SECOND
        self._refuse(REASON)
        self._begin_anew()
        self._alarm.set(self._clock.monotonic_ns())
        _log.info("DRAIN: no more messages are taken; nsqd stops when consumers have emptied it")

    def cancel(self) -> None:
        """Take messages again."""
        if not self.is_on:
            return
        self._since_s = None
        self._alarm.cancel()
        self._refuse(None)
        for name in list(self._unregistered):
            self._register(name)
        _log.info("DRAIN: cancelled; messages are taken again")

    def stop(self) -> None:
        self._alarm.cancel()

    def registered(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The topics that nsqlookupds are to know, with their channels."""
        return tuple(names for names in self._broker.names() if names[0] not in self._unregistered)

    def report(self) -> DrainReport | None:
        """What is held; None unless it is on."""
        if self._since_s is None:
            return None
        holding = [held for held in map(held_by, self._broker.topics()) if held.message_count]
        return DrainReport(
            self._since_s, len(holding), sum(held.message_count for held in holding), holding[:MAX_REPORTED]
        )

    def _begin_anew(self) -> None:
        self._to_look_at = [topic.name for topic in self._broker.topics()]
        self._holds_any = False

    def _look(self) -> None:
        names = list(islice(reversed(self._to_look_at), LOOK_COUNT))
        del self._to_look_at[len(self._to_look_at) - len(names) :]
        for name in names:
            topic = self._broker.find_topic(name)
            if topic is not None:
                self._look_at(topic)
        if self._to_look_at:
            self._alarm.set(self._clock.monotonic_ns())
            return
        if not self._holds_any and self._is_empty():
            _log.info("DRAIN: nothing is left")
            self._on_empty()
            return
        self._begin_anew()
        self._alarm.set(self._clock.monotonic_ns() + LOOK_NS)

    def _is_empty(self) -> bool:
        """Whether no topic holds anything at this moment: a dead letter may have come to one that was looked at."""
        return not any(held_by(topic).message_count for topic in self._broker.topics())

    def _look_at(self, topic: Topic) -> None:
        if held_by(topic).message_count:
            self._holds_any = True
            self._register(topic.name)  # a dead letter may have come
        elif topic.name not in self._unregistered:
            self._unregistered.add(topic.name)
            self._tell(topic.name, exists=False)

    def _register(self, name: str) -> None:
        if name in self._unregistered:
            self._unregistered.discard(name)
            self._tell(name, exists=True)

    def _tell(self, name: str, *, exists: bool) -> None:
        topic = self._broker.find_topic(name)
        if topic is None:
            return
        channels = [TopologyChange(name, channel, exists) for channel in topic.channels]
        own = TopologyChange(name, None, exists)
        for change in (own, *channels) if exists else (*channels, own):
            self._announce(change)


def held_by(topic: Topic) -> Held:
    """What this topic holds, and what would make it less."""
    depth, in_flight, deferred = topic.depth + topic.unstored_count, 0, 0
    for channel in topic.channels.values():
        depth += channel.depth
        in_flight += channel.in_flight_count
        deferred += channel.deferred_count
    return Held(topic.name, depth, in_flight, deferred, _awaited_by(topic) if depth or in_flight or deferred else "")


def _awaited_by(topic: Topic) -> str:
    if not topic.channels:
        return "a channel"
    if topic.paused or any(channel.paused for channel in topic.channels.values()):
        return "being unpaused"
    if any(channel.depth and not channel.subscriber_count for channel in topic.channels.values()):
        return "consumers"
    return "its consumers to finish"
