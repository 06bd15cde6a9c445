"""A new topic starts with the channels that it has on other nsqds.

A consumer finds out about a new nsqd of its topic only when it next asks nsqlookupd. Were the first messages given to
whichever channels exist by then, the others would miss them. So a topic that comes into being is *held*: what is
published is accepted and waits in the topic, as when it is paused. Meanwhile the nsqlookupds are asked for its
channels; each answer creates those that it names, and with the last answer the topic is released.

Only the topic waits, never the event loop, a publisher or another topic. And it does not wait long: after MAX_HOLD_NS
it is released whatever is missing. Channels named by a later answer are created then, and get what is published from
there on. Topics that are loaded from disk have their channels and are not held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.broker.broker import Change
from emberq.broker.error import BrokerError
from emberq.nsqd.lookup.link import LookupLink
from emberq.storage.errors import StorageError

MAX_HOLD_NS = 2 * NS_PER_SECOND
"""An nsqlookupd answers in milliseconds; one that has just been started within this."""

_log = logging.getLogger(__name__)


class HeldTopic(Protocol):
    """What is needed of a topic."""

    @property
    def name(self) -> str: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def channel(self, name: str) -> object: ...


class Precreation:
    """Listens to the broker. Owned by the daemon; what it runs ends with the link."""

    def __init__(
        self,
        link: LookupLink,
        *,
        find_topic: Callable[[str], HeldTopic | None],
        clock: Clock,
        timers: Timers,
    ) -> None:
        self._link = link
        self._find_topic = find_topic
        self._clock = clock
        self._timers = timers

    def changed(self, change: Change) -> None:
        """Hold a topic that was created, and ask for its channels. It holds no message yet."""
        if change.channel is not None or not change.exists or not self._link.addresses:
            return
        topic = self._find_topic(change.topic)
        if topic is not None:
            topic.hold()
            self._link.spawn(self._prepare(topic))

    async def _prepare(self, topic: HeldTopic) -> None:
        release_alarm = self._timers.alarm(topic.release)
        release_alarm.set(self._clock.monotonic_ns() + MAX_HOLD_NS)
        try:
            await self._link.ask_channels(topic.name, found=lambda names: self._create(topic, names))
        finally:
            release_alarm.discard()
            topic.release()

    def _create(self, topic: HeldTopic, names: list[str]) -> None:
        if self._find_topic(topic.name) is not topic:
            return  # deleted meanwhile; another of its name asks for itself
        for name in names:
            try:
                topic.channel(name)
            except (BrokerError, StorageError) as failure:
                _log.error("TOPIC(%s): failed to create channel %s - %s", topic.name, name, failure)
