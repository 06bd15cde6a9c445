"""The works of steady traffic: messages in, messages out, requests. Each gives rates, and CPU per message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean, harmonic_mean

from bench import process
from bench.failure import LoadFailure
from bench.generator import Generator, Order
from bench.idle import Crowd, allow_open_files
from bench.metric import Metric
from bench.stage import Effort, Stage, check_bytes, whole

CHANNEL = "c"
Work = Callable[[Stage], list[Metric]]

_LATENCY_RATE = 5_000
_HTTP_CONNECTIONS = 32
_LONG_TIMEOUT_MS = 600_000
_DUE_MARGIN_MS = 3_000  # what a generator may take to connect, and a busy machine to go on
_SLOWEST_DPUB_RATE = 10_000
_WARM_UP_CONNECTIONS = 1000  # after them nsqd has what it needs for any number
_UNHURRIED_RATE = 100  # MPUBs a second
_HANDLERS = 2
_HANDLER_BATCH = 100
_HANDLER_THINK_US = 5  # about what go-nsq and a handler of a few lines take for a message


def mpub(stage: Stage) -> list[Metric]:
    stage.create(CHANNEL)
    return mpub_to_topic(stage)


def mpub_to_topic(stage: Stage) -> list[Metric]:
    return stage.measure(stage.publish()).publishing()


def mpub_to_topics(*, topics: int, batch: int) -> Work:
    """Each connection waits for its answer, as client libraries do, and goes round the topics."""

    def run(stage: Stage) -> list[Metric]:
        for index in range(topics):
            stage.create(CHANNEL, topic=f"{stage.topic}_{index}")
        messages = whole(stage.size.messages, batch)
        order = stage.publish(topics=topics, batch=batch, messages=messages, connections=8, window=1)
        return stage.measure(order).publishing()

    return run


def drain(**settings: int | str) -> Work:
    """Consume a full channel, in the way that the settings say."""

    def run(stage: Stage) -> list[Metric]:
        return _drained(stage, **settings)[1].delivering()

    return run


def _drained(stage: Stage, **settings: int | str) -> tuple[Effort, Effort]:
    stage.create(CHANNEL)
    published = stage.measure(stage.publish())
    consumed = stage.measure(stage.consume(CHANNEL, **settings))
    check_bytes(consumed, published)
    return published, consumed


def large(stage: Stage) -> list[Metric]:
    """Bodies of 1 MB: single PUBs from 2 connections; a small RDY, so that nsqd is not asked for a gigabyte at once."""
    stage.create(CHANNEL)
    messages = stage.size.messages
    published = stage.measure(stage.publish(messages=messages, batch=0, window=1))
    consumed = stage.measure(stage.consume(CHANNEL, messages=messages, rdy=10))
    check_bytes(consumed, published)
    return _in_and_out([published], consumed)


def handler(**security: int | str) -> Work:
    """As go-nsq does it: MPUBs of 100, each waiting; then handlers that finish one message after the other.

    There are two handlers, each a program with a topic of its own: a single one is busy before nsqd is.
    """

    def run(stage: Stage) -> list[Metric]:
        messages = whole(stage.size.messages, _HANDLER_BATCH)
        producer = {"messages": messages, "batch": _HANDLER_BATCH, "window": 1, **security}
        consumer = {"messages": messages, "connections": 1, "fin": "each", "think_us": _HANDLER_THINK_US, **security}
        topics = [f"{stage.topic}_{index}" for index in range(_HANDLERS)]
        for topic in topics:
            stage.create(CHANNEL, topic=topic)
        published = [stage.measure(stage.publish(topic=topic, **producer)) for topic in topics]
        consumed = stage.measure(*(stage.consume(CHANNEL, topic=topic, **consumer) for topic in topics))
        check_bytes(consumed, *published)
        return _in_and_out(published, consumed)

    return run


def _in_and_out(published: Sequence[Effort], consumed: Effort) -> list[Metric]:
    """A rate for each. What was published came in equal parts, one after the other."""
    parts = zip(*(effort.publishing() for effort in published), strict=True)
    return [*_named("in", [_together(part) for part in parts]), *_named("out", consumed.delivering())]


def _together(part: Sequence[Metric]) -> Metric:
    """The harmonic mean of rates is all messages by all the time."""
    mean = harmonic_mean if part[0].measure == "rate" else fmean
    return replace(part[0], value=mean([metric.value for metric in part]))


def _named(way: str, metrics: list[Metric]) -> list[Metric]:
    return [replace(metric, measure=f"{way}: {metric.measure}") for metric in metrics]


def through(stage: Stage) -> list[Metric]:
    return stage.measure(stage.consume(CHANNEL), stage.publish()).delivering()


def replay(stage: Stage) -> list[Metric]:
    """Drain from a disk that the operating system remembers nothing of."""
    stage.create(CHANNEL)
    published = stage.measure(stage.publish())
    stage.forget_files()
    consumed = stage.measure(stage.consume(CHANNEL))
    check_bytes(consumed, published)
    rate, *others = consumed.delivering()
    body_bytes = published.body_bytes / published.published
    return [rate, Metric("bodies", rate.value * body_bytes / 1e6, "MB/s", "higher"), *others]


def fanout(*, channels: int) -> Work:
    def run(stage: Stage) -> list[Metric]:
        names = [f"c{index}" for index in range(channels)]
        return stage.measure(stage.consume(*names, connections=1), stage.publish()).delivering()

    return run


def pub(*, connections: int) -> Work:
    """Single PUBs, each waiting for its OK."""

    def run(stage: Stage) -> list[Metric]:
        stage.create(CHANNEL)
        order = stage.publish(messages=stage.size.messages, batch=0, window=1, connections=connections)
        return stage.measure(order).publishing()

    return run


def pub_pipelined(stage: Stage) -> list[Metric]:
    stage.create(CHANNEL)
    order = stage.publish(messages=stage.size.messages, batch=0, window=32)
    return stage.measure(order).publishing()


def mpub_of_one(stage: Stage) -> list[Metric]:
    """NSQ's bench_writer with --batch-size=1: MPUBs of one message, 2 connections that wait."""
    stage.create(CHANNEL)
    order = stage.publish(messages=stage.size.messages, batch=1, window=1)
    return stage.measure(order).publishing()


