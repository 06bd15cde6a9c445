"""How a consumer behaves; how its connections are made is `ClientConfig`'s matter.

    config = ConsumerConfig(max_in_flight=1000, max_attempts=10, dead_letter_topic="orders.dead")

A config is checked when it is made and never changes.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from enum import StrEnum

from emberq.client.argument import check_field_types
from emberq.client.backoff import BackoffStrategy
from emberq.wire.name import is_valid_name

MAX_REQUEUE_DELAY_S = 3600.0
"""nsqd's own limit unless told otherwise; a longer delay is cut there."""


class HandlersIn(enum.StrEnum):
    """Where handlers that are plain functions run."""

    THREADS = "threads"
    PROCESSES = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Times are in seconds."""

    max_in_flight: int = 100
    """How many messages may be with this consumer, unanswered, over all its connections. 0: start paused."""
    concurrency: int = 0
    """How many handlers run at the same time; 0: as many as max_in_flight, but not more than 1000 coroutines, 32
    threads, or one process for each CPU."""
    handlers_in: HandlersIn = HandlersIn.THREADS
    """Where handlers that are plain functions run (see `slot`). PROCESSES is for those that keep a CPU busy: such a
    handler must be picklable and gets a `MessageSnapshot`."""
    handler_timeout_s: float = 0.0
    """After this time a handler has failed: its coroutine is cancelled, its thread left behind, its process killed, and
    its message requeued. 0: never. Below nsqd's msg_timeout unless messages are touched, or they time out first."""
    max_attempts: int = 5
    """A message that comes for the next time after this many is given up; 0: never."""
    dead_letter_topic: str = ""
    """Where messages go that are given up: published to the nsqd they came from, then finished."""

    default_requeue_delay_s: float = 90.0
    """A failed message comes back after this times its attempts ..."""
    max_requeue_delay_s: float = 900.0
    """... but not later than this."""
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    backoff_unit_s: float = 1.0
    max_backoff_s: float = 120.0
    """The longest pause after failures; 0: no backoff."""

    auto_touch: bool = False
    """Keep messages that are being handled, or wait for it, from timing out, up to nsqd's --max-msg-timeout. Off unless
    asked for, as NSQ expects of its clients: the timeout is how a message gets away from a handler that hangs. Together
    with `handler_timeout_s`, which does that as well, it is safe."""
    drain_timeout_s: float = 30.0
    """How long `stop` waits for messages that are being handled."""

    low_rdy_idle_timeout_s: float = 10.0
    """With more connections than max_in_flight: a silent one loses its turn after this time ..."""
    low_rdy_timeout_s: float = 30.0
    """... and a busy one after this."""
    rdy_redistribute_interval_s: float = 5.0

    lookupd_poll_interval_s: float = 60.0
    lookupd_poll_jitter: float = 0.3
    """The first poll after the very first is late by a random part of this fraction of the interval, so that consumers
    that started together do not ask together."""
    lookupd_timeout_s: float = 10.0
    authorize_lookupd: bool = True
    """Send the auth_secret, if there is one, to nsqlookupd too, as a bearer token."""
    max_reconnect_delay_s: float = 15.0
    """An nsqd that cannot be reached is tried again after a fraction of a second, then later and later up to this."""

    def __post_init__(self) -> None:
        check_field_types(self)
        self._make_member("handlers_in", HandlersIn)
        self._make_member("backoff_strategy", BackoffStrategy)
        for name in ("max_in_flight", "concurrency", "max_attempts", "handler_timeout_s", "drain_timeout_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be below 0")
        for name in ("default_requeue_delay_s", "max_requeue_delay_s", "max_backoff_s", "backoff_unit_s"):
            if not 0 <= getattr(self, name) <= MAX_REQUEUE_DELAY_S:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to {MAX_REQUEUE_DELAY_S:g}")
        for name in (
            "low_rdy_idle_timeout_s",
            "low_rdy_timeout_s",
            "rdy_redistribute_interval_s",
            "lookupd_poll_interval_s",
            "lookupd_timeout_s",
            "max_reconnect_delay_s",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 and finite")
        if not 0 <= self.lookupd_poll_jitter <= 1:
            raise ValueError(f"lookupd_poll_jitter is {self.lookupd_poll_jitter}; it is a fraction from 0 to 1")
        if self.dead_letter_topic and not is_valid_name(self.dead_letter_topic):
            raise ValueError(f"dead_letter_topic {self.dead_letter_topic!r} is not a valid name")

    def _make_member(self, name: str, kind: type[StrEnum]) -> None:
        """Let a word stand for the member that it is the value of."""
        value = getattr(self, name)
        if value not in tuple(kind):
            raise ValueError(f"{name} is {value!r}; it is one of {', '.join(kind)}")
        object.__setattr__(self, name, kind(value))
