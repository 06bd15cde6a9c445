"""Reading a range of a journal: in a task of Spark, or without Spark.

nsqd sends whole batches, as they lie in its files; the range may begin and end within one. The answer is checked: the
journal's uuid, each batch's crc, and that no offset is missing between. An nsqd that does not answer is asked again for
as long as `retryTimeout` says, from where the last answer ended. So rows that went to Spark are not read twice.

Where offsets are missing, nsqd is asked for the jumps of the journal: offsets that were passed over after a crash and
belong to no message. They are no loss.

Without Spark: `newest_bodies` looks at the newest messages, without taking them from a consumer. `JournalReplay` reads
a topic's messages in order, for `emberq replay`. It reads what is there when it begins and not what is published later,
so a topic can be replayed into itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from uuid import UUID

import pyarrow as pa

from emberq.spark.error import NsqdRefusedError, NsqdUnavailableError, OptionError
from emberq.spark.journal_columns import ArrowBatch, decode, record_batches
from emberq.spark.journal_plan import JournalExtent, JournalSurvey, Range, batch_ranges
from emberq.spark.nsqd_http import HttpPeer, NsqdAnswer, patiently
from emberq.spark.option import SourceSettings, Use
from emberq.wire.journal_batch import seed_of

MAX_FAULTS = 3
"""How many damaged answers in a row are taken for chance. One more, and the read fails."""
SPARE_BYTES = 64 * 1024
"""Asked for beyond the expected size of a range: cheaper than a second request."""

_log = logging.getLogger(__name__)


class RangeReader:
    """Reads one range, once. Owned by one task."""

    def __init__(self, wanted: Range, settings: SourceSettings, *, bytes_per_row: int) -> None:
        self._wanted = wanted
        self._settings = settings
        self._bytes_per_row = bytes_per_row
        self._offset = wanted.start
        """The offset of the next message to be read."""
        self._seed = seed_of(UUID(wanted.journal))
        self._peer = HttpPeer(wanted.place.nsqd, settings.access)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range, in order."""
        place = self._wanted.place
        try:
            while self._offset < self._wanted.end:
                batches = self._next_batches()
                if batches:
                    yield from record_batches(
                        batches, nsqd=self._peer.address, topic=place.topic, columns=self._settings.columns
                    )
        finally:
            self._peer.close()

    def _next_batches(self) -> list[ArrowBatch]:
        """The batches of the next answer that belong to the range; none only if they are lost."""
        for _ in range(MAX_FAULTS):
            try:
                answer = patiently(self._fetch, timeout_s=self._settings.access.retry_timeout_s)
            except NsqdRefusedError as refusal:
                return self._refused(refusal)
            if not answer.body:
                return self._pass_gap(self._wanted.end, "they are not in the journal any more")
            if answer.headers.get("X-Emberq-Journal") != self._wanted.journal:
                return self._lost(self._wanted.end, "the topic was deleted and made again")
            decoded = decode(answer.body, seed=self._seed)
            if decoded.batches:
                self._bytes_per_row = len(answer.body) // sum(batch.row_count for batch in decoded.batches) + 1
                return self._take(decoded.batches)
            # Asked again for a damaged batch, nsqd goes on with the next good one.
            _log.warning("%s, offset %d: %s", self._wanted.place, self._offset, decoded.fault)
        raise NsqdUnavailableError(
            self._peer.address, f"its answer for offset {self._offset} is damaged: {decoded.fault}"
        )

    def _fetch(self) -> NsqdAnswer:
        max_bytes = self._settings.fetch_bytes
        if self._bytes_per_row:
            max_bytes = min(max_bytes, (self._wanted.end - self._offset) * self._bytes_per_row + SPARE_BYTES)
        topic = self._wanted.place.topic
        return self._peer.get("/journal/read", topic=topic, offset=self._offset, max_bytes=max_bytes)

    def _take(self, batches: list[ArrowBatch]) -> list[ArrowBatch]:
        """The part of `batches` that belongs to the range. From here on it counts as read."""
        taken: list[ArrowBatch] = []
        end = self._wanted.end
        for batch in batches:
            if self._offset < min(batch.base_offset, end):
                self._pass_gap(min(batch.base_offset, end), "they are damaged or were never stored")
            if self._offset >= end:
                break
            if batch.next_offset > self._offset:
                taken.append(batch.between(start=self._offset, end=end))
                self._offset = min(batch.next_offset, end)
        return taken

    def _refused(self, refusal: NsqdRefusedError) -> list[ArrowBatch]:
        if refusal.code == "OFFSET_GONE":
            reason = "retention has removed them"
            if self._settings.end is not None:
                reason += "; make the DataFrame again to read what is there now, in an archive or in journals"
            return self._lost(min(refusal.facts["first_offset"], self._wanted.end), reason)
        if refusal.code == "OFFSET_AHEAD":
            return self._lost(self._wanted.end, f"the journal ends at offset {refusal.facts['next_offset']}")
        if refusal.code in ("TOPIC_NOT_FOUND", "TOPIC_NOT_JOURNALED"):
            return self._lost(self._wanted.end, f"nsqd answers {refusal.code}")
        raise refusal

    def _pass_gap(self, end: int, reason: str) -> list[ArrowBatch]:
        """No batch holds the offsets up to `end`. Those that no message ever had are not lost."""
        for first_offset, next_offset in self._jumps():
            if self._offset < min(first_offset, end):
                self._lost(min(first_offset, end), reason)
            if first_offset <= self._offset < next_offset:
                self._offset = min(next_offset, end)
        if self._offset < end:
            self._lost(end, reason)
        return []

    def _jumps(self) -> list[tuple[int, int]]:
        """The offsets that no message has, as nsqd tells; none if it does not."""
        try:
            told = self._peer.get_json("/journal", topic=self._wanted.place.topic)
        except (NsqdRefusedError, NsqdUnavailableError):
            return []
        jumps = told.get("jumps", ()) if told.get("uuid") == self._wanted.journal else ()
        return sorted((jump["first_offset"], jump["next_offset"]) for jump in jumps)

    def _lost(self, end: int, reason: str) -> list[ArrowBatch]:
        """The messages up to `end` cannot be read: fail, or go on behind them."""
        text = f"{self._wanted.place}: the messages from offset {self._offset} to {end - 1} are lost: {reason}"
        self._settings.report_loss(text)
        self._offset = end
        return []


