"""Holding the state after a crash against what was promised before it."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from emberq.broker.error import BrokerError
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.storage.error import StorageError
from emberq.storage.journal.folder import FOLDER_SUFFIX
from emberq.storage.journal.inspection import Finding, Severity, verify
from tests.broker.rig import Consumer, published
from tests.crash.history import CLASSIC, DEAD_LETTERS
from tests.crash.model import BrokenPromiseError, Model, Promises, PublishedBatch
from tests.crash.node import Node, batches_of
from tests.crash.simulated_files import ROOT

MAX_ROUNDS = 200
"""How often a channel is asked for more before it counts as stuck."""


class Checker:
    """The state of one nsqd that has just recovered.

    `is_lossless`: no power was cut, or sync is `always`. `is_killed`: no power was cut, and the disk is well.
    """

    def __init__(self, node: Node, model: Model, *, is_lossless: bool, is_killed: bool) -> None:
        self._is_killed = is_killed
        self._node = node
        self._model = model
        self._is_lossless = is_lossless

    @property
    def _promises(self) -> Promises:
        return self._model.now

    @property
    def _moment(self) -> int:
        return self._node.fs.moment

    def run(self) -> None:
        """All checks; BrokenPromiseError tells which promise was broken. What is found is added to the model."""
        self._check_deleted()
        journaled = sorted(self._promises.topics() - {CLASSIC})
        for name in journaled:
            self._check_kept(name)
        for name in journaled:
            self._send_again(name)
        for name in journaled:
            self._check_content(name)
            self._check_offsets_move_on(name)
        for key in sorted(self._promises.channels):
            self._drain(*key)
        for name in journaled:
            self._check_nothing_is_called_lost(name)
        if CLASSIC in self._promises.topics():
            self._check_classic()

    # What was deleted is gone.

    def _check_deleted(self) -> None:
        broker = self._node.broker
        for name in sorted(self._promises.deleted):
            if broker.find_topic(name) is not None:
                raise BrokenPromiseError(f"the topic {name} was deleted and is back")
        for name in sorted(self._promises.leaving):
            if broker.find_topic(name) is None:
                self._model.topic_deleted(self._moment, name)
            else:
                self._model.topic_stays(self._moment, name)  # as a whole, which is checked below
        for topic_name, name in sorted(self._promises.deleted_channels):
            topic = broker.find_topic(topic_name)
            if topic is not None and topic.find_channel(name) is not None:
                raise BrokenPromiseError(f"the channel {name} of {topic_name} was deleted and is back")

    # What was stored is there.

    def _check_kept(self, name: str) -> None:
        topic = self._node.journaled_topic(name)
        found = set() if topic is None else {body for batch in batches_of(topic) for body in batch.messages()}
        first_offset = 0 if topic is None else topic.journal.first_offset
        channels = () if topic is None else topic.channels
        dead = self._dead_letters()
        for number, batch in self._promises.of_topic(name):
            if not batch.is_stored or batch.is_lost:
                continue
            missing = [body for body in batch.bodies if body not in found]
            is_trimmed = batch.base_offset is not None and batch.base_offset < first_offset
            if not missing:
                continue
            is_owed = any(self._promises.is_owed(name, body, found=channels) for body in missing if body not in dead)
            if self._is_lossless and (is_owed or not is_trimmed):
                raise BrokenPromiseError(f"lost: {_shown(batch)} in {name}, stored at offset {batch.base_offset}")
            self._model.lost(self._moment, number, is_trimmed=is_trimmed and self._is_lossless)

    # A batch that is sent again is stored once.

    def _send_again(self, name: str) -> None:
        """Producers send again what was not answered; also what was, because the answer may have been lost."""
        last_stored: dict[bytes, int] = {}
        for number, batch in self._promises.of_topic(name):
            if batch.producer is not None and batch.is_stored and (batch.is_trimmed or not batch.is_lost):
                last_stored[batch.producer.producer_id] = number
        for number, batch in self._promises.of_topic(name):
            if batch.producer is None:
                continue
            if not batch.is_stored or last_stored.get(batch.producer.producer_id) == number:
                self._send_one_again(number, batch)

    def _send_one_again(self, number: int, batch: PublishedBatch) -> None:
        try:
            topic = self._node.broker.topic(batch.topic)
            assert isinstance(topic, JournaledTopic)
            before = topic.journal.next_offset
            pending = topic.publish(*published(batch.bodies), producer=batch.producer)
            after = topic.journal.next_offset
            if batch.is_trimmed:
                if after != before:
                    raise BrokenPromiseError(f"stored again: {_shown(batch)}, which retention had removed")
                return
            base_offset = after - len(batch.bodies) if after != before else None  # else it is where it was: see below
            self._model.appended(self._moment, number, journal=topic.journal.uuid, base_offset=base_offset)
            failure = self._node.settled(pending)
        except (BrokerError, StorageError) as refusal:
            failure = refusal
        if failure is not None:
            raise BrokenPromiseError(f"refused after the crash: {_shown(batch)}: {failure}")
        self._model.stored(self._moment, number)

    # What is there was published, once, and is where it was.

    def _check_content(self, name: str) -> None:
        topic = self._node.journaled_topic(name)
        if topic is None:
            return
        at: dict[bytes, int] = {}
        counts: Counter[bytes] = Counter()
        for found in batches_of(topic):
            for offset, body in enumerate(found.messages(), found.base_offset):
                if self._promises.bodies.get(body) != name:
                    raise BrokenPromiseError(f"invented: {body[:20]!r} in {name} at offset {offset}")
                self._check_offset(topic.journal.uuid, offset, body)
                at[body] = offset
                counts[body] += 1
        for number, batch in self._promises.of_topic(name):
            for body in batch.bodies:
                if counts[body] > 1:
                    raise BrokenPromiseError(f"stored {counts[body]} times: {_shown(batch)} in {name}")
                is_trimmed = batch.base_offset is not None and batch.base_offset < topic.journal.first_offset
                is_due = batch.producer is not None and batch.is_stored and not batch.is_lost and not is_trimmed
                if is_due and not counts[body]:
                    raise BrokenPromiseError(f"false OK: {_shown(batch)} in {name} is stored nowhere")
            if batch.bodies[0] in at:
                base_offset = at[batch.bodies[0]]
                self._model.appended(self._moment, number, journal=topic.journal.uuid, base_offset=base_offset)
                self._model.stored(self._moment, number)

    def _check_offset(self, journal: UUID, offset: int, body: bytes) -> None:
        before = self._promises.seen.get((journal, offset))
        if before is not None and before != body:
            raise BrokenPromiseError(f"offset {offset} was {before[:12]!r} and is {body[:12]!r} now")

    def _check_offsets_move_on(self, name: str) -> None:
        """The next message gets an offset that no message had."""
        topic = self._node.journaled_topic(name)
        if topic is None:
            return
        journal = topic.journal
        taken = [
            offset for uuid, offset in self._promises.seen if uuid == journal.uuid and offset >= journal.next_offset
        ]
        if taken:
            raise BrokenPromiseError(f"offsets from {min(taken)} on of {name} are given a second time")

    def _check_nothing_is_called_lost(self, name: str) -> None:
        """What a crash took was not confirmed, or allowed to go: neither nsqd nor `verify` calls it damage."""
        topic = self._node.journaled_topic(name)
        if topic is None:
            return
        if topic.journal.gaps:
            raise BrokenPromiseError(f"{name} shows gaps: {topic.journal.gaps}")
        for found in verify(ROOT / f"{name}{FOLDER_SUFFIX}", fs=self._node.fs):
            if isinstance(found, Finding) and found.severity is Severity.LOSS:
                raise BrokenPromiseError(f"{name} is said to have lost something: {found}")

    # Channels deliver what they owe.

    def _drain(self, topic_name: str, name: str) -> None:
        promise = self._promises.channels[topic_name, name]
        owed = self._promises.owed(topic_name, name)
        topic = self._node.journaled_topic(topic_name)
        channel = None if topic is None else topic.find_channel(name)
        if channel is None:
            if promise.is_certain and owed and not promise.deletion:
                raise BrokenPromiseError(f"the channel {name} of {topic_name} is gone")
            self._model.channel_deleted(self._moment, topic_name, name)
            return
        assert isinstance(channel, JournaledChannel)
        self._model.channel_leaves(self._moment, topic_name, name, deletion=0)
        if not promise.is_certain:
            self._model.channel_found(self._moment, topic_name, name, floor=channel.low_water)
            owed = self._promises.owed(topic_name, name)
        promise = self._promises.channels[topic_name, name]
        lowest, logged = promise.lowest, set(promise.logged)
        delivered = self._delivered(channel, topic_name)
        early = delivered & self._promises.before(topic_name, lowest)
        if early:
            raise BrokenPromiseError(f"{name} of {topic_name} begins at {lowest}, but gave {min(early)[:20]!r}")
        again = delivered & logged
        if again and self._is_killed:
            raise BrokenPromiseError(
                f"{name} of {topic_name} gave {min(again)[:20]!r} again, long after it was finished"
            )
        missing = owed - delivered - self._dead_letters()
        if missing:
            raise BrokenPromiseError(f"skipped: {name} of {topic_name} owes {sorted(missing)[0][:20]!r}")

    def _delivered(self, channel: JournaledChannel, topic_name: str) -> set[bytes]:
        """Everything that the channel has to give; a consumer finishes all of it."""
        consumer = Consumer(channel, rdy=2500)
        delivered: set[bytes] = set()
        for _ in range(MAX_ROUNDS):
            self._node.settle()  # what a crash has left is not in memory: another thread brings it
            messages = consumer.take_new()
            for message in messages:
                if self._promises.bodies.get(message.body) != topic_name:
                    raise BrokenPromiseError(f"invented: {message.body[:20]!r} in {channel.name} of {topic_name}")
                delivered.add(message.body)
            if messages:
                consumer.finish(*messages)
            for message in messages:
                self._model.finished(self._moment, topic_name, channel.name, message.body)
            if not messages:
                if channel.depth == 0 and channel.stats().deferred_count == 0 and channel.stats().in_flight_count == 0:
                    consumer.leave()
                    return delivered
                self._node.advance(ms=120_000)
        raise BrokenPromiseError(f"stuck: {channel!r}")

    # A classic topic.

    def _check_classic(self) -> None:
        """A process that died has lost nothing. What a power cut leaves is the concern of `queue_run`."""
        channel = self._node.broker.topic(CLASSIC).channel("drain")
        self._node.advance(ms=1)  # the topic moves its messages to the channel in a turn of its own
        consumer = Consumer(channel, rdy=2500)
        found: set[bytes] = set()
        for _ in range(MAX_ROUNDS):
            messages = consumer.take_new()
            found |= {message.body for message in messages}
            if not messages:
                break
            consumer.finish(*messages)
            self._node.advance(ms=1)
        for number, batch in self._promises.of_topic(CLASSIC):
            missing = [body for body in batch.bodies if body not in found]
            if batch.is_stored and not batch.is_lost and missing and self._is_killed:
                raise BrokenPromiseError(f"lost: {_shown(batch)} in a classic topic")
            self._model.lost(self._moment, number, is_trimmed=False)  # it has been delivered
        invented = {body for body in found if self._promises.bodies.get(body) != CLASSIC}
        if invented and self._is_killed:
            raise BrokenPromiseError(f"invented: {min(invented)[:20]!r} in a classic topic")
        self._node.broker.topic(CLASSIC).delete_channel("drain")

    def _dead_letters(self) -> set[bytes]:
        """The bodies in the dead-letter topic, out of their envelopes."""
        topic = self._node.broker.find_topic(DEAD_LETTERS)
        if topic is None:
            return set()
        assert isinstance(topic, JournaledTopic)
        letters = b"".join(body for batch in batches_of(topic) for body in batch.messages())
        return {body for body in self._promises.bodies if _is_in(body, letters)}


def _is_in(body: bytes, letters: bytes) -> bool:
    return body[: body.index(b">") + 1] in letters


def _shown(batch: PublishedBatch) -> str:
    number = f", number {batch.producer.sequence}" if batch.producer is not None else ""
    return f"{batch.bodies[0][:12]!r}{number}"
