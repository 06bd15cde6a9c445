"""Made-up events for demonstrations and tests: visits to the pages of a shop, the same for the same seed.

    {"id": "0000002a", "user": "user-17", "page": "/cart", "at": "2026-11-15T06:00:00.420Z"}

Some of them are broken on purpose, so that what happens to bad records can be seen. How many of which kind were made is
known (`Generated`), so that what comes out at the end of a pipeline can be checked.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from emberq.base.clock import Clock
from emberq.client import Producer
from emberq.tools.throttle import Throttle

PAGES = ("/", "/search", "/shoes", "/hats", "/cart", "/checkout")
WEIGHTS = (30, 25, 18, 12, 10, 5)
USERS = 50
MAX_BATCH = 500
BROKEN = (b"not json at all", b'{"user": "user-1", "page": "/cart"}', b'{"page": "/", "at": "yesterday"}')
"""What broken events look like: no JSON, no time, no such time."""


@dataclass(slots=True)
class Generated:
    """What was made so far."""

    good: int = 0
    broken: int = 0
    pages: Counter[str] = field(default_factory=Counter)
    """How many good ones for each page."""

    @property
    def total(self) -> int:
        return self.good + self.broken


class ClickGenerator:
    """Makes events, one behind the other. `now` says when they happened; every `broken_every`th is broken."""

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
    """A clock for events: the first at `start`, then one each `interval`."""
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
    throttle = Throttle(rate, clock=clock)
    left = count
    while left is None or left > 0:
        granted = throttle.take(MAX_BATCH if left is None else min(MAX_BATCH, left))
        if not granted:
            await asyncio.sleep(max(throttle.wait_s, 0.02))  # a few at a time are enough for the eye
            continue
        await producer.publish_many(topic, [generator.next() for _ in range(granted)])
        left = None if left is None else left - granted
