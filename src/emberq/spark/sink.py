"""Rows to messages: the writers, MPUB bodies, requests under way.

Rows to messages: what the tasks of a write do, batch and streaming.

Each task publishes its rows to one nsqd with MPUBs of up to `maxBodyBytes`, several of them under way at a time. It has
succeeded when all are confirmed; an nsqd with a journaled topic confirms what is on its disk.

**Retries do not double.** Spark runs a task again when it does not know that it succeeded, and a whole micro-batch
after a crash. So every MPUB carries a name: a producer id that stands for the query, the partition and the messages in
it, in whatever order, and the number of the micro-batch as its sequence. An emberq nsqd stores what it has stored under
that name already no second time, if the topic is journaled. The name follows from the content and not from the place
among others, because Spark may cut and order the same rows differently the second time (behind a shuffle, or with
another number of partitions): then a message may be stored twice, but never is one taken for another and lost.

What remains, for journaled topics: exactly once if the rows of each task, for each topic, fit into one MPUB, or come in
the same order again (from a source and without a shuffle). Else, for classic topics, for Go's nsqd, and for deferred
messages, which are published one by one: at least once.

Which nsqd gets the rows follows from the number of the partition, so that a retry finds it again as long as the nsqds
are the same. There is no failover to another: it would double what the first one stored before it went silent.

The rows of one task, sorted by topic, cut into MPUBs and named. See `sink` for what the names promise.

Publishing to one nsqd over HTTP, several requests under way at a time.

A request that gets no answer is put again, with the same name, until `retryTimeout` has passed. Order between requests
is not kept then; names do not depend on it.

The body of an MPUB, made from an Arrow column without touching a row in Python.

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
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from emberq.base.text import quoted
from emberq.spark.error import NsqdUnavailableError, OptionError, RowError
from emberq.spark.nsqd_http import AddressBook, HttpPeer, patiently
from emberq.spark.option import Access, SinkSettings
from emberq.spark.schema import BODY, DEFER_MS, TOPIC
from emberq.wire.parameter import is_valid_name

MAX_UNDER_WAY = 2
"""Requests sent and not yet confirmed: while nsqd stores what one brought, the next is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """One request: to /mpub, or to /pub if it is deferred."""

    topic: str
    parts: Sequence[bytes | memoryview]
    """The body, in pieces."""
    length: int
    producer_id: str = ""
    """Under which name nsqd remembers it, 32 hexadecimal digits, with `sequence`; empty: it does not."""
    sequence: int = 0
    defer_ms: int = 0

    @property
    def path(self) -> str:
        return "/pub" if self.defer_ms else "/mpub"

    @property
    def query(self) -> dict[str, str | int]:
        if self.defer_ms:
            return {"topic": self.topic, "defer": self.defer_ms}
        return {"topic": self.topic, "binary": "true"}

    @property
    def headers(self) -> dict[str, str]:
        length = {"Content-Length": str(self.length)}  # else the parts would be sent as chunks
        if not self.producer_id:
            return length
        return length | {"X-Emberq-Producer": self.producer_id, "X-Emberq-Sequence": str(self.sequence)}


@dataclass(slots=True)
class _PublishLine:
    """A connection, and what was sent on it and is not confirmed."""

    peer: HttpPeer
    under_way: PublishRequest | None = None
    failure: NsqdUnavailableError | None = field(default=None)
    """Why it could not be sent."""


class MpubPublisher:
    """Owned by a task."""

    def __init__(self, nsqd: str, access: Access) -> None:
        self._retry_timeout_s = access.retry_timeout_s
        self._lines = deque(_PublishLine(HttpPeer(nsqd, access)) for _ in range(MAX_UNDER_WAY))
        """The one that has waited longest for its answer first."""

    def publish(self, publish: PublishRequest) -> None:
        """Send it. What was sent earlier may be waited for, and what is wrong with that is raised here."""
        line = self._lines[0]
        self._settle(line)
        self._lines.rotate(-1)
        line.under_way = publish
        try:
            _send(line.peer, publish)
        except NsqdUnavailableError as failure:
            line.failure = failure  # put again when its turn comes

    def flush(self) -> None:
        """Returns when everything is confirmed."""
        for line in self._lines:
            self._settle(line)

    def close(self) -> None:
        for line in self._lines:
            line.peer.close()

    def _settle(self, line: _PublishLine) -> None:
        publish, line.under_way = line.under_way, None
        if publish is None:
            return
        failure, line.failure = line.failure, None
        if failure is None:
            try:
                line.peer.receive()
            except NsqdUnavailableError:
                pass
            else:
                return
        patiently(lambda: _confirmed(line.peer, publish), timeout_s=self._retry_timeout_s)


