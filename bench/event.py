"""The works of single events that may stop a server: an admin call, a wide fan-out, many messages due at once.

A bystander, with a connection and a topic of its own, publishes one message after the other meanwhile. Its longest
round trip tells for how long the event kept the server from its other clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from urllib.parse import quote

from bench import process
from bench.generator import Generator
from bench.metric import Metric
from bench.stage import Stage
from bench.traffic import CHANNEL, due_at_once

_SPILLED_MESSAGES = 200  # to each channel; half of them fit into its memory queue, see SPILLING
SPILLING = ("--mem-queue-size=100",)
SYNCING = (*SPILLING, "--sync-every=100")  # what has spilled is synced at once
_WIDE_BATCH = 12_000
_STATS_CALLS = 5
_AFTER_DUE_S = 0.5
_IDLE_S = 5.0
_REMOVAL_S = 120.0
"""How long a deleted topic may take to go from the disk."""
_LATE_TIMEOUT_MS = 1000  # the shortest that nsqd allows


def empty(stage: Stage) -> list[Metric]:
    """/channel/empty of a channel, just when it and many others of another topic have spilled and are being synced."""
    other = f"{stage.topic}_other"
    stage.create(CHANNEL, topic=other)
    _spill(stage)
    stage.load(stage.publish(topic=other, messages=_SPILLED_MESSAGES, batch=_SPILLED_MESSAGES, connections=1))
    return _beside(stage, lambda: stage.call("POST", f"/channel/empty?topic={other}&channel={CHANNEL}"))


def delete(stage: Stage) -> list[Metric]:
    _spill(stage)
    return _beside(stage, lambda: stage.call("POST", f"/topic/delete?topic={stage.topic}"))


def fan_out(stage: Stage) -> list[Metric]:
    _create_channels(stage)
    stage.settle()
    order = stage.publish(messages=_WIDE_BATCH, batch=_WIDE_BATCH, connections=1, window=1)
    return _beside(stage, lambda: stage.load(order))


def late_fins(stage: Stage) -> list[Metric]:
    """Half of the consumers finish messages that have meanwhile been given to others."""
    messages = stage.size.many // 2
    stage.create(CHANNEL)
    stage.load(stage.publish(messages=messages, batch=0, window=1))
    order = stage.late(CHANNEL, messages=messages, connections=stage.size.many, msg_timeout_ms=_LATE_TIMEOUT_MS)
    with Generator(order) as consumers:
        consumers.await_word("ready")
        consumers.go()
        consumers.await_word("held")

        def finish_late() -> None:
            consumers.go()
            consumers.tally()

        worst, p99, _ = _beside(stage, finish_late, until_calm=False)  # it takes as long as its generator waits
    return [worst, p99]


def maturing(stage: Stage) -> list[Metric]:
    """Deferred messages that are all due at one moment."""
    stage.create(CHANNEL)
    order = due_at_once(stage)
    (published,) = stage.load(order)
    due_s = published.started_s + int(order.settings["due_in_ms"]) / 1000
    worst, p99, _ = _beside(stage, lambda: time.sleep(max(due_s + _AFTER_DUE_S - time.monotonic(), 0)))
    return [worst, p99]


def journal(stage: Stage) -> list[Metric]:
    """A large topic is replayed from a cold disk, searched by time without its index files, and deleted."""
    stage.create(CHANNEL)
    idle = _beside(stage, lambda: time.sleep(_IDLE_S))
    stage.load(stage.publish(messages=stage.messages // 2))
    middle = datetime.now(UTC).isoformat()
    stage.load(stage.publish(messages=stage.messages // 2))
    stage.settle()
    stage.forget_files()
    replayed = _beside(stage, lambda: stage.load(stage.consume(CHANNEL)))
    stage.forget_files()
    for path in stage.files("*.idx"):
        path.unlink()
    to_the_middle = f"/channel/seek?topic={stage.topic}&channel={CHANNEL}&to={quote(middle)}"
    searched = _beside(stage, lambda: stage.call("POST", to_the_middle))
    deleted = _beside(stage, lambda: _delete(stage))
    beside = {"idle": idle, "replay": replayed, "search": searched, "delete": deleted}
    return [replace(metric, measure=f"{what}: {metric.measure}") for what in beside for metric in beside[what]]


def _delete(stage: Stage) -> None:
    """Delete the topic, and wait until its files are gone: nsqd answers long before that."""
    stage.call("POST", f"/topic/delete?topic={stage.topic}")
    end_s = time.monotonic() + _REMOVAL_S
    while stage.files(f"{stage.topic}.*.removed/*") and time.monotonic() < end_s:
        time.sleep(0.05)


def many_topics(stage: Stage) -> list[Metric]:
    """Topics are created, asked for in /stats, and stopped with the server. None of them has anything to do."""
    stage.settle()
    before_bytes = process.rss_bytes(stage.pid)
    order = stage.request(f"/topic/create?topic={stage.topic}_#", post=1, requests=stage.size.many)
    created = _beside(stage, lambda: stage.load(order))
    stage.settle()
    grown_bytes = process.rss_bytes(stage.pid) - before_bytes
    calls_s: list[float] = []

    def ask_for_stats() -> None:
        for _ in range(_STATS_CALLS):
            began_s = time.monotonic()
            stage.call("GET", "/stats?format=json")
            calls_s.append(time.monotonic() - began_s)

    asked = _beside(stage, ask_for_stats)[0]
    return [
        *(Metric(f"create: {metric.measure}", metric.value, metric.unit, metric.better) for metric in created),
        Metric("RSS", grown_bytes / 1e6, "MB", "lower"),
        Metric("stats: worst PUB", asked.value, asked.unit, asked.better),
        Metric("stats: took", median(calls_s), "s", "lower"),
        Metric("stop: took", stage.stop(), "s", "lower"),
    ]


def _create_channels(stage: Stage) -> None:
    target = f"/channel/create?topic={stage.topic}&channel=c#"
    stage.call("POST", f"/topic/create?topic={stage.topic}")
    stage.load(stage.request(target, post=1, requests=stage.size.many))


def _spill(stage: Stage) -> None:
    _create_channels(stage)
    stage.load(stage.publish(messages=_SPILLED_MESSAGES, batch=_SPILLED_MESSAGES, connections=1, window=1))


def _beside(stage: Stage, event: Callable[[], object], *, until_calm: bool = True) -> list[Metric]:
    """Do it, and wait for what it leaves to be done; what the bystander saw, and how long the event took."""
    with Generator(stage.bystander()) as bystander:
        bystander.await_word("ready")
        bystander.go()
        began_s = time.monotonic()
        event()
        took_s = time.monotonic() - began_s
        if until_calm:
            process.calm_down(stage.pid)
        bystander.go()
        trips_ms = bystander.tally().latency_ms
    return [
        Metric("worst PUB", trips_ms["max"], "ms", "lower"),
        Metric("p99 PUB", trips_ms["p99"], "ms", "lower"),
        Metric("took", took_s, "s", "lower"),
    ]
