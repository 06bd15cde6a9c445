"""What a client library is to do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from bench.clients.quota import Quota
from bench.connection import Address
from bench.crew import Tally
from bench.failure import Miscounted

_TOLERATED_SHARE = 0.1  # a run may end in the middle of a turn of bodies


class Way(Enum):
    """How it is done. The first three consume a full channel and FIN every message, the others publish."""

    BATCHES = "batches"  # many messages at a time, where a library can
    HANDLER = "handler"  # a function is called with each message: a coroutine function, if that is what it likes best
    ITERATION = "iteration"  # `async for`, where a library can
    PUBLISH = "publish"  # many tasks, each waiting for the confirmation of one message before its next
    PUBLISH_AT_ONCE = "publish at once"  # many messages are published, then all confirmations are waited for
    PUBLISH_MANY = "publish many"  # batches, several of them under way

    @property
    def is_consuming(self) -> bool:
        return self in (Way.BATCHES, Way.HANDLER, Way.ITERATION)


class Durability(Enum):
    """What has become of a message when its publication is confirmed."""

    SYNCED = "synced"  # it is on the disk
    SECOND = "second"  # it is written to a file, which is synced each second
    WRITTEN = "written"  # it is written to a file, and the operating system has it
    MEMORY = "memory"  # the server has it in memory


@dataclass(frozen=True, kw_only=True)
class Job:
    """Do `messages` messages, or as many as can be done in `seconds`.

    `width` is how many may be unanswered: messages in flight of a consumer, publications under way of a producer.
    `bodies` are those of one publication if they are published in batches, else publications take them by turns.
    `durability` is for queues of which a publisher says how they are kept.
    """

    way: Way
    address: Address
    topic: str
    channel: str
    messages: int
    seconds: float
    width: int
    bodies: tuple[bytes, ...]
    durability: Durability = Durability.MEMORY

    @property
    def nsqd(self) -> str:
        """The address as client libraries take it."""
        return "{}:{}".format(*self.address)

    def bodies_by_turns(self) -> Iterator[bytes]:
        """Without end."""
        return itertools.cycle(self.bodies)

    def published(self, quota: Quota) -> None:
        """One more publication was confirmed."""
        quota.add(0, len(self.bodies) if self.way is Way.PUBLISH_MANY else 1)

    def tally(self, quota: Quota) -> Tally:
        """What was done by the time the quota was over."""
        if quota.count == 0:
            raise Miscounted(f"not a single message within {self.seconds:g} s")
        if self.way.is_consuming:
            self._check_bodies(quota)
        consumed, published = (quota.count, 0) if self.way.is_consuming else (0, quota.count)
        return Tally(
            delivered=consumed,
            published=published,
            timed=quota.count,
            started_s=quota.began_s,
            timed_until_s=quota.ended_s,
        )

    def _check_bodies(self, quota: Quota) -> None:
        """What was consumed is as long as what was published; bodies of several lengths are so on the average."""
        sizes = [len(body) for body in self.bodies]
        usual = sum(sizes) / len(sizes)
        tolerated = 0.0 if min(sizes) == max(sizes) else usual * _TOLERATED_SHARE
        if abs(quota.body_bytes / quota.count - usual) > tolerated:
            raise Miscounted(f"{quota.count} messages with {quota.body_bytes} bytes, {usual:g} each were published")
