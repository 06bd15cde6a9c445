"""Looking at the newest messages of journaled topics, without Spark and without taking them from anybody."""

from __future__ import annotations

from collections.abc import Mapping

from emberq.spark.error import OptionError
from emberq.spark.journal_plan import Range
from emberq.spark.journal_read import RangeReader
from emberq.spark.journal_survey import Journal, JournalSurvey
from emberq.spark.option import Use
from emberq.spark.setting import SourceSettings


def newest_bodies(options: Mapping[str, str], *, count: int) -> list[bytes]:
    """The bodies of the last so many messages of each topic and nsqd. NsqSparkError if that cannot be.

    `options` are those of a batch read. Only the ends of the journals are read, however long they are.
    """
    settings = SourceSettings.of(dict(options) | {"failOnDataLoss": "false"}, Use.BATCH)
    survey = JournalSurvey(settings)
    try:
        journals = survey.first_look()
    finally:
        survey.book.close()
    if not journals:
        raise OptionError(f"no nsqd has {survey.wanted()}")
    return [
        body
        for journal in journals.values()
        for rows in RangeReader(_end_of(journal, count), settings, bytes_per_row=journal.bytes_per_row).read()
        for body in rows.column("body").to_pylist()
    ]


def _end_of(journal: Journal, count: int) -> Range:
    start = max(journal.first_offset, journal.end_offset - count)
    return Range(place=journal.place, journal=journal.uuid, start=start, end=journal.end_offset)
