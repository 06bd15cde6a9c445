"""Holding the state after a crash against what was promised before it."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from emberq.broker.error import BrokerError
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.storage.error import StorageError
from tests.broker.rig import Consumer, published
from tests.crash.history import DEAD_LETTERS, POLICED
from tests.crash.model import BrokenPromiseError, Promises, PublishedBatch
from tests.crash.node import Node, batches_of

MAX_ROUNDS = 200
"""How often a channel is asked for more before it counts as stuck."""


class Checker:
    """The state of one nsqd that has just recovered. `is_lossless`: no power was cut, or sync is `always`."""

    def __init__(self, node: Node, promises: Promises, *, is_lossless: bool) -> None:
        self._node = node
        self._promises = promises
        self._is_lossless = is_lossless

    def run(self) -> None:
        """All checks; BrokenPromiseError tells which promise was broken. The promises are brought up to date."""
        for name in sorted(self._promises.topics()):
            self._check_kept(name)
        for name in sorted(self._promises.topics()):
            self._send_again(name)
        for name in sorted(self._promises.topics()):
            self._check_content(name)
            self._check_offsets_move_on(name)
        for key in sorted(self._promises.channels):
            self._drain(*key)

    # What was stored is there.

    def _check_kept(self, name: str) -> None:
        topic = self._node.journaled_topic(name)
        found = set() if topic is None else {body for batch in batches_of(topic) for body in batch.messages()}
        first_offset = 0 if topic is None else topic.journal.first_offset
        for batch in self._promises.of_topic(name):
            if not batch.is_stored or batch.is_lost:
                continue
            missing = [body for body in batch.bodies if body not in found]
            is_trimmed = batch.base_offset is not None and batch.base_offset < first_offset
            if not missing:
                continue
            if is_trimmed and not any(self._promises.is_owed(name, body) for body in missing):
                batch.is_lost = True
            elif self._is_lossless:
                raise BrokenPromiseError(f"lost: {_shown(batch)} in {name}, stored at offset {batch.base_offset}")
            else:
                batch.is_lost = True

    # A batch that is sent again is stored once.

    def _send_again(self, name: str) -> None:
        """Producers send again what was not answered; also what was, because the answer may have been lost."""
        numbered = [batch for batch in self._promises.of_topic(name) if batch.producer is not None]
        last_stored: dict[bytes, PublishedBatch] = {}
        for batch in numbered:
            assert batch.producer is not None
            if batch.is_stored and not batch.is_lost:
                last_stored[batch.producer.producer_id] = batch
        for batch in numbered:
            assert batch.producer is not None
            if not batch.is_stored or last_stored.get(batch.producer.producer_id) is batch:
                self._send_one_again(batch)

    def _send_one_again(self, batch: PublishedBatch) -> None:
        try:
            topic = self._node.broker.topic(batch.topic)
            failure = self._node.settled(topic.publish(*published(batch.bodies), producer=batch.producer))
        except (BrokerError, StorageError) as refusal:
            failure = refusal
        if failure is not None:
            raise BrokenPromiseError(f"refused after the crash: {_shown(batch)}: {failure}")
        batch.is_stored = True
        batch.is_lost = False

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
        for batch in self._promises.of_topic(name):
            for index, body in enumerate(batch.bodies):
                if counts[body] > 1:
                    raise BrokenPromiseError(f"stored {counts[body]} times: {_shown(batch)} in {name}")
                is_trimmed = batch.base_offset is not None and batch.base_offset < topic.journal.first_offset
                is_due = batch.producer is not None and batch.is_stored and not batch.is_lost and not is_trimmed
                if is_due and not counts[body]:
                    raise BrokenPromiseError(f"false OK: {_shown(batch)} in {name} is stored nowhere")
                if body in at:
                    batch.base_offset, batch.journal = at[body] - index, topic.journal.uuid
                    batch.is_stored, batch.is_lost = True, False
                    self._promises.seen[topic.journal.uuid, at[body]] = body

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

    # Channels deliver what they owe.

    def _drain(self, topic_name: str, name: str) -> None:
        promise = self._promises.channels[topic_name, name]
        owed = self._promises.owed(topic_name, name)
        topic = self._node.journaled_topic(topic_name)
        channel = None if topic is None else topic.find_channel(name)
        if channel is None:
            if promise.is_certain and owed:
                raise BrokenPromiseError(f"the channel {name} of {topic_name} is gone")
            del self._promises.channels[topic_name, name]
            return
        assert isinstance(channel, JournaledChannel)
        delivered = self._delivered(channel, topic_name)
        missing = owed - delivered - self._dead_letters()
        if missing and (self._is_lossless or name != POLICED):
            raise BrokenPromiseError(f"skipped: {name} of {topic_name} owes {sorted(missing)[0][:20]!r}")
        promise.finished |= delivered
        promise.is_certain = True
        promise.floor = min(promise.floor, channel.low_water)

    def _delivered(self, channel: JournaledChannel, topic_name: str) -> set[bytes]:
        """Everything that the channel has to give; a consumer finishes all of it."""
        consumer = Consumer(channel, rdy=2500)
        delivered: set[bytes] = set()
        for _ in range(MAX_ROUNDS):
            messages = consumer.take_new()
            for message in messages:
                if self._promises.bodies.get(message.body) != topic_name:
                    raise BrokenPromiseError(f"invented: {message.body[:20]!r} in {channel.name} of {topic_name}")
                delivered.add(message.body)
            if messages:
                consumer.finish(*messages)
            self._node.settle()
            if not messages:
                if channel.depth == 0 and channel.stats().deferred_count == 0 and channel.stats().in_flight_count == 0:
                    consumer.leave()
                    return delivered
                self._node.advance(ms=120_000)
        raise BrokenPromiseError(f"stuck: {channel!r}")

    def _dead_letters(self) -> set[bytes]:
        """The bodies in the dead-letter topic, out of their envelopes."""
        topic = self._node.broker.find_topic(DEAD_LETTERS)
        if topic is None:
            return set()
        assert isinstance(topic, JournaledTopic)
        letters = b"".join(body for batch in batches_of(topic) for body in batch.messages())
        return {body for body in self._promises.bodies if body.split(b".", 1)[0] and _is_in(body, letters)}


def _is_in(body: bytes, letters: bytes) -> bool:
    return body[: body.index(b">") + 1] in letters


def _shown(batch: PublishedBatch) -> str:
    number = f", number {batch.producer.sequence}" if batch.producer is not None else ""
    return f"{batch.bodies[0][:12]!r}{number}"
