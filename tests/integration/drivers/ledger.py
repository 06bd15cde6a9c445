"""What a driver written in Python remembers of its run, and the report it prints at the end.

The ledger does no I/O and knows no client library. A driver tells it what happened (`published`,
`delivered`, `finished`, ...) and asks it what to do with a message. After the report, which is one JSON object,
the driver keeps its connections open until its standard input ends, so that the test can ask nsqd about them.

    published             messages for which nsqd answered OK
    seen                  different messages that arrived intact
    spoiled               bodies that arrived but were never published
    retried               {number: [attempts, ...]} of all messages not seen exactly once, as attempt 1
    finishes              FINs sent
    unfinished            numbers of the messages never finished
    touches               TOUCHes sent
    earliest_deferred_ms  the shortest time from the DPUB of a message to its first arrival
    errors                whatever the library or nsqd complained about
"""

import enum
import json
import time

from tests.integration.plan import Plan, number_of


class Fate(enum.Enum):
    """What to do with a message that has just arrived."""

    FINISH = enum.auto()
    REQUEUE = enum.auto()
    ABANDON = enum.auto()
    TOUCH = enum.auto()


class Ledger:
    """The record of one run. Owned by one driver, which calls it from one thread."""

    def __init__(self, plan: Plan) -> None:
        self._first_fates = (
            dict.fromkeys(plan.requeued, Fate.REQUEUE)
            | dict.fromkeys(plan.abandoned, Fate.ABANDON)
            | dict.fromkeys(plan.touched, Fate.TOUCH)
        )
        self._published_count = 0
        self._attempts_seen: dict[int, list[int]] = {}  # by message number, in order of arrival
        self._spoiled_count = 0
        self._finish_count = 0
        self._unfinished = set(range(plan.message_count))
        self._touch_count = 0
        self._deferred_at: dict[int, float] = {}  # monotonic seconds, just before the DPUB was sent
        self._deferred_for: list[float] = []  # seconds
        self._errors: list[str] = []

    @property
    def complete(self) -> bool:
        """Whether every message has been finished."""
        return not self._unfinished

    def deferring(self, number: int) -> None:
        """A message is about to be published with a delay."""
        self._deferred_at[number] = time.monotonic()

    def published(self, count: int) -> None:
        self._published_count += count

    def delivered(self, body: bytes, *, attempts: int) -> Fate:
        """Records an arrival and says what to do with it."""
        number = number_of(body)
        if number is None:
            self._spoiled_count += 1
            return Fate.FINISH
        if number in self._deferred_at and number not in self._attempts_seen:
            self._deferred_for.append(time.monotonic() - self._deferred_at[number])
        seen = self._attempts_seen.setdefault(number, [])
        seen.append(attempts)
        return self._first_fates.get(number, Fate.FINISH) if len(seen) == 1 else Fate.FINISH

    def finished(self, body: bytes) -> None:
        self._finish_count += 1
        number = number_of(body)
        if number is not None:
            self._unfinished.discard(number)

    def touched(self) -> None:
        self._touch_count += 1

    def error(self, text: str) -> None:
        self._errors.append(text)

    def to_json(self) -> str:
        """The report, on one line."""
        report = {
            "published": self._published_count,
            "seen": len(self._attempts_seen),
            "spoiled": self._spoiled_count,
            "retried": {number: seen for number, seen in self._attempts_seen.items() if seen != [1]},
            "finishes": self._finish_count,
            "unfinished": sorted(self._unfinished),
            "touches": self._touch_count,
            "earliest_deferred_ms": min(self._deferred_for, default=0.0) * 1000,
            "errors": self._errors,
        }
        return json.dumps(report)
