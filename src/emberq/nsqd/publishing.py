"""The publisher's side of a connection: PUB, MPUB and DPUB, and their answers.

Small publishes are gathered with those of other clients (see `intake`); what is a batch already goes on alone. Answers
leave in the order of the commands. One that has to wait for the disk keeps its place in the line, and those behind it
wait too.

A client that has negotiated a producer id may number its publishes. A number that a journaled topic has seen from this
producer before means that the batch is stored already: it is answered OK and not stored again. So it must stay what it
was, and is not gathered with others. Classic topics have no memory of numbers and store whatever comes.
"""

from __future__ import annotations

from collections.abc import Callable

from emberq.base.clock import NS_PER_MS
from emberq.broker.broker import Broker
from emberq.broker.error import BrokerError
from emberq.broker.pending import Pending
from emberq.nsqd.intake import Intake
from emberq.nsqd.output import Output
from emberq.nsqd.reply_line import Reply, ReplyLine
from emberq.storage.errors import StorageError
from emberq.wire import error, frame
from emberq.wire.command import Command, DeferredPublish, NumberedPublish, Publish
from emberq.wire.error import FatalError
from emberq.wire.producer import ProducerSequence

MAX_SMALL_BYTES = 8 * 1024
"""Publishes up to this size are gathered with others; a larger one is worth a batch of its own."""

_CODES = {b"PUB": error.PUB_FAILED, b"MPUB": error.MPUB_FAILED, b"DPUB": error.DPUB_FAILED}

Permission = Callable[[Command, bytes, str], bool]
"""Whether a command with this verb may be executed on this topic. If not now, it will be executed later."""


class _Promised:
    """The place of a publish in the line of answers."""

    __slots__ = ("_publishing", "_reply")

    def __init__(self, publishing: Publishing, reply: Reply) -> None:
        self._publishing = publishing
        self._reply = reply

    def accepted(self, topic: str, count: int, reply_count: int) -> None:
        publishing = self._publishing
        publishing.replies.settle(self._reply, lambda: publishing.accepted_now(topic, count, reply_count))

    def refused(self, verb: bytes, refusal: Exception) -> None:
        publishing = self._publishing
        publishing.replies.settle(self._reply, lambda: publishing.refused_now(verb, refusal))


class Publishing:
    """A `Publisher` of the intake. Owned by its session."""

    __slots__ = ("_broker", "_fail", "_intake", "_may", "_output", "counts", "is_unanswered", "producer_id", "replies")

    def __init__(
        self,
        output: Output,
        *,
        broker: Broker,
        intake: Intake,
        may: Permission | None,
        fail: Callable[[FatalError], None],
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._output = output
        self._may = may
        """None: everybody may publish."""
        self._fail = fail
        self.producer_id = b""
        """Whose numbers stand in numbered publishes; as negotiated."""
        self.is_unanswered = False
        """Something it published waits in the intake."""
        self.replies = ReplyLine()
        """Answers that wait for the disk, and those behind them."""
        self.counts: dict[str, int] = {}
        """How many messages it has published, by topic."""

    # Commands.

    def publish(self, command: Publish) -> None:
        """PUB and MPUB."""
        if self._may is not None and not self._may(command, command.verb, command.topic):
            return
        if len(command.blob) <= MAX_SMALL_BYTES:
            self.is_unanswered = True
            self._intake.add(self, command)
        else:
            if self.is_unanswered:
                self._intake.flush()
            self._intake.publish(self, command)

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
        if self._may is not None and not self._may(command, b"DPUB", command.topic):
            return
        try:
            topic = self._broker.topic(command.topic)
            if command.defer_ms:
                pending = topic.publish_deferred(command.blob, delay_ns=command.defer_ms * NS_PER_MS)
            else:
                pending = topic.publish(command.blob, [len(command.blob)])
        except (BrokerError, StorageError) as refusal:
            raise publish_failed(b"DPUB", refusal) from refusal
        self._answer(b"DPUB", command.topic, 1, pending)

    # Answers.

    def _answer(self, verb: bytes, topic: str, count: int, pending: Pending | None) -> None:
        """Answer one command, now or when it is known what became of it."""
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
        """What was published is stored."""
        self.is_unanswered = False
        if len(self.replies):
            self.promised().accepted(topic, count, reply_count)
        else:
            self.accepted_now(topic, count, reply_count)

    def promised(self) -> _Promised:
        """What becomes of what was published will be known later."""
        self.is_unanswered = False
        return _Promised(self, self.replies.reserve())

    def accepted_now(self, topic: str, count: int, reply_count: int) -> None:
        """Answer, for it is its turn."""
        counts = self.counts
        counts[topic] = counts.get(topic, 0) + count
        if not self._output.is_closing:
            self._output.reply(frame.OK if reply_count == 1 else frame.OK * reply_count)

    def refused(self, verb: bytes, refusal: Exception) -> None:
        """What was published could not be stored."""
        self.is_unanswered = False
        if not self._output.is_closing:
            self._fail(publish_failed(verb, refusal))

    def refused_now(self, verb: bytes, refusal: Exception) -> None:
        """Refuse, for it is its turn. Nothing follows: an OK would be taken for that of what was not stored."""
        self.replies.abandon()
        self.refused(verb, refusal)


def publish_failed(verb: bytes, refusal: Exception) -> FatalError:
    return FatalError(_CODES[verb], b"%b failed %b" % (verb, str(refusal).encode()))
