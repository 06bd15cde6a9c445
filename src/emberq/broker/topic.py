"""A topic: each of its channels gets a copy of what is published to it.

Here is what both kinds of topic have in common. How messages get from a publisher to the channels differs: see
`classic`, a topic as NSQ has it, and `journaled_topic`, a topic that is a log.

`Pending` is a publish whose messages are on their way to the disk. `PublishGate` says whether anything may be published
at all. `QuarantinedTopic` stands for a topic whose journal cannot be opened.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.log import RefusalLog
from emberq.base.timers import NEVER, Timers
from emberq.broker.channel import DEFAULT_LIMITS, Channel, ChannelLimits
from emberq.broker.error import DrainingError, ExitingError, GateClosedError, JournalFailedError, TopicFullError
from emberq.broker.layout import PUBLISHED_HEADER_BYTES
from emberq.broker.limit import TopicLimits, no_limits
from emberq.broker.queue import HealthReport
from emberq.broker.stats import JournalStats, TopicStats
from emberq.broker.store import Store
from emberq.storage.data_folder import TopicMeta
from emberq.wire.parameter import ProducerSequence, is_ephemeral

REFUSAL_LOG_INTERVAL_NS = 60 * NS_PER_SECOND
"""How often a topic logs that it is full: every publisher may try again at once."""

_log = logging.getLogger(__name__)

Told = Callable[[Exception | None], None]
"""Called with None when the messages are stored, or with the reason why they are not."""


class Pending:
    """A publish that is not stored yet. The topic settles it once; the publisher may ask to be told."""

    __slots__ = ("_failure", "_is_settled", "_told")

    def __init__(self) -> None:
        self._is_settled = False
        self._failure: Exception | None = None
        self._told: Told | None = None

    def when_settled(self, told: Told) -> None:
        """Call `told` when the publish is settled: at once, if it is already. One listener only."""
        if self._is_settled:
            told(self._failure)
        else:
            self._told = told

    def settle(self, failure: Exception | None) -> None:
        """The messages are stored, or never will be."""
        self._is_settled = True
        self._failure = failure
        if self._told is not None:
            self._told(failure)
            self._told = None


class PublishGate:
    """Whether messages are taken. One for all topics of a broker.

    nsqd's health check closes it when the disk fills, or when the node is drained.
    """

    __slots__ = ("is_draining", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        """Why it is closed; None while it is open."""
        self.is_draining = False
        """Whether it is closed to publishers alone: messages may move from one topic of the node to another."""

    def refuse(self) -> None:
        """Raise what publishers are told, if it is closed."""
        if self.reason is not None:
            raise DrainingError(self.reason) if self.is_draining else GateClosedError(self.reason)


@dataclass(frozen=True)
class TopicConfig:
    """What is the same for every topic of a broker."""

    node_id: int = 0
    max_message_bytes: int = 1024 * 1024
    """The largest body that may be published; it binds the dead letters that nsqd writes, too."""
    channel: ChannelLimits = DEFAULT_LIMITS
    limits_of: Callable[[str], TopicLimits | None] = no_limits
    """How much may wait in a topic of that name, and for how long; None: without limits."""


ChannelListener = Callable[["Topic", Channel, bool], None]
"""Told of each channel that comes (True) or has gone (False)."""


@dataclass(frozen=True)
class TopicContext:
    """What a topic needs of its broker."""

    config: TopicConfig
    store: Store
    clock: Clock
    timers: Timers
    gate: PublishGate
    report_health: HealthReport
    on_channel: ChannelListener
    journal_problems: dict[str, str]
    """What is wrong with journals, by topic. A topic notes what is wrong with its own."""


class Topic(ABC):
    """Owns its channels. Created by the broker."""

    def __init__(self, name: str, context: TopicContext) -> None:
        self.name = name
        self.paused = False
        self.message_count = 0
        self.message_bytes = 0
        self.refused_count = 0
        """Messages that were not taken because too many waited."""
        self.channels: dict[str, Channel] = {}
        self._context = context
        self._clock = context.clock
        self._gate = context.gate
        self._is_held = False
        """Whether it waits for nsqlookupd to tell which channels it has."""
        self._exiting = False
        self._limits = context.config.limits_of(name)
        """How much may wait, and for how long; None: without limits."""
        self._refuses = self._limits is not None and self._limits.refuses
        """Whether publishes are refused while too many messages wait."""
        self._refusals: RefusalLog | None = None
        self._channel_limits = context.config.channel
        if self._limits is not None:
            self._channel_limits = replace(context.config.channel, waiting=self._limits)
        self.deleted = Pending()
        """Settled when the topic was deleted, its last channel is gone and no crash can bring it back."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} depth={self.depth} channels={len(self.channels)}>"

    @property
    def is_ephemeral(self) -> bool:
        return is_ephemeral(self.name)

    @property
    def is_journaled(self) -> bool:
        return False

    # Messages.

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many messages wait in the topic itself."""

    @property
    @abstractmethod
    def backend_depth(self) -> int:
        """How many of them are on disk alone."""

    @abstractmethod
    def publish(self, blob: bytes, ends: Sequence[int], *, producer: ProducerSequence | None = None) -> Pending | None:
        """Take in messages: `blob` holds them back to back, each an int32 size and a body; `ends` says where each ends.

        None when they are stored, else what tells when they are. StoreError when the disk refuses some of them; those
        before are kept. A journaled topic stores a batch that a `producer` sends again only once; others ignore it.
        """

    def publish_durably(self, blob: bytes, ends: Sequence[int]) -> Pending | None:
        """As `publish`; but a journaled topic settles it only when a power failure cannot take the messages any more.

        For messages that leave another topic for this one: they must be here for good before they go there.
        """
        return self.publish(blob, ends)

    @abstractmethod
    def publish_deferred(
        self, blob: bytes, *, delay_ns: int, producer: ProducerSequence | None = None
    ) -> Pending | None:
        """Take in one message that channels are to deliver only after the delay."""

    @property
    def unstored_count(self) -> int:
        """Messages that are on their way to the disk, and count as published when they are there."""
        return 0

    def _refuse_unless_open(self) -> None:
        if self._exiting:
            raise ExitingError
        self._gate.refuse()

    # Limits.

    @property
    def waiting_bytes(self) -> int:
        """The bodies of the messages that wait in the topic itself, together."""
        return 0

    def has_room(self, count: int, size_bytes: int) -> bool:
        """Whether so many more messages, with bodies of that size together, may wait in the topic and its channels."""
        if not self._refuses:
            return True
        limits = self._limits
        assert limits is not None  # noqa: S101 - for the type checker
        # What waits in the topic goes on to every channel. Ephemeral channels drop what is too much for them.
        counts_bytes = limits.max_bytes < NEVER
        room = limits.max_depth - self.depth - self.unstored_count - count
        room_bytes = limits.max_bytes - self.waiting_bytes - size_bytes if counts_bytes else 0
        if room < 0 or room_bytes < 0:
            return False
        for channel in self.channels.values():
            if channel.is_ephemeral:
                continue
            if channel.depth > room or (counts_bytes and channel.waiting_bytes > room_bytes):
                return False
        return True

    def _refuse_beyond_limits(self, blob: bytes, count: int) -> None:
        """TopicFullError if these messages would be too many; but if nothing is taken at all, the reason for that."""
        self._refuse_unless_open()
        if self.has_room(count, len(blob) - PUBLISHED_HEADER_BYTES * count):
            return
        self.refused_count += count
        limits = self._limits
        assert limits is not None  # noqa: S101 - for the type checker
        refusal = TopicFullError(self.name, limits.reason)
        if self._refusals is None:
            self._refusals = RefusalLog(_log, clock=self._clock, interval_ns=REFUSAL_LOG_INTERVAL_NS)
        self._refusals.warn(f"TOPIC({self.name}): refused to take messages - {refusal.reason}")
        raise refusal

    @property
    def _may_flow(self) -> bool:
        """Whether published messages may go on to the channels."""
        return bool(self.channels) and not self.paused and not self._is_held

    @abstractmethod
    def _flow_changed(self) -> None:
        """A channel, the pause or the hold came or went: let waiting messages through, if they may flow now."""

    # Channels.

    def channel(self, name: str) -> Channel:
        """The channel of that name; it is created if there is none."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self._create_channel(name)
        return channel

    def find_channel(self, name: str) -> Channel | None:
        return self.channels.get(name)

    def _create_channel(self, name: str) -> Channel:
        if self._exiting:
            raise ExitingError
        channel = self._make_channel(name)
        self.channels[name] = channel
        _log.info("TOPIC(%s): new channel(%s)", self.name, name)
        self._context.on_channel(self, channel, True)
        self._flow_changed()
        return channel

    @abstractmethod
    def _make_channel(self, name: str) -> Channel:
        """A new channel of this topic's kind."""

    def delete_channel(self, name: str) -> Pending | None:
        """Remove a channel and all it holds; KeyError when there is none of that name.

        None when it has gone for good, else what tells when it has. StorageError leaves it as it was.
        """
        channel = self.channels[name]
        _log.info("TOPIC(%s): deleting channel %s", self.name, name)
        channel.forget_place()
        del self.channels[name]
        self._flow_changed()
        _log.info("CHANNEL(%s): deleting", name)
        channel.delete()
        self._context.on_channel(self, channel, False)
        return None

    # The topic as a whole.

    def pause(self) -> None:
        """Keep published messages in the topic for now."""
        self.paused = True
        self._flow_changed()

    def unpause(self) -> None:
        self.paused = False
        self._flow_changed()

    def hold(self) -> None:
        """Keep published messages in the topic until its channels are known; unlike a pause this shows nowhere."""
        self._is_held = True
        self._flow_changed()

    def release(self) -> None:
        """The channels are known."""
        self._is_held = False
        self._flow_changed()

    @abstractmethod
    def empty(self) -> None:
        """Drop what waits in the topic; the channels keep what they have."""

    def bury(self) -> None:  # noqa: B027 - the files of a classic topic go when it is deleted
        """Let no later run find its files, before it is deleted. StorageError leaves it as it was."""

    def settle_deletion(self) -> None:
        """The topic is gone: settle `deleted`, now or when the disk knows that."""
        self.deleted.settle(None)

    def delete(self, *, max_channels: int) -> bool:
        """Remove so many channels, and everything else when there are no more; whether all has gone.

        From the first call on nothing can be published.
        """
        self._exiting = True
        for name in list(islice(self.channels, max_channels)):
            self.delete_channel(name)
        if self.channels:
            return False
        self._remove_files()
        return True

    def close(self) -> None:
        """Bring everything to disk for the next run."""
        _log.info("TOPIC(%s): closing", self.name)
        self._exiting = True
        for channel in self.channels.values():
            _log.info("CHANNEL(%s): closing", channel.name)
            channel.close()
        memory_count = self.depth - self.backend_depth
        if memory_count and not self.is_journaled:
            _log.info("TOPIC(%s): flushing %d memory messages to backend", self.name, memory_count)
        self._save()

    @abstractmethod
    def _remove_files(self) -> None:
        """Remove the topic's own files; the channels have removed theirs."""

    @abstractmethod
    def _save(self) -> None:
        """Bring the topic's own messages to disk; the channels have saved theirs."""

    def stats(self, *, with_channels: bool = True) -> TopicStats:
        """What the topic holds now. Without channels: its own figures alone."""
        latency = self._context.config.channel.latency
        return TopicStats(
            name=self.name,
            channels=tuple(self.channels[name].stats() for name in sorted(self.channels)) if with_channels else (),
            depth=self.depth,
            backend_depth=self.backend_depth,
            message_count=self.message_count,
            message_bytes=self.message_bytes,
            paused=self.paused,
            refused_count=self.refused_count,
            e2e=latency.summarize(channel.latency for channel in self.channels.values()),
        )


