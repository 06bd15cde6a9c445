"""Messages that arrived together stay together: `Batch` and `Span`.

A `Batch` is the messages of one publish (or of one read from disk) in one buffer. All channels share it. How often a
message was tried differs from channel to channel, so it is kept in the `Span` beside the batch. A batch is taken apart
only where its messages go different ways, and is never copied per channel:

- the frames that consumers get on the first attempt are built once per batch, when the first of its messages is
  delivered, and from then on the batch has that shape instead of the one in which it arrived (see `layout`);
- the FIN lines that answer them are built once too, so that a consumer that finishes in order is checked by comparing
  bytes (see `in_flight`).

Batches are small enough (MAX_BATCH_BYTES, MAX_BATCH_COUNT) that one message held back does not hold much with it. What
is left of a batch when most of its messages have gone is copied out, so that the rest can be freed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from emberq.base.compiled import mypyc_attr
from emberq.broker.layout import (
    MAX_BATCH_COUNT,
    NO_ID,
    PUBLISHED_HEADER_BYTES,
    Framed,
    Frames,
    Gathered,
    Large,
    Lone,
    Published,
    Recorded,
    Shape,
    lone_frame,
    start_of,
    sub_ends,
)
from emberq.broker.stats import LatencyWindow
from emberq.storage.backend import LENGTH_BYTES, Records
from emberq.wire.command import FIN_LINE_BYTES, FIN_PREFIX
from emberq.wire.frame import WireMessage, decode_message

MAX_BATCH_BYTES = 256 * 1024
LARGE_BYTES: Final = 64 * 1024
"""A message from this size on is a batch by itself, and its body is not copied to be sent."""
_KEPT_SHARE: Final = 8
"""When fewer than one in so many messages of a batch are left, they are copied out of it."""


@mypyc_attr(acyclic=True, free_list_len=1)
class Batch:
    """Messages in one buffer. To its users it never changes; inside, the shape in which it arrived gives way to frames.

    Only a `Gathered` shape grows, and `count` with it.
    """

    __slots__ = ("_records", "count", "shape")

    def __init__(self, shape: Shape, count: int) -> None:
        self.shape = shape
        self.count = count
        self._records: tuple[int, int, int, Records] | None = None

    @property
    def _frames(self) -> Frames:
        shape = self.shape
        if isinstance(shape, Frames):
            return shape
        framed = shape.framed()
        self.shape = framed
        return framed

    def frames(self, start: int, stop: int, attempts: int) -> bytes:
        """The message frames of messages `start` to `stop`, each showing `attempts`."""
        return self._frames.frames(start, stop, attempts)

    def add_frames(self, pieces: list[bytes | memoryview], start: int, stop: int, attempts: int) -> int:
        """Append what `frames` gives to `pieces`, without copying what is large; returns how many bytes that is.

        The first piece is `bytes` and holds the first message's id, if there is only one message.
        """
        return self._frames.add_frames(pieces, start, stop, attempts)

    def records(self, start: int, stop: int, attempts: int) -> Records:
        """Messages `start` to `stop` as a disk queue stores them."""
        if self._records is not None and self._records[:3] == (start, stop, attempts):
            return self._records[3]
        records = self.shape.records(start, stop, attempts)
        self._records = (start, stop, attempts, records)
        return records

    def forget_records(self) -> None:
        """Free what `records` built; it was kept because channels ask for the same records one after the other."""
        self._records = None

    def fin_lines(self, start: int, stop: int) -> bytes:
        """`FIN <id>` of messages `start` to `stop`, one line after the other."""
        return self._frames.fin_lines(start, stop)

    def first_id(self) -> int:
        """The first id, if the ids are consecutive; else NO_ID."""
        return self._frames.first_id()

    def ids(self, start: int, stop: int) -> list[bytes]:
        """The ids of messages `start` to `stop`."""
        return self.shape.ids(start, stop)

    def index_of(self, message_id: bytes, start: int, stop: int) -> int:
        """Which of messages `start` to `stop` has this id; ValueError when none has."""
        shape = self._frames
        if stop - start == 1:
            return start
        first_id = shape.first_id()
        if first_id != NO_ID:
            return int(message_id, 16) - first_id
        if isinstance(shape, Gathered):
            return shape.index_of(message_id)
        return start + shape.fin_lines(start, stop).index(FIN_PREFIX + message_id) // FIN_LINE_BYTES

    def body_bytes(self, start: int, stop: int) -> int:
        """The size of the bodies of messages `start` to `stop`."""
        return self.shape.body_bytes(start, stop)

    def fitting(self, start: int, *, max_count: int, max_bytes: int) -> int:
        """How many messages from `start` on stay within both limits; at least one."""
        if max_count == 1:
            return 1
        return _fitting_stop(self.shape.ends, start, max_count=max_count, max_bytes=max_bytes) - start

    def picked(self, indexes: Sequence[int]) -> Batch:
        """A batch of these messages alone, which does not hold the others in memory."""
        return Batch(self._picked_shape(indexes), len(indexes))

    def _picked_shape(self, indexes: Sequence[int]) -> Shape:
        shape = self._frames
        if len(indexes) == 1:
            return Lone(shape.frames(indexes[0], indexes[0] + 1, 1))
        frames = [shape.frames(index, index + 1, 1) for index in indexes]
        ends: list[int] = []
        total = 0
        for frame in frames:
            total += len(frame)
            ends.append(total)
        return Framed(b"".join(frames), ends, 0, NO_ID, 0)

    def alone(self, index: int, frame: bytes) -> Batch:  # noqa: ARG002 - a journal's messages know their offset
        """A batch of message `index` alone, whose frame on the first attempt is known."""
        return Batch(Lone(frame), 1)

    def message(self, index: int, attempts: int) -> WireMessage:
        """Message `index`, taken apart."""
        return decode_message(self.shape.records(index, index + 1, attempts).blob[LENGTH_BYTES:])

    def count_before(self, time_ns: int, start: int, stop: int) -> int:
        """How many of messages `start` to `stop`, from `start` on without a gap, were published before this moment."""
        return self._run_end(start, stop, time_ns, is_before=True) - start

    def published_since(self, time_ns: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Those of messages `start` to `stop` that were published at this moment or later, as runs."""
        runs: list[tuple[int, int]] = []
        while start < stop:
            start = self._run_end(start, stop, time_ns, is_before=True)
            end = self._run_end(start, stop, time_ns, is_before=False)
            if start < end:
                runs.append((start, end))
            start = end
        return runs

    def _run_end(self, start: int, stop: int, time_ns: int, *, is_before: bool) -> int:
        """Where the messages end, from `start` on, that were all published before this moment, or all were not."""
        shape = self.shape
        if shape.is_of_one_moment and start < stop:
            return stop if (shape.published_ns(start) < time_ns) == is_before else start
        while start < stop and (shape.published_ns(start) < time_ns) == is_before:
            start += 1
        return start

    def report_finished(self, start: int, stop: int, latency: LatencyWindow) -> None:
        """Tell `latency` when messages `start` to `stop`, which are done with now, were published."""
        shape = self._frames
        if shape.first_id() != NO_ID:
            latency.finished(shape.published_ns(start), stop - start)
            return
        for index in range(start, stop):
            latency.finished(shape.published_ns(index))


