"""How far journals reach, and which ranges of offsets a batch reads.

**The survey** (`JournalSurvey`) asks nsqds how far their journals reach, before the driver plans a batch. An nsqd that
does not answer is missing from the survey. A stream goes on with the others, and reads what waits there later. When a
query starts every nsqd must answer, because that is when mistakes in options show. An nsqd that is known by two names
shows the same journal twice, which its uuid tells: it is read under the first of the names.

**The plan** (`next_step`, `ranges_between`, `split`) leads from positions and the survey to the ranges that tasks read,
without I/O.

- A stream keeps the position of an nsqd that is away. That of a topic goes when its nsqd says that the topic is not
  there: then what was not read of it is lost.
- A journal that is new to a stream enters with the position of its first message and no rows, which are read from the
  next batch on. So a batch always is the difference of two positions, and gives the same rows whenever it is planned.
- A journal is known by its uuid. Where the uuid has changed, the topic was deleted and created again: what was not read
  of the old journal is lost.

**Start and end** (`start_positions`, `end_positions`) turn startingOffsets and endingOffsets into an offset in each
journal.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import pairwise
from typing import NamedTuple

from emberq.base.text import format_moment
from emberq.spark.error import DataLossError, NsqdRefusedError, NsqdUnavailableError, OptionError
from emberq.spark.journal_offset import (
    ANY_NSQD,
    ByTopic,
    Edge,
    Moment,
    Named,
    Offsets,
    Place,
    Position,
    Positions,
    Start,
)
from emberq.spark.nsqd_http import AddressBook
from emberq.spark.option import SourceSettings

_log = logging.getLogger(__name__)


# The survey.


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalExtent:
    """How far a journal reached when nsqd was asked. A journal grows and loses its beginning, but never changes."""

    place: Place
    uuid: str
    first_offset: int
    """The first offset that retention has kept."""
    end_offset: int
    """The offset behind the last message that is on the disk for sure."""
    bytes_per_row: int
    """On the average, with headers and padding."""


class _Found(NamedTuple):
    """The answers of all nsqds to one survey."""

    journals: dict[Place, JournalExtent]
    without: list[Place]
    """Topics without a journal."""
    failures: list[NsqdUnavailableError]
    """One for each nsqd that does not answer."""


class JournalSurvey:
    """Asks nsqds about the journals of some topics. Owned by one reader on the driver."""

    def __init__(self, settings: SourceSettings, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self.book = AddressBook(settings.access)
        self._monotonic_s = monotonic_s
        self._places: list[Place] = []
        self._discovery_due_s = float("-inf")
        self._silent: set[str] = set()
        """The nsqds that did not answer last time; each is logged once."""
        self._aliases: set[Place] = set()
        """Places whose journal is read under another name; each is logged once."""
        self._missed_until_s: dict[Place, float] = {}
        """When to ask again about places that are missed but perhaps not gone."""

    def close(self) -> None:
        self.book.close()

    def first_look(self) -> dict[Place, JournalExtent]:
        """All journals. NsqdUnavailableError if an nsqd does not answer, OptionError if a topic has no journal."""
        self._discover()
        found = self._ask_all()
        if found.failures:
            raise found.failures[0]
        if found.without and self._settings.topic_pattern is None:
            place = found.without[0]
            raise OptionError(
                f"{place} has no journal; run that nsqd with --journal or --journal-topic={place.topic}, or read with "
                'option "mode" = "channel"'
            )
        return found.journals

    def look(self) -> dict[Place, JournalExtent]:
        """The journals on the nsqds that answer."""
        if self._monotonic_s() >= self._discovery_due_s:
            try:
                self._discover()
            except NsqdUnavailableError as failure:
                _log.warning("nsqds and topics that are new cannot be found just now: %s", failure)
        found = self._ask_all()
        for silent in found.failures:
            if silent.address not in self._silent:
                _log.warning("nsqd %s; going on with the others until it is back", silent)
        self._silent = {silent.address for silent in found.failures}
        return found.journals

    def gone(self, positions: Positions, journals: Mapping[Place, JournalExtent]) -> list[Place]:
        """Where a stream has been and topics are not any more, by what their nsqds say. `journals` are there.

        An nsqd that does not answer is only away. A topic that the options do not name is not missed.
        """
        found = {journal.uuid for journal in journals.values()}
        missed = [place for place, at in positions.items() if place not in journals and at.journal not in found]
        return [place for place in missed if self._is_wanted(place.topic) and self._is_gone(place)]

    def _is_wanted(self, topic: str) -> bool:
        pattern = self._settings.topic_pattern
        return topic in self._settings.topics if pattern is None else re.fullmatch(pattern, topic) is not None

    def _is_gone(self, place: Place) -> bool:
        """Ask an nsqd, also one that nsqlookupds do not name any more. After any other answer it is left alone."""
        now_s = self._monotonic_s()
        if place.nsqd in self._silent or now_s < self._missed_until_s.get(place, now_s):
            return False
        self._missed_until_s[place] = now_s + self._settings.discovery_interval_s
        try:
            self.book.peer(place.nsqd).get_json("/journal", topic=place.topic)
        except NsqdRefusedError as refusal:
            return refusal.status == HTTPStatus.NOT_FOUND
        except NsqdUnavailableError:
            return False
        return False

    def every_topic_has_a_journal(self) -> bool:
        """Whether every topic to be read has a journal, on the nsqds that answer.

        NsqdUnavailableError if no nsqd answers, OptionError if none has the topic.
        """
        self._discover()
        found = self._ask_all()
        if found.journals or found.without:
            return not found.without
        if found.failures:
            raise found.failures[0]
        raise OptionError(
            f"no nsqd has {self._settings.wanted} yet, so whether it has a journal cannot be told; publish to it "
            'first, or set option "mode"'
        )

    def offset_at(self, journal: JournalExtent, timestamp_ns: int) -> int:
        """The offset of the first message published then or later."""
        peer = self.book.peer(journal.place.nsqd)
        found = peer.get_json("/topic/peek", topic=journal.place.topic, offset=format_moment(timestamp_ns), count=1)
        messages = found["messages"]
        return int(messages[0]["offset"] if messages else found["next_offset"])

    def _discover(self) -> None:
        self._places = self.book.places(topics=self._settings.topics, pattern=self._settings.topic_pattern)
        self._discovery_due_s = self._monotonic_s() + self._settings.discovery_interval_s

    def _ask_all(self) -> _Found:
        """Ask about every place. An nsqd that does not answer is not asked twice."""
        found = _Found({}, [], [])
        silent: set[str] = set()
        for place in self._places:
            if place.nsqd in silent:
                continue
            try:
                self._ask(place, found)
            except NsqdUnavailableError as failure:
                silent.add(place.nsqd)
                found.failures.append(failure)
        return found

    def _ask(self, place: Place, found: _Found) -> None:
        """Ask about one place. A topic that is not there counts for nothing."""
        try:
            told = self.book.peer(place.nsqd).get_json("/journal", topic=place.topic)
        except NsqdRefusedError as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise
            if refusal.code != "TOPIC_NOT_FOUND":  # but TOPIC_NOT_JOURNALED, or an nsqd without journals
                found.without.append(place)
            return
        known_as = next((at for at, journal in found.journals.items() if journal.uuid == told["uuid"]), None)
        if known_as is not None:
            self._log_alias(place, known_as)
            return
        rows = told["next_offset"] - told["first_offset"]
        found.journals[place] = JournalExtent(
            place=place,
            uuid=told["uuid"],
            first_offset=told["first_offset"],
            end_offset=told["synced_offset"],
            bytes_per_row=told["bytes"] // rows + 1 if rows else 0,
        )

    def _log_alias(self, place: Place, known_as: Place) -> None:
        if place not in self._aliases:
            self._aliases.add(place)
            _log.warning("%s is the same journal as that on %s; it is read there only", place, known_as.nsqd)


# The plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Consecutive messages of a journal: from `start` to before `end`."""

    place: Place
    journal: str
    start: int
    end: int

    @property
    def row_count(self) -> int:
        """How many offsets it spans."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Step:
    """Where the next batch of a stream ends, and what was lost on the way."""

    end: Positions
    losses: list[str]
    """What cannot be read any more of the batch; each a sentence."""


def next_step(
    start: Positions,
    journals: Mapping[Place, JournalExtent],
    *,
    max_rows: int | None,
    gone: Collection[Place] = (),
    reader: str = "this query",
) -> Step:
    """The next batch from `start` on. The topics of `gone` were deleted. `reader` is named where something is lost."""
    found_at = {journal.uuid: place for place, journal in journals.items()}
    offsets = _offsets_by_journal(start)
    # Without journals that have moved: they are added below at their new place.
    end = {
        place: position
        for place, position in start.items()
        if found_at.get(position.journal, place) == place and place not in gone
    }
    losses = [
        f"{place} was deleted since {reader} read it; what was there from offset {start[place].offset} on is lost"
        for place in gone
    ]
    waiting: dict[Place, int] = {}
    for place, journal in journals.items():
        offset = offsets.get(journal.uuid)
        if offset is None:
            if place in end:
                losses.append(f"{place} was deleted and made again since {reader} read it")
            end[place] = Position(journal.uuid, journal.first_offset)
            continue
        if offset < journal.first_offset:
            losses.append(
                f"{place}: the messages from offset {offset} to {journal.first_offset - 1} were removed by retention "
                "before they were read"
            )
        elif offset > journal.end_offset:
            losses.append(f"{place} ends at offset {journal.end_offset}, but {reader} had read up to {offset}")
        end[place] = Position(journal.uuid, min(offset, journal.end_offset))
        if offset < journal.end_offset:
            waiting[place] = journal.end_offset - offset
    for place, rows in shared_out(waiting, max_rows).items():
        end[place] = replace(end[place], offset=end[place].offset + rows)
    return Step(end, losses)


def _offsets_by_journal(positions: Positions) -> dict[str, int]:
    """A journal that has two positions was read under two names: what lies before the later one was read."""
    offsets: dict[str, int] = {}
    for position in positions.values():
        offsets[position.journal] = max(position.offset, offsets.get(position.journal, 0))
    return offsets


def rows_within(max_bytes: int, positions: Positions, journals: Mapping[Place, JournalExtent]) -> int:
    """How many rows beyond these positions have about so many bytes, taken from all journals in proportion. At least 1.

    Sizes are averages of the journals.
    """
    offsets = _offsets_by_journal(positions)
    waiting = {
        each.place: max(each.end_offset - max(offsets.get(each.uuid, each.end_offset), each.first_offset), 0)
        for each in journals.values()
    }
    total_bytes = sum(rows * journals[place].bytes_per_row for place, rows in waiting.items())
    total = sum(waiting.values())
    return total if total_bytes <= max_bytes else max(total * max_bytes // total_bytes, 1)


def shared_out(waiting: Mapping[Place, int], max_rows: int | None) -> dict[Place, int]:
    """How many rows each place gives when all together give at most `max_rows`: in proportion to what waits."""
    total = sum(waiting.values())
    if max_rows is None or total <= max_rows:
        return dict(waiting)
    shares = {place: rows * max_rows // total for place, rows in waiting.items()}
    left = max_rows - sum(shares.values())
    for place in sorted(shares, key=lambda each: shares[each] - waiting[each])[:left]:
        shares[place] += 1  # one of the rows left over by rounding to each of the places with most waiting
    return shares


def ranges_between(start: Positions, end: Positions) -> list[Range]:
    """The ranges between two positions. A journal that is not in `start` has just entered, and gives no rows."""
    offsets = _offsets_by_journal(start)
    return [
        Range(place=place, journal=position.journal, start=offsets[position.journal], end=position.offset)
        for place, position in sorted(end.items())
        if offsets.get(position.journal, position.offset) < position.offset
    ]


def split(ranges: list[Range], *, rows_per_partition: int, min_partitions: int) -> list[Range]:
    """The same messages in ranges of at most `rows_per_partition`, and at least `min_partitions` ranges if possible."""
    total = sum(each.row_count for each in ranges)
    rows_at_most = max(min(rows_per_partition, total // min_partitions), 1)
    return [piece for each in ranges for piece in _pieces(each, rows_at_most)]


def _pieces(whole: Range, rows_at_most: int) -> list[Range]:
    count = -(-whole.row_count // rows_at_most)
    cuts = [whole.start + whole.row_count * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(cuts)]


# Start and end.


def batch_ranges(settings: SourceSettings) -> tuple[list[Range], dict[Place, JournalExtent]]:
    """The ranges from start to end of a batch, and the journals. Raises what `JournalSurvey.first_look` does."""
    assert settings.end is not None  # noqa: S101 - a batch has one
    with closing(JournalSurvey(settings)) as survey:
        journals = survey.first_look()
        start = start_positions(settings.start, journals, survey, fail_on_data_loss=settings.fail_on_data_loss)
        return ranges_between(start, end_positions(settings.end, journals, survey)), journals


def start_positions(
    start: Start, journals: Mapping[Place, JournalExtent], survey: JournalSurvey, *, fail_on_data_loss: bool
) -> Positions:
    """Where to begin in each journal, and in those that may be away: a stream reads them when they are back."""
    named = partial(_named_start, fail_on_data_loss=fail_on_data_loss)
    found = _positions(start, journals, survey, named, option="startingOffsets")
    away = _not_there(start, journals) if isinstance(start, dict) else {}
    return found | {place: Position(each.journal or "", each.offset) for place, each in away.items()}


def end_positions(end: Start, journals: Mapping[Place, JournalExtent], survey: JournalSurvey) -> Positions:
    """Where to end in each journal. Journals that are not to be read are left out."""
    return _positions(end, journals, survey, _named_end, option="endingOffsets")


def _positions(
    where: Start,
    journals: Mapping[Place, JournalExtent],
    survey: JournalSurvey,
    offset_of: Callable[[Named | None, JournalExtent], int | None],
    *,
    option: str,
) -> Positions:
    """`offset_of` judges the offset that the option names for a journal, or that it names none."""
    positions = {}
    for place, journal in journals.items():
        # What an option does not name for a topic begins, or is left out, as what it does not name for a journal.
        match where.topics.get(place.topic, {}) if isinstance(where, ByTopic) else where:
            case Edge.EARLIEST:
                offset: int | None = journal.first_offset
            case Edge.LATEST:
                offset = journal.end_offset
            case Moment(timestamp_ns):
                offset = survey.offset_at(journal, timestamp_ns)
            case dict() as offsets:
                offset = offset_of(_named_for(journal, offsets), journal)
        if offset is not None:
            positions[place] = Position(journal.uuid, offset)
    topics = {place.topic for place in journals}
    absent = sorted(set(where.topics) - topics) if isinstance(where, ByTopic) else []
    if absent:
        raise OptionError(
            f'option "{option}" names topic {absent[0]}, which is not read here; there are: {", ".join(sorted(topics))}'
        )
    missing = _not_there(where, journals) if isinstance(where, dict) else {}
    unknown = sorted(place for place, named in missing.items() if not named.is_optional)
    if unknown:
        known = ", ".join(f"{place.topic} on {place.nsqd}" for place in sorted(journals)) or "none"
        raise OptionError(f'option "{option}" names {unknown[0]}, which is not read here; there are: {known}')
    return positions


def _named_for(journal: JournalExtent, offsets: Offsets) -> Named | None:
    """What an option says of a journal: by its uuid, which an nsqd takes along when it moves, or by its place."""
    by_uuid = next((named for named in offsets.values() if named.journal == journal.uuid), None)
    return by_uuid or offsets.get(journal.place) or offsets.get(Place(ANY_NSQD, journal.place.topic))


def _not_there(offsets: Offsets, journals: Mapping[Place, JournalExtent]) -> Offsets:
    """What an option says of journals that are not there, or not to be read."""
    found = {journal.uuid for journal in journals.values()}
    return {
        place: named
        for place, named in offsets.items()
        if place not in journals and place.nsqd != ANY_NSQD and named.journal not in found
    }


def _named_end(named: Named | None, journal: JournalExtent) -> int | None:
    return None if named is None else _checked(named, journal, option="endingOffsets")


def _named_start(named: Named | None, journal: JournalExtent, *, fail_on_data_loss: bool) -> int:
    if named is None:
        return journal.first_offset
    offset = _checked(named, journal, option="startingOffsets")
    if offset < journal.first_offset:
        text = (
            f'option "startingOffsets": {journal.place} begins at offset {journal.first_offset}, what was from offset '
            f"{offset} on was removed by retention"
        )
        if fail_on_data_loss:
            raise DataLossError(
                f"{text}; begin there, call read_topic again if it made this DataFrame (an archive may have more by "
                'now), or set option "failOnDataLoss" to "false"'
            )
        _log.warning("%s", text)
    return max(offset, journal.first_offset)


def _checked(named: Named, journal: JournalExtent, *, option: str) -> int:
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
