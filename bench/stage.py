"""What a work has at hand: a server, its sizes, and the means to load and to measure.

A measured stretch runs from the first command of the first worker to the end of the last one. The CPU of nsqd
is taken until it is quiet again, because some of its work may come after its last answer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bench import frame, process
from bench.connection import Address, create_channel
from bench.consumer import Consume
from bench.crew import Crew, Plan, Tally
from bench.failure import LoadFailure
from bench.metric import Metric
from bench.publisher import PipelinedPublish
from bench.server import Server

PUBLISHERS = 2  # processes; each is idle most of the time


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done. Each work uses the one that it is about."""

    messages: int = 0
    seconds: float = 0.0
    connections: int = 0


@dataclass(frozen=True, kw_only=True)
class Effort:
    """One measured stretch."""

    tallies: Sequence[Tally]
    nsqd_cpu_s: float | None

    @property
    def published(self) -> int:
        return sum(t.published for t in self.tallies)

    @property
    def delivered(self) -> int:
        return sum(t.delivered for t in self.tallies)

    def publishing(self) -> list[Metric]:
        """Rate and CPU of what was published."""
        return [self._rate([t for t in self.tallies if t.published]), *self.cpu(self.published)]

    def delivering(self) -> list[Metric]:
        """Rate and CPU of what was delivered, whoever published meanwhile."""
        return [self._rate([t for t in self.tallies if t.delivered]), *self.cpu(self.delivered)]

    def _rate(self, tallies: Sequence[Tally]) -> Metric:
        started_s = min(t.started_s for t in self.tallies)
        ended_s = max(t.timed_until_s or started_s for t in tallies)
        return Metric("rate", sum(t.timed for t in tallies) / (ended_s - started_s), "msg/s", "higher")

    def cpu(self, messages: int) -> list[Metric]:
        """CPU per message: of nsqd, and of the generator to compare with."""
        load_cpu_s = sum(t.cpu_s for t in self.tallies)
        metrics = [Metric("generator CPU", load_cpu_s / messages * 1e6, "µs/msg", "neither")]
        if self.nsqd_cpu_s is not None:
            metrics.insert(0, Metric("nsqd CPU", self.nsqd_cpu_s / messages * 1e6, "µs/msg", "lower"))
        return metrics


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of one work. Its topic is its own."""

    server: Server
    size: Size
    topic: str
    consumers: int
    shuffled: bool

    @property
    def pid(self) -> int:
        if self.server.pid is None:
            raise LoadFailure("this work reads /proc: give the server's process with --pid")
        return self.server.pid

    @property
    def http_address(self) -> Address:
        if self.server.http_address is None:
            raise LoadFailure("this work speaks HTTP: give the server's address for it with --http")
        return self.server.http_address

    @property
    def batches(self) -> int:
        """MPUBs for at least the wanted number of messages."""
        return -(-self.size.messages // frame.MESSAGES_PER_MPUB)

    @property
    def messages(self) -> int:
        """What those MPUBs hold."""
        return self.batches * frame.MESSAGES_PER_MPUB

    def create(self, channel: str) -> None:
        create_channel(self.server.address, topic=self.topic, channel=channel)

    def measure(self, plans: Sequence[Plan]) -> Effort:
        with Crew(plans) as crew:
            crew.assemble()
            before_s = self._cpu_s()
            tallies = crew.work()
        self.settle()
        spent_s = self._cpu_s() - before_s
        return Effort(tallies=tallies, nsqd_cpu_s=None if self.server.pid is None else spent_s)

    def forget_files(self) -> None:
        """Have the operating system write what nsqd stored and drop it from its cache."""
        if self.server.data_path is None:
            raise LoadFailure("this work needs the server's files: let it be started here, with --binary")
        os.sync()
        for path in self.server.data_path.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def settle(self) -> None:
        """Wait until nsqd is quiet, as far as that can be seen."""
        if self.server.pid is not None:
            process.settle(self.server.pid)

    def _cpu_s(self) -> float:
        return 0.0 if self.server.pid is None else process.cpu_s(self.server.pid)

    def mpub_plans(self) -> list[Plan]:
        payload = frame.mpub(self.topic, frame.bodies(frame.MESSAGES_PER_MPUB))
        return [
            PipelinedPublish(
                address=self.server.address,
                payload=payload,
                oks=1,
                messages=frame.MESSAGES_PER_MPUB,
                repeats=repeats,
            )
            for repeats in shares(self.batches, PUBLISHERS)
        ]

    def consume_plan(self, *channels: str) -> Consume:
        return Consume(
            address=self.server.address,
            topic=self.topic,
            channels=channels,
            messages=self.messages,
            connections=self.consumers,
            shuffled=self.shuffled,
        )


def shares(total: int, parts: int) -> list[int]:
    """`total` in at most `parts` parts that differ by one at most, none of them empty."""
    sizes = [total // parts + (index < total % parts) for index in range(parts)]
    return [size for size in sizes if size]
