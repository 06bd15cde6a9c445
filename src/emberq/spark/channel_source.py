"""Spark's reader of a channel: a stream from any nsqd, exactly once as far as Spark is concerned.

A receiver on the driver puts messages into a spool on disk and finishes them (`channel_receiver`, `channel_spool`).
Tasks read the spool. Offsets are positions in it:

    {"spool": "0b5f6a52-…", "next": 183}

The folder of the spool must be the same for the driver and all executors: any folder if Spark runs on one machine, a
shared one on a cluster. It belongs to the checkpoint: neither means anything without the other.

The column `nsqd` holds the TCP address here, as in `emberq.client`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from emberq.spark.channel_frames import rows
from emberq.spark.channel_spool import Spool, StoredFile, read_segment
from emberq.spark.error import NsqdUnavailableError, NsqSparkError, OptionError
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SourceSettings

if TYPE_CHECKING:
    from emberq.spark.channel_receiver import ChannelReceiver

_log = logging.getLogger(__name__)


# What a channel still has to deliver.


def backlog(settings: SourceSettings, book: AddressBook) -> int | None:
    """How many messages of the channel wait or are in flight; None if an nsqd does not answer.

    Deferred messages, and messages of a paused topic or channel, are not counted: a query that reads what is there and
    ends does not wait for them.
    """
    count = 0
    try:
        for nsqd, topic in book.places(topics=settings.topics, pattern=None):
            # Without the channel: nsqd would leave out a topic that does not have it yet, and the messages there.
            stats = book.peer(nsqd).get_json("/stats", format="json", topic=topic, include_clients="false")
            for told in stats["topics"] or ():
                count += 0 if told["paused"] else int(told["depth"])
                for channel in told["channels"] or ():
                    if channel["channel_name"] == settings.channel and not channel["paused"]:
                        count += int(channel["depth"]) + int(channel["in_flight_count"])
    except NsqdUnavailableError as failure:
        _log.warning("how many messages wait cannot be told: %s", failure)
        return None
    return count


# The stream.

IDLE_WAIT_S = 0.05
"""How long a call waits for new messages. Spark asks again at once when there are none."""
IDLE_PAUSE_S = 0.005
BACKLOG_PAUSE_S = 0.1
"""With Trigger.AvailableNow: the pause between two questions to nsqds about what is left."""
MAX_STILL_S = 90.0
"""With Trigger.AvailableNow: when nothing arrives for so long, the query does not wait for the rest. It is longer than
nsqd's default message timeout of a minute, after which messages of a dead consumer are delivered again."""
ROWS_PER_BATCH = 10_000
BYTES_PER_BATCH = 32 * 1024 * 1024
"""A batch of large rows ends earlier: a column of Arrow holds at most 2 GiB."""


