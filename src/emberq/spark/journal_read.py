"""Reading a range of a journal: what a task does.

nsqd sends whole batches, as they lie in its files; the range may begin and end within one. What comes back is checked:
the journal's uuid, each batch's crc, and that no offset is missing between. An nsqd that does not answer is asked again
for as long as `retryTimeout` says, from where the last answer ended: rows that went to Spark are not read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from emberq.spark.error import DataLossError, NsqdRefused, NsqdUnavailable
from emberq.spark.http import Answer, HttpPeer, patiently
from emberq.spark.journal_batch import Batch, decode, seed_of
from emberq.spark.journal_columns import record_batches
from emberq.spark.journal_plan import Range
from emberq.spark.setting import SourceSettings

MAX_FAULTS = 3
"""How often in a row an answer may be damaged before we believe that it always will be."""
SPARE_BYTES = 64 * 1024
"""On top of what the rows of a range are expected to take: less than a second request costs."""

_log = logging.getLogger(__name__)


class RangeReader:
    """Reads one range, once. Owned by a task."""

    def __init__(self, wanted: Range, settings: SourceSettings, *, bytes_per_row: int) -> None:
        self._wanted = wanted
        self._settings = settings
        self._bytes_per_row = bytes_per_row
        self._offset = wanted.start
        """Of the next message to be read."""
        self._seed = seed_of(wanted.journal)
        self._peer = HttpPeer(wanted.place.nsqd, settings.access)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range, in order."""
        place = self._wanted.place
        try:
            while self._offset < self._wanted.end:
                batches = self._next_batches()
                if batches:
                    yield from record_batches(batches, nsqd=self._peer.address, topic=place.topic)
        finally:
            self._peer.close()

    def _next_batches(self) -> list[Batch]:
        """What the next answer brings of the range; nothing only if what was there is lost."""
        for _ in range(MAX_FAULTS):
            try:
                answer = patiently(self._fetch, timeout_s=self._settings.access.retry_timeout_s)
            except NsqdRefused as refusal:
                return self._refused(refusal)
            if not answer.body:
                return self._lost(self._wanted.end, "they are not in the journal any more")
            if answer.headers.get("X-Emberq-Journal") != self._wanted.journal:
                return self._lost(self._wanted.end, "the topic was deleted and made again")
            decoded = decode(answer.body, seed=self._seed)
            if decoded.batches:
                self._bytes_per_row = len(answer.body) // sum(batch.row_count for batch in decoded.batches) + 1
                return self._take(decoded.batches)
            # Behind a damaged batch nsqd goes on with the next good one, if it is asked for the damaged one again.
            _log.warning("%s, offset %d: %s", self._wanted.place, self._offset, decoded.fault)
        raise NsqdUnavailable(self._peer.address, f"its answer for offset {self._offset} is damaged: {decoded.fault}")

    def _fetch(self) -> Answer:
        max_bytes = self._settings.fetch_bytes
        if self._bytes_per_row:
            max_bytes = min(max_bytes, (self._wanted.end - self._offset) * self._bytes_per_row + SPARE_BYTES)
        return self._peer.get(
            "/journal/read",
            topic=self._wanted.place.topic,
            offset=self._offset,
            max_bytes=max_bytes,
        )

    def _take(self, batches: list[Batch]) -> list[Batch]:
        """The part of `batches` that belongs to the range; from here on they count as read."""
        taken: list[Batch] = []
        end = self._wanted.end
        for batch in batches:
            if self._offset < min(batch.base_offset, end):
                self._lost(min(batch.base_offset, end), "they are damaged or were never stored")
            if self._offset >= end:
                break
            if batch.next_offset > self._offset:
                taken.append(batch.between(start=self._offset, end=end))
                self._offset = min(batch.next_offset, end)
        return taken

    def _refused(self, refusal: NsqdRefused) -> list[Batch]:
        if refusal.code == "OFFSET_GONE":
            return self._lost(min(refusal.facts["first_offset"], self._wanted.end), "retention has removed them")
        if refusal.code == "OFFSET_AHEAD":
            return self._lost(self._wanted.end, f"the journal ends at offset {refusal.facts['next_offset']}")
        if refusal.code in ("TOPIC_NOT_FOUND", "TOPIC_NOT_JOURNALED"):
            return self._lost(self._wanted.end, f"nsqd answers {refusal.code}")
        raise refusal

    def _lost(self, end: int, reason: str) -> list[Batch]:
        """The messages up to `end` are not to be had: fail, or go on behind them."""
        text = f"{self._wanted.place}: the messages from offset {self._offset} to {end - 1} are lost: {reason}"
        if self._settings.fail_on_data_loss:
            raise DataLossError(f'{text}. Option "failOnDataLoss" = "false" goes on without them')
        _log.warning("%s", text)
        self._offset = end
        return []
