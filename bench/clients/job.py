"""What a client library is to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bench.clients.quota import Quota
from bench.connection import Address
from bench.crew import Tally
from bench.failure import Miscounted
from bench.frame import BODY_BYTES


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


@dataclass(frozen=True, kw_only=True)
class Job:
    """Do `messages` messages, or as many as can be done in `seconds`.

    `width` is how many may be unanswered: messages in flight of a consumer, publications under way of a producer.
    `bodies` are those of one publication: a single one, unless they are published in batches.
    """

    way: Way
    address: Address
    topic: str
    channel: str
    messages: int
    seconds: float
    width: int
    bodies: tuple[bytes, ...]

    @property
    def nsqd(self) -> str:
        """The address as client libraries take it."""
        return "{}:{}".format(*self.address)

    @property
    def body(self) -> bytes:
        return self.bodies[0]

    def published(self, quota: Quota) -> None:
        """One more publication was confirmed."""
        quota.add(len(self.bodies) * BODY_BYTES, len(self.bodies))

    def tally(self, quota: Quota) -> Tally:
        """What was done by the time the quota was over."""
        if quota.count == 0:
            raise Miscounted(f"not a single message within {self.seconds:g} s")
        if quota.body_bytes != quota.count * BODY_BYTES:
            raise Miscounted(f"{quota.count} messages with {quota.body_bytes} bytes, {BODY_BYTES} each were published")
        consumed, published = (quota.count, 0) if self.way.is_consuming else (0, quota.count)
        return Tally(delivered=consumed, published=published, timed=quota.count, timed_until_s=quota.ended_s)
