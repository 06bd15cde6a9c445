"""The publisher's side of a connection: PUB, MPUB and DPUB, how small publishes are gathered, and the replies.

Gathering. Many clients publish one message and wait for its OK. Each turn of the event loop reads from all of them that
have sent something. `PublishBatcher` puts what they sent together, one batch per topic, and publishes it at the end of
the turn, before any of them is answered. So the broker's work is done once per turn and topic instead of once per
message, and messages that came alone lie in memory, on disk and on the wire as batches like all others. A publish is
answered only when its batch is accepted. What is a large batch already is published by itself, at once; its answer
waits for those of the others, because each write on its own wakes a client that has just gone to sleep.

Gathering costs a turn of the loop. While turns bring one publish each, as with a single client that waits for each OK,
there is nothing to gather. Then publishes are passed on and answered at once, and every ALONE_COUNT publishes gathering
is tried again.

A single message is gathered as its bytes alone (int32 size and body) and the verb it came by, anything else as its
command.

Replies leave in the order of the commands. A reply that has to wait for the disk keeps its place in the queue, and
those behind it wait too.

Numbered publishes. A client that has negotiated a producer id may number its publishes. A number that a journaled topic
has seen from this producer before means that the batch is stored already: it is answered OK and not stored again. So
the batch must stay as it was sent, and is not gathered with others. Classic topics do not remember numbers and store
every publish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from emberq.base.clock import NS_PER_MS
from emberq.broker.batch import MAX_BATCH_BYTES
from emberq.broker.broker import Broker
from emberq.broker.error import BrokerError
from emberq.broker.topic import Pending
from emberq.nsqd.connection import Output, Reply, ReplyQueue, ignore_failure
from emberq.storage.error import StorageError
from emberq.wire import error, frame
from emberq.wire.command import Command, DeferredPublish, NumberedPublish, Publish
from emberq.wire.error import FatalError
from emberq.wire.parameter import ProducerSequence

# One publisher.

MAX_SMALL_BYTES = 8 * 1024
"""Publishes up to this size are gathered; a larger one is worth a batch of its own."""
_CODES = {b"PUB": error.PUB_FAILED, b"MPUB": error.MPUB_FAILED, b"DPUB": error.DPUB_FAILED}

Permission = Callable[[Command, bytes, str], bool]
"""Whether a command with this verb may be executed on this topic now. If False, its owner executes it later."""


class _Promised:
    """The place of a publish in the queue of replies."""

    __slots__ = ("_publishing", "_reply")

    def __init__(self, publishing: Publishing, reply: Reply) -> None:
        self._publishing = publishing
        self._reply = reply

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        publishing = self._publishing
        publishing.replies.settle(self._reply, lambda: publishing.counted(topic, count, reply_count))

    def refused(self, verb: bytes, refusal: Exception) -> None:
        def answer() -> bytes:
            raise publish_failed(verb, refusal) from refusal

        self._publishing.replies.settle(self._reply, answer)


class Publishing:
    """What one client publishes, and the replies to it. A `BatchedPublisher`, owned by its session."""

    __slots__ = ("_batcher", "_broker", "_fail", "_may", "_output", "counts", "is_unanswered", "producer_id", "replies")

    def __init__(
        self,
        output: Output,
        *,
        broker: Broker,
        batcher: PublishBatcher,
        may: Permission | None,
        fail: Callable[[FatalError], None],
    ) -> None:
        self._broker = broker
        self._batcher = batcher
        self._output = output
        self._may = may
        """None: every client may publish."""
        self._fail = fail
        self.producer_id = b""
        """The negotiated id that its sequence numbers belong to."""
        self.is_unanswered = False
        """Something it published waits in the batcher."""
        self.replies = ReplyQueue(output, fail=fail)
        """Replies that wait for the disk, and those behind them."""
        self.counts: dict[str, int] = {}
        """How many messages the client has published, by topic."""

    def end(self) -> None:
        """The connection is gone: send no reply any more, and let go of the session."""
        self.replies.end()
        self._may = None
        self._fail = ignore_failure

    # Commands.

    @property
    def is_unhindered(self) -> bool:
        """Whether it may publish without being asked who it is, and no reply waits for the disk."""
        return self._may is None and not len(self.replies)

    def publish_again(self, last: Publish | DeferredPublish, message: bytes) -> None:
        """A command like this one, with another message (int32 size and body). Only while `is_unhindered`."""
        if isinstance(last, DeferredPublish):
            if self.is_unanswered:
                self._batcher.flush()
            self.is_unanswered = True
            self._batcher.add_deferred(self, last.topic, message, last.defer_ms)
        else:
            self.is_unanswered = True
            self._batcher.add_single(self, last.verb, last.topic, message)

    def publish(self, command: Publish) -> None:
        """PUB and MPUB."""
        if self._may is not None and not self._may(command, command.verb, command.topic):
            return
        if len(command.blob) <= MAX_SMALL_BYTES:
            self.is_unanswered = True
            self._batcher.add(self, command)
        else:
            if self.is_unanswered:
                self._batcher.store()
            self.is_unanswered = True
            self._batcher.publish(self, command)

    def publish_numbered(self, command: NumberedPublish) -> None:
        """PUB and MPUB with a sequence number."""
        if self._may is not None and not self._may(command, command.verb, command.topic):
            return
        producer = ProducerSequence(self.producer_id, command.sequence)
        try:
            pending = self._broker.topic(command.topic).publish(command.blob, command.ends, producer=producer)
        except (BrokerError, StorageError) as refusal:
            raise publish_failed(command.verb, refusal) from refusal
        self._answer(command.verb, command.topic, len(command.ends), pending)

    def publish_deferred(self, command: DeferredPublish) -> None:
        """DPUB."""
        if self._may is None or self._may(command, b"DPUB", command.topic):
            self._batcher.publish_deferred(self, command.topic, command.blob, command.defer_ms)

    # Replies.

    def _answer(self, verb: bytes, topic: str, count: int, pending: Pending | None) -> None:
        """Answer one command, now or when its messages are on the disk."""
        if pending is None:
            self.accepted(topic, count, 1)
            return
        promise = self.promised()

        def settled(failure: Exception | None) -> None:
            if failure is None:
                promise.accepted(topic, count, 1)
            else:
                promise.refused(verb, failure)

        pending.when_settled(settled)

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """The messages are stored: answer, behind the replies that wait."""
        self.is_unanswered = False
        if len(self.replies):
            self.promised().accepted(topic, count, reply_count)
        else:
            answer = self.counted(topic, count, reply_count)
            if not self._output.is_closing:
                self._output.reply(answer)

    def promised(self) -> _Promised:
        """Keep a place for a reply that is not known yet."""
        self.is_unanswered = False
        return _Promised(self, self.replies.reserve())

    def counted(self, topic: str, count: int, reply_count: int) -> bytes:
        """The answer to messages that are stored, when its turn has come."""
        counts = self.counts
        counts[topic] = counts.get(topic, 0) + count
        return frame.OK if reply_count == 1 else frame.OK * reply_count

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """The messages are not stored: refuse, behind the replies that wait."""
        self.is_unanswered = False
        if not self._output.is_closing:
            self._fail(publish_failed(verb, refusal))


def publish_failed(verb: bytes, refusal: Exception) -> FatalError:
    return FatalError(_CODES[verb], b"%b failed %b" % (verb, str(refusal).encode()))


# Gathering the publishes of all clients.

MAX_GATHERED_BYTES = MAX_BATCH_BYTES
"""A turn that brings more is flushed in between, because the broker would cut a larger batch again."""
MAX_UNTOLD_BYTES = 1024 * 1024
"""Of large batches a turn may bring more, but then they are answered in between: this takes about a millisecond."""
MAX_UNTOLD_REPLIES = 2
"""So many answers to one publisher leave together. After more of them it would send more at a time, in packets of ever
other sizes, and what one leaves in memory would not fit the next: a twelfth of all memory."""
ALONE_COUNT = 63
"""After a turn that brought one publish, so many are passed on at once before gathering is tried again."""


class Promise(Protocol):
    """The place of a reply that is not known yet. One of its methods is called, once."""

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """As `BatchedPublisher.accepted`."""
        ...

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """As `BatchedPublisher.refused`."""
        ...


class BatchedPublisher(Protocol):
    """A publisher that waits to hear whether its messages are stored."""

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        """`count` messages are stored; they came by `reply_count` commands, and each gets its OK."""
        ...

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """What came by this command is not stored."""
        ...

    def promised(self) -> Promise:
        """Keep a place for the reply: whether it is stored will be known later."""
        ...


Waiting = tuple[BatchedPublisher, bytes, "bytes | Publish"]
"""What was published: by whom, by which verb, and a single message or a command."""


class _Untold:
    """Messages that are stored, and the publisher that is to be told: how many to this topic, by how many commands."""

    __slots__ = ("count", "publisher", "reply_count", "topic")

    def __init__(self, publisher: BatchedPublisher, topic: str, count: int, reply_count: int) -> None:
        self.publisher = publisher
        self.topic = topic
        self.count = count
        self.reply_count = reply_count


class PublishBatcher:
    """Gathers the small publishes of all clients. Owned by the daemon.

    `call_soon` ends a turn. `note_bytes` is told how much was published.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: Callable[[Callable[[], None]], object],
        note_bytes: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._call_soon = call_soon
        self.note_bytes = note_bytes
        self._gathered: dict[str, list[Waiting]] = {}
        self._deferred: list[tuple[BatchedPublisher, str, bytes, int]] = []
        """Messages to be deferred: each with its publisher, its topic and the delay in milliseconds."""
        self._gathered_bytes = 0
        self._untold: list[_Untold] = []
        """Large batches of this turn."""
        self._untold_bytes = 0
        self._ends_soon = False
        """Whether the end of this turn is awaited."""
        self._alone_left = 0
        """How many more publishes are passed on at once."""

    def _is_alone(self) -> bool:
        """Whether to pass a publish on, and answer it, at once."""
        if not self._alone_left or self._gathered or self._untold or self._deferred:
            return False
        self._alone_left -= 1
        return True

    def add_single(self, publisher: BatchedPublisher, verb: bytes, topic: str, message: bytes) -> None:
        """Publish one message, which came by PUB or MPUB, with the others of this turn."""
        if self._deferred:
            self.flush()  # it may have been the same publisher, and answers have an order
        if self._is_alone():
            self._publish_one(publisher, verb, topic, message)
            return
        self._waiting_for(topic).append((publisher, verb, message))
        self._count_gathered(message)

    def add(self, publisher: BatchedPublisher, command: Publish) -> None:
        """Publish with the others of this turn."""
        if self._deferred:
            self.flush()  # as above
        if self._is_alone():
            self.note_bytes(len(command.blob))
            self._publish(command.topic, [(publisher, command.verb, command)])
            return
        self._waiting_for(command.topic).append((publisher, command.verb, command))
        self._count_gathered(command.blob)

    def add_deferred(self, publisher: BatchedPublisher, topic: str, message: bytes, defer_ms: int) -> None:
        """Publish a message that is to be deferred with the others of this turn."""
        if self._is_alone():
            self.publish_deferred(publisher, topic, message, defer_ms)
            return
        self._await_end()
        self._deferred.append((publisher, topic, message, defer_ms))
        self._count_gathered(message)

    def _waiting_for(self, topic: str) -> list[Waiting]:
        waiting = self._gathered.get(topic)
        if waiting is None:
            self._await_end()
            waiting = self._gathered[topic] = []
        return waiting

    def _count_gathered(self, blob: bytes) -> None:
        self._gathered_bytes += len(blob)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self.flush()

    def _await_end(self) -> None:
        if not self._ends_soon:
            self._ends_soon = True
            self._call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """All sockets that were readable in this turn have been read."""
        self._ends_soon = False
        gathered = len(self._deferred) + sum(map(len, self._gathered.values()))
        if gathered + sum([untold.reply_count for untold in self._untold]) == 1:
            self._alone_left = ALONE_COUNT
        self.flush()

    def flush(self) -> None:
        """Publish what was gathered and tell every publisher."""
        self._tell_untold()
        self.store()

    def store(self) -> None:
        """Publish what was gathered, if anything was; tell those who gave it, and those who published before them."""
        if not self._gathered and not self._deferred:
            return
        self._tell_untold()
        self.note_bytes(self._gathered_bytes)
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        for topic, waiting in gathered.items():
            self._publish(topic, waiting)
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            outcomes = [self._defer(topic, message, defer_ms) for _, topic, message, defer_ms in deferred]
            for (publisher, topic, message, _), outcome in zip(deferred, outcomes, strict=True):
                self._tell_deferred(publisher, topic, message, outcome)

    def _tell_untold(self) -> None:
        untold, self._untold, self._untold_bytes = self._untold, [], 0
        for one in untold:
            one.publisher.accepted(one.topic, one.count, one.reply_count)

    def publish(self, publisher: BatchedPublisher, command: Publish) -> None:
        """Publish at once, alone, and answer with the others of this turn: for what is a batch already."""
        size, topic = len(command.blob), command.topic
        self.note_bytes(size)
        if self._is_alone():
            self._publish(topic, [(publisher, command.verb, command)])
            return
        try:
            pending = self._broker.topic(topic).publish(command.blob, command.ends)
        except (BrokerError, StorageError) as refusal:
            self._tell_untold()
            publisher.refused(command.verb, refusal)
            return
        if pending is not None:
            self._tell_untold()
            _tell_later(pending, topic, [(publisher, command.verb, command)])
            return
        self._tell_soon(publisher, topic, len(command.ends), command.reply_count)
        self._untold_bytes += size
        if self._untold_bytes > MAX_UNTOLD_BYTES or self._untold[-1].reply_count >= MAX_UNTOLD_REPLIES:
            self._tell_untold()

    def _tell_soon(self, publisher: BatchedPublisher, topic: str, count: int, reply_count: int) -> None:
        self._await_end()
        last = self._untold[-1] if self._untold else None
        if last is not None and last.publisher is publisher and last.topic == topic:
            last.count += count
            last.reply_count += reply_count
        else:
            self._untold.append(_Untold(publisher, topic, count, reply_count))

    def publish_deferred(self, publisher: BatchedPublisher, topic: str, message: bytes, defer_ms: int) -> None:
        """Publish at once a message that is to be deferred by `defer_ms`, which may be 0."""
        self._tell_deferred(publisher, topic, message, self._defer(topic, message, defer_ms))

    def _defer(self, topic: str, message: bytes, defer_ms: int) -> Pending | Exception | None:
        """What came of it: nothing yet, a refusal, or None if it is accepted."""
        try:
            if defer_ms:
                return self._broker.topic(topic).publish_deferred(message, delay_ns=defer_ms * NS_PER_MS)
            return self._broker.topic(topic).publish(message, (len(message),))
        except (BrokerError, StorageError) as refusal:
            return refusal

    def _tell_deferred(
        self, publisher: BatchedPublisher, topic: str, message: bytes, outcome: Pending | Exception | None
    ) -> None:
        if outcome is None:
            publisher.accepted(topic, 1, 1)
        elif isinstance(outcome, Exception):
            publisher.refused(b"DPUB", outcome)
        else:
            _tell_later(outcome, topic, [(publisher, b"DPUB", message)])

    def _publish_one(self, publisher: BatchedPublisher, verb: bytes, topic: str, message: bytes) -> None:
        try:
            pending = self._broker.topic(topic).publish(message, (len(message),))
        except (BrokerError, StorageError) as refusal:
            publisher.refused(verb, refusal)
        else:
            if pending is None:
                publisher.accepted(topic, 1, 1)
            else:
                _tell_later(pending, topic, [(publisher, verb, message)])

    def _publish(self, topic: str, waiting: Sequence[Waiting]) -> None:
        try:
            blob, ends = _join([item for _, _, item in waiting])
            found = self._broker.topic(topic)
            if len(waiting) > 1 and not found.has_room(len(ends), len(blob)):
                for single in waiting:  # there may be room for the first of them
                    self._publish(topic, [single])
                return
            pending = found.publish(blob, ends)
        except (BrokerError, StorageError) as refusal:
            for publisher, verb, _ in waiting:
                publisher.refused(verb, refusal)
        else:
            if pending is not None:
                _tell_later(pending, topic, waiting)
                return
            for publisher, _, item in waiting:
                if isinstance(item, bytes):
                    publisher.accepted(topic, 1, 1)
                else:
                    publisher.accepted(topic, len(item.ends), item.reply_count)


def _tell_later(pending: Pending, topic: str, waiting: Sequence[Waiting]) -> None:
    """Tell every publisher once the batch is on the disk, or has failed."""
    promises = [(publisher.promised(), verb, item) for publisher, verb, item in waiting]

    def settled(failure: Exception | None) -> None:
        for promise, verb, item in promises:
            if failure is not None:
                promise.refused(verb, failure)
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