NO_MESSAGES: Final = Batch(Recorded(b"", ()), 0)


def published_shape(
    blob: bytes, ends: Sequence[int], first_id: int, timestamp_ns: int, cut: int = PUBLISHED_HEADER_BYTES
) -> Shape:
    """The shape of messages that were just published, or with `cut` 0 read from a journal."""
    if len(blob) >= LARGE_BYTES and len(ends) == 1:
        return Large(blob, first_id, timestamp_ns, cut)
    return Published(blob, ends, first_id, timestamp_ns, cut)


def published_batch(blob: bytes, ends: Sequence[int], first_id: int, timestamp_ns: int) -> Batch:
    """The messages of one publish. Their ids are consecutive and end in a sequence number."""
    return Batch(published_shape(blob, ends, first_id, timestamp_ns), len(ends))


def lone_message(blob: bytes, first_id: int, timestamp_ns: int) -> Batch:
    """One published message that will wait on its own."""
    if len(blob) >= LARGE_BYTES:
        return Batch(Large(blob, first_id, timestamp_ns), 1)
    return Batch(Lone(lone_frame(blob, first_id, timestamp_ns)), 1)


# Spans.


@mypyc_attr(acyclic=True, free_list_len=1)
class Span:
    """Some consecutive messages of a batch, all tried `attempts` times so far. Queues hold spans."""

    __slots__ = ("attempts", "batch", "start", "stop")

    def __init__(self, batch: Batch, start: int, stop: int, attempts: int = 0) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.attempts = attempts

    def __repr__(self) -> str:
        return f"<Span of {self.count} at {self.start}, tried {self.attempts} times>"

    @property
    def count(self) -> int:
        return self.stop - self.start

    def split(self, count: int) -> Span:
        """Take the first `count` messages off this span."""
        head = Span(self.batch, self.start, self.start + count, self.attempts)
        self.start += count
        return head

    def extend(self, span: Span) -> bool:
        """Take in the messages of another span, if they go on where this one ends; whether they do."""
        if self.batch is not span.batch or self.stop != span.start or self.attempts != span.attempts:
            return False
        self.stop = span.stop
        return True

    def records(self) -> Records:
        return self.batch.records(self.start, self.stop, self.attempts)

    def ids(self) -> list[bytes]:
        return self.batch.ids(self.start, self.stop)

    def messages(self, max_count: int) -> list[WireMessage]:
        """The first messages of the span, taken apart."""
        stop = min(self.stop, self.start + max_count)
        return [self.batch.message(index, self.attempts) for index in range(self.start, stop)]

    def compact(self) -> Span:
        """The same messages, without the rest of the batch in memory: for spans that may stay a while."""
        batch, start = self.batch, self.start
        count = self.stop - start
        if not is_mostly_gone(count, batch.count):
            return self
        if count == 1:
            return Span(batch.alone(start, batch.frames(start, start + 1, 1)), 0, 1, self.attempts)
        return Span(batch.picked(range(start, self.stop)), 0, count, self.attempts)


