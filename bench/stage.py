"""What a work has at hand: a server, its sizes, and the means to load and to measure.

A measured stretch runs from the first command of the first generator to the end of the last one. The CPU of nsqd
is taken until it is quiet again, because some of its work may come after its last answer.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import frame, process
from bench.connection import Address, create_channel
from bench.crew import Crew, Plan, Tally
from bench.failure import LoadFailure, Miscounted
from bench.generator import Generators, Order
from bench.metric import Metric
from bench.server import Server

_CALL_LIMIT_S = 120.0  # an HTTP call that takes longer fails its work


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done. Each work uses the one that it is about."""

    messages: int = 0
    seconds: float = 0.0
    connections: int = 0
    many: int = 0  # topics, channels or consumers


@dataclass(frozen=True, kw_only=True)
class Bodies:
    """The bytes of a message: at least, at most; text compresses, random bytes do not."""

    least: int = 20
    most: int = 2000
    is_text: bool = False

    @property
    def settings(self) -> dict[str, int | str]:
        return {"min": self.least, "max": self.most, "content": "text" if self.is_text else "random"}


MIXED = Bodies()
UNIFORM = Bodies(least=frame.BODY_BYTES, most=frame.BODY_BYTES)


class Team(Protocol):
    """Processes that make load."""

    def assemble(self) -> None: ...

    def work(self) -> list[Tally]: ...


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

    @property
    def body_bytes(self) -> int:
        return sum(t.body_bytes for t in self.tallies)

    def publishing(self) -> list[Metric]:
        """Rate and CPU of what was published."""
        return [self._rate([t for t in self.tallies if t.published]), *self.cpu(self.published)]

    def delivering(self) -> list[Metric]:
        """Rate and CPU of what was delivered, whatever was published meanwhile."""
        return [self._rate([t for t in self.tallies if t.delivered]), *self.cpu(self.delivered)]

    def answering(self) -> list[Metric]:
        """Rate and CPU of requests."""
        requests = sum(t.timed for t in self.tallies)
        return [self._rate(self.tallies, unit="req/s"), *self.cpu(requests, unit="µs/req")]

    def _rate(self, tallies: Sequence[Tally], unit: str = "msg/s") -> Metric:
        started_s = min(t.started_s for t in tallies)
        ended_s = max(t.timed_until_s or started_s for t in tallies)
        return Metric("rate", sum(t.timed for t in tallies) / (ended_s - started_s), unit, "higher")

    def cpu(self, messages: int, unit: str = "µs/msg") -> list[Metric]:
        """CPU per message: of nsqd, and of the generator to compare with."""
        load_cpu_s = sum(t.cpu_s for t in self.tallies)
        metrics = [Metric("generator CPU", load_cpu_s / messages * 1e6, unit, "neither")]
        if self.nsqd_cpu_s is not None:
            metrics.insert(0, Metric("nsqd CPU", self.nsqd_cpu_s / messages * 1e6, unit, "lower"))
        return metrics


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of one work. Its topic is its own."""

    server: Server
    size: Size
    topic: str
    consumers: int
    shuffled: bool
    bodies: Bodies = MIXED

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
    def messages(self) -> int:
        """What whole MPUBs hold: at least the wanted number."""
        return whole(self.size.messages, frame.MESSAGES_PER_MPUB)

    def create(self, channel: str, *, topic: str | None = None) -> None:
        create_channel(self.server.address, topic=topic or self.topic, channel=channel)

    def call(self, method: str, target: str) -> bytes:
        """One HTTP call, as an operator would make it."""
        connection = http.client.HTTPConnection(*self.http_address, timeout=_CALL_LIMIT_S)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise LoadFailure(f"nsqd answered {method} {target} with {response.status} {answer[:200]!r}")
        return answer

    # What the generator is to do.

    def publish(self, **settings: int | str) -> Order:
        """MPUBs from 2 connections, a bounded number of them unanswered, unless the settings say otherwise."""
        usual: dict[str, int | str] = {
            "topic": self.topic,
            "messages": self.messages,
            "batch": frame.MESSAGES_PER_MPUB,
            "connections": 2,
            "window": 8,  # enough that the server never waits for us, few enough to be real
        }
        return self._order("publish", {**usual, **self.bodies.settings, **settings})

    def consume(self, *channels: str, **settings: int | str) -> Order:
        usual: dict[str, int | str] = {
            "topic": self.topic,
            "channels": ",".join(channels),
            "messages": self.messages,
            "connections": self.consumers,
            "fin": "shuffled" if self.shuffled else "packet",
        }
        return self._order("consume", {**usual, **settings})

    def request(self, target: str, **settings: int | str) -> Order:
        """Requests, each waiting for its answer; bodies where the settings have a batch."""
        address = {"address": "{}:{}".format(*self.http_address), "target": target}
        return Order("request", {**address, **(self.bodies.settings if "batch" in settings else {}), **settings})

    def late(self, channel: str, **settings: int | str) -> Order:
        return self._order("late", {"topic": self.topic, "channels": channel, **settings})

    def churn(self, **settings: int | str) -> Order:
        return self._order("churn", {"topic": self.topic, **settings})

    def bystander(self) -> Order:
        return self._order("bystander", {"topic": f"{self.topic}_bystander"})

    def _order(self, work: str, settings: dict[str, int | str]) -> Order:
        return Order(work, {"address": "{}:{}".format(*self.server.address), **settings})

    # What is measured.

    def measure(self, *orders: Order) -> Effort:
        with Generators(orders) as generators:
            return self._measure(generators)

    def load(self, *orders: Order) -> list[Tally]:
        """The same for its effect: not measured, and not waited for longer than the generators do."""
        with Generators(orders) as generators:
            generators.assemble()
            return generators.work()

    def measure_clients(self, plans: Sequence[Plan]) -> Effort:
        with Crew(plans) as crew:
            return self._measure(crew)

    def _measure(self, team: Team) -> Effort:
        team.assemble()
        before_s = self._cpu_s()
        tallies = team.work()
        self.settle()
        spent_s = self._cpu_s() - before_s
        return Effort(tallies=tallies, nsqd_cpu_s=None if self.server.pid is None else spent_s)

    def forget_files(self) -> None:
        """Have the operating system write what nsqd stored and drop it from its cache."""
        os.sync()
        for path in self.files("*"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def files(self, pattern: str) -> list[Path]:
        """What nsqd has stored, by the names of the files."""
        if self.server.data_path is None:
            raise LoadFailure("this work needs the server's files: let it be started here, with --binary")
        return [path for path in self.server.data_path.rglob(pattern) if path.is_file()]

    def stop(self) -> float:
        """Stop nsqd as an operator would, and return how long that took."""
        if self.server.data_path is None:
            raise LoadFailure("this work stops the server: let it be started here, with --binary")
        return process.stop_s(self.pid)

    def settle(self) -> None:
        """Wait until nsqd is quiet, as far as that can be seen."""
        if self.server.pid is not None:
            process.settle(self.server.pid)

    def _cpu_s(self) -> float:
        return 0.0 if self.server.pid is None else process.cpu_s(self.server.pid)


def whole(messages: int, batch: int) -> int:
    """The messages in as many batches as are needed."""
    return -(-messages // batch) * batch


def check_bytes(consumed: Effort, *published: Effort) -> None:
    """What was finished must have as many bytes as what was published."""
    wanted = sum(effort.body_bytes for effort in published)
    if consumed.body_bytes != wanted:
        raise Miscounted(f"{consumed.body_bytes} bytes of bodies came of {wanted}")
