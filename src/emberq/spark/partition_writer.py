"""The rows of one task, sorted by topic, cut into MPUBs and named. See `sink` for what the names promise."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from emberq.base.printable import quoted
from emberq.spark.error import RowError
from emberq.spark.mpub_body import digest, fitting_count, mpub_body, mpub_bytes
from emberq.spark.publisher import Publish, Publisher
from emberq.spark.sink_schema import BODY, DEFER_MS, TOPIC
from emberq.wire.name import is_valid_name

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
        self, publisher: Publisher, identity: WriteIdentity, *, topic: str | None, max_body_bytes: int
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
            Publish(
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
                Publish(topic=_valid_topic(topic), parts=(body,), length=len(body), defer_ms=defer_ms)
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