def dpub_in(stage: Stage) -> list[Metric]:
    stage.create(CHANNEL)
    order = stage.publish(messages=stage.size.messages, batch=0, window=1, connections=16, defer_ms=3000)
    return stage.measure(order).publishing()


def dpub_out(stage: Stage) -> list[Metric]:
    """All messages are due at one moment; the rate is taken from the first that comes."""
    stage.create(CHANNEL)
    published = stage.measure(due_at_once(stage))
    consumed = stage.measure(stage.consume(CHANNEL, messages=stage.size.messages, from_first=1))
    check_bytes(consumed, published)
    return consumed.delivering()


def due_at_once(stage: Stage) -> Order:
    messages = stage.size.messages
    due_in_ms = _DUE_MARGIN_MS + messages * 1000 // _SLOWEST_DPUB_RATE
    return stage.publish(messages=messages, batch=0, window=1, connections=16, due_in_ms=due_in_ms)


def http_pub(stage: Stage) -> list[Metric]:
    return _posts(stage, f"/pub?topic={stage.topic}", batch=1)


def http_mpub(stage: Stage) -> list[Metric]:
    return _posts(stage, f"/mpub?topic={stage.topic}", batch=200)


def http_mpub_binary(stage: Stage) -> list[Metric]:
    return _posts(stage, f"/mpub?topic={stage.topic}&binary=true", batch=200, records=1)


def _posts(stage: Stage, target: str, *, batch: int, **settings: int | str) -> list[Metric]:
    stage.create(CHANNEL)
    requests = whole(stage.size.messages, batch) // batch
    order = stage.request(target, post=1, batch=batch, requests=requests, connections=_HTTP_CONNECTIONS, **settings)
    return stage.measure(order).publishing()


def http_get(target: str) -> Work:
    """Requests to an nsqd with one topic and one channel."""

    def run(stage: Stage) -> list[Metric]:
        stage.create(CHANNEL)
        order = stage.request(target, requests=stage.size.messages, connections=_HTTP_CONNECTIONS)
        return stage.measure(order).answering()

    return run


def latency(**settings: int | str) -> Work:
    def run(stage: Stage) -> list[Metric]:
        messages = int(stage.size.seconds * _LATENCY_RATE)
        effort = stage.measure(
            stage.consume(CHANNEL, messages=messages, connections=1, timed=1, **settings),
            stage.publish(messages=messages, batch=0, connections=1, window=1, rate=_LATENCY_RATE),
        )
        (found,) = (tally.latency_ms for tally in effort.tallies if tally.latency_ms)
        values = [Metric(name, found[name], "ms", "lower") for name in ("p50", "p99", "max")]
        return [*values, *effort.cpu(effort.delivered)]

    return run


def memory(stage: Stage) -> list[Metric]:
    return _memory(stage, stage.messages, {})


