"""Worker processes that drive client libraries: assembled, started together, collected.

A plan (a small picklable value) is sent to each; the worker opens its connections and says so, and begins when all are
ready:

    parent   assemble() .......... work() ............................ results
    worker   open() -> "ready"  |  "go" -> run() -> Tally with its times

The clock of the tallies is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

from bench.connection import reason
from bench.failure import LoadFailure

_SPAWN = multiprocessing.get_context("spawn")
_EXIT_LIMIT_S = 5.0  # a worker that has answered has nothing left to do but exit


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What one worker or generator did.

    `timed` messages were done by `timed_until_s`, which a load may set itself where its last messages tell
    nothing about the rate; else all of them were, at the end. So does `started_s`, where a load had to prepare.
    """

    published: int = 0
    delivered: int = 0
    refused: int = 0  # commands that nsqd answered with an error, as they were meant to be
    body_bytes: int = 0  # of what was published, or finished
    latency_ms: Mapping[str, float] = field(default_factory=dict)  # p50, p90, p99, p999, max
    timed: int
    timed_until_s: float | None = None
    started_s: float = 0.0
    cpu_s: float = 0.0


class Load(Protocol):
    """Connected, and ready to do its work."""

    def run(self) -> Tally: ...


class Plan(Protocol):
    """A description of load that can be sent to a process."""

    def open(self) -> Load: ...


@dataclass(frozen=True)
class _Failed:
    reason: str


_READY = "ready"
_GO = "go"


class Crew:
    """Owns its processes: however the block ends, they are gone after it."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self._processes: list[SpawnProcess] = []
        self._pipes: list[Connection] = []
        self._is_done = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_EXIT_LIMIT_S if self._is_done else 0)
            if process.exitcode is None:
                process.kill()
                process.join()

    def assemble(self) -> None:
        """Start the processes and return when all are connected."""
        for plan in self._plans:
            ours, theirs = _SPAWN.Pipe()
            process = _SPAWN.Process(target=_worker, args=(plan, theirs), daemon=True)
            process.start()
            theirs.close()  # so that a dead worker reads as the end of its pipe
            self._processes.append(process)
            self._pipes.append(ours)
        self._collect()

    def work(self) -> list[Tally]:
        """Let all begin, and return what each did; the first failure ends the run."""
        for pipe in self._pipes:
            pipe.send(_GO)
        tallies = [answer for answer in self._collect() if isinstance(answer, Tally)]
        self._is_done = True
        return tallies

    def _collect(self) -> list[object]:
        answers: list[object] = []
        waiting = list(self._pipes)
        while waiting:
            for pipe in wait(waiting):
                assert isinstance(pipe, Connection)
                answers.append(_answer(pipe))
                waiting.remove(pipe)
        return answers


def _answer(pipe: Connection) -> object:
    try:
        answer = pipe.recv()
    except EOFError as error:
        raise LoadFailure("a worker process died") from error
    if isinstance(answer, _Failed):
        raise LoadFailure(answer.reason)
    return answer


def _worker(plan: Plan, pipe: Connection) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends us
    try:
        load = plan.open()
        pipe.send(_READY)
        pipe.recv()
        pipe.send(_timed(load))
    except (LoadFailure, OSError) as failure:
        pipe.send(_Failed(reason(failure)))
    except EOFError:
        pass  # the parent gave up before the start


def _timed(load: Load) -> Tally:
    started_s, cpu_before_s = time.monotonic(), time.process_time()
    tally = load.run()
    ended_s, cpu_after_s = time.monotonic(), time.process_time()
    return replace(
        tally,
        started_s=tally.started_s or started_s,
        timed_until_s=tally.timed_until_s or ended_s,
        cpu_s=cpu_after_s - cpu_before_s,
    )
