"""How many messages a query has still to read: how far its journals reach, less how far it has come.

A channel that is read through a spool has no offsets to compare; the lag of such a query is its channel's depth, which
every NSQ tool shows. It is unknown here, as is that of a journal whose nsqd does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqdUnavailable, NsqSparkError
from emberq.spark.journal_offset import Place, from_document
from emberq.spark.setting import Access

PAUSE_S = 10.0
"""How long an nsqd that did not answer is not asked again: whoever waits for the lag has waited for it once."""


class JournalLag:
    """Asks nsqds how far journals reach. Owned by one thread."""

    def __init__(self, access: Access | None, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """`access` None: there is nobody to ask, and nothing is known."""
        self._book = AddressBook(access) if access is not None else None
        self._monotonic_s = monotonic_s
        self._silent_until_s: dict[str, float] = {}

    def behind(self, offsets: Mapping[Place, int]) -> int | None:
        """The messages from these offsets on."""
        total = 0
        for place, offset in offsets.items():
            end = self._end_of(place)
            if end is None:
                return None
            total += max(end - offset, 0)
        return total

    def close(self) -> None:
        """Close the connections."""
        if self._book is not None:
            self._book.close()

    def _end_of(self, place: Place) -> int | None:
        if self._book is None or self._monotonic_s() < self._silent_until_s.get(place.nsqd, 0.0):
            return None
        try:
            return int(self._book.peer(place.nsqd).get_json("/journal", topic=place.topic)["next_offset"])
        except NsqdUnavailable:
            self._silent_until_s[place.nsqd] = self._monotonic_s() + PAUSE_S
        except NsqSparkError:
            pass  # the topic is gone, or its journal
        return None


def journal_offsets(documents: Iterable[Any]) -> dict[Place, int] | None:
    """The offsets in what Spark keeps of the sources of a query; None if one of them reads no journal."""
    offsets: dict[Place, int] = {}
    for document in documents:
        if not isinstance(document, Mapping) or "spool" in document:
            return None
        try:
            positions = from_document(document)
        except NsqSparkError:
            return None
        offsets |= {place: position.offset for place, position in positions.items()}
    return offsets
