"""Spark's reader of a channel.

A channel as a stream of Spark, for any nsqd, exactly once as far as Spark is concerned.

A receiver on the driver puts messages into a spool on disk and finishes them (`channel_receiver`, `channel_spool`);
tasks read the spool. Offsets are positions in it:

    {"spool": "0b5f6a52-…", "next": 183}

The folder of the spool must be the same for the driver and all executors: any folder if Spark runs on one machine, a
shared one on a cluster. It belongs to the checkpoint: neither means anything without the other.

What `emberq.client` calls an nsqd's address, that for TCP, is what the column `nsqd` says here.

How many messages a channel still has to deliver, as its nsqds say: for a query that is to read them and then end.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from emberq.spark.channel_frames import rows
from emberq.spark.channel_receiver import ChannelReceiver
from emberq.spark.channel_segment import StoredFile, read_segment
from emberq.spark.channel_spool import Spool
from emberq.spark.error import DataLossError, NsqdUnavailableError, NsqSparkError, OptionError
from emberq.spark.journal_offset import Place
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SourceSettings

_log = logging.getLogger(__name__)


class ChannelBacklog:
    """Asks the nsqds. Owned by one reader on the driver, while it needs it."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._book = AddressBook(settings.access)

    def close(self) -> None:
        self._book.close()

    def count(self) -> int | None:
        """Messages that wait or are in flight; None if that cannot be found out just now.

        Those that are put off, and those that somebody has paused, are not waited for.
        """
        try:
            places = self._book.places(topics=self._settings.topics, pattern=None)
            return sum(self._count_at(place) for place in places)
        except NsqdUnavailableError as failure:
            _log.warning("how many messages wait cannot be told: %s", failure)
            return None

    def _count_at(self, place: Place) -> int:
        # Not of the channel alone: nsqd leaves out a topic that does not have it yet, and what waits there for it.
        stats = self._book.peer(place.nsqd).get_json(
            "/stats", format="json", topic=place.topic, include_clients="false"
        )
        return sum(_of_topic(topic, str(self._settings.channel)) for topic in stats.get("data", stats)["topics"] or ())


def _of_topic(topic: dict[str, Any], name: str) -> int:
    named = [channel for channel in topic["channels"] or () if channel["channel_name"] == name]
    channels = [channel for channel in named if not channel["paused"]]
    count = 0 if topic["paused"] else int(topic["depth"])
    return count + sum(int(channel["depth"]) + int(channel["in_flight_count"]) for channel in channels)


IDLE_WAIT_S = 0.05
"""Spark asks again at once when there is nothing new; so long it is kept waiting."""
IDLE_PAUSE_S = 0.005
BACKLOG_PAUSE_S = 0.1
"""With Trigger.AvailableNow: how often nsqds are asked what is left."""
MAX_STILL_S = 90.0
"""With Trigger.AvailableNow: when nothing comes for so long, what is left is not waited for. That is longer than it
takes until a message comes again that a dead consumer has left behind: a minute, unless nsqd is told otherwise."""
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 32 * 1024 * 1024
"""Fewer rows are enough if they are large; a column of Arrow ends at 2 GiB."""


