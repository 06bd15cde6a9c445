"""A message as a consumer gets it, a batch of them, and a copy for another process.

A message is answered once: finished (done, forget it) or requeued (bring it again). A second answer is ignored, and so
is one that comes when the connection is gone: nsqd then delivers the message again by itself. All answers may be given
from any thread.

With `ClientConfig.envelope` a message that has headers is taken apart: `headers`, and `body` without them (see
`emberq.wire.envelope`).

A handler in another process gets a `MessageSnapshot`: all there is to know of a message, and no way to answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple, Protocol, Self

from emberq.base.clock import NS_PER_MS
from emberq.base.text import one_line
from emberq.client.argument import in_seconds
from emberq.wire import envelope
from emberq.wire.frame import MessageFields


class Answering(Protocol):
    """Where answers go: the subscription that a message came by."""

    address: str

    def finish(self, messages: list[Message]) -> None:
        """Send FIN for messages that are marked as answered."""

    def requeue(self, message: Message, *, delay_s: float | None, backoff: bool) -> None:
        """Send REQ for a message that is marked as answered."""

    def touch(self, message: Message) -> None:
        """Send TOUCH."""

    def abandon(self, message: Message) -> None:
        """Forget a message that is marked as answered."""


class Message:
    """One message.

    `id` and `body` are bytes. `attempts` counts the deliveries, this one included. `timestamp_ns` is when it was
    published. `is_answered` is true when an answer was given, or none is possible any more. `headers` are those that
    the publisher gave it, if both sides use envelopes (`ClientConfig.envelope`), or empty.
    """

    __slots__ = ("_source", "attempts", "body", "deadline_ns", "id", "is_answered", "timestamp_ns")

    # No argument is for keywords alone: that would double the time it takes to make one.
    def __init__(self, received: MessageFields, source: Answering, deadline_ns: int) -> None:
        self.timestamp_ns, self.attempts, self.id, self.body = received
        self._source = source
        self.is_answered = False
        """Also when no answer is possible any more, because the connection is gone."""
        self.deadline_ns = deadline_ns
        """When nsqd will give it to another consumer, in nanoseconds of the monotonic clock."""

    def __repr__(self) -> str:
        answered = " answered" if self.is_answered else ""
        return f"<Message {id_text(self.id)} attempts={self.attempts} {len(self.body)} bytes{answered}>"

    @property
    def address(self) -> str:
        """The nsqd it came from."""
        return self._source.address

    @property
    def headers(self) -> Mapping[str, str]:
        """What the publisher put beside the body; empty unless both sides use envelopes."""
        return envelope.NO_HEADERS

    @property
    def as_published(self) -> bytes:
        """All of its bytes, the headers included: what another topic gets when it is passed on."""
        return self.body

    def finish(self) -> None:
        """It is done: send FIN."""
        if not self.is_answered:
            self.is_answered = True
            self._source.finish([self])

    def requeue(self, delay_s: float | timedelta | None = None, *, backoff: bool = True) -> None:
        """Bring it again: after `delay_s`, or after a time that grows with its attempts.

        `backoff=False` says that nothing is wrong (it came too early, say), so the consumer does not slow down.

        A delay below 0 counts as 0, and one above `max_requeue_delay_s` as that. What is no delay at all (a text, NaN)
        is a TypeError or ValueError, and the message is not answered.
        """
        if delay_s is not None:
            delay_s = in_seconds("delay_s", delay_s)
        if not self.is_answered:
            self.is_answered = True
            self._source.requeue(self, delay_s=delay_s, backoff=backoff)

    def touch(self) -> None:
        """It takes longer: let its time begin anew. Send TOUCH."""
        if not self.is_answered:
            self._source.touch(self)

    def abandon(self) -> None:
        """Leave it unanswered: nsqd brings it again when its time is over."""
        if not self.is_answered:
            self.is_answered = True
            self._source.abandon(self)


class OpenedMessage(Message):
    """A message of a consumer that uses envelopes."""

    __slots__ = ("_headers",)

    def __init__(self, received: MessageFields, source: Answering, deadline_ns: int) -> None:
        super().__init__(received, source, deadline_ns)
        self._headers, self.body = envelope.decode(self.body)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._headers

    @property
    def as_published(self) -> bytes:
        return self.body if self._headers is envelope.NO_HEADERS else envelope.encode(self._headers, self.body)


class MessageBatch(list[Message]):
    """Messages that came together, possibly from several nsqds. Those already answered one by one are left alone."""

    __slots__ = ()

    @property
    def bodies(self) -> list[bytes]:
        """The bodies, in the order of the messages."""
        return [message.body for message in self]

    def finish(self) -> None:
        """They are done. Their FINs travel together."""
        by_source: defaultdict[Answering, list[Message]] = defaultdict(list)
        for message in unanswered(self):
            message.is_answered = True
            by_source[message._source].append(message)
        for source, messages in by_source.items():
            source.finish(messages)

    def requeue(self, delay_s: float | timedelta | None = None, *, backoff: bool = True) -> None:
        """Bring them again."""
        if delay_s is not None:
            delay_s = in_seconds("delay_s", delay_s)
        for message in unanswered(self):
            message.requeue(delay_s, backoff=backoff)


def unanswered(messages: Iterable[Message]) -> list[Message]:
    """Those that still can be answered."""
    return [message for message in messages if not message.is_answered]


def id_text(message_id: bytes) -> str:
    """An id as a log line shows it: an nsqd sends hexadecimal digits, a hostile peer any 16 bytes."""
    return one_line(message_id.decode("ascii", "backslashreplace"))


def deadline_ns(*, now_ns: int, msg_timeout_ms: int) -> int:
    """When a message received or touched now times out."""
    return now_ns + msg_timeout_ms * NS_PER_MS


class MessageSnapshot(NamedTuple):
    """A message as it was when it was given to the process of its handler. The fields are those of `Message`."""

    id: bytes
    body: bytes
    attempts: int
    timestamp_ns: int
    address: str
    headers: Mapping[str, str] = {}

    @classmethod
    def of(cls, message: Message) -> Self:
        headers = dict(message.headers)
        return cls(message.id, message.body, message.attempts, message.timestamp_ns, message.address, headers)
