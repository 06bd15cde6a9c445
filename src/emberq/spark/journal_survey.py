"""How far the journals reach at this moment: what the driver asks the nsqds before it plans a batch.

An nsqd that does not answer is missing from a survey, and a stream goes on with the others; what waits on it is read
when it is back. When a query starts, every nsqd must answer, for it is then that mistakes in options show.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqdRefused, NsqdUnavailable, OptionError
from emberq.spark.journal_offset import Place
from emberq.spark.setting import SourceSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A journal as it was when it was asked about. What is stored never changes; it grows, and loses its beginning."""

    place: Place
    uuid: str
    first_offset: int
    """Of the first message that retention has kept."""
    end_offset: int
    """Behind the last message that is on the disk for sure."""
    bytes_per_row: int
    """On the average, with everything that belongs to it."""


class _Found(NamedTuple):
    """What one look has found."""

    journals: dict[Place, Journal]
    without: list[Place]
    """Where there is a topic without a journal."""
    failures: list[NsqdUnavailable]
    """Of nsqds that do not answer."""


class _NotJournaled(Exception):
    """There is such a topic, but it has no journal."""


class JournalSurvey:
    """Asks about the journals of some topics. Owned by one reader on the driver."""

    def __init__(self, settings: SourceSettings, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self.book = AddressBook(settings.access)
        self._monotonic_s = monotonic_s
        self._places: list[Place] = []
        self._discovery_due_s = float("-inf")
        self._silent: set[str] = set()
        """nsqds that did not answer last time; told of once."""

    def first_look(self) -> dict[Place, Journal]:
        """All journals. NsqdUnavailable if somebody does not answer, OptionError if a topic has no journal."""
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

    def look(self) -> dict[Place, Journal]:
        """The journals on those nsqds that answer."""
        if self._monotonic_s() >= self._discovery_due_s:
            try:
                self._discover()
            except NsqdUnavailable as failure:
                _log.warning("nsqds and topics that are new cannot be found just now: %s", failure)
        found = self._ask_all()
        for silent in found.failures:
            if silent.address not in self._silent:
                _log.warning("nsqd %s; going on with the others until it is back", silent)
        self._silent = {silent.address for silent in found.failures}
        return found.journals

    def every_topic_has_a_journal(self) -> bool:
        """Whether all that is to be read can be read from journals, as far as nsqds answer.

        NsqdUnavailable if none does, OptionError if none has the topic.
        """
        self._discover()
        found = self._ask_all()
        if found.journals or found.without:
            return not found.without
        if found.failures:
            raise found.failures[0]
        raise OptionError(
            f"no nsqd has {self.wanted()} yet, so whether it has a journal cannot be told; publish to it first, or "
            'set option "mode"'
        )

    def offset_at(self, journal: Journal, timestamp_ns: int) -> int:
        """The offset of the first message published then or later."""
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_ns // 1000)
        peer = self.book.peer(journal.place.nsqd)
        found = peer.get_json("/topic/peek", topic=journal.place.topic, offset=moment.isoformat(), count=1)
        messages = found["messages"]
        return int(messages[0]["offset"] if messages else found["next_offset"])

    def wanted(self) -> str:
        """What is to be read, for people."""
        if self._settings.topic_pattern is not None:
            return f"a topic of the pattern {self._settings.topic_pattern}"
        return f"topic {', '.join(self._settings.topics)}"

    def _discover(self) -> None:
        self._places = self.book.places(topics=self._settings.topics, pattern=self._settings.topic_pattern)
        self._discovery_due_s = self._monotonic_s() + self._settings.discovery_interval_s

    def _ask_all(self) -> _Found:
        """What is at all places; an nsqd that does not answer is not asked twice."""
        found = _Found({}, [], [])
        silent: set[str] = set()
        for place in self._places:
            if place.nsqd in silent:
                continue
            try:
                journal = self._ask(place)
            except NsqdUnavailable as failure:
                silent.add(place.nsqd)
                found.failures.append(failure)
            except _NotJournaled:
                found.without.append(place)
            else:
                if journal is not None:
                    found.journals[place] = journal
        return found

    def _ask(self, place: Place) -> Journal | None:
        """The journal there; None if there is no such topic."""
        try:
            found = self.book.peer(place.nsqd).get_json("/journal", topic=place.topic)
        except NsqdRefused as refusal:
            if refusal.code == "TOPIC_NOT_FOUND":
                return None
            if refusal.status == HTTPStatus.NOT_FOUND:  # TOPIC_NOT_JOURNALED, or an nsqd that knows nothing of journals
                raise _NotJournaled from refusal
            raise
        rows = found["next_offset"] - found["first_offset"]
        return Journal(
            place=place,
            uuid=found["uuid"],
            first_offset=found["first_offset"],
            end_offset=found["synced_offset"],
            bytes_per_row=found["bytes"] // rows + 1 if rows else 0,
        )
