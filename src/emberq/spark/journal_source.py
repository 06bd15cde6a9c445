"""Spark's readers of journals, batch and streaming, and the channel that follows a stream.

Both readers plan on the driver and read in tasks. A plan is ranges of offsets, and a range always gives the same rows.
That makes a stream exact: whatever dies, Spark asks for the same ranges again. Readers are pickled into every task, so
they hold settings, and open connections at the first use.

**The channel** keeps retention from removing what a stream has not read, and its depth shows the stream's lag in
nsqadmin. It has no consumers. The stream creates it where it begins, and moves it to what was committed by
/channel/seek. The channel is advice only: the stream's own position is in its checkpoint, and a channel that cannot be
moved is moved with the next commit. Spark commits a batch when it plans the next one, so the channel is one batch
behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from emberq.spark.error import NsqdRefusedError, NsqdUnavailableError
from emberq.spark.journal_offset import Place, Position, Positions, from_document, to_document
from emberq.spark.journal_plan import (
    JournalExtent,
    JournalSurvey,
    Range,
    batch_ranges,
    next_step,
    ranges_between,
    rows_within,
    split,
    start_positions,
)
from emberq.spark.journal_read import RangeReader
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SourceSettings

_log = logging.getLogger(__name__)


# The channel that follows a stream.


class RetentionCursor:
    """Moves a channel of every topic that a stream reads. Owned by the stream's reader on the driver."""

    def __init__(self, channel: str, book: AddressBook) -> None:
        self._channel = channel
        self._book = book
        self._offsets: dict[Place, int] = {}
        """Where each channel was moved to last."""

    def move_to(self, positions: Positions) -> None:
        """Move the channels to these positions. What lies before them is not needed any more."""
        for place, position in positions.items():
            if self._offsets.get(place) == position.offset:
                continue
            try:
                self._move(place, position.offset)
            except (NsqdUnavailableError, NsqdRefusedError) as failure:
                _log.warning("channel %s of %s stays where it is: %s", self._channel, place, failure)
            else:
                self._offsets[place] = position.offset

    def _move(self, place: Place, offset: int) -> None:
        peer = self._book.peer(place.nsqd)
        names = {"topic": place.topic, "channel": self._channel}
        if place not in self._offsets:
            # A channel that exists stays where it is, and is moved below.
            peer.post("/channel/create", {**names, "from": offset})
        peer.post("/channel/seek", {**names, "to": offset})


# The readers.

IDLE_WAIT_S = 0.05
"""How long a call waits for new messages. Spark asks again at once when there are none."""
IDLE_PAUSE_S = 0.01
"""Between two questions while a call waits: a new message waits at most so long."""


class RangePartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, wanted: Range, *, bytes_per_row: int) -> None:
        super().__init__(wanted)
        self.bytes_per_row = bytes_per_row
        """On the average; 0 if unknown."""


