"""Which of several hosts gets the next message, and how long deliveries take.

    round-robin      each in turn, whatever happened before
    hostpool         each in turn, except those that failed lately
    epsilon-greedy   mostly the fast ones among those that did not fail lately

A host that fails is dead for DEAD_FOR_NS. Then it gets one message. If that succeeds it is alive again, else it is left
alone for twice as long as before, up to MAX_DEAD_FOR_NS. When all hosts are dead, all count as alive: trying is better
than standing still.

Epsilon-greedy explores with probability ε, which shrinks with every exploration: then it takes hosts in turn. Otherwise
a host is drawn with a chance inverse to its response time: the mean of the last WINDOW_NS, in which recent answers
weigh more than old ones.

`--status-every` logs how long deliveries took, each time there have been so many (`StatusReport`):

    [aggregate]: finished 250 - 99th: 1.23ms - 95th: 1.00ms - avg: 0.50ms

With more than one address there is a line for each of them as well. Only successful deliveries count.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.text import masked

# Hosts.

DEAD_FOR_NS = 30 * NS_PER_SECOND
MAX_DEAD_FOR_NS = 900 * NS_PER_SECOND

FIRST_EPSILON = 0.3
EPSILON_DECAY = 0.9
MIN_EPSILON = 0.01
WINDOW_NS = 300 * NS_PER_SECOND
BUCKET_COUNT = 120
BUCKET_NS = WINDOW_NS // BUCKET_COUNT
REFRESH_NS = 100 * NS_PER_MS
"""How often chances are computed; not for every message."""


def make_pool(mode: str, hosts: Sequence[str], *, clock: Clock) -> RoundRobin:
    """The pool for a `--mode`. An unknown mode is round-robin."""
    if mode == "epsilon-greedy":
        return EpsilonGreedy(hosts, clock=clock, random=random.random)
    if mode == "hostpool":
        return LiveHosts(hosts, clock=clock)
    return RoundRobin(hosts)


class RoundRobin:
    """Takes hosts in turn, whatever it is told of them."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._turns = deque(hosts)

    def pick(self) -> str:
        """The host for the next message."""
        host = self._turns[0]
        self._turns.rotate(-1)
        return host

    def succeeded(self, host: str, *, elapsed_ns: int) -> None:
        """The host took the message."""

    def failed(self, host: str) -> None:
        """The host did not take the message."""


@dataclass(slots=True)
class _Death:
    """Until when a host is left alone, and for how long."""

    pause_ns: int
    retry_at_ns: int


