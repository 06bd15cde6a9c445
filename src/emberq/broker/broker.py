"""The broker: all topics of one nsqd."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from emberq.base.clock import Clock
from emberq.base.file import lacks_room
from emberq.base.timers import Timers
from emberq.broker.channel import Channel
from emberq.broker.classic import ClassicTopic
from emberq.broker.dead_letter import DeadLetterForwarder, PolicyBook
from emberq.broker.error import ClassicDeadLetterTopicError, ExitingError, JournalFailedError
from emberq.broker.journaled_topic import JournaledTopic
from emberq.broker.stats import TopicStats
from emberq.broker.store import JournalStore, Store
from emberq.broker.topic import Pending, PublishGate, QuarantinedTopic, Topic, TopicConfig, TopicContext
from emberq.storage.data_folder import ChannelPolicy, Metadata, MetaEntry, TopicMeta, metadata_of
from emberq.storage.error import StorageError
from emberq.wire.parameter import is_valid_name

_log = logging.getLogger(__name__)

PORTION_CHANNELS = 16
"""How many channels of a topic are deleted in one turn of the event loop: some milliseconds of work if all are full."""


class TopologyChange(NamedTuple):
    """A topic (`channel` None) or channel that was created or deleted."""

    topic: str
    channel: str | None
    exists: bool


class Broker:
    """Owns the topics. Everything it does is done when the call returns; it is used from one thread."""

    def __init__(
        self,
        *,
        config: TopicConfig,
        store: Store,
        clock: Clock,
        timers: Timers,
        journals: JournalStore | None = None,
    ) -> None:
        self._journals = journals
        """None: no topic is journaled."""
        self._topics: dict[str, Topic] = {}
        self._leaving: deque[Topic] = deque()
        """Topics that were deleted but still have channels. No caller finds them."""
        self._leaving_alarm = timers.alarm(self._remove_portions)
        self._unnamed: list[Path] = []
        """Folders of deleted journals whose topics are not among the entries that were asked for last."""
        self._clock = clock
        self._listeners: list[Callable[[TopologyChange], None]] = []
        self._loading = False
        self._exiting = False
        self._policies = PolicyBook(store)
        self.gate = PublishGate()
        self._context = TopicContext(
            config=config,
            store=store,
            clock=clock,
            timers=timers,
            gate=self.gate,
            report_health=self._report_health,
            on_channel=self._on_channel,
            journal_problems={},
        )
        self.health: str | None = None
        """Why the last write to disk failed; None if it did not."""
        self.on_health: Callable[[str | None], None] | None = None
        """Told of each write to disk that fails, and of the first that succeeds again."""

    def add_listener(self, listener: Callable[[TopologyChange], None]) -> None:
        """Call `listener` for every topic and channel that is created or deleted, except while metadata is loaded."""
        self._listeners.append(listener)

    def topic(self, name: str) -> Topic:
        """The topic of that name; it is created if there is none."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._create_topic(name)
        return topic

    def find_topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def delete_topic(self, name: str) -> Pending:
        """Remove a topic and all it holds; KeyError when there is none of that name. StorageError leaves it as it was.

        It is out of sight at once. Its channels go in portions; what is returned tells when all has gone for good.
        JournalFailedError if its journal is in quarantine, whose files are the operator's.
        """
        topic = self._topics[name]
        if isinstance(topic, QuarantinedTopic):
            raise topic.refusal
        return self._remove(topic)

    def _create_topic(self, name: str) -> Topic:
        if self._exiting:
            raise ExitingError
        if self.gate.is_draining:
            self.gate.refuse()
        topic = self._make_topic(name)
        self._topics[name] = topic
        _log.info("TOPIC(%s): created", name)
        self._announce(TopologyChange(name, None, exists=True))
        return topic

    def _make_topic(self, name: str) -> Topic:
        journals = self._journals
        if journals is None or not self._is_to_be_journaled(name, journals):
            return ClassicTopic(name, self._context)
        try:
            return JournaledTopic(name, self._context, journals)
        except StorageError as failure:
            if self._loading:
                raise
            raise JournalFailedError(name, str(failure)) from failure

    def _is_to_be_journaled(self, name: str, journals: JournalStore) -> bool:
        """Whether a topic is to be journaled: it has a journal, is wanted so, or gets dead letters of one that is."""
        for source in self._policies.sources(name):
            topic = self._topics.get(source)
            is_journaled = journals.has(source) if topic is None else topic.is_journaled
            if is_journaled:
                return True
        return False

    def _remove(self, topic: Topic) -> Pending:
        _log.info("TOPIC(%s): deleting", topic.name)
        topic.bury()
        del self._topics[topic.name]
        self._policies.forget_topic(topic.name)
        self._leaving.append(topic)
        self._remove_portion(topic)
        if self._leaving:
            self._leaving_alarm.set_earlier(self._clock.monotonic_ns())
        return topic.deleted

    def _remove_portions(self) -> None:
        """One portion of one topic; the others get their turn later."""
        topic = self._leaving[0]
        self._leaving.rotate(-1)
        try:
            self._remove_portion(topic)
        except (StorageError, OSError) as failure:
            _log.error("TOPIC(%s): failed to delete it - %s", topic.name, failure)
            topic.deleted.settle(failure)
        if self._leaving:
            self._leaving_alarm.set_earlier(self._clock.monotonic_ns())

    def _remove_portion(self, topic: Topic) -> None:
        is_gone = True  # also when it fails: what cannot be deleted now is left to the operator
        # A new topic of that name would have the same folder for its journal, so that must be gone before.
        max_channels = len(topic.channels) if topic.is_journaled else PORTION_CHANNELS
        try:
            is_gone = topic.delete(max_channels=max_channels)
        finally:
            if is_gone:
                self._leaving.remove(topic)
        if is_gone:
            if topic.name not in self._topics:
                self._announce(TopologyChange(topic.name, None, exists=False))
            topic.settle_deletion()

    def finish_deleting(self) -> None:
        """Delete the rest of all topics that are being deleted, in one go."""
        while self._leaving:
            self._remove_portions()
        self._leaving_alarm.cancel()

    def leave(self, channel: Channel) -> None:
        """A consumer has left this channel: an ephemeral channel goes with its last consumer, and so may its topic."""
        topic = self._topics.get(channel.topic_name)
        if topic is None or topic.find_channel(channel.name) is not channel or self._exiting:
            return
        if channel.is_ephemeral and channel.subscriber_count == 0:
            topic.delete_channel(channel.name)

    def _on_channel(self, topic: Topic, channel: Channel, exists: bool) -> None:
        if exists:
            self._apply_policy(channel)
        elif self._topics.get(topic.name) is topic:
            self._policies.forget(channel)
        elif self._has_channel(topic.name, channel.name):
            return  # a new topic has taken the name of the one that is leaving
        self._announce(TopologyChange(topic.name, channel.name, exists))
        if not exists and topic.is_ephemeral and not topic.channels and self._topics.get(topic.name) is topic:
            self._remove(topic)

    def _has_channel(self, topic_name: str, name: str) -> bool:
        topic = self._topics.get(topic_name)
        return topic is not None and topic.find_channel(name) is not None

    def _announce(self, change: TopologyChange) -> None:
        if not self._loading:
            for listener in self._listeners:
                listener(change)

    def _report_health(self, problem: str | None) -> None:
        if problem is None and self.health is None:
            return
        self.health = problem
        if self.on_health is not None:
            self.on_health(problem)

    # Policies.

    def policy(self, channel: Channel) -> ChannelPolicy | None:
        """After how many attempts this channel gives up messages, and where they go; None: it never does."""
        return self._policies.get(channel)

    def check_policy(self, *, topic: str, channel: str, policy: ChannelPolicy) -> None:
        """PolicyCycleError if messages of the topic would come back to it by this policy.

        ClassicDeadLetterTopicError if the topic is journaled and one to which its dead letters come exists and is not.
        """
        self._policies.check(topic, channel, policy)
        source = self._topics.get(topic)
        if source is None or not source.is_journaled:
            return
        for name in self._policies.reached(topic, channel, policy):
            target = self._topics.get(name)
            if target is not None and not target.is_journaled:
                raise ClassicDeadLetterTopicError(topic, dead_letter_topic=name)

    def set_policy(self, channel: Channel, policy: ChannelPolicy | None) -> None:
        """Give up messages by this policy from here on; None: never again. It is on the disk when this returns.

        The errors of `check_policy` if dead letters cannot go there; StorageError if the policy cannot be saved.
        """
        if policy is not None and policy != self._policies.get(channel):
            self.check_policy(topic=channel.topic_name, channel=channel.name, policy=policy)
        self._policies.set(channel, policy)
        self._apply_policy(channel)

    def publish_to(self, topic_name: str, blob: bytes, ends: Sequence[int]) -> Pending | None:
        """As `Topic.publish_durably` of that topic; it is created if there is none. Draining does not refuse it."""
        gate = self.gate
        reason = gate.reason
        if gate.is_draining:
            gate.reason = None
        try:
            return self.topic(topic_name).publish_durably(blob, ends)
        finally:
            gate.reason = reason

    def _apply_policy(self, channel: Channel) -> None:
        policy = self._policies.get(channel)
        if policy is None:
            channel.use_forwarder(None)
            return
        topic_name = policy.dead_letter_topic
        channel.use_forwarder(
            DeadLetterForwarder(
                channel,
                policy,
                lambda blob, ends: self.publish_to(topic_name, blob, ends),
                max_message_bytes=self._context.config.max_message_bytes,
                clock=self._context.clock,
                timers=self._context.timers,
            )
        )

    # Metadata.

    def load(self, metadata: Metadata) -> None:
        """Bring back the topics and channels of an earlier run, with what their queues hold."""
        self._loading = True
        try:
            self._context.store.remove_leftovers()
            self._policies.load()
            if self._journals is not None:
                self._journals.find_leftovers()
            for topic_meta in metadata.topics:
                if not is_valid_name(topic_meta.name):
                    _log.warning("skipping creation of invalid topic %s", topic_meta.name)
                elif self._was_deleted(topic_meta.name):
                    _log.info("TOPIC(%s): was deleted by an earlier run", topic_meta.name)
                else:
                    self._load_topic(topic_meta)
            # A crash may come between a publish that was confirmed and the next write of the metadata.
            for name in self._journals.topic_names() if self._journals is not None else ():
                if name not in self._topics:
                    self._load_topic(TopicMeta(name=name, paused=False, channels=()))
        finally:
            self._loading = False

    def _was_deleted(self, name: str) -> bool:
        """Whether a topic that nsqd.dat names was deleted since. If it had been made anew, it would have a journal."""
        journals = self._journals
        return journals is not None and journals.was_deleted(name) and self._is_to_be_journaled(name, journals)

    def _load_topic(self, topic_meta: TopicMeta) -> None:
        """Bring back a topic: in quarantine if its journal cannot be opened. All other topics are served as ever."""
        name = topic_meta.name
        try:
            self._load_channels(topic_meta)
        except StorageError as failure:
            if self._journals is None or not self._journals.has(name):
                raise
            opened = self._topics.pop(name, None)
            if opened is not None:
                opened.close()
            self._topics[name] = QuarantinedTopic(
                topic_meta, self._context, str(failure), lacks_room=lacks_room(failure)
            )

    def _load_channels(self, topic_meta: TopicMeta) -> None:
        had_journal = self._journals is not None and self._journals.has_folder(topic_meta.name)
        topic = self.topic(topic_meta.name)
        topic.pause()  # so that a channel that is loaded later than another misses nothing of what waits in the topic
        saved_names = topic.saved_channel_names() if isinstance(topic, JournaledTopic) else []
        for channel_meta in topic_meta.channels:
            if not is_valid_name(channel_meta.name):
                _log.warning("skipping creation of invalid channel %s", channel_meta.name)
                continue
            if had_journal and channel_meta.name not in saved_names:
                _log.info("TOPIC(%s): channel(%s) was deleted by an earlier run", topic.name, channel_meta.name)
                continue
            channel = topic.channel(channel_meta.name)
            if channel_meta.paused:
                channel.pause()
        for name in saved_names:
            topic.channel(name)
        if not topic_meta.paused:
            topic.unpause()

    def entries(self) -> Iterator[MetaEntry]:
        """What the next run must know: every topic and channel that is not ephemeral. They may change meanwhile.

        A topic that is being deleted is among them until its files are on their way out: after a crash the next run
        must not take what is left of them for the messages of a new topic.
        """
        if self._journals is not None:
            self._unnamed = list(self._journals.tombstones)
        leaving = [topic for topic in self._leaving if topic.name not in self._topics]
        for topic in [*self._topics.values(), *leaving]:
            if topic.is_ephemeral:
                continue
            yield MetaEntry(topic.name, None, topic.paused)
            if isinstance(topic, QuarantinedTopic):
                for known in topic.meta.channels:
                    yield MetaEntry(topic.name, known.name, known.paused)
            for channel in list(topic.channels.values()):
                if not channel.is_ephemeral:
                    yield MetaEntry(topic.name, channel.name, channel.paused)

    # Health.

    @property
    def journal_problems(self) -> Mapping[str, str]:
        """What is wrong with journals, by topic."""
        return self._context.journal_problems

    @property
    def awaits_room(self) -> bool:
        """Whether a journal is read-only, or in quarantine, until there is room on the disk."""
        return any(map(_lacks_room, self._topics.values()))

    def reopen_journals(self) -> None:
        """There may be room on the disk again: let the journals take messages that waited for it."""
        for topic in [topic for topic in self._topics.values() if _lacks_room(topic)]:
            try:
                if isinstance(topic, JournaledTopic):
                    topic.reopen()
                elif isinstance(topic, QuarantinedTopic):
                    self._leave_quarantine(topic)
            except StorageError as failure:
                _log.warning("TOPIC(%s): its journal still takes no messages - %s", topic.name, failure)

    def _leave_quarantine(self, topic: QuarantinedTopic) -> None:
        del self._topics[topic.name]
        self._context.journal_problems.pop(topic.name, None)
        self._loading = True
        try:
            self._load_topic(topic.meta)
        finally:
            self._loading = False
        for channel in self._topics[topic.name].channels:
            self._announce(TopologyChange(topic.name, channel, exists=True))

    def metadata_saved(self) -> None:
        """What `entries` gave last is on the disk: what is left of deleted journals is not needed any more."""
        if self._journals is not None and self._unnamed:
            unnamed, self._unnamed = self._unnamed, []
            self._journals.forget(unnamed)

    def metadata(self, version: str) -> Metadata:
        """The entries as they are now."""
        return metadata_of(self.entries(), version)

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Every topic with its channels."""
        return tuple((topic.name, tuple(topic.channels)) for topic in self._topics.values())

    def close(self) -> None:
        """Write everything to disk for the next run. Nothing can be published from here on."""
        self._exiting = True
        self.finish_deleting()
        for topic in self._topics.values():
            topic.close()

    def snapshot(self) -> tuple[TopicStats, ...]:
        """The state of all topics now, sorted by name."""
        return tuple(topic.stats() for topic in self.topics())

    def topics(self) -> list[Topic]:
        """All topics now, sorted by name."""
        return [self._topics[name] for name in sorted(self._topics)]


def _lacks_room(topic: Topic) -> bool:
    return isinstance(topic, (JournaledTopic, QuarantinedTopic)) and topic.lacks_room