def _confirmed(peer: HttpPeer, publish: PublishRequest) -> None:
    _send(peer, publish)
    peer.receive()


def _send(peer: HttpPeer, publish: PublishRequest) -> None:
    peer.send("POST", publish.path, query=publish.query, body=publish.parts, headers=publish.headers)


SIZE_BYTES = 4
DIGEST_BYTES = 16
"""What a producer id has. Half of a SHA-256, for which processors have instructions."""

_COUNT = struct.Struct(">i")


class ArrowMpubBody(NamedTuple):
    """Ready to be sent, `parts` one after the other."""

    parts: tuple[bytes, memoryview]
    length: int


def mpub_body(bodies: pa.BinaryArray) -> ArrowMpubBody:
    """The body that publishes these messages, in their order."""
    messages = pc.binary_join_element_wise(_sizes(bodies), bodies, b"")
    data = memoryview(_data(messages))
    return ArrowMpubBody((_COUNT.pack(len(bodies)), data), _COUNT.size + len(data))


def mpub_bytes(bodies: pa.BinaryArray) -> int:
    """How long the messages are in an MPUB, without their number."""
    return len(_data(bodies)) + SIZE_BYTES * len(bodies)


def fitting_count(bodies: pa.BinaryArray, *, room_bytes: int) -> int:
    """How many of the first messages take no more than `room_bytes` in an MPUB."""
    positions = _positions(bodies)

    def end_of(count: int) -> int:
        return positions[count] - positions[0] + SIZE_BYTES * count

    return bisect_right(range(1, len(bodies) + 1), room_bytes, key=end_of)


def digest(bodies: pa.BinaryArray, *, salt: bytes) -> bytes:
    """16 bytes that stand for these messages, in whatever order they are, and for `salt`."""
    ordered = bodies.take(pc.sort_indices(bodies))
    hashed = sha256(salt)
    hashed.update(memoryview(pc.binary_length(ordered).buffers()[1])[: SIZE_BYTES * len(ordered)])
    hashed.update(memoryview(_data(ordered)))
    return hashed.digest()[:DIGEST_BYTES]


def _sizes(bodies: pa.BinaryArray) -> pa.BinaryArray:
    """The size of each message as the four bytes that go before it."""
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


COUNT_BYTES = 4
"""What the number of messages takes at the start of an MPUB."""

_OCCURRENCE = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteIdentity:
    """What makes a task's output its own, the same in every attempt."""

    query: str
    batch_id: int
    partition_id: int

    @property
    def salt(self) -> bytes:
        """What goes into the names of its MPUBs besides the messages."""
        return f"{self.query}/{self.partition_id}".encode()