class LiveHosts(RoundRobin):
    """Takes hosts in turn, except dead ones."""

    def __init__(self, hosts: Sequence[str], *, clock: Clock) -> None:
        super().__init__(hosts)
        self._hosts = tuple(hosts)
        self._clock = clock
        self._dead: dict[str, _Death] = {}

    def pick(self) -> str:
        for _ in self._hosts:
            host = super().pick()
            if host not in self._dead or self._is_due(self._dead[host]):
                return host
        self._dead.clear()
        return super().pick()

    def succeeded(self, host: str, *, elapsed_ns: int) -> None:  # noqa: ARG002 - fast or slow, it lives
        self._dead.pop(host, None)

    def failed(self, host: str) -> None:
        if host not in self._dead:
            self._dead[host] = _Death(DEAD_FOR_NS, self._clock.monotonic_ns() + DEAD_FOR_NS)

    def living(self) -> list[str]:
        """The hosts that have not failed lately."""
        return [host for host in self._hosts if host not in self._dead]

    def _is_due(self, death: _Death) -> bool:
        """Whether a dead host may have one message. Then the pause until the next one doubles."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < death.retry_at_ns:
            return False
        death.pause_ns = min(2 * death.pause_ns, MAX_DEAD_FOR_NS)
        death.retry_at_ns = now_ns + death.pause_ns
        return True


@dataclass(slots=True)
class _Bucket:
    """The answers of BUCKET_NS."""

    number: int
    """Counted from the beginning of monotonic time."""
    total_ns: int = 0
    count: int = 0


@dataclass(slots=True)
class ResponseTimes:
    """The response times of one host over the last WINDOW_NS."""

    _buckets: deque[_Bucket] = field(default_factory=lambda: deque(maxlen=BUCKET_COUNT))

    def add(self, elapsed_ns: int, *, now_ns: int) -> None:
        number = now_ns // BUCKET_NS
        if not self._buckets or self._buckets[-1].number != number:
            self._buckets.append(_Bucket(number))
        self._buckets[-1].total_ns += elapsed_ns
        self._buckets[-1].count += 1

    def weighted_mean_ns(self, *, now_ns: int) -> float | None:
        """None if there was no answer in the window."""
        newest = now_ns // BUCKET_NS
        weighted = [(BUCKET_COUNT - (newest - bucket.number), bucket) for bucket in self._buckets]
        recent = [(weight, bucket) for weight, bucket in weighted if weight > 0]
        if not recent:
            return None
        total = sum(weight * bucket.total_ns for weight, bucket in recent)
        return total / sum(weight * bucket.count for weight, bucket in recent)


class EpsilonGreedy(LiveHosts):
    """Takes mostly the fast hosts among the living."""

    def __init__(self, hosts: Sequence[str], *, clock: Clock, random: Callable[[], float]) -> None:
        super().__init__(hosts, clock=clock)
        self._random = random
        self._times = {host: ResponseTimes() for host in hosts}
        self._epsilon = FIRST_EPSILON
        self._chances: list[tuple[str, float]] = []
        """Hosts with their chances, which add up to 1."""
        self._chances_until_ns = 0

    def pick(self) -> str:
        if self._random() < self._epsilon:
            self._epsilon = max(self._epsilon * EPSILON_DECAY, MIN_EPSILON)
            return super().pick()
        if self._clock.monotonic_ns() >= self._chances_until_ns:
            self._work_out_chances()
        drawn = self._random()
        for host, chance in self._chances:
            drawn -= chance
            if drawn < 0:
                return host
        return super().pick()  # no host has answered yet

    def succeeded(self, host: str, *, elapsed_ns: int) -> None:
        super().succeeded(host, elapsed_ns=elapsed_ns)
        self._times[host].add(elapsed_ns, now_ns=self._clock.monotonic_ns())

    def failed(self, host: str) -> None:
        super().failed(host)
        self._chances_until_ns = 0  # it must not be drawn again

    def _work_out_chances(self) -> None:
        now_ns = self._clock.monotonic_ns()
        means = {host: self._times[host].weighted_mean_ns(now_ns=now_ns) for host in self.living()}
        speeds = {host: 1 / max(mean_ns, 1.0) for host, mean_ns in means.items() if mean_ns is not None}
        total = sum(speeds.values())
        self._chances = [(host, speed / total) for host, speed in speeds.items()]
        self._chances_until_ns = now_ns + REFRESH_NS


# --status-every

FEW = 100
"""With fewer values than this the 99th percentile is just the slowest."""

logger = logging.getLogger(__name__)


class StatusReport:
    """The durations of all deliveries, and of those to each address if there are several. Off if `every` is 0."""

    def __init__(self, addresses: Sequence[str], *, every: int) -> None:
        names = ["aggregate", *(addresses if len(addresses) > 1 else ())]
        self._every = every
        self._durations_ns: dict[str, list[int]] = {name: [] for name in names} if every > 0 else {}
        """Since the last log line."""
        if 0 < every < FEW:
            logger.info(
                "Warning: use more than %d status values for accurate percentiles (configured with %d)", FEW, every
            )

    def record(self, address: str, *, elapsed_ns: int, count: int = 1) -> None:
        """Count `count` deliveries to the address that took `elapsed_ns` each."""
        for name in ("aggregate", address):
            durations_ns = self._durations_ns.get(name)
            if durations_ns is None:
                continue
            durations_ns.extend([elapsed_ns] * count)
            while len(durations_ns) >= self._every:
                logger.info("%s", status_line(masked(name), durations_ns[: self._every]))
                del durations_ns[: self._every]


def status_line(name: str, durations_ns: Sequence[int]) -> str:
    """The line for these durations."""
    ordered = sorted(durations_ns)
    mean_ns = sum(ordered) / len(ordered)
    return (
        f"[{name}]: finished {len(ordered)} - 99th: {_ms(_percentile(ordered, 99))}"
        f" - 95th: {_ms(_percentile(ordered, 95))} - avg: {_ms(mean_ns)}"
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """The least value that `percent` of all do not exceed."""
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[rank - 1]


def _ms(duration_ns: float) -> str:
    return f"{duration_ns / NS_PER_MS:.2f}ms"
