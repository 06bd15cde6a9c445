"""Limits on what may wait in a topic and in each of its channels: how much, and for how long.

    max depth, max bytes   how many messages may wait, and how large their bodies may be together
    when full              `refuse`: a publish that would bring more is refused, all of it
                           `drop-oldest`: it is taken, and the oldest messages that wait are dropped
    ttl                    a message that was published longer ago is not delivered any more, and is dropped
    journal max bytes      how large a journal may be: for `storage.journal`, which removes its oldest files

What waits is what `depth` counts, in memory and on disk; messages that are in flight or deferred do not. What waits in
the topic itself, because it has no channel or is paused, is limited in the same way.

A topic refuses by itself (see `topic`). A `QueueKeeper` drops. It looks at a queue after everything that came, and by
an alarm when the oldest message will be too old, so that the depth falls also where no consumer is. It drops from the
front of the queue, whole batches where it can, and a portion at a time. When a message leaves the queue on its way to a
consumer, the channel looks at its age: behind a young message an older one may wait, which was tried before.

The age of a message counts from when it was published, whatever it waited for: also if it was deferred. So a message
that is deferred for longer than the ttl is not delivered at all.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import Final

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND, Clock
from emberq.base.timers import NEVER, Timers
from emberq.broker.queue import Queue

PORTION_COUNT: Final = 4096
"""How many messages are dropped in one turn of the event loop, at most."""
PORTION_NS: Final = 2 * NS_PER_MS
"""For how long messages are dropped in one turn."""
STEP_COUNT: Final = 512
"""How many are dropped between two looks at the clock: those on disk have to be read."""
MIN_SWEEP_NS: Final = 50 * NS_PER_MS
MAX_SWEEP_NS: Final = 10 * NS_PER_SECOND
"""How soon a queue is looked at again for what has become too old, if it cannot tell when that will be."""
LOG_INTERVAL_NS: Final = 60 * NS_PER_SECOND
"""How often it is logged that a queue drops messages: a full one does so at every publish."""

_log = logging.getLogger(__name__)


class WhenFull(enum.StrEnum):
    """What becomes of a publish that brings more than may wait."""

    REFUSE = "refuse"
    DROP_OLDEST = "drop-oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The limits of one topic, and of each of its channels."""

    max_depth: int = NEVER
    max_bytes: int = NEVER
    when_full: WhenFull = WhenFull.REFUSE
    ttl_ns: int = NEVER
    journal_max_bytes: int = NEVER
    """How large its journal may be, also if channels have not passed what goes; NEVER: as large as any journal."""

    @property
    def has_max(self) -> bool:
        """Whether there is a limit on how much may wait."""
        return self.max_depth < NEVER or self.max_bytes < NEVER

    @property
    def refuses(self) -> bool:
        return self.has_max and self.when_full is WhenFull.REFUSE

    @property
    def drops(self) -> bool:
        return self.has_max and self.when_full is WhenFull.DROP_OLDEST

    @property
    def has_ttl(self) -> bool:
        return self.ttl_ns < NEVER

    @property
    def reason(self) -> str:
        """What publishers are told when it is full."""
        limits: list[str] = []
        if self.max_depth < NEVER:
            limits.append(f"{self.max_depth} messages")
        if self.max_bytes < NEVER:
            limits.append(f"{self.max_bytes} bytes")
        return f"no more than {' and '.join(limits)} may wait"

    @property
    def needs_keeper(self) -> bool:
        """Whether messages that wait may have to be dropped."""
        return self.drops or self.has_ttl


def no_limits(_topic: str) -> TopicLimits | None:
    """For a broker whose topics have none."""
    return None