# Without Spark.


def newest_bodies(options: Mapping[str, str], *, count: int) -> list[bytes]:
    """The bodies of the last `count` messages of each topic and nsqd. NsqSparkError if they cannot be read.

    `options` are those of a batch read. Only the ends of the journals are read, however long they are.
    """
    settings = SourceSettings.of(dict(options) | {"failOnDataLoss": "false", "columns": "body"}, Use.BATCH)
    with closing(JournalSurvey(settings)) as survey:
        journals = survey.first_look()
    if not journals:
        raise OptionError(f"no nsqd has {settings.wanted}")
    return [
        body
        for journal in journals.values()
        for rows in RangeReader(_end_of(journal, count), settings, bytes_per_row=journal.bytes_per_row).read()
        for body in rows.column("body").to_pylist()
    ]


def _end_of(journal: JournalExtent, count: int) -> Range:
    start = max(journal.first_offset, journal.end_offset - count)
    return Range(place=journal.place, journal=journal.uuid, start=start, end=journal.end_offset)


class JournalReplay:
    """The messages of a topic between two moments. Owned by one thread."""

    def __init__(self, options: Mapping[str, str], *, start: str, end: str) -> None:
        """`options` are those of format("nsq"); `start` and `end` are written as startingOffsets is."""
        between = {"startingOffsets": start, "endingOffsets": end}
        as_stored = {"columns": "body", "includeHeaders": "false"}  # what is replayed keeps its envelope
        self._settings = SourceSettings.of({**options, **between, **as_stored}, Use.BATCH)
        self._ranges: list[Range] = []

    @property
    def message_count(self) -> int:
        """How many messages there are to read, once `prepare` was called."""
        return sum(each.row_count for each in self._ranges)

    def prepare(self) -> None:
        """Find the ranges to read. NsqSparkError if nsqds do not tell them."""
        self._ranges, journals = batch_ranges(self._settings)
        if not journals:
            raise OptionError(f"no nsqd has {self._settings.wanted}")

    def bodies(self) -> Iterator[list[bytes]]:
        """The bodies of the messages, nsqd by nsqd, in portions."""
        for wanted in self._ranges:
            for rows in RangeReader(wanted, self._settings, bytes_per_row=0).read():
                yield rows.column("body").to_pylist()
