"""How many messages a channel still has to deliver, as its nsqds say: for a query that is to read them and then end."""

from __future__ import annotations

import logging
from typing import Any

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqdUnavailable
from emberq.spark.journal_offset import Place
from emberq.spark.setting import SourceSettings

_log = logging.getLogger(__name__)


class ChannelBacklog:
    """Asks the nsqds. Owned by one reader on the driver, while it needs it."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._book = AddressBook(settings.access)

    def close(self) -> None:
        self._book.close()

    def count(self) -> int | None:
        """Messages that wait or are in flight; None if that cannot be found out just now.

        Those that are put off, and those that somebody has paused, are not waited for.
        """
        try:
            places = self._book.places(topics=self._settings.topics, pattern=None)
            return sum(self._count_at(place) for place in places)
        except NsqdUnavailable as failure:
            _log.warning("how many messages wait cannot be told: %s", failure)
            return None

    def _count_at(self, place: Place) -> int:
        # Not of the channel alone: nsqd leaves out a topic that does not have it yet, and what waits there for it.
        stats = self._book.peer(place.nsqd).get_json(
            "/stats", format="json", topic=place.topic, include_clients="false"
        )
        return sum(_of_topic(topic, str(self._settings.channel)) for topic in stats.get("data", stats)["topics"] or ())


def _of_topic(topic: dict[str, Any], name: str) -> int:
    named = [channel for channel in topic["channels"] or () if channel["channel_name"] == name]
    channels = [channel for channel in named if not channel["paused"]]
    count = 0 if topic["paused"] else int(topic["depth"])
    return count + sum(int(channel["depth"]) + int(channel["in_flight_count"]) for channel in channels)
