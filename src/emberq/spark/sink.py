"""Rows to messages: what the tasks of a write do, batch and streaming.

Each task publishes its rows to one nsqd with MPUBs of up to `maxBodyBytes`, several under way at a time. It succeeds
when all are confirmed; an nsqd with a journaled topic confirms what is on its disk.

**Retries do not double.** Spark runs a task again when it does not know that it succeeded, and a whole micro-batch
after a crash. So every MPUB carries a name: a producer id made of the query, the partition and the messages in it, in
whatever order, and the number of the micro-batch as its sequence. If the topic is journaled, an emberq nsqd does not
store again what it has stored under that name. The name follows from the content and not from the place among others,
because Spark may cut and order the same rows differently the second time (behind a shuffle, or with another number of
partitions). A message may then be stored twice, but is never taken for another and lost.

What this gives for journaled topics: exactly once if the rows of each task, for each topic, fit into one MPUB, or come
in the same order again (from a source, without a shuffle). In all other cases it is at least once: for classic topics,
for Go's nsqd, and for deferred messages, which are published one by one.

The number of the partition decides which nsqd gets its rows, so a retry goes to the same one as long as the nsqds are
the same. There is no failover to another nsqd: it would double what the first one stored before it fell silent.

A request without an answer is sent again, with the same name, until `retryTimeout` has passed. Requests may then
arrive in another order; names do not depend on it.

The body of an MPUB is made from an Arrow column without touching a row in Python, unless it has headers:

offset  size  field
0       4     number of messages
4       …     each message: int32 size, body          (both big-endian)
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from emberq.base.text import quoted
from emberq.spark.error import NsqdUnavailableError, OptionError, RowError
from emberq.spark.nsqd_http import Access, AddressBook, HttpPeer, patiently
from emberq.spark.option import SinkSettings
from emberq.spark.schema import BODY, DEFER_MS, HEADERS, TOPIC, byte_strings, constant, in_envelopes
from emberq.wire.parameter import is_valid_name

MAX_UNDER_WAY = 2
"""Requests sent and not yet confirmed: while nsqd stores one, the task makes the next."""


# Requests under way.


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """One request: to /mpub, or to /pub for a deferred message."""

    topic: str
    parts: Sequence[bytes | memoryview]
    """The body, in pieces."""
    producer_id: str = ""
    """32 hexadecimal digits. With `sequence` the name by which nsqd recognizes a repetition; empty: no name."""
    sequence: int = 0
    defer_ms: int = 0

    def send(self, peer: HttpPeer) -> None:
        path, kind = ("/pub", {"defer": self.defer_ms}) if self.defer_ms else ("/mpub", {"binary": "true"})
        headers = {"Content-Length": str(sum(map(len, self.parts)))}  # else http.client sends the parts as chunks
        if self.producer_id:
            headers |= {"X-Emberq-Producer": self.producer_id, "X-Emberq-Sequence": str(self.sequence)}
        peer.send("POST", path, query={"topic": self.topic, **kind}, body=self.parts, headers=headers)


@dataclass(slots=True)
class _PublishLine:
    """A connection, and the request on it that is not confirmed."""

    peer: HttpPeer
    under_way: PublishRequest | None = None


class MpubPublisher:
    """Publishes to one nsqd, with several requests under way. Owned by one task."""

    def __init__(self, nsqd: str, access: Access) -> None:
        self._retry_timeout_s = access.retry_timeout_s
        self._lines = deque(_PublishLine(HttpPeer(nsqd, access)) for _ in range(MAX_UNDER_WAY))
        """In the order of their requests: the oldest first."""

    def publish(self, publish: PublishRequest) -> None:
        """Send a request. May wait for an earlier one, and raises what went wrong with that."""
        line = self._lines[0]
        self._settle(line)
        self._lines.rotate(-1)
        line.under_way = publish
        with suppress(NsqdUnavailableError):  # then there is no answer either, and `_settle` sends it again
            publish.send(line.peer)

    def flush(self) -> None:
        """Wait until every request is confirmed."""
        for line in self._lines:
            self._settle(line)

    def close(self) -> None:
        for line in self._lines:
            line.peer.close()

    def _settle(self, line: _PublishLine) -> None:
        publish, line.under_way = line.under_way, None
        if publish is None:
            return
        try:
            line.peer.receive()
        except NsqdUnavailableError:
            patiently(lambda: _confirmed(line.peer, publish), timeout_s=self._retry_timeout_s)


def _confirmed(peer: HttpPeer, publish: PublishRequest) -> None:
    publish.send(peer)
    peer.receive()


# The body of an MPUB.

SIZE_BYTES = 4
DIGEST_BYTES = 16
"""The size of a producer id: half of a SHA-256, for which processors have instructions."""

_COUNT = struct.Struct(">i")
_NOTHING = constant(b"", pa.binary())


def mpub_body(bodies: pa.BinaryArray) -> tuple[bytes, memoryview]:
    """The body that publishes these messages in this order, in two parts."""
    messages = pc.binary_join_element_wise(_sizes(bodies), bodies, _NOTHING)
    return _COUNT.pack(len(bodies)), memoryview(_data(messages))


def mpub_bytes(bodies: pa.BinaryArray) -> int:
    """The size of the messages in an MPUB, without the count."""
    return len(_data(bodies)) + SIZE_BYTES * len(bodies)


def fitting_count(bodies: pa.BinaryArray, *, room_bytes: int) -> int:
    """How many messages from the first on fit into `room_bytes` of an MPUB."""
    positions = _positions(bodies)

    def end_of(count: int) -> int:
        return positions[count] - positions[0] + SIZE_BYTES * count

    return bisect_right(range(1, len(bodies) + 1), room_bytes, key=end_of)


def digest(bodies: pa.BinaryArray, *, salt: bytes) -> bytes:
    """16 bytes that stand for `salt` and these messages, in whatever order."""
    ordered = bodies.take(pc.sort_indices(bodies))
    hashed = sha256(salt)
    hashed.update(memoryview(pc.binary_length(ordered).buffers()[1])[: SIZE_BYTES * len(ordered)])
    hashed.update(memoryview(_data(ordered)))
    return hashed.digest()[:DIGEST_BYTES]


def _sizes(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """The four bytes of size before each message."""
    sizes = array("i")
    sizes.frombytes(memoryview(pc.binary_length(bodies).buffers()[1])[: SIZE_BYTES * len(bodies)])
    if sys.byteorder == "little":
        sizes.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(SIZE_BYTES), len(bodies), [None, pa.py_buffer(sizes.tobytes())])
    return fixed.cast(pa.binary())


def _positions(bodies: pa.BinaryArray) -> memoryview:
    return memoryview(bodies.buffers()[1]).cast("i")[bodies.offset : bodies.offset + len(bodies) + 1]


def _data(bodies: pa.BinaryArray) -> pa.Buffer:
    """The bytes of the messages, back to back."""
    if not len(bodies):
        return pa.py_buffer(b"")
    positions = _positions(bodies)
    return bodies.buffers()[2].slice(positions[0], positions[-1] - positions[0])


# The rows of one task.

COUNT_BYTES = 4
"""The count at the start of an MPUB."""

_OCCURRENCE = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """What names a task's output, the same in every attempt."""

    query: str
    batch_id: int
    partition_id: int

    @property
    def salt(self) -> bytes:
        """What goes into the name of an MPUB besides its messages."""
        return f"{self.query}/{self.partition_id}".encode()