def memory_of_singles(*, batch: int) -> Work:
    """Messages that came one by one: 0 for PUBs, 1 for MPUBs of one message."""

    def run(stage: Stage) -> list[Metric]:
        return _memory(stage, stage.size.messages, {"batch": batch, "window": 1, "connections": 16})

    return run


def _memory(stage: Stage, messages: int, settings: dict[str, int | str]) -> list[Metric]:
    stage.create(CHANNEL)
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    effort = stage.measure(stage.publish(**{**settings, "messages": messages}))
    grown_bytes = process.rss_bytes(stage.pid) - before_bytes
    # Bytes per message are megabytes per million messages.
    per_million_mb = grown_bytes / effort.published
    overhead_bytes = (grown_bytes - effort.body_bytes) / effort.published
    return [
        Metric("RSS", per_million_mb, "MB/M msg", "lower"),
        Metric("beside the body", overhead_bytes, "B/msg", "lower"),
        *effort.cpu(effort.published),
    ]


def unanswered(stage: Stage) -> list[Metric]:
    """One message of each batch is kept in flight, all others are finished: what does nsqd hold then?"""
    batch = 1000
    messages = whole(stage.size.messages, batch)
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    consumer = stage.consume(
        CHANNEL, messages=messages, connections=1, keep_every=batch, msg_timeout_ms=_LONG_TIMEOUT_MS
    )
    # Slowly, so that nothing queues up: what nsqd once needed for a queue, it may keep for a while.
    publisher = stage.publish(messages=messages, batch=batch, connections=1, window=1, rate=_UNHURRIED_RATE)
    with Generator(consumer) as consuming, Generator(publisher) as publishing:
        for generator in (consuming, publishing):
            generator.await_word("ready")
        for generator in (consuming, publishing):
            generator.go()
        published = publishing.tally()
        consuming.await_word("held")
        stage.settle()
        grown_bytes = process.rss_bytes(stage.pid) - before_bytes
        consuming.go()
        consumed = consuming.tally()
    if consumed.body_bytes != published.body_bytes:
        raise LoadFailure(f"{consumed.body_bytes} bytes of bodies came of {published.body_bytes}")
    return [Metric("RSS", grown_bytes / 1e6, "MB", "lower")]


def idle(stage: Stage) -> list[Metric]:
    count = allow_open_files(stage.size.connections)
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    with Crowd(stage.server.address) as crowd:
        crowd.gather(count)
        stage.settle()
        grown_bytes = process.rss_bytes(stage.pid) - before_bytes
        before_s = process.cpu_s(stage.pid)
        crowd.linger(stage.size.seconds)
        spent_s = process.cpu_s(stage.pid) - before_s
    return [
        Metric("connections", count, "", "neither"),
        Metric("RSS", grown_bytes / count / 1000, "kB each", "lower"),
        Metric("nsqd CPU", spent_s / stage.size.seconds * 100, "%", "lower"),
    ]


def timeouts(stage: Stage) -> list[Metric]:
    """Many consumers with a short msg_timeout and little to do: what does it cost to know what is due?"""
    rate, seconds = 500, stage.size.seconds
    messages = int(rate * seconds)
    effort = stage.measure(
        stage.consume(CHANNEL, messages=messages, connections=stage.size.many, rdy=1, msg_timeout_ms=1000),
        stage.publish(messages=messages, batch=0, connections=1, window=1, rate=rate),
    )
    if effort.nsqd_cpu_s is None:
        raise LoadFailure("this work reads /proc: give the server's process with --pid")
    return [Metric("nsqd CPU", effort.nsqd_cpu_s / seconds * 100, "%", "lower")]


def churn(**settings: int | str) -> Work:
    """Connections that come and go; what is left of them is what the last of them did not need either."""

    def run(stage: Stage) -> list[Metric]:
        stage.measure(stage.churn(messages=_WARM_UP_CONNECTIONS, **settings))
        before_bytes = _bytes_in_use(stage)
        effort = stage.measure(stage.churn(messages=stage.size.connections, **settings))
        grown_bytes = _bytes_in_use(stage) - before_bytes
        rate, cpu, *_ = effort.answering()
        return [
            Metric("RSS grown", grown_bytes / 1e6, "MB", "lower"),
            replace(rate, unit="conn/s"),
            replace(cpu, unit="µs/conn"),
        ]

    return run


def _bytes_in_use(stage: Stage) -> int:
    """What a server has in memory after it was told to give back what it has freed."""
    with suppress(LoadFailure):  # Go's does it, and then answers that it failed
        stage.call("POST", "/debug/freememory")
    return process.rss_bytes(stage.pid)
