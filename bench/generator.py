"""The load generator in C (see load/load.h): built when it is needed, started for each order, and asked for its result.

    us        assemble() .......... work() ............................ tallies
    load      connects -> "ready" | "go" -> its work -> a line of JSON

The clock of the tallies is CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.crew import Tally
from bench.failure import LoadFailure

_ROOT = Path(__file__).parents[1]
_PROGRAM = "build/bench/load"
_BUILD_LIMIT_S = 120.0


@dataclass(frozen=True)
class Order:
    """One work of the generator, with its settings."""

    work: str
    settings: Mapping[str, int | str] = field(default_factory=dict)


@cache
def program() -> Path:
    """The generator, built by make unless it is newer than its source."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--quiet", _PROGRAM],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_BUILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise LoadFailure(f"the load generator could not be built: {done.stderr.strip()}")
    return _ROOT / _PROGRAM


class Generator:
    """Owns its process: however the block ends, it is gone after it."""

    def __init__(self, order: Order) -> None:
        settings = [f"{name}={value}" for name, value in order.settings.items()]
        self._command = [str(program()), order.work, *settings]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Generator:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with self._process as process:  # closes its pipes
            process.kill()

    def await_word(self, word: str) -> None:
        """`ready`, or `held` where a work stays for an event."""
        line = self._line()
        if line != word:
            raise LoadFailure(_error(line))

    def go(self) -> None:
        """Begin, or go on after `held`."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise LoadFailure(_error(self._line())) from None

    def tally(self) -> Tally:
        """The result, when the work is done."""
        line = self._line()
        if not line.startswith('{"published"'):
            raise LoadFailure(_error(line))
        result = json.loads(line)
        return Tally(
            published=result["published"],
            delivered=result["delivered"],
            refused=result["refused"],
            body_bytes=result["body_bytes"],
            timed=result["timed"],
            started_s=result["started_s"],
            timed_until_s=result["timed_until_s"],
            cpu_s=result["cpu_s"],
            latency_ms=result.get("latency_ms", {}),
        )

    def _line(self) -> str:
        # It gives up by itself when the server is silent, so there is always a line, or an end.
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _error(line: str) -> str:
    if line.startswith('{"error"'):
        return str(json.loads(line)["error"])
    return f"the load generator said {line!r}" if line else "the load generator died"


class Generators:
    """Several at once: connected one after the other, started together."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = orders
        self._generators: list[Generator] = []
        self._stack = ExitStack()

    def __enter__(self) -> Generators:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def assemble(self) -> None:
        for order in self._orders:
            generator = self._stack.enter_context(Generator(order))
            generator.await_word("ready")
            self._generators.append(generator)

    def work(self) -> list[Tally]:
        for generator in self._generators:
            generator.go()
        return [generator.tally() for generator in self._generators]
