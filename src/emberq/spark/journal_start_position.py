"""From what the user wrote in startingOffsets or endingOffsets to an offset in each journal."""

from __future__ import annotations

from collections.abc import Mapping

from emberq.spark.error import DataLossError, OptionError
from emberq.spark.journal_offset import Place, Position, Positions
from emberq.spark.journal_start import Edge, Moment, Named, Start
from emberq.spark.journal_survey import Journal, JournalSurvey


def start_positions(
    start: Start, journals: Mapping[Place, Journal], survey: JournalSurvey, *, fail_on_data_loss: bool
) -> Positions:
    """Where to begin in each journal."""
    positions = {}
    for place, journal in journals.items():
        match start:
            case Edge.EARLIEST:
                offset = journal.first_offset
            case Edge.LATEST:
                offset = journal.end_offset
            case Moment(timestamp_ns):
                offset = survey.offset_at(journal, timestamp_ns)
            case dict():
                offset = _named_start(start.get(place), journal, fail_on_data_loss=fail_on_data_loss)
        positions[place] = Position(journal.uuid, offset)
    if isinstance(start, dict):
        _refuse_unknown(start, journals, option="startingOffsets")
    return positions


def end_positions(end: Start, journals: Mapping[Place, Journal], survey: JournalSurvey) -> Positions:
    """Where to end in each journal; without those that are not to be read."""
    positions = {}
    for place, journal in journals.items():
        match end:
            case Edge.EARLIEST:
                offset = journal.first_offset
            case Edge.LATEST:
                offset = journal.end_offset
            case Moment(timestamp_ns):
                offset = survey.offset_at(journal, timestamp_ns)
            case dict():
                if place not in end:
                    continue
                offset = _checked(end[place], journal, option="endingOffsets")
        positions[place] = Position(journal.uuid, offset)
    if isinstance(end, dict):
        _refuse_unknown(end, journals, option="endingOffsets")
    return positions


def _named_start(named: Named | None, journal: Journal, *, fail_on_data_loss: bool) -> int:
    if named is None:
        return journal.first_offset
    offset = _checked(named, journal, option="startingOffsets")
    if offset < journal.first_offset and fail_on_data_loss:
        raise DataLossError(
            f'option "startingOffsets": {journal.place} begins at offset {journal.first_offset}, what was before it '
            f'was removed by retention; begin there, or set option "failOnDataLoss" to "false"'
        )
    return max(offset, journal.first_offset)


def _checked(named: Named, journal: Journal, *, option: str) -> int:
    if named.journal is not None and named.journal != journal.uuid:
        raise DataLossError(
            f'option "{option}": {journal.place} is journal {journal.uuid} now, not {named.journal}; the topic was '
            "deleted and made again, and the offset means nothing in it"
        )
    if named.offset > journal.end_offset:
        raise OptionError(
            f'option "{option}": {journal.place} ends at offset {journal.end_offset}, before {named.offset}'
        )
    return named.offset


def _refuse_unknown(named: Mapping[Place, Named], journals: Mapping[Place, Journal], *, option: str) -> None:
    unknown = sorted(set(named) - set(journals))
    if unknown:
        known = ", ".join(f"{place.topic} on {place.nsqd}" for place in sorted(journals)) or "none"
        raise OptionError(f'option "{option}" names {unknown[0]}, which is not read here; there are: {known}')
