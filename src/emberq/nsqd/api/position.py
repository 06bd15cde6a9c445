"""A place in a topic's journal, as people and programs name it.

    earliest      the oldest message that is kept
    latest        behind the newest one: only what comes
    17            the message with this offset
    2026-11-15T09:30:00Z, 2026-11-15T10:30:00.25+01:00
                  the first message published at or after this moment (RFC 3339)

An offset that the journal has no longer, or does not have yet, is refused, and the refusal names the nearest one that
would do. A moment always has a place: the oldest message if it is before all of them, `latest` if it is behind.
"""

from __future__ import annotations

import re

from emberq.base.moment import parse_moment
from emberq.broker.broker import Broker
from emberq.broker.journaled_topic import JournaledTopic
from emberq.http.argument import required
from emberq.http.message import HttpError, Query
from emberq.nsqd.api.argument import existing_topic, valid_topic
from emberq.nsqd.api.failure import failing_as_internal_error

EARLIEST = "earliest"
LATEST = "latest"

_OFFSET = re.compile(r"[0-9]{1,18}")
"""Below 2^63, however many digits are 9."""


def journaled_topic(broker: Broker, name: str) -> JournaledTopic:
    """The topic, or 404 with the reason."""
    topic = existing_topic(broker, name)
    if not isinstance(topic, JournaledTopic):
        raise HttpError(404, "TOPIC_NOT_JOURNALED")
    return topic


def asked_topic(broker: Broker, query: Query) -> JournaledTopic:
    """The topic that a query names, or the reason why there is none."""
    return journaled_topic(broker, valid_topic(query))


def required_position(query: Query, name: str, topic: JournaledTopic) -> int:
    """The offset that a parameter stands for."""
    return position_of(required(query, name), topic, argument=name)


def position_of(text: str, topic: JournaledTopic, *, argument: str) -> int:
    """The offset that `text` stands for; HttpError if it stands for none."""
    if text == EARLIEST:
        return topic.journal.first_offset
    if text == LATEST:
        return topic.stored_offset
    if _OFFSET.fullmatch(text):
        return kept_offset(int(text), topic)
    time_ns = parse_moment(text)
    if time_ns is None:
        raise HttpError(400, f"INVALID_ARG_{argument.upper()}")
    with failing_as_internal_error():
        return topic.offset_at(time_ns)


def required_offset(query: Query, topic: JournaledTopic) -> int:
    """The parameter `offset`, which must be a number."""
    text = required(query, "offset")
    if not _OFFSET.fullmatch(text):
        raise HttpError(400, "INVALID_ARG_OFFSET")
    return kept_offset(int(text), topic)


def kept_offset(offset: int, topic: JournaledTopic) -> int:
    """The same offset, if it is one from which the journal can be read on, now or when more has come."""
    first_offset, next_offset = topic.journal.first_offset, topic.stored_offset
    if offset < first_offset:
        raise HttpError(410, "OFFSET_GONE", first_offset=first_offset)
    if offset > next_offset:
        raise HttpError(409, "OFFSET_AHEAD", next_offset=next_offset)
    return offset