class Outbox:
    """Messages for one topic that wait until they fill an MPUB."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: list[pa.BinaryArray] = []
        self._waiting_bytes = 0

    def add(self, bodies: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
        """Add messages. Yields the messages of each MPUB that is full."""
        while len(bodies):
            count = fitting_count(bodies, room_bytes=self._max_bytes - self._waiting_bytes)
            if not count and not self._waiting:
                count = 1  # larger than `max_bytes`: nsqd decides whether to take it
            if count:
                fitting = bodies.slice(0, count)
                self._waiting.append(fitting)
                self._waiting_bytes += mpub_bytes(fitting)
                bodies = bodies.slice(count)
            if len(bodies):
                yield self.take()

    def take(self) -> pa.BinaryArray:
        """Remove and return all messages that wait."""
        taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return taken[0] if len(taken) == 1 else pa.concat_arrays(taken)


class PartitionWriter:
    """Publishes the rows of one task: sorted by topic, cut into MPUBs and named. Owned by that task."""

    def __init__(
        self, publisher: MpubPublisher, identity: WriteIdentity, *, topic: str | None, max_body_bytes: int
    ) -> None:
        self._publisher = publisher
        self._identity = identity
        self._topic = topic
        self._max_bytes = max_body_bytes - COUNT_BYTES
        self._outboxes: dict[str, Outbox] = {}
        self._sent: Counter[tuple[str, bytes]] = Counter()
        """How many MPUBs with the same messages went to a topic."""

    def add(self, rows: pa.RecordBatch) -> None:
        """Publish these rows, or keep them until an MPUB is full. RowError if a row cannot be a message."""
        if HEADERS in rows.schema.names:
            rows = in_envelopes(rows)
        _refuse_empty(rows)
        if DEFER_MS in rows.schema.names:
            delays_ms = rows.column(DEFER_MS)
            zero = constant(0, delays_ms.type)
            is_deferred = pc.greater(pc.fill_null(delays_ms, zero), zero)
            self._publish_deferred(rows.filter(is_deferred))
            rows = rows.filter(pc.invert(is_deferred))
        for topic, of_topic in self._by_topic(rows):
            outbox = self._outboxes.setdefault(topic, Outbox(max_bytes=self._max_bytes))
            for full in outbox.add(of_topic):
                self._publish(topic, full)

    def finish(self) -> None:
        """Publish what is left and wait until all is confirmed."""
        for topic, outbox in self._outboxes.items():
            self._publish(topic, outbox.take())
        self._publisher.flush()

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.BinaryArray]]:
        if not rows.num_rows:
            return
        bodies = rows.column(BODY).cast(pa.binary())
        if self._topic is not None:
            yield self._topic, bodies
            return
        topics = rows.column(TOPIC)
        names = [_valid_topic(name) for name in pc.unique(topics).to_pylist()]
        if len(names) == 1:
            yield names[0], bodies
            return
        for name in names:
            yield name, bodies.filter(pc.equal(topics, constant(name, pa.string())))

    def _publish(self, topic: str, bodies: pa.BinaryArray) -> None:
        content = digest(bodies, salt=self._identity.salt)
        occurrence = self._sent[topic, content]
        self._sent[topic, content] += 1
        name = digest(byte_strings([content, _OCCURRENCE.pack(occurrence)]), salt=b"") if occurrence else content
        sequence = self._identity.batch_id
        self._publisher.publish(
            PublishRequest(topic=topic, parts=mpub_body(bodies), producer_id=name.hex(), sequence=sequence)
        )

    def _publish_deferred(self, rows: pa.Table) -> None:
        """Publish one by one: NSQ has no command for several deferred messages."""
        topics = [self._topic] * rows.num_rows if self._topic is not None else rows.column(TOPIC).to_pylist()
        bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
        for topic, body, defer_ms in zip(topics, bodies, rows.column(DEFER_MS).to_pylist(), strict=True):
            self._publisher.publish(PublishRequest(topic=_valid_topic(topic), parts=(body,), defer_ms=defer_ms))


def _valid_topic(name: str | None) -> str:
    if name is None or not is_valid_name(name):
        shown = "null" if name is None else quoted(name)
        raise RowError(f'column "{TOPIC}": {shown} is not the name of a topic')
    return name


def _refuse_empty(rows: pa.RecordBatch) -> None:
    bodies = rows.column(BODY)
    if bodies.null_count or (len(bodies) and pc.min(pc.binary_length(bodies)).as_py() == 0):
        raise RowError(
            f'column "{BODY}" is null or empty in a row, and NSQ has no empty messages; leave such rows out: '
            f'filter("length({BODY}) > 0")'
        )


# What Spark calls.


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame once. A job that is run again is another write, unless it has the same `writeId`."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._job = settings.write_id or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called in a task."""
        identity = WriteIdentity(query=self._job, batch_id=0, partition_id=_task().partitionId())
        return _write(iterator, self._settings, identity)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Called in a task."""
        task = _task()
        identity = WriteIdentity(
            query=task.getLocalProperty("sql.streaming.queryId") or "",
            batch_id=int(task.getLocalProperty("streaming.sql.batchId") or 0),
            partition_id=task.partitionId(),
        )
        return _write(iterator, self._settings, identity)


def reachable(settings: SinkSettings, *, timeout_s: float) -> SinkSettings:
    """The settings with all nsqds named. NsqdUnavailableError if one of them does not answer in `timeout_s`."""

    def answering_nsqds() -> tuple[str, ...]:
        nsqds = tuple(book.nsqds())
        for nsqd in nsqds:
            book.peer(nsqd).get("/info")
        return nsqds

    with closing(AddressBook(settings.access)) as book:
        nsqds = patiently(answering_nsqds, timeout_s=timeout_s)
    if not nsqds:
        raise OptionError(f"nsqlookupd {settings.access.lookupds[0]} knows no nsqd to write to")
    return replace(settings, access=replace(settings.access, nsqds=nsqds))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # noqa: S101 - Spark calls `write` in tasks only
    return task


def _write(iterator: Iterator[pa.RecordBatch], settings: SinkSettings, identity: WriteIdentity) -> WriterCommitMessage:
    nsqds = settings.access.nsqds
    nsqd = nsqds[identity.partition_id % len(nsqds)]
    with closing(MpubPublisher(nsqd, settings.access)) as publisher:
        writer = PartitionWriter(publisher, identity, topic=settings.topic, max_body_bytes=settings.max_body_bytes)
        for rows in iterator:
            writer.add(rows)
        writer.finish()
    return WriterCommitMessage()
