"""The made-up visits of `emberq demo`, published by a process of their own.

    {"id": "0000002a", "user": "user-17", "page": "/cart", "at": "2026-11-15T06:00:00.420Z"}

The same seed gives the same visits to the pages of a shop. Some are broken on purpose, so that there are bad records.
`Generated` counts them by kind, so that what comes out of a pipeline can be checked.

Spark's driver is a Python process too, and busy enough. So events have a process of their own. It writes what it has
made as lines of JSON on standard output, a few times a second, and ends when its standard input does:

    {"good": 1980, "broken": 20, "pages": {"/": 594, …}, "is_done": false}

`EventProcess` is the side of the command, `main` that of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from emberq.base.clock import Clock, SystemClock

if TYPE_CHECKING:
    import asyncio

    from emberq.client import Producer

PAGES = ("/", "/search", "/shoes", "/hats", "/cart", "/checkout")
WEIGHTS = (30, 25, 18, 12, 10, 5)
USERS = 50
MAX_BATCH = 500
BROKEN = (b"not json at all", b'{"user": "user-1", "page": "/cart"}', b'{"page": "/", "at": "yesterday"}')
"""Broken events: no JSON, no time, an invalid time."""
TOPIC = "clicks"
STDIN = 0
BROKEN_EVERY = 100
TELL_INTERVAL_S = 0.25
GIVE_UP_AFTER_S = 10.0
"""How long an nsqd on the same machine may take to confirm a publish, while Spark has all cores busy."""
STOP_TIMEOUT_S = 1.0
"""How long the last publish may take. A process that takes longer is killed."""


@dataclass(slots=True)
class Generated:
    """The events made so far."""

    good: int = 0
    broken: int = 0
    pages: Counter[str] = field(default_factory=Counter)
    """Good events by page."""

    @property
    def total(self) -> int:
        return self.good + self.broken


class ClickGenerator:
    """Makes events one by one. `now` gives the time of each; every `broken_every`th is broken."""

    def __init__(self, *, now: Callable[[], datetime], seed: int = 1, broken_every: int = 0) -> None:
        self._now = now
        self._random = random.Random(seed)  # noqa: S311 - made-up data needs no secrets
        self._broken_every = broken_every
        self.generated = Generated()

    def next(self) -> bytes:
        """The next event."""
        made = self.generated
        if self._broken_every and made.total % self._broken_every == self._broken_every - 1:
            made.broken += 1
            return BROKEN[made.broken % len(BROKEN)]
        page = self._random.choices(PAGES, WEIGHTS)[0]
        event = {
            "id": f"{made.total:08x}",
            "user": f"user-{self._random.randrange(USERS)}",
            "page": page,
            "at": self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        made.good += 1
        made.pages[page] += 1
        return json.dumps(event).encode()


def evenly_from(start: datetime, *, interval: timedelta) -> Callable[[], datetime]:
    """A clock for events: the first at `start`, then one every `interval`."""
    count = -1

    def now() -> datetime:
        nonlocal count
        count += 1
        return start + count * interval

    return now


def wall_clock() -> datetime:
    """For events that happen now."""
    return datetime.now(UTC)


async def publish_events(
    generator: ClickGenerator, producer: Producer, topic: str, *, count: int | None, rate: int, clock: Clock
) -> None:
    """Publish `count` events, or events without end, at most `rate` a second. Returns when the last is confirmed."""
    import asyncio

    from emberq.base.task import RateLimiter

    throttle = RateLimiter(rate, clock=clock)
    left = count
    while left is None or left > 0:
        granted = throttle.take(MAX_BATCH if left is None else min(MAX_BATCH, left))
        if not granted:
            await asyncio.sleep(max(throttle.wait_s, 0.02))  # small portions look smooth
            continue
        await producer.publish_many(topic, [generator.next() for _ in range(granted)])
        left = None if left is None else left - granted


class EventProcess:
    """The process of events, from `start` to `stop`. Its attributes may be read from any thread."""

    def __init__(self, nsqd: str, *, count: int | None, rate: int) -> None:
        """`nsqd` is a TCP address. Without a `count` there is no end of events."""
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
        """Stop the process. Then `generated` has all events."""
        if self._process is None:
            return
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process is not None  # noqa: S101 - this thread is started after it
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        assert self._process.stderr is not None  # noqa: S101
        for line in self._process.stdout:
            told = json.loads(line)
            self.generated = Generated(told["good"], told["broken"], Counter(told["pages"]))
            self.are_published = told["is_done"]
        lines = self._process.stderr.read().decode("utf-8", "replace").split("\n")
        if self._process.wait() != 0:
            self.failure = next((line for line in reversed(lines) if line), "the process that makes them was killed")


def main(argv: Sequence[str] | None = None) -> int:
    """Publish events until `--count` are out, or standard input ends; the exit status."""
    import asyncio

    from emberq.client import NsqError

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
    import asyncio

    from emberq.client import Producer, RetryPolicy

    async with Producer(nsqd, retry=RetryPolicy(timeout_s=GIVE_UP_AFTER_S)) as producer:
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
    while os.read(STDIN, 1):  # not sys.stdin, whose lock would be held at exit
        pass
    loop.call_soon_threadsafe(task.cancel)


def _tell(generator: ClickGenerator, *, is_done: bool) -> None:
    made = generator.generated
    told = {"good": made.good, "broken": made.broken, "pages": made.pages, "is_done": is_done}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