class QueueKeeper:
    """Drops what is too much or too old in the queue of a channel or classic topic, which owns it."""

    def __init__(self, queue: Queue, limits: TopicLimits, *, owner: str, clock: Clock, timers: Timers) -> None:
        """`owner` says in the log whose queue it is."""
        self.dropped_count = 0
        """Messages that were dropped because there were too many."""
        self.expired_count = 0
        """Messages that were dropped because they were too old, also by the channel."""
        self._queue = queue
        self._drops = limits.drops
        self._max_depth = limits.max_depth
        self._max_bytes = limits.max_bytes
        self._ttl_ns = limits.ttl_ns
        self._owner = owner
        self._clock = clock
        self._alarm = timers.alarm(self.tidy)
        self._is_behind = queue.depth > 0
        """Whether the alarm will find something to drop: an earlier run, with other limits, may have left too much."""
        if self._is_behind:
            self._alarm.set(clock.monotonic_ns())
        self._unlogged_count = 0
        """Messages dropped since that was last logged."""
        self._next_log_ns = 0

    @property
    def oldest_ns(self) -> int:
        """A message that was published before this moment is too old."""
        return self._clock.wall_ns() - self._ttl_ns

    def filled(self) -> None:
        """Messages were put into the queue: drop what is too much, and see to it that they are dropped in time."""
        if self._is_behind:
            return
        if self._drops and self._is_too_full():
            self.tidy()
        elif self._ttl_ns < NEVER and self._alarm.due_ns == NEVER and self._queue.depth:
            self._set_alarm(self._clock.monotonic_ns())

    def _is_too_full(self) -> bool:
        queue = self._queue
        return queue.depth > self._max_depth or queue.waiting_bytes > self._max_bytes

    def tidy(self) -> None:
        """Drop what is too old and what is too much, a portion of it; the rest in later turns of the event loop."""
        now_ns = self._clock.monotonic_ns()
        has_more = self._ttl_ns < NEVER and self._expire(now_ns)
        if self._drops:
            has_more = self._shed(now_ns) or has_more
        is_unreadable = not has_more and self._drops and self._is_too_full()
        self._is_behind = has_more or is_unreadable
        if has_more:
            self._alarm.set(now_ns)
        elif is_unreadable:
            self._alarm.set(now_ns + self._queue.retry_ns)
        else:
            self._set_alarm(now_ns)

    def _expire(self, now_ns: int) -> bool:
        """Drop a portion of the messages that are too old; whether there may be more of them."""
        oldest_ns, left = self.oldest_ns, PORTION_COUNT
        while left > 0 and self._clock.monotonic_ns() - now_ns < PORTION_NS:
            dropped = self._queue.drop_before(oldest_ns, max_count=min(left, STEP_COUNT))
            if not dropped:
                return False
            self.expired_count += dropped
            left -= dropped
        return True

    def _shed(self, now_ns: int) -> bool:
        """Drop a portion of the messages that are too many; whether there may be more of them."""
        queue, left, has_more = self._queue, PORTION_COUNT, True
        while left > 0 and self._clock.monotonic_ns() - now_ns < PORTION_NS:
            step = min(left, STEP_COUNT)
            beyond, beyond_bytes = queue.depth - self._max_depth, queue.waiting_bytes - self._max_bytes
            if beyond > 0:
                dropped = queue.drop_oldest(max_count=min(beyond, step), max_bytes=NEVER)
            elif beyond_bytes > 0:
                dropped = queue.drop_oldest(max_count=step, max_bytes=beyond_bytes)
            else:
                dropped = 0
            if not dropped:
                has_more = False
                break
            self.dropped_count += dropped
            left -= dropped
        self._note_dropped(PORTION_COUNT - left)
        return has_more

    def _set_alarm(self, now_ns: int) -> None:
        """Ring when the oldest message will be too old, if there is one."""
        if self._ttl_ns == NEVER or not self._queue.depth:
            self._alarm.cancel()
            return
        published_ns = self._queue.oldest_ns()
        if published_ns == NEVER:
            wait_ns = min(self._ttl_ns // 10, MAX_SWEEP_NS)
        else:
            wait_ns = 1 + min(published_ns - self.oldest_ns, self._ttl_ns)  # the clock may have been set back
        self._alarm.set(now_ns + max(wait_ns, MIN_SWEEP_NS))

    def _note_dropped(self, count: int) -> None:
        self._unlogged_count += count
        now_ns = self._clock.monotonic_ns()
        if self._unlogged_count and now_ns >= self._next_log_ns:
            _log.warning("%s: dropped its oldest %d messages, because too many wait", self._owner, self._unlogged_count)
            self._unlogged_count = 0
            self._next_log_ns = now_ns + LOG_INTERVAL_NS

    def end(self) -> None:
        """Drop nothing any more."""
        self._alarm.discard()
