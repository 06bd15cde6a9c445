"""The made-up visits of `emberq demo`, published by a process of their own.

Spark's driver is a Python process too, and has enough to do. The process of events tells what it has made in lines of
JSON on its standard output, a few times a second, and ends when its standard input does:

    {"good": 1980, "broken": 20, "pages": {"/": 594, …}, "is_done": false}

`EventProcess` is the side of the command, `main` that of the process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence

from emberq.base.clock import SystemClock
from emberq.client import NsqError, Producer
from emberq.tools.generate_events import ClickGenerator, Generated, publish_events, wall_clock

TOPIC = "clicks"
STDIN = 0
BROKEN_EVERY = 100
TELL_INTERVAL_S = 0.25
STOP_TIMEOUT_S = 1.0
"""For the last publish; a process that takes longer is killed."""


class EventProcess:
    """Events at a rate, from `start` to `stop`. `generated` and the rest may be read from any thread."""

    def __init__(self, nsqd: str, *, count: int | None, rate: int) -> None:
        """`nsqd` is its TCP address; `count` None: events without end."""
        self._command = [sys.executable, "-m", __name__, f"--nsqd={nsqd}", f"--rate={rate}"]
        if count is not None:
            self._command.append(f"--count={count}")
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name="emberq-events", daemon=True)
        self.generated = Generated()
        self.are_published = False
        self.failure = ""
        """Why no more events are published."""

    def start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this module
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._reader.start()

    def stop(self) -> None:
        """Returns when no more events are made, and `generated` has all of them."""
        if self._process is None:
            return
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process is not None  # noqa: S101 - this thread is started after it
        assert self._process.stdout is not None  # noqa: S101 - it was asked for
        assert self._process.stderr is not None  # noqa: S101
        for line in self._process.stdout:
            told = json.loads(line)
            self.generated = Generated(told["good"], told["broken"], Counter(told["pages"]))
            self.are_published = told["is_done"]
        lines = self._process.stderr.read().decode("utf-8", "replace").split("\n")
        if self._process.wait() != 0:
            self.failure = next((line for line in reversed(lines) if line), "the process that makes them was killed")


def main(argv: Sequence[str] | None = None) -> int:
    """Publish events until `count` are out, or standard input ends; the exit status."""
    parser = argparse.ArgumentParser(prog="emberq.cli.demo_events")
    parser.add_argument("--nsqd", required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--count", type=int)
    arguments = parser.parse_args(argv)
    generator = ClickGenerator(now=wall_clock, seed=time.time_ns(), broken_every=BROKEN_EVERY)
    try:
        is_done = asyncio.run(_publish(generator, arguments.nsqd, count=arguments.count, rate=arguments.rate))
    except NsqError as failure:
        print(failure, file=sys.stderr)
        return 1
    _tell(generator, is_done=is_done)
    return 0


async def _publish(generator: ClickGenerator, nsqd: str, *, count: int | None, rate: int) -> bool:
    """Whether all events were published before standard input ended."""
    async with Producer(nsqd) as producer:
        publishing = asyncio.create_task(
            publish_events(generator, producer, TOPIC, count=count, rate=rate, clock=SystemClock())
        )
        loop = asyncio.get_running_loop()
        threading.Thread(target=_cancel_at_end_of_input, args=(loop, publishing), daemon=True).start()
        while not publishing.done():
            _tell(generator, is_done=False)
            await asyncio.wait([publishing], timeout=TELL_INTERVAL_S)
    if publishing.cancelled():
        return False
    publishing.result()
    return True


def _cancel_at_end_of_input(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    while os.read(STDIN, 1):  # not by sys.stdin, whose lock would be held at the end of the process
        pass
    loop.call_soon_threadsafe(task.cancel)


def _tell(generator: ClickGenerator, *, is_done: bool) -> None:
    made = generator.generated
    told = {"good": made.good, "broken": made.broken, "pages": made.pages, "is_done": is_done}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
