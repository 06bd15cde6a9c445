"""Spans and metrics as an exporter of OpenTelemetry gets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.baggage import get_baggage, set_baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, get_current_span

from emberq.client.config import ClientConfig, ConsumerConfig
from emberq.client.consumer import Consumer
from emberq.client.error import BadRequestError
from emberq.client.message import Message
from emberq.client.opentelemetry import OpenTelemetryObserver
from emberq.client.producer import Producer
from emberq.embedded import Embedded
from tests.client.scripted_nsqd import ScriptedNsqd
from tests.support.waiting import until


class Backend:
    """Where spans and metrics end up."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self._tracer_provider = TracerProvider()
        self._tracer_provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self._tracer_provider.get_tracer("the program")
        self.config = ClientConfig(
            observer=OpenTelemetryObserver(
                tracer_provider=self._tracer_provider, meter_provider=MeterProvider([self._metrics])
            )
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def points(self, name: str) -> list[dict[str, Any]]:
        """The attributes of all data points of a metric, and their value, sum or count."""
        data = self._metrics.get_metrics_data()
        assert data is not None
        metrics = [
            metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        ]
        return [
            {**(point.attributes or {}), "value": getattr(point, "value", None) or getattr(point, "count", 0)}
            for metric in metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


async def test_publishing_makes_a_span_within_that_of_the_caller() -> None:
    backend = Backend()
    async with Embedded(with_lookupd=False) as nsq:
        (address,) = nsq.nsqd_tcp_addresses
        async with Producer(address, backend.config) as producer:
            with backend.tracer.start_as_current_span("checkout") as checkout:
                await producer.publish_many("orders", [b"1", b"22"])
            assert backend.points("nsq.client.connections")[0]["value"] == 1
    span = next(span for span in backend.spans if span.name == "send orders")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent == checkout.get_span_context()
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "messaging.system": "nsq",
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 2,
        "messaging.message.body.size": 3,
        "server.address": "127.0.0.1",
        "server.port": int(address.rpartition(":")[2]),
    }
    (sent,) = backend.points("messaging.client.sent.messages")
    assert (sent["value"], sent["messaging.destination.name"]) == (2, "orders")
    assert backend.points("messaging.client.operation.duration")[0]["value"] == 1
    assert backend.points("nsq.client.connections")[0]["value"] == 0


async def test_answers_that_come_too_late_are_counted() -> None:
    backend = Backend()
    async with (
        ScriptedNsqd() as nsqd,
        Consumer("t", "c", nsqd_addresses=[nsqd.address], client_config=backend.config) as consumer,
    ):
        nsqd.send()
        (await anext(consumer)).finish()
        nsqd.fail(b"E_FIN_FAILED FIN 0000000000000001 failed ID not in flight")
        await until(lambda: bool(backend.points("nsq.consumer.late_answers")))
    (point,) = backend.points("nsq.consumer.late_answers")
    assert (point["value"], point["messaging.consumer.group.name"]) == (1, "c")


async def test_a_publication_that_fails_says_so() -> None:
    backend = Backend()
    async with (
        Embedded(with_lookupd=False, max_msg_size=5) as nsq,
        Producer(nsq.nsqd_tcp_addresses, backend.config) as producer,
    ):
        with pytest.raises(BadRequestError):
            await producer.publish("orders", b"much too long")
    (span,) = backend.spans
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "MessageTooLargeError"
    assert backend.points("messaging.client.sent.messages")[0]["error.type"] == "MessageTooLargeError"


async def test_a_handler_runs_in_a_span_and_what_it_calls_are_children() -> None:
    backend = Backend()

    async def handle(message: Message) -> None:
        with backend.tracer.start_as_current_span("store"):
            if message.body == b"bad":
                raise ValueError("as told")

    async with ScriptedNsqd() as nsqd:
        consumer = Consumer(
            "orders",
            "billing",
            handle,
            nsqd_addresses=[nsqd.address],
            client_config=backend.config,
            config=ConsumerConfig(concurrency=1, max_attempts=3),
        )
        async with consumer:
            nsqd.send(b"good", attempts=2)
            nsqd.send(b"bad")
            nsqd.send(b"tired", attempts=4)
            await until(lambda: {"FIN", "REQ"} <= set(nsqd.commands))
            await until(lambda: consumer.statistics().given_up == 1)
            assert backend.points("nsq.consumer.backoff.level")[0]["value"] == 1
    store, process, _, failed = backend.spans
    assert (store.name, process.name) == ("store", "process orders")
    assert store.parent == process.context
    assert process.kind is SpanKind.CONSUMER
    assert process.attributes is not None
    assert process.attributes["messaging.consumer.group.name"] == "billing"
    assert process.attributes["nsq.message.attempts"] == 2
    assert process.attributes["messaging.message.id"] == "0000000000000001"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "ValueError"
    assert backend.points("messaging.client.consumed.messages")[0]["value"] == 3
    assert [point["value"] for point in backend.points("messaging.process.duration")] == [1, 1]
    assert backend.points("nsq.consumer.requeued")[0]["value"] == 1
    assert backend.points("nsq.consumer.given_up")[0]["value"] == 1


def test_the_path_of_a_unix_socket_is_an_address() -> None:
    backend = Backend()
    observer = backend.config.observer
    assert observer is not None
    observer.connected("/run/nsqd.sock")
    assert backend.points("nsq.client.connections")[0]["server.address"] == "/run/nsqd.sock"


async def test_in_envelopes_a_trace_reaches_from_the_publisher_to_the_handler() -> None:
    backend = Backend()
    config = replace(backend.config, envelope=True)
    seen: list[tuple[bytes, SpanContext, object]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, get_current_span().get_span_context(), get_baggage("shop")))

    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses, config) as producer:
        token = attach(set_baggage("shop", "7"))
        with backend.tracer.start_as_current_span("order") as order:
            await producer.publish_many("t", [b"one", b"two"])
        detach(token)
        async with Consumer("t", "c", handle, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=config):
            await until(lambda: len(seen) == 2)
        await until(lambda: len([span for span in backend.spans if span.name == "process t"]) == 2)
    assert sorted(body for body, _, _ in seen) == [b"one", b"two"]
    trace_id = order.get_span_context().trace_id
    assert {context.trace_id for _, context, _ in seen} == {trace_id}
    assert {baggage for _, _, baggage in seen} == {"7"}
    created = {span.context.span_id: span for span in backend.spans if span.name == "create t"}
    assert {span.kind for span in created.values()} == {SpanKind.PRODUCER}
    assert {span.parent.span_id for span in created.values() if span.parent} == {order.get_span_context().span_id}
    for span in (span for span in backend.spans if span.name == "process t"):
        assert span.parent is not None
        assert created.pop(span.parent.span_id)  # each handler continues the span of its own message
        assert [link.context.span_id for link in span.links] == [span.parent.span_id]
    (send,) = (span for span in backend.spans if span.name == "send t")
    assert send.kind is SpanKind.CLIENT
    assert send.context.trace_id == trace_id


async def test_headers_that_are_no_trace_begin_a_new_one() -> None:
    backend = Backend()
    plain = ClientConfig(envelope=True)
    consuming = replace(backend.config, envelope=True)
    handled: list[bytes] = []

    async def handle(message: Message) -> None:
        handled.append(message.body)

    async with Embedded() as nsq, Producer(nsq.nsqd_tcp_addresses, plain) as producer:
        await producer.publish("t", b"one", headers={"traceparent": "nonsense"})
        async with Consumer("t", "c", handle, nsqd_addresses=nsq.nsqd_tcp_addresses, client_config=consuming):
            await until(lambda: handled == [b"one"])
        await until(lambda: [span.name for span in backend.spans] == ["process t"])
    assert backend.spans[0].parent is None
    assert not backend.spans[0].links
