"""Rows to messages: what the tasks of a write do, batch and streaming.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from emberq.spark.address_book import AddressBook
from emberq.spark.error import OptionError
from emberq.spark.http import patiently
from emberq.spark.partition_writer import PartitionWriter, WriteIdentity
from emberq.spark.publisher import Publisher
from emberq.spark.setting import SinkSettings


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
    publisher = Publisher(nsqds[identity.partition_id % len(nsqds)], settings.access)
    writer = PartitionWriter(publisher, identity, topic=settings.topic, max_body_bytes=settings.max_body_bytes)
    try:
        for rows in iterator:
            writer.add(rows)
        return Written(writer.finish())
    finally:
        publisher.close()
