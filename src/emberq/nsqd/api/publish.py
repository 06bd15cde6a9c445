"""POST /pub and POST /mpub.

/pub is hot: with one message per request, all its cost is per message. So a topic that exists is found by one look-up,
without checking its name again: a name that the broker knows was checked when the topic was created. And what many
clients publish in one turn of the loop is put together, with that of TCP clients (see `publishing`).

The body of /mpub holds messages in one of two forms:

    text      messages between line feeds; the last needs none, empty lines are no messages, a carriage return is part
              of its message
    binary    int32 count, then for each message int32 size and body: an MPUB's body without its leading size

It becomes the batch that `Topic.publish` takes: messages back to back, each an int32 size and a body, and where each of
them ends, as a `range` when all have one size.

Producers may number their requests, in two headers:

    X-Emberq-Producer: 5f0c…32 hexadecimal digits      chosen at random by the producer, once
    X-Emberq-Sequence: 17                              ascending with every request of this producer; gaps are allowed

A producer that does not know whether a request was carried out sends it again with the same number, before any later
one. A journaled topic then answers OK and stores nothing. Classic topics do not remember numbers: there they are
checked, and otherwise ignored.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from emberq.base.clock import NS_PER_MS
from emberq.broker.broker import Broker
from emberq.broker.error import BrokerError, DrainingError, GateClosedError, JournalFailedError, TopicFullError
from emberq.broker.layout import PUBLISHED_HEADER, PUBLISHED_HEADER_BYTES, SIZES
from emberq.broker.topic import Pending, Topic
from emberq.http.message import HttpError, LaterResponse, Query, Request, Response, text
from emberq.nsqd.api.argument import FALSE_WORDS, TRUE_WORDS, parse_integer, required_topic, valid_topic
from emberq.nsqd.publishing import MAX_SMALL_BYTES, PublishBatcher
from emberq.storage.error import StorageError
from emberq.wire import error
from emberq.wire.command import Publish
from emberq.wire.error import FatalError
from emberq.wire.mpub import messages_of
from emberq.wire.parameter import ProducerSequence, parse_producer_id, parse_sequence

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_PLAIN_TARGETS: Final = 1024
MAX_PLAIN_TARGET_CHARS: Final = 256
"""How many request targets are remembered, and up to which length."""

_OK: Final = text("OK")
_REFUSALS: Final = (BrokerError, StorageError)

_log: Final = logging.getLogger(__name__)


class PublishApi:
    """Publishes the bodies of requests. A topic that does not exist is created."""

    def __init__(
        self,
        broker: Broker,
        batcher: PublishBatcher,
        *,
        max_msg_size: int,
        max_body_size: int,
        max_req_timeout_ms: int,
    ) -> None:
        self._broker = broker
        self._batcher = batcher
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._max_req_timeout_ms = max_req_timeout_ms
        self._plain_targets: dict[str, str] = {}
        """The topic of each request target that names nothing else. Publishers repeat the same target."""

    def publish_one(self, request: Request) -> Response | Awaitable[Response]:
        """POST /pub: the body is the message. The HTTP server has checked its size."""
        body = request.body
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        producer = producer_of(request)
        blob = PUBLISHED_HEADER.pack(len(body)) + body
        topic = self._broker.find_topic(self._plain_targets.get(request.target, ""))
        if topic is not None and producer is None and len(blob) <= MAX_SMALL_BYTES:
            waiting = _BatchedPublish()
            self._batcher.add_single(waiting, b"PUB", topic.name, blob)
            return waiting.answer()
        try:
            if topic is None:
                pending = self._publish_as_asked(request, blob, producer)
            else:
                pending = topic.publish(blob, (len(blob),), producer=producer)
        except _REFUSALS as refusal:
            raise unavailable(refusal, is_last=producer is not None) from refusal
        return _OK if pending is None else _when_stored(pending, is_numbered=producer is not None)

    def _publish_as_asked(self, request: Request, blob: bytes, producer: ProducerSequence | None) -> Pending | None:
        query = request.query()
        topic = self._topic(query)
        defer = query.get("defer")
        defer_ms = 0 if defer is None else self._parse_defer(defer)
        if defer_ms:
            return topic.publish_deferred(blob, delay_ns=defer_ms * NS_PER_MS, producer=producer)
        pending = topic.publish(blob, (len(blob),), producer=producer)
        self._remember(request.target, topic.name)
        return pending

    def _remember(self, target: str, topic_name: str) -> None:
        if len(target) > MAX_PLAIN_TARGET_CHARS:
            return
        if len(self._plain_targets) >= MAX_PLAIN_TARGETS:
            self._plain_targets.clear()  # those in use are back at once
        self._plain_targets[target] = topic_name

    def publish_many(self, request: Request) -> Response | Awaitable[Response]:
        """POST /mpub: the body holds messages, as lines or as records."""
        query = request.query()
        producer = producer_of(request)
        try:
            topic = self._topic(query)
            if _is_binary(query):
                blob, ends = batch_of_records(
                    request.body, topic=topic.name, max_msg_size=self._max_msg_size, max_body_size=self._max_body_size
                )
            else:
                blob, ends = batch_of_lines(request.body, max_msg_size=self._max_msg_size)
            if not ends:
                return _OK
            if producer is None:
                waiting = _BatchedPublish()
                self._batcher.publish(waiting, Publish(b"MPUB", topic.name, blob, ends, 1))
                return waiting.answer()
            self._batcher.note_bytes(len(blob))
            pending = topic.publish(blob, ends, producer=producer)
        except _REFUSALS as refusal:
            raise unavailable(refusal, is_last=producer is not None) from refusal
        return _OK if pending is None else _when_stored(pending, is_numbered=True)

    def _topic(self, query: Query) -> Topic:
        topic = self._broker.find_topic(required_topic(query))
        return self._broker.topic(valid_topic(query)) if topic is None else topic

    def _parse_defer(self, defer: str) -> int:
        defer_ms = parse_integer(defer)
        if defer_ms is None or not 0 <= defer_ms <= self._max_req_timeout_ms:
            raise HttpError(400, "INVALID_DEFER")
        return defer_ms


class _BatchedPublish(LaterResponse):
    """The answer to what is published or answered with others. A `BatchedPublisher`, and its own promise."""

    def answer(self) -> Response | LaterResponse:
        """The response, if it is known already; the refusal is raised."""
        outcome = self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        return self if outcome is None else outcome

    def accepted(self, topic: str, count: int, reply_count: int) -> None:  # noqa: ARG002 - one answer to all of it
        self.settle(_OK)

    def refused(self, verb: bytes, refusal: Exception) -> None:  # noqa: ARG002 - HTTP names no verb
        self.settle(unavailable(refusal))

    def promised(self) -> _BatchedPublish:
        return self


def _when_stored(pending: Pending, *, is_numbered: bool) -> LaterResponse:
    """The answer to a publish, once it is on the disk."""
    answer = LaterResponse()

    def settled(failure: Exception | None) -> None:
        answer.settle(_OK if failure is None else unavailable(failure, is_last=is_numbered))

    pending.when_settled(settled)
    return answer


async def settled(pending: Pending) -> Exception | None:
    """Wait until a publish is stored (None) or has failed (why)."""
    told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    pending.when_settled(lambda failure: None if told.done() else told.set_result(failure))
    return await told


def _is_binary(query: Query) -> bool:
    word = query.get("binary")
    if word is None or word in FALSE_WORDS:
        return False
    if word not in TRUE_WORDS:
        _log.warning("deprecated value '%s' used for /mpub binary param", word)
    return True


def unavailable(refusal: Exception, *, is_last: bool = False, **facts: int) -> HttpError:
    """The answer to what could not be published.

    Behind a numbered batch `is_last`, as over TCP: were a later number of the pipeline stored, this one would count as
    stored too.
    """
    # A full disk refuses every publish. /ping and the log of the node's health report that, so it is not logged here.
    _log.debug("HTTP: failed to publish - %s", refusal)
    if isinstance(refusal, JournalFailedError):
        return HttpError(503, "JOURNAL_FAILED", is_last=is_last, topic=refusal.topic, reason=refusal.reason, **facts)
    if isinstance(refusal, TopicFullError):
        return HttpError(429, "TOPIC_FULL", is_last=is_last, topic=refusal.topic, reason=refusal.reason, **facts)
    return HttpError(503, _unavailable_text(refusal), is_last=is_last, **facts)


def _unavailable_text(refusal: Exception) -> str:
    if isinstance(refusal, DrainingError):
        return "DRAINING"
    return "DISK_SPACE_LOW" if isinstance(refusal, GateClosedError) else "EXITING"


# The body of /mpub.


Batch = tuple[bytes, Sequence[int]]


def batch_of_lines(body: bytes, *, max_msg_size: int) -> Batch:
    """The messages of a text body, maybe none."""
    heads = SIZES
    parts: list[bytes] = []
    ends: list[int] = []
    limit: i64 = max_msg_size
    smallest: i64 = limit
    start: i64 = 0
    end: i64 = 0
    stop: i64 = len(body)
    while start < stop:
        line_end: i64 = body.find(b"\n", start)  # `split` would look at each byte
        if line_end < 0:
            line_end = stop
        size: i64 = line_end - start
        if size > 0:
            if size > limit:
                raise HttpError(413, "MSG_TOO_BIG")
            parts.append(heads[size] if size < len(heads) else PUBLISHED_HEADER.pack(size))
            parts.append(body[start:line_end])
            smallest = min(smallest, size)
            end += PUBLISHED_HEADER_BYTES + size
            ends.append(end)
        start = line_end + 1
    stride = PUBLISHED_HEADER_BYTES + smallest
    if end == stride * len(ends):
        return b"".join(parts), range(stride, end + 1, stride)
    return b"".join(parts), array("I", ends)


def batch_of_records(body: bytes, *, topic: str, max_msg_size: int, max_body_size: int) -> Batch:
    """The messages of a binary body."""
    try:
        return messages_of(body, topic=topic, max_msg_size=max_msg_size, max_body_size=max_body_size)
    except FatalError as wrong:
        raise _refusal(wrong) from wrong


def _refusal(wrong: FatalError) -> HttpError:
    return HttpError(413, "BAD_BODY" if wrong.data.startswith(error.BAD_BODY) else "BAD_MESSAGE")


# Numbered requests.

_PRODUCER: Final = b"x-emberq-producer"
_SEQUENCE: Final = b"x-emberq-sequence"


def producer_of(request: Request) -> ProducerSequence | None:
    """The producer and number of a request; None without the headers, HttpError if they are wrong."""
    producer = request.raw_header(_PRODUCER)
    sequence = request.raw_header(_SEQUENCE)
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise HttpError(400, "INVALID_PRODUCER")
    producer_id = parse_producer_id(producer.decode("latin-1"))
    number = parse_sequence(sequence)
    if producer_id is None or number is None:
        raise HttpError(400, "INVALID_PRODUCER")
    return ProducerSequence(producer_id, number)