def is_mostly_gone(left: int, count: int) -> bool:
    """Whether what is left of `count` messages should be copied out of their batch."""
    return left * _KEPT_SHARE <= count or left == 1 < count


def spans_of_records(records: Records) -> list[Span]:
    """Records from a disk queue as spans; a span per run of messages with equal attempts."""
    shape = Recorded(records.blob, records.ends)
    batch = Batch(shape, len(records.ends))
    shared = shape.shared_attempts()
    if shared >= 0:
        return [Span(batch, 0, batch.count, shared)]
    spans: list[Span] = []
    start = 0
    for tried, group in groupby(shape.attempts()):
        stop = start + sum(1 for _ in group)
        spans.append(Span(batch, start, stop, tried))
        start = stop
    return spans


def joined_records(spans: Sequence[Span]) -> Records:
    """The records of several spans, as one."""
    if len(spans) == 1:
        return spans[0].records()
    blobs: list[bytes] = []
    ends: list[int] = []
    total = 0
    for span in spans:
        blob, own_ends = span.batch.shape.records(span.start, span.stop, span.attempts)
        blobs.append(blob)
        ends += [total + end for end in own_ends]
        total += len(blob)
    return Records(b"".join(blobs), ends)


def cut(blob: bytes, ends: Sequence[int], *, first_id: int = 0) -> Iterator[tuple[bytes, Sequence[int]]]:
    """The messages of one publish in pieces that fit into a batch; one message that is too big is a piece by itself.

    If the ids are known, counting from `first_id`, those of a piece differ in their last three digits alone.
    """
    for start, stop in pieces_of(ends, first_id=first_id, max_bytes=MAX_BATCH_BYTES):
        if stop - start == len(ends):
            yield blob, ends  # a slice of all of it would be a copy
        else:
            yield blob[start_of(ends, start) : ends[stop - 1]], sub_ends(ends, start, stop)


def pieces_of(ends: Sequence[int], *, first_id: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each piece starts and stops, as `cut` makes them, but of at most `max_bytes`."""
    start = 0
    while start < len(ends):
        max_count = MAX_BATCH_COUNT - (first_id + start) % MAX_BATCH_COUNT
        stop = _fitting_stop(ends, start, max_count=max_count, max_bytes=max_bytes)
        yield start, stop
        start = stop


def _fitting_stop(ends: Sequence[int], start: int, *, max_count: int, max_bytes: int) -> int:
    """The stop of the items from `start` on that stay within both limits; at least one item."""
    stop = min(start + max_count, len(ends))
    limit = start_of(ends, start) + max_bytes
    if ends[stop - 1] > limit:
        stop = max(start + 1, bisect_right(ends, limit, start, stop))
    return stop


# Single publishes that wait.


GATHERED_BYTES: Final = 64 * 1024
GATHERED_COUNT: Final = 512


class Gathering:
    """Makes one batch of publishes that are small and have to wait, so that they need few objects of their own.

    Owned by its topic. All channels get spans of the same batch.
    """

    def __init__(self) -> None:
        self._batch = NO_MESSAGES
        self._shape = Gathered()

    def add(self, blob: bytes, ends: Sequence[int], first_id: int, timestamp_ns: int) -> Span:
        """These messages as a span of the batch that is being gathered."""
        batch, shape = self._batch, self._shape
        if batch is NO_MESSAGES or batch.count >= GATHERED_COUNT or shape.size >= GATHERED_BYTES:
            shape = self._shape = Gathered()
            batch = self._batch = Batch(shape, 0)
        start = batch.count
        if len(ends) == 1:
            shape.add(lone_frame(blob, first_id, timestamp_ns))
        else:
            position = 0
            for end in ends:
                shape.add(lone_frame(blob[position:end], first_id, timestamp_ns))
                first_id += 1
                position = end
        batch.count += len(ends)
        return Span(batch, start, batch.count)

    def end(self) -> None:
        """Let go of the batch: its messages do not wait any more."""
        if self._batch is not NO_MESSAGES:
            self._batch, self._shape = NO_MESSAGES, Gathered()
