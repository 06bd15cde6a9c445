"""Dead-letter redrive: moving messages from a dead-letter topic back to where they can be tried again.

    dead-letter topic ──channel──▶ publish to its target, on the nsqd it came from ──confirmed──▶ FIN

- A message that lies in an envelope (see `emberq.wire.dead_letter`), as those do that nsqd gave up itself, is taken out
  of it. The envelope also says where it came from, for a redrive that is not told where to publish. What has none then
  stays where it is.
- A message is finished only when nsqd has confirmed its copy: a crash may leave it in both places, never in none.
- A message that fails again soon comes back to the dead-letter topic, and a redrive that took it again would never end.
  So what was published there after the redrive began is left alone, and goes back to its channel at the end.
- The channel counts as empty when nothing has come for `idle_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from emberq.client import Batch, Consumer, Message
from emberq.tools.paced import paced
from emberq.tools.throttle import Throttle
from emberq.wire.dead_letter import decode_dead_letter
from emberq.wire.name import is_valid_name

Publish: TypeAlias = Callable[[str, str, list[bytes]], Awaitable[None]]
"""Publishes bodies to the nsqd at an address, in a topic, and returns when they are confirmed."""


class Target(NamedTuple):
    """Where a message goes, and what is published there."""

    topic: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a redrive ends."""

    count: int | None = None
    """After so many messages; None: when the channel is empty."""
    idle_s: float = 2.0
    before_ns: int | None = None
    """Only messages that were published before this, in nanoseconds since 1970; None: all."""
    batch_size: int = 100
    """How many messages are published together."""

    def include(self, message: Message) -> bool:
        """Whether a message is old enough."""
        return self.before_ns is None or message.timestamp_ns < self.before_ns


def target_of(message: Message, *, to: str | None) -> Target | None:
    """Where to publish a message: `to`, or where its envelope says it came from; None if nobody knows."""
    letter = decode_dead_letter(message.body)
    if letter is None or not letter.body:
        return None if to is None else Target(to, message.body)
    topic = letter.topic if to is None else to
    return Target(topic, letter.body) if is_valid_name(topic) else None


class Redrive:
    """One run. The consumer is started and stopped by whoever made it.

    `to` is a topic to publish to whatever the envelopes say.
    """

    def __init__(
        self,
        consumer: Consumer,
        publish: Publish,
        *,
        to: str | None = None,
        limits: Limits,
        throttle: Throttle | None = None,
        on_moved: Callable[[int], None],
    ) -> None:
        self._consumer = consumer
        self._publish = publish
        self._to = to
        self._limits = limits
        self._throttle = throttle
        self._on_moved = on_moved
        self._held: list[Message] = []
        """Not to be moved. They stay in flight to the end, so that they do not come again and again."""
        self.moved_count = 0
        self.left_count = 0
        """Messages that were published too late for this run."""
        self.unaddressed_count = 0
        """Messages of which nobody knows where they belong."""

    async def run(self) -> None:
        """Move messages until one of the limits is reached."""
        if self._limits.count == 0:
            return
        try:
            async for batch in _until_idle(self._consumer, self._limits):
                await self._move(self._chosen(batch))
                if self.moved_count == self._limits.count:
                    break
        finally:
            _give_back(self._held, self._consumer)

    def _chosen(self, batch: Batch) -> Batch:
        """Those of the batch that are to be moved now."""
        old_enough = list(filter(self._limits.include, batch))
        chosen = Batch(message for message in old_enough if target_of(message, to=self._to) is not None)
        self.left_count += len(batch) - len(old_enough)
        self.unaddressed_count += len(old_enough) - len(chosen)
        if self._limits.count is not None:
            chosen = Batch(chosen[: self._limits.count - self.moved_count])
        moving = set(chosen)
        self._held += [message for message in batch if message not in moving]
        return chosen

    async def _move(self, batch: Batch) -> None:
        try:
            async for portion in paced(batch, throttle=self._throttle, max_size=self._limits.batch_size):
                for (address, topic), (messages, bodies) in self._groups(portion).items():
                    await self._publish(address, topic, bodies)
                    messages.finish()
                    self.moved_count += len(messages)
                    self._on_moved(len(messages))
        except BaseException:
            batch.requeue(0, backoff=False)  # what has been moved is answered already
            raise

    def _groups(self, messages: Sequence[Message]) -> dict[tuple[str, str], tuple[Batch, list[bytes]]]:
        """The messages and what to publish for them, by address and topic."""
        groups: dict[tuple[str, str], tuple[Batch, list[bytes]]] = {}
        for message in messages:
            target = target_of(message, to=self._to)
            assert target is not None  # noqa: S101 - it would not have been chosen
            group, bodies = groups.setdefault((message.address, target.topic), (Batch(), []))
            group.append(message)
            bodies.append(target.body)
        return groups


async def look(consumer: Consumer, *, limits: Limits, max_count: int) -> list[Message]:
    """What a redrive would begin with, up to `max_count`; they are back in their channel already."""
    end = max_count if limits.count is None else min(max_count, limits.count)
    received: list[Message] = []
    chosen: list[Message] = []
    async for batch in _until_idle(consumer, limits):
        received += batch
        chosen += filter(limits.include, batch)
        if len(chosen) >= end:
            break
    _give_back(received, consumer)
    return chosen[:end]


async def _until_idle(consumer: Consumer, limits: Limits) -> AsyncIterator[Batch]:
    """What comes, until nothing does."""
    batches = consumer.batches(max_size=limits.batch_size)
    while True:
        try:
            async with asyncio.timeout(limits.idle_s):
                batch = await anext(batches)
        except (TimeoutError, StopAsyncIteration):
            return
        yield batch


def _give_back(messages: list[Message], consumer: Consumer) -> None:
    """Requeue messages, having made sure that they do not come back here."""
    consumer.set_max_in_flight(0)
    for message in messages:
        message.requeue(0, backoff=False)
