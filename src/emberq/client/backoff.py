"""Backoff: how a consumer slows down when its handlers fail, and finds its way back.

The state is a level and whether a pause is running. Nothing here does I/O or waits: `record` takes the outcome of a
message and says what is to be done, the consumer does it and calls `resume` when the pause is over.

    allowance()    level 0              everything (max_in_flight)
                   pause running        nothing: RDY 0 everywhere
                   level > 0, resumed   one message at a time: a probe

- A failure raises the level, a success lowers it, `CONTINUE` (requeued, though nothing is wrong) leaves it.
- After each change that does not end at level 0 there is a pause, longer the higher the level.
- While a pause runs, outcomes are ignored: they belong to messages that were in flight before it, and a hundred of
  those failing together are one event, not a hundred.
- The level stops rising where the pause would exceed the longest one allowed. So the way back takes at most as many
  successes as there are levels, however many failures came before.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

MAX_EXPONENT = 62
"""Beyond this every pause is longer than any limit in use; it keeps the power from growing without bound."""


class MessageOutcome(enum.Enum):
    """What became of a message, as far as backoff cares."""

    SUCCESS = "success"
    FAILURE = "failure"
    CONTINUE = "continue"


class BackoffStrategy(enum.StrEnum):
    """How long a pause is."""

    EXPONENTIAL = "exponential"
    """The unit, doubled with each level."""
    FULL_JITTER = "full_jitter"
    """Anything from nothing up to that, so that many consumers do not come back at the same moment."""


class BackoffAction(enum.Enum):
    """What a consumer has to do after an outcome."""

    NOTHING = "nothing"
    PAUSE = "pause"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do; `pause_s` counts for PAUSE."""

    action: BackoffAction
    pause_s: float = 0.0


_NOTHING = Decision(BackoffAction.NOTHING)
_LEAVE = Decision(BackoffAction.LEAVE)


def exponential_s(attempt: int, *, unit_s: float) -> float:
    """The unit doubled `attempt` times."""
    return unit_s * float(1 << min(attempt, MAX_EXPONENT))


class Backoff:
    """The backoff state of one consumer, which owns it."""

    def __init__(
        self,
        *,
        unit_s: float = 1.0,
        max_pause_s: float = 120.0,
        strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._unit_s = unit_s
        self._max_pause_s = max_pause_s
        """0 means that there is no backoff at all."""
        self._strategy = strategy
        self._random_fraction = random_fraction
        self.level = 0
        self.is_paused = False

    def __repr__(self) -> str:
        return f"<Backoff level={self.level}{' paused' if self.is_paused else ''}>"

    def allowance(self, max_in_flight: int) -> int:
        """How many messages may be asked for now, of all connections together."""
        if self.is_paused:
            return 0
        return min(max_in_flight, 1) if self.level else max_in_flight

    def record(self, outcome: MessageOutcome) -> Decision:
        """Take note of what became of a message."""
        if self.is_paused or self._max_pause_s <= 0:
            return _NOTHING
        before = self.level
        self._move(outcome)
        if self.level == 0:
            return _LEAVE if before else _NOTHING
        self.is_paused = True
        return Decision(BackoffAction.PAUSE, min(self._pause_s(self.level), self._max_pause_s))

    def resume(self) -> None:
        """The pause is over: one message may be asked for."""
        self.is_paused = False

    def _move(self, outcome: MessageOutcome) -> None:
        if outcome is MessageOutcome.SUCCESS and self.level > 0:
            self.level -= 1
        elif outcome is MessageOutcome.FAILURE and (
            # Judged without jitter: whether a level exists must not depend on a throw of dice. The first one always
            # does, or a unit longer than the longest pause would switch backoff off.
            self.level == 0 or exponential_s(self.level + 1, unit_s=self._unit_s) <= self._max_pause_s
        ):
            self.level += 1

    def _pause_s(self, level: int) -> float:
        pause_s = exponential_s(level, unit_s=self._unit_s)
        if self._strategy is BackoffStrategy.FULL_JITTER:
            return pause_s * self._random_fraction()
        return pause_s
