"""Spans and metrics of clients, for OpenTelemetry (`pip install emberq[otel]`).

    from emberq.client.opentelemetry import OpenTelemetryObserver

    config = ClientConfig(observer=OpenTelemetryObserver())

Names are those of OpenTelemetry's conventions for messaging where these have one, and begin with `nsq.` elsewhere.

    span "create TOPIC"                     one message, if it is published in an envelope: what its handler continues
    span "send TOPIC"                       one attempt to publish; a child of whatever span the caller is in
    span "process TOPIC"                    one call of a handler, which is in that span: what it calls are its children
                                            (not if it runs in another process)

    messaging.client.sent.messages          counter: messages published; with error.type: attempts that failed
    messaging.client.operation.duration     histogram, seconds: one attempt to publish
    messaging.client.consumed.messages      counter: messages received
    messaging.process.duration              histogram, seconds: one call of a handler
    nsq.client.connections                  up-down counter: open connections
    nsq.consumer.requeued                   counter: messages requeued
    nsq.consumer.given_up                   counter: messages given up
    nsq.consumer.late_answers               counter: answers that came too late for nsqd
    nsq.consumer.backoff.level              gauge: 0 while all is well

**One trace.** NSQ's messages cannot carry the context of a span, so the spans of a publisher and a handler are in
different traces. With `ClientConfig(envelope=True)` on both sides they can: the context of the "create" span travels as
the headers that OpenTelemetry's propagator writes (`traceparent`, unless it was set to others). "process" has it as its
parent, and as a link, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

from opentelemetry.context import Context, attach, detach
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    Link,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)

from emberq import __version__
from emberq.base.address import TcpAddress, parse_address
from emberq.base.clock import NS_PER_SECOND
from emberq.client.message import Message, id_text
from emberq.client.observer import ObservedChannel, Observer, Publication

__all__ = ["OpenTelemetryObserver"]

LIBRARY = "emberq.client"

_Attributes: TypeAlias = dict[str, str | int]

_SYSTEM: _Attributes = {"messaging.system": "nsq"}
_CREATE = _SYSTEM | {"messaging.operation.type": "create", "messaging.operation.name": "create"}
_SEND = _SYSTEM | {"messaging.operation.type": "send", "messaging.operation.name": "publish"}
_RECEIVE = _SYSTEM | {"messaging.operation.type": "receive", "messaging.operation.name": "receive"}
_PROCESS = _SYSTEM | {"messaging.operation.type": "process", "messaging.operation.name": "handle"}


class OpenTelemetryObserver(Observer):
    """An observer that makes spans and metrics. It uses the global providers unless others are given.

    One is enough for a whole program.
    """

    def __init__(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
    ) -> None:
        self._tracer = get_tracer(LIBRARY, __version__, tracer_provider)
        meter = get_meter(LIBRARY, __version__, meter_provider)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._send_duration = meter.create_histogram("messaging.client.operation.duration", "s")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._process_duration = meter.create_histogram("messaging.process.duration", "s")
        self._connections = meter.create_up_down_counter("nsq.client.connections", "{connection}")
        self._requeued = meter.create_counter("nsq.consumer.requeued", "{message}")
        self._given_up = meter.create_counter("nsq.consumer.given_up", "{message}")
        self._late_answers = meter.create_counter("nsq.consumer.late_answers", "{answer}")
        self._backoff_level = meter.create_gauge("nsq.consumer.backoff.level", "{level}")

    # Connections

    def connected(self, address: str) -> None:
        self._connections.add(1, _SYSTEM | _server(address))

    def disconnected(self, address: str, failure: BaseException | None) -> None:  # noqa: ARG002 - the count is enough
        self._connections.add(-1, _SYSTEM | _server(address))

    # Producers

    def message_headers(self, topic: str) -> dict[str, str]:
        """The context of a span for the message, which is over at once: how it is sent is another matter."""
        attributes = _CREATE | {"messaging.destination.name": topic}
        span = self._tracer.start_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        headers: dict[str, str] = {}
        inject(headers, context=set_span_in_context(span))
        span.end()
        return headers

    def published(self, publication: Publication, *, duration_s: float) -> None:
        self._sent_in(publication, duration_s, error=None)

    def publish_failed(self, publication: Publication, error: BaseException, *, duration_s: float) -> None:
        self._sent_in(publication, duration_s, error=error)

    def _sent_in(self, publication: Publication, duration_s: float, *, error: BaseException | None) -> None:
        attributes = _SEND | _server(publication.address) | {"messaging.destination.name": publication.topic}
        if error is not None:
            attributes |= {"error.type": type(error).__qualname__}
        self._sent.add(publication.message_count, attributes)
        self._send_duration.record(duration_s, attributes)
        self._add_send_span(publication, attributes, duration_s, error=error)

    def _add_send_span(
        self, publication: Publication, attributes: _Attributes, duration_s: float, *, error: BaseException | None
    ) -> None:
        """A span that is over already: it has no children, so none of them can miss it while it is open."""
        end_ns = time.time_ns()
        span = self._tracer.start_span(
            f"send {publication.topic}",
            # The producer's span is the one whose context travels with the message.
            kind=SpanKind.CLIENT if publication.is_enveloped else SpanKind.PRODUCER,
            attributes={
                **attributes,
                "messaging.batch.message_count": publication.message_count,
                f"messaging.message.{'envelope' if publication.is_enveloped else 'body'}.size": publication.body_bytes,
            },
            start_time=end_ns - round(duration_s * NS_PER_SECOND),
        )
        if error is not None:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(end_ns)

    # Consumers

    def received(self, messages: Sequence[Message], source: ObservedChannel) -> None:
        self._consumed.add(len(messages), _RECEIVE | _consumer(source))

    @contextmanager
    def handling(self, message: Message, source: ObservedChannel) -> Iterator[None]:
        attributes = {
            **_PROCESS,
            **_consumer(source),
            **_server(message.address),
            "messaging.message.id": id_text(message.id),
            "messaging.message.body.size": len(message.body),
            "nsq.message.attempts": message.attempts,
        }
        created_in = extract(message.headers)
        creation = get_current_span(created_in).get_span_context()
        with (
            _attached(created_in) if creation.is_valid else nullcontext(),
            self._tracer.start_as_current_span(
                f"process {source.topic}",
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(creation)] if creation.is_valid else None,
            ) as span,
        ):
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

    def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:  # noqa: ARG002 - no metric is per message
        self._process_duration.record(duration_s, _PROCESS | _consumer(source))

    def failed(self, message: Message, source: ObservedChannel, error: BaseException, *, duration_s: float) -> None:  # noqa: ARG002 - likewise
        attributes = _PROCESS | _consumer(source) | {"error.type": type(error).__qualname__}
        self._process_duration.record(duration_s, attributes)

    def requeued(self, message: Message, source: ObservedChannel) -> None:  # noqa: ARG002 - likewise
        self._requeued.add(1, _SYSTEM | _consumer(source))

    def gave_up(self, message: Message, source: ObservedChannel) -> None:  # noqa: ARG002 - likewise
        self._given_up.add(1, _SYSTEM | _consumer(source))

    def answered_late(self, source: ObservedChannel, address: str) -> None:
        self._late_answers.add(1, _SYSTEM | _consumer(source) | _server(address))

    def backoff_changed(self, source: ObservedChannel, *, level: int, pause_s: float) -> None:  # noqa: ARG002 - the level tells
        self._backoff_level.set(level, _SYSTEM | _consumer(source))


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    """What a message brought is current: its span becomes the parent of others, its baggage is there for handlers."""
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


def _consumer(source: ObservedChannel) -> _Attributes:
    return {"messaging.destination.name": source.topic, "messaging.consumer.group.name": source.channel}


def _server(address: str) -> _Attributes:
    target = parse_address(address)
    if isinstance(target, TcpAddress):
        return {"server.address": target.host, "server.port": target.port}
    return {"server.address": target.path}
