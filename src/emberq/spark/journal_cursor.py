"""The channel that follows a stream, so that retention does not overtake it and nsqadmin shows its lag.

Nobody subscribes to it. It is created where the stream begins, and moved to what was committed by /channel/seek. It is
advice only: what a stream has read stands in its checkpoint, and a channel that cannot be moved just now is moved with
the next commit. Spark commits a batch when it plans the next one, so the channel is one batch behind.
"""

from __future__ import annotations

import logging

from emberq.spark.address_book import AddressBook
from emberq.spark.error import NsqdRefused, NsqdUnavailable
from emberq.spark.journal_offset import Place, Positions

_log = logging.getLogger(__name__)


class RetentionCursor:
    """Moves a channel of every topic that a stream reads. Owned by the stream's reader on the driver."""

    def __init__(self, channel: str, book: AddressBook) -> None:
        self._channel = channel
        self._book = book
        self._offsets: dict[Place, int] = {}
        """Where the channels were put last."""

    def move_to(self, positions: Positions) -> None:
        """Everything before these positions is not needed any more."""
        for place, position in positions.items():
            if self._offsets.get(place) == position.offset:
                continue
            try:
                self._move(place, position.offset)
            except (NsqdUnavailable, NsqdRefused) as failure:
                _log.warning("channel %s of %s stays where it is: %s", self._channel, place, failure)
            else:
                self._offsets[place] = position.offset

    def _move(self, place: Place, offset: int) -> None:
        peer = self._book.peer(place.nsqd)
        names = {"topic": place.topic, "channel": self._channel}
        if place not in self._offsets:
            # One that exists stays where it is: then a stream goes on, and is moved below.
            peer.post("/channel/create", {**names, "from": offset})
        peer.post("/channel/seek", {**names, "to": offset})
