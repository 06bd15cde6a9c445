"""Reading the messages of a topic back from its journals, in order and without Spark, for `emberq replay`.

What is there when it begins is read, and not what comes later: so a topic can be replayed into itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emberq.spark.error import OptionError
from emberq.spark.journal_plan import Range, ranges_between
from emberq.spark.journal_read import RangeReader
from emberq.spark.journal_start import parse_start
from emberq.spark.journal_start_position import end_positions, start_positions
from emberq.spark.journal_survey import JournalSurvey
from emberq.spark.option import Use
from emberq.spark.setting import SourceSettings


class JournalReplay:
    """The messages of a topic between two moments. Owned by one thread."""

    def __init__(self, options: Mapping[str, str], *, start: str, end: str) -> None:
        """`options` are those of format("nsq"); `start` and `end` are spelled as startingOffsets are."""
        self._settings = SourceSettings.of(options, Use.BATCH)
        self._start, self._end = parse_start(start), parse_start(end)
        self._ranges: list[Range] = []

    @property
    def message_count(self) -> int:
        """How many there are, as soon as `prepare` was called."""
        return sum(each.row_count for each in self._ranges)

    def prepare(self) -> None:
        """Find out what there is. NsqSparkError if that cannot be."""
        settings = self._settings
        survey = JournalSurvey(settings)
        try:
            journals = survey.first_look()
            if not journals:
                raise OptionError(f"no nsqd has {survey.wanted()}")
            start = start_positions(self._start, journals, survey, fail_on_data_loss=settings.fail_on_data_loss)
            self._ranges = ranges_between(start, end_positions(self._end, journals, survey))
        finally:
            survey.book.close()

    def bodies(self) -> Iterator[list[bytes]]:
        """The messages, nsqd by nsqd, in portions."""
        for wanted in self._ranges:
            for rows in RangeReader(wanted, self._settings, bytes_per_row=0).read():
                yield rows.column(rows.schema.names.index("body")).to_pylist()
