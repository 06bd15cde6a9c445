"""The works that client libraries are compared by, and how one of them does one."""

from __future__ import annotations

from dataclasses import dataclass

from bench import frame
from bench.clients.job import Job, Way
from bench.clients.plan import LIBRARIES, ClientPlan
from bench.metric import Metric
from bench.stage import Effort, Size, Stage

_CHANNEL = "clients"
_MAX_IN_FLIGHT = 2500  # nsqd's --max-rdy-count, unless told otherwise
_TASKS = 100
_AT_ONCE = 1000
_BATCHES_UNDER_WAY = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """A work for clients: its name, what it is, its usual size, how it is done, and how many may be unanswered."""

    name: str
    summary: str
    size: Size
    way: Way
    width: int

    @property
    def libraries(self) -> tuple[str, ...]:
        return LIBRARIES

    def flags(self, messages: int) -> tuple[str, ...]:
        """nsqd keeps everything in memory."""
        return (f"--mem-queue-size={messages}",)

    def run(self, stage: Stage, library: str) -> list[Metric]:
        """Fill a channel if it is to be consumed, then let the library do its work."""
        stage.create(_CHANNEL)
        if self.way.is_consuming:
            stage.measure(stage.publish())
        effort = stage.measure_clients([ClientPlan(library=library, job=self._job(stage))])
        return _metrics(effort, effort.delivering() if self.way.is_consuming else effort.publishing())

    def _job(self, stage: Stage) -> Job:
        return Job(
            way=self.way,
            address=stage.server.address,
            topic=stage.topic,
            channel=_CHANNEL,
            messages=stage.messages,
            seconds=stage.size.seconds,
            width=self.width,
            bodies=tuple(frame.bodies(frame.MESSAGES_PER_MPUB if self.way is Way.PUBLISH_MANY else 1)),
        )


def _metrics(effort: Effort, metrics: list[Metric]) -> list[Metric]:
    """The rate, and the CPU of the client; here it is nsqd's that only explains."""
    rate, *_ = metrics
    client_cpu_s = sum(tally.cpu_s for tally in effort.tallies) / (effort.delivered + effort.published)
    cpu = [Metric("client CPU", client_cpu_s * 1e6, "µs/msg", "lower")]
    if effort.nsqd_cpu_s is not None:
        nsqd_cpu_s = effort.nsqd_cpu_s / (effort.delivered + effort.published)
        cpu.append(Metric("nsqd CPU", nsqd_cpu_s * 1e6, "µs/msg", "neither"))
    return [rate, *cpu]


WORKS = (
    Work(
        name="client-batches",
        summary="consume a full channel in batches, max_in_flight 2500",
        size=Size(messages=2_000_000, seconds=3),
        way=Way.BATCHES,
        width=_MAX_IN_FLIGHT,
    ),
    Work(
        name="client-handler",
        summary="the same with a handler for each message",
        size=Size(messages=2_000_000, seconds=3),
        way=Way.HANDLER,
        width=_MAX_IN_FLIGHT,
    ),
    Work(
        name="client-iteration",
        summary="the same with `async for`",
        size=Size(messages=2_000_000, seconds=3),
        way=Way.ITERATION,
        width=_MAX_IN_FLIGHT,
    ),
    Work(
        name="client-publish",
        summary="single publishes by 100 tasks, each waiting for the confirmation of its last",
        size=Size(messages=2_000_000, seconds=3),
        way=Way.PUBLISH,
        width=_TASKS,
    ),
    Work(
        name="client-publish-at-once",
        summary="single publishes, 1000 at once, then waiting for all of them",
        size=Size(messages=2_000_000, seconds=3),
        way=Way.PUBLISH_AT_ONCE,
        width=_AT_ONCE,
    ),
    Work(
        name="client-publish-many",
        summary="batches of 200, 4 of them under way",
        size=Size(messages=6_000_000, seconds=3),
        way=Way.PUBLISH_MANY,
        width=_BATCHES_UNDER_WAY,
    ),
)
