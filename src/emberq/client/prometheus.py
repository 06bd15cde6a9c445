"""Metrics of clients, for Prometheus (`pip install emberq[prometheus]`).

    from emberq.client.prometheus import PrometheusObserver

    config = ClientConfig(observer=PrometheusObserver())

They join the metrics that the program has with `prometheus_client`, and are served by it as those are.

    nsq_client_connections               gauge: open connections; address
    nsq_client_connections_lost_total    counter: connections that ended other than by closing; address
    nsq_published_messages_total         counter: messages that nsqd confirmed; topic
    nsq_publish_failures_total           counter: publications that one nsqd did not confirm; topic, error
    nsq_publish_seconds                  histogram: from sending to the confirmation; topic
    nsq_received_messages_total          counter: messages received; topic, channel
    nsq_handler_seconds                  histogram: one call of a handler that succeeded; topic, channel
    nsq_handler_failures_total           counter: calls of a handler that failed; topic, channel, error
    nsq_requeued_messages_total          counter: messages requeued; topic, channel
    nsq_given_up_messages_total          counter: messages given up; topic, channel
    nsq_late_answers_total               counter: answers that came too late for nsqd; topic, channel
    nsq_backoff_level                    gauge: 0 while all is well; topic, channel

The label `error` is the name of the exception's class. A publication that is sent again counts each time, and a batch
counts as one publication, with all its messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from emberq.client.message import Message
from emberq.client.observer import ObservedChannel, Observer, Publication

__all__ = ["PrometheusObserver"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a confirmation on the same machine to nsqd's timeout for a message."""


class PrometheusObserver(Observer):
    """An observer that keeps metrics, in the registry of the program unless another is given.

    One serves all producers and consumers of a program: a registry takes each metric once.
    """

    def __init__(self, *, registry: CollectorRegistry = REGISTRY) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(name, meaning, labels, registry=registry)

        def seconds(name: str, meaning: str, *labels: str) -> Histogram:
            return Histogram(name, meaning, labels, buckets=SECONDS, registry=registry)

        of_channel = ("topic", "channel")
        self._connections = Gauge("nsq_client_connections", "Open connections.", ["address"], registry=registry)
        self._lost = counter("nsq_client_connections_lost", "Connections that ended other than by closing.", "address")
        self._published = counter("nsq_published_messages", "Messages that nsqd confirmed.", "topic")
        self._publish_failures = counter(
            "nsq_publish_failures", "Publications that one nsqd did not confirm.", "topic", "error"
        )
        self._publish_seconds = seconds("nsq_publish_seconds", "From sending to the confirmation.", "topic")
        self._received = counter("nsq_received_messages", "Messages received.", *of_channel)
        self._handler_seconds = seconds("nsq_handler_seconds", "One call of a handler that succeeded.", *of_channel)
        self._handler_failures = counter(
            "nsq_handler_failures", "Calls of a handler that failed.", *of_channel, "error"
        )
        self._requeued = counter("nsq_requeued_messages", "Messages requeued.", *of_channel)
        self._given_up = counter("nsq_given_up_messages", "Messages given up.", *of_channel)
        self._late_answers = counter("nsq_late_answers", "Answers that came too late for nsqd.", *of_channel)
        self._backoff_level = Gauge("nsq_backoff_level", "0 while all is well.", of_channel, registry=registry)

    # Connections

    def connected(self, address: str) -> None:
        self._connections.labels(address).inc()

    def disconnected(self, address: str, failure: BaseException | None) -> None:
        self._connections.labels(address).dec()
        if failure is not None:
            self._lost.labels(address).inc()

    # Producers

    def published(self, publication: Publication, *, duration_s: float) -> None:
        self._published.labels(publication.topic).inc(publication.message_count)
        self._publish_seconds.labels(publication.topic).observe(duration_s)

    def publish_failed(self, publication: Publication, error: BaseException, *, duration_s: float) -> None:  # noqa: ARG002 - how long it took to fail says nothing
        self._publish_failures.labels(publication.topic, type(error).__qualname__).inc()

    # Consumers

    def received(self, messages: Sequence[Message], source: ObservedChannel) -> None:
        self._received.labels(*source).inc(len(messages))

    def handled(self, message: Message, source: ObservedChannel, *, duration_s: float) -> None:  # noqa: ARG002 - no metric is per message
        self._handler_seconds.labels(*source).observe(duration_s)

    def failed(self, message: Message, source: ObservedChannel, error: BaseException, *, duration_s: float) -> None:  # noqa: ARG002 - likewise
        self._handler_failures.labels(*source, type(error).__qualname__).inc()

    def requeued(self, message: Message, source: ObservedChannel) -> None:  # noqa: ARG002 - likewise
        self._requeued.labels(*source).inc()

    def gave_up(self, message: Message, source: ObservedChannel) -> None:  # noqa: ARG002 - likewise
        self._given_up.labels(*source).inc()

    def answered_late(self, source: ObservedChannel, address: str) -> None:  # noqa: ARG002 - one series for each channel
        self._late_answers.labels(*source).inc()

    def backoff_changed(self, source: ObservedChannel, *, level: int, pause_s: float) -> None:  # noqa: ARG002 - the level tells
        self._backoff_level.labels(*source).set(level)
