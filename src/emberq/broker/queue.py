"""The queue of a topic or channel: memory first, then disk.

Memory holds at most `max_count` messages, with bodies of `max_bytes` together. Those that come while it is full go to
the backend. When both hold messages they are served in turn: the ones on disk may be older or younger than the ones in
memory, and neither may starve.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from emberq.base.clock import NS_PER_SECOND
from emberq.base.timers import NEVER
from emberq.broker.batch import Span, joined_records, spans_of_records
from emberq.broker.layout import STORED_HEADER_BYTES, Recorded
from emberq.storage.backend import Backend, Records
from emberq.storage.error import DiskWriteError
from emberq.wire.frame import WireMessage

UNREADABLE_RETRY_NS = NS_PER_SECOND
"""When to read again after a read failed although there are messages: descriptors may have been short."""

BRIEF_BYTES: Final = 32 * 1024

ALL: Final = -1

HealthReport = Callable[[str | None], None]
"""Told the outcome of each write to disk: None, or what went wrong."""

_log = logging.getLogger(__name__)


class Queue(ABC):
    """What a channel delivers from: spans, roughly in order."""

    was_in_memory = True
    """Whether what was last taken did not have to be read."""
    is_brief = False
    """Whether others are in a hurry: then a turn ends with one delivery of BRIEF_BYTES."""
    retry_ns = UNREADABLE_RETRY_NS
    """When to try again if nothing could be taken although messages wait."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """How many messages wait."""

    @property
    @abstractmethod
    def memory_count(self) -> int:
        """How many of them are in memory."""

    @property
    @abstractmethod
    def backend_depth(self) -> int:
        """How many of them are on disk alone."""

    @abstractmethod
    def put(self, span: Span) -> None:
        """Append the messages of `span`, which belongs to the queue from here on.

        DiskWriteError when the disk refuses some; its `stored_count` includes those that went to memory.
        """

    @abstractmethod
    def put_again(self, spans: list[Span]) -> None:
        """Append messages that were taken before, and must not be lost."""

    @abstractmethod
    def take(self, *, max_count: int, max_bytes: int) -> Span | None:
        """Remove some of the next messages: at least one, at most `max_count`; None when none can be had."""

    @abstractmethod
    def peek(self, count: int) -> list[WireMessage]:
        """The next messages, without taking them."""

    @property
    @abstractmethod
    def waiting_bytes(self) -> int:
        """The bodies of all that waits, together; an estimate of those on disk that an earlier run left."""

    @abstractmethod
    def drop_oldest(self, *, max_count: int, max_bytes: int) -> int:
        """Drop messages from the front, those with the oldest first: at most `max_count`, with their bodies at most
        `max_bytes` unless the first alone is larger. How many: at least one if any can be had."""

    @abstractmethod
    def drop_before(self, time_ns: int, *, max_count: int) -> int:
        """Drop messages at the front that were published before this moment, at most `max_count`; how many."""

    @abstractmethod
    def oldest_ns(self) -> int:
        """When the oldest of the next messages was published; NEVER if that is not known."""

    @abstractmethod
    def waiting_since_ns(self) -> int:
        """The same for people, who look often: no disk queue is opened for it that is not read anyway."""

    def oldest_age_ns(self, now_ns: int) -> int | None:
        """How long ago that was, at `now_ns` by the wall clock; None if nothing waits, or it is not known."""
        since_ns = self.waiting_since_ns() if self.depth else NEVER
        return None if since_ns == NEVER else max(now_ns - since_ns, 0)

    @abstractmethod
    def trim(self, *, max_count: int, max_bytes: int) -> None:
        """Drop the youngest messages in memory beyond either limit."""

    @abstractmethod
    def empty(self) -> None:
        """Drop everything."""


class MessageQueue(Queue):
    """Memory and a disk queue. Owned by its topic or channel."""

    def __init__(
        self,
        *,
        max_count: int,
        max_bytes: int,
        backend: Backend,
        report_health: HealthReport,
        backend_bytes: int = 0,
        dropped: Callable[[Span], None] | None = None,
    ) -> None:
        """`backend_bytes` are the bodies that the backend holds already; `dropped` is told of what the queue drops."""
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._backend = backend
        self._report_health = report_health
        self._memory: deque[Span] = deque()
        self._memory_count = 0
        self._memory_bytes = 0
        """Messages in `_memory`, and their bodies: within the limits, except for what the disk refused to `put_again`
        or came by `put_back`."""
        self._disk_is_next = False
        self._backend_bytes = backend_bytes
        """The bodies in the backend. What it drops by itself, because it is damaged, counts until it is empty."""
        self._dropped = dropped
        self._is_disk_read = False
        """Whether the backend was read, and has the next block at hand."""
        self._disk_since_ns = NEVER
        """Until it is, when the first message in it was published; NEVER: an earlier run has left it there."""

    @property
    def depth(self) -> int:
        return self._memory_count + self._backend.depth

    @property
    def waiting_bytes(self) -> int:
        return self._memory_bytes + self._backend_bytes

    @property
    def memory_count(self) -> int:
        return self._memory_count

    @property
    def backend_depth(self) -> int:
        return self._backend.depth

    def put(self, span: Span) -> None:
        kept = self._keep_fitting(span)
        if kept == ALL:
            return
        try:
            self._write([span])
        except DiskWriteError as failure:
            raise DiskWriteError(str(failure), stored_count=failure.stored_count + kept) from failure

    def _keep_fitting(self, span: Span) -> int:
        """Take as many messages off the span as memory has room for, and append them there; how many, or ALL."""
        count, batch = span.stop - span.start, span.batch
        size = batch.body_bytes(span.start, span.stop)
        room, room_bytes = self._max_count - self._memory_count, self._max_bytes - self._memory_bytes
        if count <= room and size <= room_bytes:
            self._remember(span, size)
            return ALL
        if room <= 0 or room_bytes <= 0:
            return 0
        count = batch.fitting(span.start, max_count=min(count, room), max_bytes=room_bytes)
        size = batch.body_bytes(span.start, span.start + count)
        if size > room_bytes:  # the first alone is too large
            return 0
        self._remember(span.split(count), size)
        return count

    def _remember(self, span: Span, size: int) -> None:
        """Append to memory. Messages that go on where the last span ends become part of it."""
        self._memory_count += span.stop - span.start
        self._memory_bytes += size
        if not self._memory or not self._memory[-1].extend(span):
            self._memory.append(span)

    def put_again(self, spans: list[Span]) -> None:
        """As in `Queue`: what memory has no room for is written together; memory keeps what the disk refuses."""
        beyond: list[Span] = []
        for span in spans:
            if self._keep_fitting(span) != ALL:
                beyond.append(span)  # noqa: PERF401 - mostly there is one span, and it fits
        if not beyond:
            return
        try:
            self._write(beyond)
        except DiskWriteError as failure:
            refused = _without_first(beyond, failure.stored_count)
            count = sum(span.count for span in refused)
            _log.error("failed to write %d messages to disk, keeping them in memory - %s", count, failure)
            for span in refused:
                self._remember(span, span.batch.body_bytes(span.start, span.stop))

    def put_back(self, span: Span) -> None:
        """Return messages that were taken and not used, to the front."""
        self._memory.appendleft(span)
        self._memory_count += span.count
        self._memory_bytes += span.batch.body_bytes(span.start, span.stop)

    def take(self, *, max_count: int, max_bytes: int) -> Span | None:
        if self._memory and not (self._disk_is_next and self._backend.depth):
            self._disk_is_next = self.was_in_memory = True
            return self._take_from_memory(max_count, max_bytes)
        self._disk_is_next = False
        records = self._take_from_backend(max_count, max_bytes)
        self.was_in_memory = records is None
        if records is None:
            return self._take_from_memory(max_count, max_bytes) if self._memory else None
        first, *others = spans_of_records(records)
        for span in reversed(others):
            self.put_back(span)
        return first

    def _take_from_backend(self, max_count: int, max_bytes: int) -> Records | None:
        backend, self._is_disk_read = self._backend, True
        records = backend.take(max_count=max_count, max_bytes=max_bytes)
        if records is not None:
            self._backend_bytes -= _body_bytes(records, len(records.ends))
        if not backend.depth:
            self._backend_bytes = 0
        return records

    def _take_from_memory(self, max_count: int, max_bytes: int) -> Span:
        span = self._memory[0]
        count = span.batch.fitting(span.start, max_count=min(max_count, span.stop - span.start), max_bytes=max_bytes)
        self._memory_count -= count
        self._memory_bytes -= span.batch.body_bytes(span.start, span.start + count)
        if count < span.stop - span.start:
            return span.split(count)
        return self._memory.popleft()

    def peek(self, count: int) -> list[WireMessage]:
        messages: list[WireMessage] = []
        for span in self._memory:
            messages += span.messages(count - len(messages))
            if len(messages) == count:
                return messages
        records = self._backend.peek(max_count=count - len(messages))
        for span in spans_of_records(records) if records is not None else ():
            messages += span.messages(count - len(messages))
        return messages

    # What is too much or too old.

    def drop_oldest(self, *, max_count: int, max_bytes: int) -> int:
        memory_ns, disk_ns = self._memory_ns(), self._disk_ns()
        if memory_ns <= disk_ns:
            return self._drop_from_memory(max_count, max_bytes) if self._memory else 0
        return self._drop_from_disk(max_count, max_bytes)

    def drop_before(self, time_ns: int, *, max_count: int) -> int:
        if self._memory_ns() < time_ns:
            span = self._memory[0]
            count = span.batch.count_before(time_ns, span.start, min(span.stop, span.start + max_count))
            return self._drop_from_memory(count, NEVER)
        records = self._backend.peek(max_count=max_count) if self._backend.depth else None
        if records is None:
            return 0
        shape = Recorded(records.blob, records.ends)
        count = 0
        while count < len(records.ends) and shape.published_ns(count) < time_ns:
            count += 1
        return self._drop_from_disk(count, NEVER) if count else 0

    def oldest_ns(self) -> int:
        return min(self._memory_ns(), self._disk_ns())

    def waiting_since_ns(self) -> int:
        if not self._backend.depth:
            return self._memory_ns()
        disk_ns = self._disk_ns() if self._is_disk_read else self._disk_since_ns
        return NEVER if disk_ns == NEVER else min(self._memory_ns(), disk_ns)

    def _memory_ns(self) -> int:
        """When the next message in memory was published; NEVER if there is none."""
        if not self._memory:
            return NEVER
        span = self._memory[0]
        return span.batch.shape.published_ns(span.start)

    def _disk_ns(self) -> int:
        """When the next message on disk was published; NEVER if there is none that can be read now."""
        records = self._backend.peek(max_count=1) if self._backend.depth else None
        return NEVER if records is None else Recorded(records.blob, records.ends).published_ns(0)

    def _drop_from_memory(self, max_count: int, max_bytes: int) -> int:
        span = self._take_from_memory(max_count, max_bytes)
        if self._dropped is not None:
            self._dropped(span)
        return span.stop - span.start

    def _drop_from_disk(self, max_count: int, max_bytes: int) -> int:
        records = self._take_from_backend(max_count, max_bytes)
        if records is None:
            return 0
        if self._dropped is not None:
            for span in spans_of_records(records):
                self._dropped(span)
        return len(records.ends)

    def trim(self, *, max_count: int, max_bytes: int) -> None:
        while self._memory_count > max_count or self._memory_bytes > max_bytes:
            span = self._memory[-1]
            excess = max(1, min(self._memory_count - max_count, span.count))
            self._memory_count -= excess
            self._memory_bytes -= span.batch.body_bytes(span.stop - excess, span.stop)
            span.stop -= excess
            if not span.count:
                self._memory.pop()

    def empty(self) -> None:
        self._forget_memory()
        self._backend.empty()
        self._backend_bytes = 0

    def _forget_memory(self) -> None:
        self._memory.clear()
        self._memory_count = self._memory_bytes = 0

    def close(self, extra: list[Span]) -> None:
        """Write memory and then `extra` to the backend, for the next run to find, and close it.

        DiskWriteError when the disk refused some; the others are written all the same.
        """
        spans = [*self._memory, *extra]
        self._forget_memory()
        refused: DiskWriteError | None = None
        for span in spans:
            try:
                self._write([span])
            except DiskWriteError as failure:
                refused = failure
        self._backend.close()
        if refused is not None:
            raise refused

    def delete(self) -> None:
        """Drop everything, files included."""
        self._forget_memory()
        self._backend.delete()

    def _write(self, spans: list[Span]) -> None:
        records = joined_records(spans)
        if not self._backend.depth:
            self._disk_since_ns = spans[0].batch.shape.published_ns(spans[0].start)
        try:
            self._backend.put(records)
        except DiskWriteError as failure:
            self._backend_bytes += _body_bytes(records, failure.stored_count)
            self._report_health(str(failure))
            raise
        if self._backend.depth:  # that of an ephemeral topic keeps nothing
            self._backend_bytes += _body_bytes(records, len(records.ends))
        self._report_health(None)


def _body_bytes(records: Records, count: int) -> int:
    """The size of the bodies of the first `count` records."""
    return records.ends[count - 1] - STORED_HEADER_BYTES * count if count else 0


def _without_first(spans: list[Span], count: int) -> list[Span]:
    """The spans without their first `count` messages."""
    left: list[Span] = []
    for span in spans:
        gone = min(count, span.count)
        count -= gone
        span.start += gone
        if span.count:
            left.append(span)
    return left
