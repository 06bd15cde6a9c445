"""How far a query has come: an offset in each journal.

    {"10.0.0.1:4151": {"clicks": {"journal": "0b5f6a52-…", "offset": 183250}}}

This is what stands in a checkpoint. The offset is that of the next message to be read. The uuid is the journal's: if a
topic is deleted and made again its offsets begin anew, and an old one must not be taken for one of those. It also finds
a journal again that has moved with its nsqd to another address.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from emberq.spark.error import NsqSparkError


class Place(NamedTuple):
    """A topic on an nsqd."""

    nsqd: str
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic} on nsqd {self.nsqd}"


@dataclass(frozen=True, slots=True)
class Position:
    """The next message to be read of a journal."""

    journal: str
    offset: int


Positions = dict[Place, Position]


def to_document(positions: Mapping[Place, Position]) -> dict[str, Any]:
    """What Spark keeps of `positions`; the same positions give the same text."""
    document: dict[str, Any] = {}
    for place, position in sorted(positions.items()):
        topics = document.setdefault(place.nsqd, {})
        topics[place.topic] = {"journal": position.journal, "offset": position.offset}
    return document


def from_document(document: Mapping[str, Any]) -> Positions:
    """The positions that Spark kept."""
    try:
        return {
            Place(nsqd, topic): Position(str(position["journal"]), int(position["offset"]))
            for nsqd, topics in document.items()
            for topic, position in topics.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NsqSparkError(
            "the checkpoint holds no offsets of journals; was it made in another mode? Go back to that mode, or use "
            "a new checkpointLocation"
        ) from error