class SegmentPartition(InputPartition):
    """Segments that one task reads."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(paths)


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver one object serves a query from start to stop."""

    def __init__(self, settings: SourceSettings, *, spool: str | None) -> None:
        if settings.channel is None:
            raise OptionError('option "channel" is missing: the channel to consume, in mode "channel"')
        if spool is None:
            raise OptionError('option "spool" is missing: a folder for messages on their way, in mode "channel"')
        if "://" in spool:
            raise OptionError(
                f'option "spool": {spool} is no folder; a disk of this machine, or a shared one, is needed'
            )
        if settings.topic_pattern is not None:
            raise OptionError('option "topicPattern" works with journals only; list the topics in option "topic"')
        self._settings = settings
        self._folder = spool
        self._spool: Spool | None = None
        self._receiver: ChannelReceiver | None = None
        self._available_end: int | None = None
        self._is_terminated = False

    def __getstate__(self) -> dict[str, Any]:
        return {**ChannelStreamReader(self._settings, spool=self._folder).__dict__}

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are the others
        """Where a query begins that has no checkpoint: with what is in the spool."""
        spool = self._opened()
        return _document(spool, spool.first_number)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a micro-batch may be."""
        max_rows = self._settings.max_rows_per_trigger
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Receive what the channel has; what arrives later is not read."""
        spool = self._opened()
        if self._receiver is not None:
            self._receive_backlog(spool, self._receiver)
            self._receiver.stop()  # what it took now would have to wait for its timeout when Spark ends this process
        self._available_end = spool.next_number

    def _receive_backlog(self, spool: Spool, receiver: ChannelReceiver) -> None:
        """Returns when the channel is empty, as much was stored as it had or as the spool takes, or nothing comes."""
        backlog = ChannelBacklog(self._settings)
        try:
            wanted = backlog.count()
            stored, changed_at_s = 0, time.monotonic()
            first = spool.next_number
            while (left := backlog.count()) != 0 and (wanted is None or stored < wanted) and not receiver.is_full:
                self._check()
                before, stored = stored, spool.row_count_from(first)
                now_s = time.monotonic()
                changed_at_s = now_s if stored > before else changed_at_s
                if now_s > changed_at_s + MAX_STILL_S:
                    _log.warning("%s messages are left that do not come", "some" if left is None else left)
                    return
                time.sleep(BACKLOG_PAUSE_S)
        finally:
            backlog.close()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` if there is nothing to read within a moment."""
        spool = self._opened()
        first = self._number(start)
        if self._receiver is not None:
            self._receiver.has_read(first)  # and not when it is committed, which may wait for a batch that never comes
        deadline_s = time.monotonic() + IDLE_WAIT_S
        while spool.next_number <= first and self._available_end is None and time.monotonic() < deadline_s:
            self._check()
            time.sleep(IDLE_PAUSE_S)
        self._check()
        end = spool.next_number if self._available_end is None else self._available_end
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _document(spool, _limited_end(spool.segments, first=first, end=max(first, end), max_rows=max_rows))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a micro-batch read. After a restart this comes first, with what the checkpoint holds."""
        spool = self._opened()
        first, behind = self._number(start), self._number(end)
        segments = [segment for segment in spool.segments if first <= segment.number < behind]
        if len(segments) < behind - first:
            self._lost(
                f"of the segments {first} to {behind - 1} of spool {self._folder}, only {len(segments)} are there"
            )
        row_count = sum(segment.row_count for segment in segments)
        rows_per_task = min(self._settings.rows_per_partition, -(-row_count // self._settings.min_partitions))
        return [
            SegmentPartition([str(each.path) for each in group])
            for group in _groups(segments, rows_per_partition=rows_per_task)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark plans the batch behind this one."""
        self._opened().prune(before=self._number(end))

    def stop(self) -> None:
        """Called when the process ends, for which Spark sends it a SIGTERM."""
        if self._receiver is not None:
            self._receiver.stop()
        if self._spool is not None:
            self._spool.close()
        if self._is_terminated:
            os._exit(0)  # or Spark's code would tell a driver that does not listen any more, and complain of that

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some segments."""
        if isinstance(partition, SegmentPartition):  # Spark makes one of its own when there is nothing to read
            yield from _portions(
                rows(messages.frames, messages.origin)
                for path in partition.value
                for messages in read_segment(Path(path))
            )

    def _opened(self) -> Spool:
        if self._spool is None:
            spool = Spool(Path(self._folder))
            spool.open()
            receiver = ChannelReceiver(self._settings, spool)
            try:
                receiver.start()
            except NsqSparkError:
                spool.close()
                raise
            self._spool, self._receiver = spool, receiver
            if threading.current_thread() is threading.main_thread() and is_reader_process():
                signal.signal(signal.SIGTERM, self._terminated)
        return self._spool

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        """Leave whatever is being done, locks and all; on the way out Spark's code calls `stop`.

        So what is in flight is stored or given back. What a receiver has that is just gone, nsqd brings again as well.
        """
        self._is_terminated = True
        sys.exit(0)

    def _check(self) -> None:
        if self._receiver is not None and self._receiver.failure is not None:
            raise NsqSparkError(f"receiving has ended: {self._receiver.failure}") from self._receiver.failure

    def _number(self, offset: dict[str, Any]) -> int:
        """The segment that an offset means. It must be one of this spool."""
        spool = self._opened()
        try:
            uuid, number = str(offset["spool"]), int(offset["next"])
        except (KeyError, TypeError, ValueError) as error:
            raise NsqSparkError(
                "the checkpoint holds no offsets of a spool; was it made in another mode? Go back to that mode, or use "
                "a new checkpointLocation"
            ) from error
        if uuid != spool.uuid:
            self._lost(f"spool {self._folder} is not the one that this query has read")
            return spool.first_number
        return number

    def _lost(self, text: str) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLossError(f'{text}. Option "failOnDataLoss" = "false" goes on with what is there')
        _log.warning("%s", text)


def is_reader_process() -> bool:
    """Whether this process is the one that Spark made for a query's reader, and not somebody's program."""
    return "pyspark.sql.streaming.python_streaming_source_runner" in " ".join(sys.orig_argv)


def _document(spool: Spool, number: int) -> dict[str, Any]:
    return {"spool": spool.uuid, "next": number}


def _limited_end(segments: Sequence[StoredFile], *, first: int, end: int, max_rows: int | None) -> int:
    """Where a batch from `first` on ends that has `max_rows` at most, but one segment at least."""
    if max_rows is None:
        return end
    row_count = 0
    for segment in segments:
        if first <= segment.number < end:
            row_count += segment.row_count
            if row_count > max_rows:
                return max(segment.number, first + 1)
    return end


def _groups(segments: Sequence[StoredFile], *, rows_per_partition: int) -> Iterator[list[StoredFile]]:
    """Neighbours, so many that a task has about `rows_per_partition` rows."""
    group: list[StoredFile] = []
    row_count = 0
    for segment in segments:
        group.append(segment)
        row_count += segment.row_count
        if row_count >= rows_per_partition:
            yield group
            group, row_count = [], 0
    if group:
        yield group


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `ROWS_PER_BATCH`, or a little more, where Spark is fastest."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        is_enough = sum(each.num_rows for each in waiting) >= ROWS_PER_BATCH
        if is_enough or sum(each.nbytes for each in waiting) >= BYTES_PER_BATCH:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)