class SegmentPartition(InputPartition):
    """The paths of the segments that one task reads."""


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a channel as a stream. On the driver one object serves a query from start to stop."""

    def __init__(self, settings: SourceSettings) -> None:
        if settings.channel is None:
            raise OptionError('option "channel" is missing: the channel to consume, in mode "channel"')
        if settings.spool is None:
            raise OptionError('option "spool" is missing: a folder for messages on their way, in mode "channel"')
        if "://" in settings.spool:
            raise OptionError(
                f'option "spool": {settings.spool} is no folder; a disk of this machine, or a shared one, is needed'
            )
        if settings.topic_pattern is not None:
            raise OptionError('option "topicPattern" works with journals only; list the topics in option "topic"')
        for name, value in (
            ("minRowsPerTrigger", settings.min_rows_per_trigger),
            ("maxBytesPerTrigger", settings.max_bytes_per_trigger),
        ):
            if value is not None:
                raise OptionError(f'option "{name}" works with journals only; "maxRowsPerTrigger" does with channels')
        self._settings = settings
        self._folder = settings.spool
        self._spool: Spool | None = None
        self._receiver: ChannelReceiver | None = None
        self._available_end: int | None = None
        self._is_terminated = False

    def __getstate__(self) -> dict[str, Any]:
        return {**ChannelStreamReader(self._settings).__dict__}

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are the others
        """Where a query without a checkpoint begins: at the first segment of the spool."""
        spool = self._opened()
        return _document(spool, spool.first_number)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The size limit of a micro-batch."""
        max_rows = self._settings.max_rows_per_trigger
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Receive what the channel holds now. What arrives later is not read."""
        spool = self._opened()
        if self._receiver is not None:
            self._receive_backlog(spool, self._receiver)
            self._receiver.stop()  # later messages would wait for their timeout when Spark ends this process
        self._available_end = spool.next_number

    def _receive_backlog(self, spool: Spool, receiver: ChannelReceiver) -> None:
        """Returns when the channel is empty, its backlog is stored, the spool is full, or nothing arrives any more."""
        with closing(AddressBook(self._settings.access)) as book:
            wanted = backlog(self._settings, book)
            stored, changed_at_s = 0, time.monotonic()
            first = spool.next_number
            while (
                (left := backlog(self._settings, book)) != 0
                and (wanted is None or stored < wanted)
                and not receiver.is_full
            ):
                self._check()
                before, stored = stored, spool.row_count_from(first)
                now_s = time.monotonic()
                changed_at_s = now_s if stored > before else changed_at_s
                if now_s > changed_at_s + MAX_STILL_S:
                    _log.warning("%s messages are left that do not come", "some" if left is None else left)
                    return
                time.sleep(BACKLOG_PAUSE_S)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` if nothing arrives within `IDLE_WAIT_S`."""
        spool = self._opened()
        first = self._number(start)
        if self._receiver is not None:
            self._receiver.has_read(first)  # not in `commit`, which waits for a next batch that may never come
        deadline_s = time.monotonic() + IDLE_WAIT_S
        while spool.next_number <= first and self._available_end is None and time.monotonic() < deadline_s:
            self._check()
            time.sleep(IDLE_PAUSE_S)
        self._check()
        end = spool.next_number if self._available_end is None else self._available_end
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _document(spool, _limited_end(spool.segments, first=first, end=max(first, end), max_rows=max_rows))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The segments of a micro-batch. After a restart Spark calls this first, with offsets of the checkpoint."""
        spool = self._opened()
        first, behind = self._number(start), self._number(end)
        segments = [segment for segment in spool.segments if first <= segment.first < behind]
        if len(segments) < behind - first:
            self._settings.report_loss(
                f"of the segments {first} to {behind - 1} of spool {self._folder}, only {len(segments)} are there"
            )
        row_count = sum(segment.row_count for segment in segments)
        rows_per_task = min(self._settings.rows_per_partition, -(-row_count // self._settings.min_partitions))
        return [
            SegmentPartition([str(each.path) for each in group])
            for group in _groups(segments, rows_per_partition=rows_per_task)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark plans the next batch."""
        self._opened().prune(before=self._number(end))

    def stop(self) -> None:
        """Called when the process ends; Spark sends it SIGTERM for that."""
        if self._receiver is not None:
            self._receiver.stop()
        if self._spool is not None:
            self._spool.close()
        if self._is_terminated:
            os._exit(0)  # else Spark's code writes to a driver that has closed its end, and prints a traceback

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some segments."""
        if isinstance(partition, SegmentPartition):  # Spark passes one of its own when there is nothing to read
            yield from _portions(
                rows(messages.frames, messages.origin, self._settings.columns)
                for path in partition.value
                for messages in read_segment(Path(path))
            )

    def _opened(self) -> Spool:
        if self._spool is None:
            # Here, because only this process receives. All others of Spark start in a quarter less time without it.
            from emberq.spark.channel_receiver import ChannelReceiver

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
        """Handle SIGTERM: leave what is being done, and any lock held for it. On the way out Spark's code calls `stop`.

        `stop` stores what is in flight, or leaves it to nsqd, which delivers it again.
        """
        self._is_terminated = True
        sys.exit(0)

    def _check(self) -> None:
        if self._receiver is not None and self._receiver.failure is not None:
            raise NsqSparkError(f"receiving has ended: {self._receiver.failure}") from self._receiver.failure

    def _number(self, offset: dict[str, Any]) -> int:
        """The segment number in an offset, which must be of this spool."""
        spool = self._opened()
        try:
            uuid, number = str(offset["spool"]), int(offset["next"])
        except (KeyError, TypeError, ValueError) as error:
            raise NsqSparkError(
                "the checkpoint holds no offsets of a spool; was it made in another mode? Go back to that mode, or use "
                "a new checkpointLocation"
            ) from error
        if uuid != spool.uuid:
            self._settings.report_loss(f"spool {self._folder} is not the one that this query has read")
            return spool.first_number
        return number


def is_reader_process() -> bool:
    """Whether Spark started this process to run a query's reader."""
    return "pyspark.sql.streaming.python_streaming_source_runner" in " ".join(sys.orig_argv)


def _document(spool: Spool, number: int) -> dict[str, Any]:
    return {"spool": spool.uuid, "next": number}


def _limited_end(segments: Sequence[StoredFile], *, first: int, end: int, max_rows: int | None) -> int:
    """The end of a batch from `first` on with at most `max_rows`, but at least one segment."""
    batch = [segment for segment in segments if first <= segment.first < end]
    for segment, row_count in zip(batch, accumulate(segment.row_count for segment in batch), strict=True):
        if max_rows is not None and row_count > max_rows:
            return max(segment.first, first + 1)
    return end


def _groups(segments: Sequence[StoredFile], *, rows_per_partition: int) -> Iterator[list[StoredFile]]:
    """Neighbouring segments, grouped so that a task has about `rows_per_partition` rows."""
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
    """The same rows in batches of `ROWS_PER_BATCH` or a little more, the size at which Spark is fastest."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        is_enough = sum(each.num_rows for each in waiting) >= ROWS_PER_BATCH
        if is_enough or sum(each.nbytes for each in waiting) >= BYTES_PER_BATCH:
            yield pa.concat_batches(waiting)
            waiting = []
    if waiting:
        yield pa.concat_batches(waiting)
