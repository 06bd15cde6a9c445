"""A channel's consumers: each as the broker sees it, what it was given together, and the lines in which they wait.

Fairness: ready subscribers stand in a line. The first is given its share of what is queued (at most its window), then
goes to the end. So a burst is spread over many consumers, and goes to a single one in one piece. There is a line for
each distance, and the nearest that is not empty is served.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Protocol

from emberq.base.compiled import mypyc_attr
from emberq.broker.batch import Batch
from emberq.broker.stats import ClientStats


class SubscriberSink(Protocol):
    """Where a subscriber's messages go: a `ClientSubscription` of nsqd, or a test."""

    def deliver(self, frames: bytes) -> None:
        """Send these message frames. May call `Channel.block` at once when it cannot take more."""
        ...

    def deliver_pieces(self, pieces: list[bytes | memoryview]) -> None:
        """The same with frames in pieces, some of which are so large that they should not be joined."""
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
    """One consumer of one channel. Owned by the channel; the session passes it to the channel's methods."""

    __slots__ = (
        "blocked",
        "finish_count",
        "in_flight_count",
        "is_in_line",
        "locality",
        "message_count",
        "msg_timeout_ns",
        "ready_count",
        "requeue_count",
        "runs",
        "sample_rate",
        "sink",
    )

    def __init__(
        self, sink: SubscriberSink, *, msg_timeout_ns: int, sample_rate: int = 0, locality: Locality = Locality.GLOBAL
    ) -> None:
        self.sink: SubscriberSink | None = sink
        """None once the consumer has left. What it held stays in flight until it times out or is given back."""
        self.msg_timeout_ns = msg_timeout_ns
        """How long a delivered message may stay unanswered."""
        self.sample_rate = sample_rate
        """0: every message; else about this percentage of them."""
        self.locality: int = int(locality)
        self.ready_count = 0
        """RDY: how many messages it wants to hold at most."""
        self.in_flight_count = 0
        """How many it holds; kept by `in_flight`, as is the next."""
        self.runs: deque[Run] = deque()
        """Of what it holds, the runs of which no message was answered out of order, oldest first."""
        self.blocked = False
        """Whether its socket takes no more for now."""
        self.is_in_line = False
        """Kept by `ReadyLines`."""
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0

    @property
    def window(self) -> int:
        """How many messages may be sent to it now; not positive when none."""
        return 0 if self.blocked else self.ready_count - self.in_flight_count


@mypyc_attr(free_list_len=1)
class Run:
    """Messages of one batch that were sent together to one consumer, and share a deadline."""

    __slots__ = (
        "attempts",
        "batch",
        "count",
        "deadline_ns",
        "delivered_ns",
        "holder",
        "is_whole",
        "left",
        "pages",
        "start",
        "stop",
    )

    def __init__(
        self,
        holder: Subscriber,
        batch: Batch,
        start: int,
        stop: int,
        attempts: int,
        delivered_ns: int,
        deadline_ns: int,
    ) -> None:
        self.holder = holder
        self.batch = batch
        self.start = start
        self.stop = stop
        self.attempts = attempts
        self.delivered_ns = delivered_ns
        self.deadline_ns = deadline_ns
        self.count = self.left = stop - start
        """How many messages it began with, and how many of them are in flight."""
        self.is_whole = False
        """No message was answered out of order: `start` to `stop` are those in flight."""
        self.pages: list[bytes] | None = None
        """The pages that its messages are on, if any; kept by `run_index`."""


class ReadyLines:
    """The subscribers with an open window, a line for each locality. Owned by the channel."""

    __slots__ = ("_lines", "_served", "_share", "_stale_count", "_turns_left")

    def __init__(self) -> None:
        self._lines: tuple[deque[Subscriber], deque[Subscriber], deque[Subscriber]] = (deque(), deque(), deque())
        self._served: deque[Subscriber] | None = None
        """The line whose round it is."""
        self._turns_left = 0
        self._share = 0
        self._stale_count = 0
        """Subscribers in the lines that have left the channel."""

    @property
    def is_empty(self) -> bool:
        zone, region, everywhere = self._lines
        return not everywhere and not zone and not region

    def join(self, subscriber: Subscriber) -> None:
        """Put the subscriber to the end of its line, if its window is open and it does not stand there already."""
        if not subscriber.is_in_line and subscriber.window > 0:
            subscriber.is_in_line = True
            self._lines[subscriber.locality].append(subscriber)

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber leaves the channel. Its place is cleared later: finding it takes as long as the line is."""
        if subscriber.is_in_line:
            self._stale_count += 1
            if self._stale_count * 2 > sum(map(len, self._lines)):
                self._clear_stale()

    def _clear_stale(self) -> None:
        for line in self._lines:
            staying = [subscriber for subscriber in line if subscriber.sink is not None]
            line.clear()
            line.extend(staying)
        self._stale_count = 0

    def begin(self) -> None:
        """Begin a new round: each subscriber in the line gets the same share."""
        self._turns_left = 0

    def next(self, depth: int) -> Subscriber | None:
        """The subscriber whose turn it is, taken from its line; None if none is ready. `share` is what it gets."""
        zone, region, everywhere = self._lines
        while line := zone or region or everywhere:
            if not self._turns_left or line is not self._served:
                self._served, self._turns_left = line, len(line)
                self._share = -(-depth // self._turns_left)
            self._turns_left -= 1
            subscriber = line.popleft()
            subscriber.is_in_line = False
            if subscriber.sink is None:
                self._stale_count -= 1
            elif subscriber.window > 0:
                return subscriber
        return None

    @property
    def share(self) -> int:
        """How many messages the subscriber that was last taken is to be given, if its window allows it."""
        return self._share

    def clear(self) -> None:
        """All subscribers have left."""
        for line in self._lines:
            line.clear()
        self._stale_count = 0
