"""A consumer's connection as the broker sees it."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

from emberq.broker.in_flight import InFlight
from emberq.broker.stats import ClientStats


class Sink(Protocol):
    """Where a subscriber's messages go: the connection's session, or a test."""

    def deliver(self, frames: bytes) -> None:
        """Send these message frames. May call `Channel.block` at once when it cannot take more."""
        ...

    def close(self) -> None:
        """The channel is gone; close the connection."""
        ...

    def stats(self) -> ClientStats:
        """What is known about the connection."""
        ...


class Locality(IntEnum):
    """How near a consumer is to this nsqd; the nearest are served first."""

    ZONE = 0
    REGION = 1
    GLOBAL = 2


class Subscriber:
    """One consumer of one channel. Owned by the channel; the session holds it to name itself."""

    __slots__ = (
        "blocked",
        "finish_count",
        "in_flight",
        "locality",
        "message_count",
        "msg_timeout_ns",
        "queued",
        "ready_count",
        "requeue_count",
        "sample_rate",
        "sink",
    )

    def __init__(
        self, sink: Sink, *, msg_timeout_ns: int, sample_rate: int = 0, locality: Locality = Locality.GLOBAL
    ) -> None:
        self.sink = sink
        self.msg_timeout_ns = msg_timeout_ns
        """How long a delivered message may stay unanswered."""
        self.sample_rate = sample_rate
        """0: every message; else about this percentage of them."""
        self.locality = locality
        self.in_flight = InFlight()
        self.ready_count = 0
        """RDY: how many messages it wants to hold at most."""
        self.blocked = False
        """Its socket does not take more for now."""
        self.queued = False
        """It stands in the channel's line of ready subscribers."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def window(self) -> int:
        """How many messages may be sent to it now; not positive when none."""
        return 0 if self.blocked else self.ready_count - self.in_flight.count
