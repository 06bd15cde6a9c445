"""Queues side by side, each with its own server and Python client: what is confirmed means the same within a work.

One connection publishes, with 1,000 publications under way, for a few seconds. Then another one consumes and
acknowledges what was published, with at most 1,000 messages unacknowledged. Each client is used in the fastest way that
it documents for this; its driver says which. Rates are those of client and server together, on the cores of one
machine; the CPU of either for a message says which of them it was.

emberq is there in every work. pynsq and gnsq are there where an nsqd keeps messages in memory, as it usually does.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from bench import frame, process
from bench.clients.job import Durability, Job, Way
from bench.clients.plan import ClientPlan
from bench.clients.queue_server import QueueProgram, Unavailable
from bench.connection import create_channel
from bench.crew import Crew
from bench.metric import Metric
from bench.server import Server, Source
from bench.stage import Effort, Size

_CHANNEL = "clients"
_WAITING = 1000
_USUAL = Size(messages=2_000_000, seconds=3)
_BODIES = 499  # a prime: no batch of a client has the same bodies each time
_LOOK_EVERY_S = 0.2
_QUIET_CPU_S = 0.02
_SETTLE_LIMIT_S = 3.0  # Erlang is never quite at rest

NSQ_CLIENTS = ("emberq", "pynsq", "gnsq")
SERVERS = {"nats": "nats-server", "redis": "redis-server", "rabbitmq": "rabbitmq-server"}
"""The program of each queue that is not an nsqd."""
CLIENTS = {
    "emberq": ("emberq.client", "emberq"),
    "pynsq": ("nsq", "pynsq"),
    "gnsq": ("gnsq", "gnsq"),
    "nats": ("nats", "nats-py"),
    "redis": ("redis", "redis"),
    "rabbitmq": ("aio_pika", "aio-pika"),
}
"""The module of each client, and the distribution that it comes in."""
QUEUES = tuple(CLIENTS)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One queue in a work: what a confirmation by it means, and the flags of nsqd that make it so."""

    confirmed: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueSource:
    """Where the servers of a run come from."""

    nsqd: Source
    programs: Mapping[str, QueueProgram]
    data_parent: Path | None = None

    def serve(self, queue: str, setting: Setting, durability: Durability) -> AbstractContextManager[Server]:
        if queue in NSQ_CLIENTS:
            return self.nsqd.serve(setting.flags)
        return self.programs[queue].serve(durability, data_parent=self.data_parent)

    def version(self, queue: str) -> str:
        """Of server and client. Unavailable if one of them is missing."""
        module, name = CLIENTS[queue]
        server = self.nsqd.version() if queue in NSQ_CLIENTS else self.programs[queue].version()
        if find_spec(module.partition(".")[0]) is None:
            raise Unavailable(f"there is no Python module {module}")
        return f"{server}; {name} {importlib.metadata.version(name)}"


@dataclass(frozen=True, kw_only=True)
class QueueWork:
    """One promise, and the queues that can give it."""

    name: str
    summary: str
    durability: Durability
    settings: Mapping[str, Setting]
    size: Size = _USUAL

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(self.settings)

    def run(self, queue: str, source: QueueSource, *, size: Size, topic: str) -> list[Metric]:
        """Publish for as long as the size says, then consume what was published, for at most as long."""
        with source.serve(queue, self.settings[queue], self.durability) as server:
            if queue in NSQ_CLIENTS:
                create_channel(server.address, topic=topic, channel=_CHANNEL)
            job = self._job(server, size, topic)
            published = _measure(server, ClientPlan(library=queue, job=job))
            consuming = replace(job, way=Way.BATCHES, messages=published.published)
            consumed = _measure(server, ClientPlan(library=queue, job=consuming))
        return [
            *_metrics("in", published, published.publishing()[0]),
            *_metrics("out", consumed, consumed.delivering()[0]),
        ]

    def _job(self, server: Server, size: Size, topic: str) -> Job:
        return Job(
            way=Way.PUBLISH,
            address=server.address,
            topic=topic,
            channel=_CHANNEL,
            messages=size.messages,
            seconds=size.seconds,
            width=_WAITING,
            bodies=tuple(frame.mixed_bodies(_BODIES)),
            durability=self.durability,
        )


def _measure(server: Server, plan: ClientPlan) -> Effort:
    with Crew([plan]) as crew:
        crew.assemble()
        if server.pid is None:
            return Effort(tallies=crew.work(), nsqd_cpu_s=None)
        before_s = process.session_cpu_s(server.pid)
        tallies = crew.work()
        return Effort(tallies=tallies, nsqd_cpu_s=_cpu_at_rest_s(server.pid) - before_s)


def _cpu_at_rest_s(pid: int) -> float:
    """The CPU of a server when it has done what was left to do, as far as that can be waited for."""
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    before_s = process.session_cpu_s(pid)
    while True:
        time.sleep(_LOOK_EVERY_S)
        spent_s = process.session_cpu_s(pid)
        if spent_s - before_s < _QUIET_CPU_S or time.monotonic() > deadline:
            return spent_s
        before_s = spent_s


def _metrics(part: str, effort: Effort, rate: Metric) -> list[Metric]:
    messages = effort.published + effort.delivered
    client_cpu_s = sum(tally.cpu_s for tally in effort.tallies)
    metrics = [rate, Metric("client CPU", client_cpu_s / messages * 1e6, "µs/msg", "lower")]
    if effort.nsqd_cpu_s is not None:
        metrics.append(Metric("server CPU", effort.nsqd_cpu_s / messages * 1e6, "µs/msg", "lower"))
    return [replace(metric, measure=f"{part}: {metric.measure}") for metric in metrics]


_IN_NSQD = Setting(confirmed="nsqd has it in memory", flags=("--mem-queue-size=2000000",))

QUEUE_WORKS = (
    QueueWork(
        name="queue-synced",
        summary="publish with 1000 waiting, consume, acknowledge; confirmed when synced to the disk",
        durability=Durability.SYNCED,
        settings={
            "emberq": Setting(
                confirmed="journal, synced once for all that wait", flags=("--journal", "--journal-sync=always")
            ),
            "redis": Setting(confirmed="append-only file, synced once for all that was read: appendfsync always"),
            "rabbitmq": Setting(confirmed="quorum queue of one node, write-ahead log synced once for a batch"),
        },
    ),
    QueueWork(
        name="queue-second",
        summary="the same; confirmed when written, synced each second",
        durability=Durability.SECOND,
        settings={
            "emberq": Setting(
                confirmed="journal, synced each second",
                flags=("--journal", "--journal-sync=interval", "--sync-timeout=1s"),
            ),
            "redis": Setting(confirmed="append-only file, synced each second: appendfsync everysec"),
        },
    ),
    QueueWork(
        name="queue-written",
        summary="the same; confirmed when written, synced when the operating system likes",
        durability=Durability.WRITTEN,
        settings={
            "emberq": Setting(confirmed="journal, never synced", flags=("--journal", "--journal-sync=never")),
            "nats": Setting(confirmed="file of a stream, synced every two minutes"),
            "redis": Setting(confirmed="append-only file, never synced: appendfsync no"),
        },
    ),
    QueueWork(
        name="queue-memory",
        summary="the same; confirmed when the server has it in memory",
        durability=Durability.MEMORY,
        settings={
            "emberq": _IN_NSQD,
            "pynsq": _IN_NSQD,
            "gnsq": _IN_NSQD,
            "nats": Setting(confirmed="stream in memory"),
            "redis": Setting(confirmed="no file"),
            "rabbitmq": Setting(confirmed="transient queue, transient messages"),
        },
    ),
)