class JournalBatchReader(DataSourceReader):
    """Reads what lies between two offsets of each journal."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """Called on the driver, once for each scan."""
        ranges, journals = batch_ranges(self._settings)
        return _partitions(ranges, journals, self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in a task."""
        return _read(partition, self._settings)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads journals as they grow. On the driver one object serves a query from start to stop."""

    def __init__(self, settings: SourceSettings, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._survey: JournalSurvey | None = None
        self._cursor: RetentionCursor | None = None
        self._journals: dict[Place, JournalExtent] = {}
        """The journals of the last survey."""
        self._monotonic_s = monotonic_s
        self._batch_s = float("-inf")
        """When the last batch with rows was planned."""
        self._available: dict[Place, JournalExtent] | None = None
        """With Trigger.AvailableNow: the journals when the query started, to whose ends it reads."""

    def __getstate__(self) -> dict[str, Any]:
        return {**JournalStreamReader(self._settings).__dict__}

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as are the others
        """Where a query without a checkpoint begins."""
        settings, survey = self._settings, self._opened()
        self._journals = survey.first_look()
        positions = start_positions(
            settings.start, self._journals, survey, fail_on_data_loss=settings.fail_on_data_loss
        )
        self._keep_from(positions)
        return to_document(positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The size limit of a micro-batch."""
        max_rows, max_bytes = self._settings.max_rows_per_trigger, self._settings.max_bytes_per_trigger
        if max_rows is not None:
            return ReadMaxRows(max_rows)
        return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is stored now. What is published later is not read."""
        self._available = self._opened().first_look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` if nothing is published within `IDLE_WAIT_S`."""
        positions = from_document(start)
        deadline_s = time.monotonic() + IDLE_WAIT_S
        while True:
            journals = self._look()
            gone = self._opened().gone(positions, journals)
            step = next_step(positions, journals, max_rows=self._max_rows(limit, positions, journals), gone=gone)
            if step.losses:
                self._settings.report_loss("; ".join(step.losses))
            rows = sum(each.row_count for each in ranges_between(positions, step.end))
            is_idle = step.end == positions or self._waits_for_more(rows)
            if self._available is not None or not is_idle:
                if rows:
                    self._batch_s = self._monotonic_s()
                return to_document(step.end)
            if time.monotonic() >= deadline_s:
                return to_document(positions)
            time.sleep(IDLE_PAUSE_S)

    def _max_rows(self, limit: ReadLimit, positions: Positions, journals: dict[Place, JournalExtent]) -> int | None:
        """The limit of a batch in rows. Spark may ask for everything, whatever the options say."""
        if isinstance(limit, ReadAllAvailable):
            return None
        max_rows, max_bytes = self._settings.max_rows_per_trigger, self._settings.max_bytes_per_trigger
        if max_bytes is None:
            return max_rows
        rows = rows_within(max_bytes, positions, journals)
        return rows if max_rows is None else min(rows, max_rows)

    def _waits_for_more(self, rows: int) -> bool:
        """Whether there are rows, but not enough for a batch, and it is not too late to wait for more."""
        min_rows = self._settings.min_rows_per_trigger
        if min_rows is None or self._monotonic_s() >= self._batch_s + self._settings.max_trigger_delay_s:
            return False
        return 0 < rows < min_rows

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far the journals reach, for the query's metrics."""
        journals = self._known()
        return to_document({place: Position(each.uuid, each.end_offset) for place, each in journals.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of a micro-batch. After a restart Spark calls this first, with offsets of the checkpoint."""
        if not self._journals:
            self._journals = self._opened().look()
        ranges = ranges_between(from_document(start), from_document(end))
        return _partitions(ranges, self._journals, self._settings)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when Spark plans the next batch."""
        self._keep_from(from_document(end))

    def stop(self) -> None:
        """Close connections. Not always called: Spark may just kill the process, which does no harm."""
        if self._survey is not None:
            self._survey.close()

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return _read(partition, self._settings)

    def _opened(self) -> JournalSurvey:
        if self._survey is None:
            self._survey = JournalSurvey(self._settings)
        return self._survey

    def _look(self) -> dict[Place, JournalExtent]:
        if self._available is not None:
            return self._available
        self._journals = self._opened().look()
        return self._journals

    def _keep_from(self, positions: Positions) -> None:
        if self._settings.channel is None:
            return
        if self._cursor is None:
            self._cursor = RetentionCursor(self._settings.channel, self._opened().book)
        self._cursor.move_to({place: at for place, at in positions.items() if place in self._known()})

    def _known(self) -> dict[Place, JournalExtent]:
        return self._journals if self._available is None else self._available


def _partitions(
    ranges: list[Range], journals: dict[Place, JournalExtent], settings: SourceSettings
) -> list[InputPartition]:
    found_at = {journal.uuid: journal for journal in journals.values()}
    rows_per_partition, min_partitions = settings.rows_per_partition, settings.min_partitions
    pieces = split(ranges, rows_per_partition=rows_per_partition, min_partitions=min_partitions)
    return [_partition(piece, found_at.get(piece.journal)) for piece in pieces]


def _partition(piece: Range, journal: JournalExtent | None) -> RangePartition:
    """A partition with the journal's present address, if known. An nsqd may have moved since the checkpoint."""
    if journal is None:
        return RangePartition(piece, bytes_per_row=0)
    return RangePartition(replace(piece, place=journal.place), bytes_per_row=journal.bytes_per_row)


def _read(partition: InputPartition | None, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):
        return iter(())  # Spark passes one of its own when there is nothing to read
    return RangeReader(partition.value, settings, bytes_per_row=partition.bytes_per_row).read()
