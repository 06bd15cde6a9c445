"""Small publishes of one turn of the event loop, gathered into one batch per topic.

Many clients publish one message and wait for its OK. Each turn of the loop reads from all of them that have sent
something; what they sent is put together here and published at the end of the turn, before any of them is answered. So
the broker's work is done once per turn and topic instead of once per message, and messages that came alone lie in
memory, on disk and on the wire as batches like all others. A publish is answered only when its batch is accepted.

Gathering costs a turn of the loop. While turns bring one publish each, as with a single client that waits for each OK,
there is nothing to gather: then publishes are passed on at once, and now and then it is tried whether this still holds.

A single message is gathered as its bytes alone (int32 size and body), anything else as the command it came in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from emberq.broker.batch import MAX_BATCH_BYTES
from emberq.broker.broker import Broker
from emberq.broker.error import BrokerError
from emberq.broker.pending import Pending
from emberq.storage.errors import StorageError
from emberq.wire.command import Publish

MAX_GATHERED_BYTES = MAX_BATCH_BYTES
"""A turn that brings more is flushed in between: a larger batch would be cut again."""
ALONE_COUNT = 63
"""How many publishes are passed on at once, after a turn that brought only one, before it is tried to gather again."""


class Promise(Protocol):
    """The place of an answer that is still to come; told one of these, once."""

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """As `Publisher.accepted`."""
        ...

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """As `Publisher.refused`."""
        ...


class Publisher(Protocol):
    """Who published, and waits to hear what became of it."""

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """`count` messages are stored, which call for so many replies."""
        ...

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """What came by this command could not be stored."""
        ...

    def promised(self) -> Promise:
        """What becomes of it will be known later, and is to be told to the promise."""
        ...


class Intake:
    """Owned by the daemon. The loop ends a turn that brought something by having it published."""

    def __init__(self, broker: Broker, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._broker = broker
        self._call_soon = call_soon
        self._gathered: dict[str, list[tuple[Publisher, bytes | Publish]]] = {}
        self._gathered_bytes = 0
        self._alone_left = 0
        """How many publishes will still be passed on at once."""

    def add_single(self, publisher: Publisher, topic: str, message: bytes) -> None:
        """Publish one message, which came by a PUB, with the others of this turn."""
        if self._alone_left and not self._gathered:
            self._alone_left -= 1
            self._publish_one(publisher, topic, message)
            return
        waiting = self._gathered.get(topic)
        if waiting is None:
            waiting = self._begin(topic)
        waiting.append((publisher, message))
        self._gathered_bytes += len(message)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self.flush()

    def add(self, publisher: Publisher, command: Publish) -> None:
        """Publish with the others of this turn."""
        if self._alone_left and not self._gathered:
            self._alone_left -= 1
            self.publish(publisher, command)
            return
        waiting = self._gathered.get(command.topic)
        if waiting is None:
            waiting = self._begin(command.topic)
        waiting.append((publisher, command))
        self._gathered_bytes += len(command.blob)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self.flush()

    def _begin(self, topic: str) -> list[tuple[Publisher, bytes | Publish]]:
        if not self._gathered:
            self._call_soon(self._end_turn)
        waiting = self._gathered[topic] = []
        return waiting

    def _end_turn(self) -> None:
        """All sockets that had something to say have been heard."""
        if len(self._gathered) == 1:
            (waiting,) = self._gathered.values()
            if len(waiting) == 1:
                self._alone_left = ALONE_COUNT
        self.flush()

    def flush(self) -> None:
        """Publish what was gathered and let everyone know."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        for topic, waiting in gathered.items():
            self._publish(topic, waiting)

    def publish(self, publisher: Publisher, command: Publish) -> None:
        """Publish at once, alone: for what is a batch already."""
        self._publish(command.topic, [(publisher, command)])

    def _publish_one(self, publisher: Publisher, topic: str, message: bytes) -> None:
        try:
            pending = self._broker.topic(topic).publish(message, (len(message),))
        except (BrokerError, StorageError) as refusal:
            publisher.refused(b"PUB", refusal)
        else:
            if pending is None:
                publisher.accepted(topic, 1, 1)
            else:
                _tell_later(pending, topic, [(publisher, message)])

    def _publish(self, topic: str, waiting: Sequence[tuple[Publisher, bytes | Publish]]) -> None:
        try:
            blob, ends = _join([item for _, item in waiting])
            pending = self._broker.topic(topic).publish(blob, ends)
        except (BrokerError, StorageError) as refusal:
            for publisher, item in waiting:
                publisher.refused(_verb(item), refusal)
        else:
            if pending is not None:
                _tell_later(pending, topic, waiting)
                return
            for publisher, item in waiting:
                if isinstance(item, bytes):
                    publisher.accepted(topic, 1, 1)
                else:
                    publisher.accepted(topic, len(item.ends), item.reply_count)


def _verb(item: bytes | Publish) -> bytes:
    return b"PUB" if isinstance(item, bytes) else item.verb


def _tell_later(pending: Pending, topic: str, waiting: Sequence[tuple[Publisher, bytes | Publish]]) -> None:
    """Let everyone know as soon as it is known what became of the batch."""
    promises = [(publisher.promised(), item) for publisher, item in waiting]

    def settled(failure: Exception | None) -> None:
        for promise, item in promises:
            if failure is not None:
                promise.refused(_verb(item), failure)
            elif isinstance(item, bytes):
                promise.accepted(topic, 1, 1)
            else:
                promise.accepted(topic, len(item.ends), item.reply_count)

    pending.when_settled(settled)


def _join(items: Sequence[bytes | Publish]) -> tuple[bytes, Sequence[int]]:
    """All messages, back to back."""
    first = items[0]
    if len(items) == 1 and not isinstance(first, bytes):
        return first.blob, first.ends
    blob = b"".join([item if isinstance(item, bytes) else item.blob for item in items])
    if isinstance(first, bytes):
        size = len(first)
        if all(isinstance(item, bytes) and len(item) == size for item in items):
            return blob, range(size, len(blob) + 1, size)
    ends: list[int] = []
    offset = 0
    for item in items:
        if isinstance(item, bytes):
            offset += len(item)
            ends.append(offset)
        else:
            ends += [offset + end for end in item.ends]
            offset += len(item.blob)
    return blob, ends
