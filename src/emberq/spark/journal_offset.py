"""Positions in journals: in a checkpoint, and in the options startingOffsets and endingOffsets.

A checkpoint holds an offset in each journal, that of the next message to be read:

    {"10.0.0.1:4151": {"clicks": {"journal": "0b5f6a52-…", "offset": 183250}}}

The uuid is the journal's. If a topic is deleted and created again its offsets begin anew, and an old offset must not be
taken for a new one. The uuid also finds a journal again that has moved with its nsqd to another address.

The options are written as

    earliest                                     the first message that retention has kept
    latest                                       behind the last message that is stored
    2025-01-31T12:00:00Z                         the first message published then or later
    {"10.0.0.1:4151": {"clicks": 1200}}          these offsets
    {"10.0.0.1:4151": {"clicks": {"journal": "0b5f…", "offset": 1200}}}     these offsets, as in a checkpoint
    {"*": {"clicks": 0}}                         on every nsqd that is not named
    {"clicks": "2025-01-31T12:00:00Z", "orders": "latest"}                  for each topic one of the first three

An offset with a uuid is that of the journal, wherever its nsqd is now. With `"optional": true` the journal may be away,
as that of an nsqd that is archived and was taken down; the offset counts if it comes back.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from emberq.base.clock import NS_PER_SECOND
from emberq.base.text import quoted
from emberq.spark.error import NsqSparkError

# Checkpoints.


class Place(NamedTuple):
    """A topic on an nsqd: by the address of its HTTP API, or of its TCP port where a channel is read."""

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
    """The checkpoint's document for `positions`. The same positions give the same text."""
    document: dict[str, Any] = {}
    for place, position in sorted(positions.items()):
        topics = document.setdefault(place.nsqd, {})
        topics[place.topic] = {"journal": position.journal, "offset": position.offset}
    return document


def from_document(document: Mapping[str, Any]) -> Positions:
    """The positions in a checkpoint's document. NsqSparkError if it holds none."""
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


# Options.


class Edge(enum.StrEnum):
    """An end of a journal."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Moment:
    """The first message published then or later."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Named:
    """An offset given in an option, and the journal's uuid if that was given too."""

    offset: int
    journal: str | None = None
    is_optional: bool = False
    """Whether the journal may be away."""


@dataclass(frozen=True, slots=True)
class ByTopic:
    """An edge or a moment for each topic."""

    topics: Mapping[str, Edge | Moment]


ANY_NSQD = "*"
"""In the place of an address: every nsqd that is not named."""
Offsets = dict[Place, Named]
Start = Edge | Moment | ByTopic | Offsets


def parse_start(text: str) -> Start:
    """Parse startingOffsets or endingOffsets. ValueError if `text` is none of the forms."""
    if text.startswith("{"):
        document = _parse_json(text)
        if document and all(isinstance(value, str) for value in document.values()):
            return ByTopic({topic: _parse_edge_or_moment(value) for topic, value in document.items()})
        return _parse_offsets(document)
    return _parse_edge_or_moment(text)


def _parse_edge_or_moment(text: str) -> Edge | Moment:
    return Edge(text.lower()) if text.lower() in tuple(Edge) else Moment(_parse_time(text))


def _parse_time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is neither earliest, latest, a time nor JSON") from None
    if moment.tzinfo is None:
        raise ValueError(f"{quoted(text)} has no time zone; write it as 2025-01-31T12:00:00Z")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_SECOND + since.microseconds * 1000


def _parse_json(text: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the JSON is not valid: {error}") from error
    return document


def _parse_offsets(document: Mapping[str, Any]) -> Offsets:
    offsets: Offsets = {}
    for nsqd, topics in document.items():
        if not isinstance(topics, dict):
            raise ValueError(  # noqa: TRY004 - it is the text of an option that is wrong
                f'at {quoted(nsqd)}: expected an object of topics and offsets, as {{"clicks": 1200}}'
            )
        for topic, offset in topics.items():
            offsets[Place(nsqd, topic)] = _parse_named(offset, where=f"{quoted(nsqd)}, {quoted(topic)}")
    return offsets


def _parse_named(value: Any, *, where: str) -> Named:
    journal, is_optional = None, False
    if isinstance(value, dict):
        is_optional = value.get("optional") is True and "journal" in value
        value, journal = value.get("offset"), value.get("journal")
    if type(value) is not int or value < 0:
        raise ValueError(f"at {where}: an offset is a whole number from 0 on")
    if journal is not None:
        try:
            journal = str(UUID(journal))
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"at {where}: the journal is not a uuid") from None
    return Named(value, journal, is_optional)