class QuarantinedTopic(Topic):
    """A topic whose journal cannot be opened. Its files are left alone; it refuses everything, and says why.

    The node and all other topics are well. What nsqd.dat says of its channels is kept for a start that can open it.
    """

    def __init__(self, meta: TopicMeta, context: TopicContext, reason: str, *, lacks_room: bool) -> None:
        super().__init__(meta.name, context)
        self.meta = meta
        """As nsqd.dat has it."""
        self.lacks_room = lacks_room
        """Whether it can be opened as soon as there is room on the disk."""
        self.paused = meta.paused
        self._reason = f"it cannot be opened: {reason}"
        context.journal_problems[meta.name] = self._reason
        _log.error("TOPIC(%s): its journal is in quarantine - %s", meta.name, reason)

    @property
    def is_journaled(self) -> bool:
        return True

    @property
    def depth(self) -> int:
        return 0

    @property
    def backend_depth(self) -> int:
        return 0

    @property
    def refusal(self) -> JournalFailedError:
        """What every caller gets."""
        return JournalFailedError(self.name, self._reason)

    def publish(self, blob: bytes, ends: Sequence[int], *, producer: ProducerSequence | None = None) -> Pending | None:  # noqa: ARG002 - as in Topic
        raise self.refusal

    def publish_deferred(
        self,
        blob: bytes,  # noqa: ARG002 - as in Topic
        *,
        delay_ns: int,  # noqa: ARG002
        producer: ProducerSequence | None = None,  # noqa: ARG002
    ) -> Pending | None:
        raise self.refusal

    def _make_channel(self, name: str) -> Channel:  # noqa: ARG002 - as in Topic
        raise self.refusal

    def _flow_changed(self) -> None:
        pass

    def empty(self) -> None:
        raise self.refusal

    def _remove_files(self) -> None:
        pass

    def _save(self) -> None:
        pass

    def stats(self, *, with_channels: bool = True) -> TopicStats:
        stats = super().stats(with_channels=with_channels)
        return replace(stats, journal=JournalStats.unknown(problem=self._reason))