class Outbox:
    """Messages to one topic that wait to fill an MPUB."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: list[pa.BinaryArray] = []
        self._waiting_bytes = 0

    def add(self, bodies: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
        """Take these in; yields what fills an MPUB with more behind it."""
        while len(bodies):
            count = fitting_count(bodies, room_bytes=self._max_bytes - self._waiting_bytes)
            if not count and not self._waiting:
                count = 1  # larger than an MPUB should be; nsqd decides
            if count:
                fitting = bodies.slice(0, count)
                self._waiting.append(fitting)
                self._waiting_bytes += mpub_bytes(fitting)
                bodies = bodies.slice(count)
            if len(bodies):
                yield self.take()

    def take(self) -> pa.BinaryArray:
        """All that waits."""
        taken, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return taken[0] if len(taken) == 1 else pa.concat_arrays(taken)


class PartitionWriter:
    """Publishes the rows of one task. Owned by it."""

    def __init__(
        self, publisher: MpubPublisher, identity: WriteIdentity, *, topic: str | None, max_body_bytes: int
    ) -> None:
        self._publisher = publisher
        self._identity = identity
        self._topic = topic
        self._max_bytes = max_body_bytes - COUNT_BYTES
        self._outboxes: dict[str, Outbox] = {}
        self._sent: Counter[tuple[str, bytes]] = Counter()
        """How often MPUBs with the same messages went to a topic."""
        self._row_count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Publish these rows, or keep them until there are enough. RowError if one cannot be a message."""
        self._row_count += rows.num_rows
        _refuse_empty(rows)
        if DEFER_MS in rows.schema.names:
            is_deferred = pc.greater(pc.fill_null(rows.column(DEFER_MS), 0), 0)
            self._publish_deferred(rows.filter(is_deferred))
            rows = rows.filter(pc.invert(is_deferred))
        for topic, of_topic in self._by_topic(rows):
            outbox = self._outboxes.setdefault(topic, Outbox(max_bytes=self._max_bytes))
            for full in outbox.add(of_topic):
                self._publish(topic, full)

    def finish(self) -> int:
        """Publish what is left; returns the number of rows when all are confirmed."""
        for topic, outbox in self._outboxes.items():
            self._publish(topic, outbox.take())
        self._publisher.flush()
        return self._row_count

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.BinaryArray]]:
        if not rows.num_rows:
            return
        bodies = rows.column(BODY).cast(pa.binary())
        if self._topic is not None:
            yield self._topic, bodies
            return
        topics = rows.column(TOPIC)
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield _valid_topic(name), bodies if len(names) == 1 else bodies.filter(pc.equal(topics, name))

    def _publish(self, topic: str, bodies: pa.BinaryArray) -> None:
        content = digest(bodies, salt=self._identity.salt)
        occurrence = self._sent[topic, content]
        self._sent[topic, content] += 1
        name = digest(pa.array([content, _OCCURRENCE.pack(occurrence)]), salt=b"") if occurrence else content
        body = mpub_body(bodies)
        self._publisher.publish(
            PublishRequest(
                topic=topic,
                parts=body.parts,
                length=body.length,
                producer_id=name.hex(),
                sequence=self._identity.batch_id,
            )
        )

    def _publish_deferred(self, rows: pa.Table) -> None:
        """One by one, for NSQ has no command for several."""
        topics = [self._topic] * rows.num_rows if self._topic is not None else rows.column(TOPIC).to_pylist()
        bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
        for topic, body, defer_ms in zip(topics, bodies, rows.column(DEFER_MS).to_pylist(), strict=True):
            self._publisher.publish(
                PublishRequest(topic=_valid_topic(topic), parts=(body,), length=len(body), defer_ms=defer_ms)
            )


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


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has published."""

    row_count: int


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
    """The settings with all nsqds named. NsqdUnavailable if one of them does not answer in `timeout_s`."""
    book = AddressBook(settings.access)

    def answering_nsqds() -> tuple[str, ...]:
        nsqds = tuple(book.nsqds())
        for nsqd in nsqds:
            book.peer(nsqd).get("/info")
        return nsqds

    try:
        nsqds = patiently(answering_nsqds, timeout_s=timeout_s)
    finally:
        book.close()
    if not nsqds:
        raise OptionError(f"nsqlookupd {settings.access.lookupds[0]} knows no nsqd to write to")
    return replace(settings, access=replace(settings.access, nsqds=nsqds))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # noqa: S101 - Spark calls `write` in tasks only
    return task


def _write(iterator: Iterator[pa.RecordBatch], settings: SinkSettings, identity: WriteIdentity) -> Written:
    nsqds = settings.access.nsqds
    publisher = MpubPublisher(nsqds[identity.partition_id % len(nsqds)], settings.access)
    writer = PartitionWriter(publisher, identity, topic=settings.topic, max_body_bytes=settings.max_body_bytes)
    try:
        for rows in iterator:
            writer.add(rows)
        return Written(writer.finish())
    finally:
        publisher.close()
