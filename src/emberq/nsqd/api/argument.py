"""What a request names in its query string (topic, channel, place in a journal), and how a wrong argument is refused.

The reference spells one complaint in two ways: endpoints about topics and publishing say INVALID_TOPIC, endpoints
about channels say INVALID_ARG_TOPIC. A parameter that is present but empty is present.

A place in a topic's journal is named in one of these ways:

    earliest      the oldest message that is kept
    latest        behind the newest one: only messages to come
    17            the message with this offset
    2026-11-15T09:30:00Z, 2026-11-15T10:30:00.25+01:00
                  the first message published at or after this moment (RFC 3339)

An offset that the journal has no longer, or does not have yet, is refused, and the refusal names the nearest one that
would do. A moment always has a place: the oldest message if it is before all of them, `latest` if it is behind.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from emberq.base.text import parse_moment
from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.broker.error import BrokerError, DrainingError, JournalFailedError
from emberq.broker.journaled_topic import JournaledTopic
from emberq.broker.topic import QuarantinedTopic, Topic
from emberq.http.message import HttpError, Query, required
from emberq.storage.error import StorageError
from emberq.storage.journal.reader import JournalView
from emberq.wire.parameter import is_valid_name

_log = logging.getLogger(__name__)
Found = TypeVar("Found")


# Topics and channels.


class ChannelName(NamedTuple):
    """A channel and the topic it belongs to."""

    topic: str
    channel: str


def required_topic(query: Query) -> str:
    """The topic's name, valid or not."""
    return required(query, "topic")


def valid_topic(query: Query) -> str:
    """A name that a topic can have."""
    topic = required_topic(query)
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    return topic


def valid_channel(query: Query) -> ChannelName:
    """Names that a channel and its topic can have."""
    topic = required_topic(query)
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    channel = required(query, "channel")
    if not is_valid_name(channel):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return ChannelName(topic, channel)


def existing_topic(broker: Broker, name: str) -> Topic:
    """The topic, or 404."""
    topic = broker.find_topic(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def existing_channel(broker: Broker, query: Query) -> Channel:
    """The channel that a request names, or 404; 503 if its journal cannot be opened."""
    names = valid_channel(query)
    topic = existing_topic(broker, names.topic)
    if isinstance(topic, QuarantinedTopic):
        raise journal_failed(topic.refusal)
    channel = topic.find_channel(names.channel)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


# Numbers and switches.

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
"""64 bits need no more digits. int() alone would take spaces, underscores and digits of other scripts."""
FALSE_WORDS = frozenset(("false", "0"))
TRUE_WORDS = frozenset(("true", "1"))


def parse_integer(text: str) -> int | None:
    """The decimal number that `text` spells, or None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_wanted(query: Query, name: str) -> bool:
    """A switch that is on unless the request turns it off with one of FALSE_WORDS."""
    return query.get(name) not in FALSE_WORDS


# Places in a journal.

EARLIEST = "earliest"
LATEST = "latest"
_OFFSET = re.compile(r"[0-9]{1,18}")
"""18 digits are always below 2^63."""


def journaled_topic(broker: Broker, name: str) -> JournaledTopic:
    """The topic, or 404 with the reason; 503 if its journal cannot be opened."""
    topic = existing_topic(broker, name)
    if isinstance(topic, QuarantinedTopic):
        raise journal_failed(topic.refusal)
    if not isinstance(topic, JournaledTopic):
        raise HttpError(404, "TOPIC_NOT_JOURNALED")
    return topic


def asked_topic(broker: Broker, query: Query) -> JournaledTopic:
    """The journaled topic that a query names, or HttpError."""
    return journaled_topic(broker, valid_topic(query))


async def found_in(topic: JournaledTopic, search: Callable[[JournalView], Found]) -> Found:
    """What a search of a topic's journal finds. It may read much: it runs in another thread. HttpError if it fails."""
    view = topic.journal.view()

    def work() -> Found:
        try:
            return search(view)
        finally:
            view.close()

    with failing_as_internal_error():
        found = await asyncio.to_thread(work)
    topic.journal.learn(view)
    return found


async def required_position(query: Query, name: str, topic: JournaledTopic) -> int:
    """The offset that a parameter stands for."""
    return await position_of(required(query, name), topic, argument=name)


async def position_of(text: str, topic: JournaledTopic, *, argument: str) -> int:
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
    offset = await found_in(topic, lambda view: view.offset_at(time_ns))
    return min(max(offset, topic.journal.first_offset), topic.stored_offset)


def required_offset(query: Query, topic: JournaledTopic) -> int:
    """The parameter `offset`, which must be a number."""
    text = required(query, "offset")
    if not _OFFSET.fullmatch(text):
        raise HttpError(400, "INVALID_ARG_OFFSET")
    return kept_offset(int(text), topic)


def kept_offset(offset: int, topic: JournaledTopic) -> int:
    """The same offset, if the journal can be read from there on, now or when more has come."""
    first_offset, next_offset = topic.journal.first_offset, topic.stored_offset
    if offset < first_offset:
        raise HttpError(410, "OFFSET_GONE", first_offset=first_offset)
    if offset > next_offset:
        raise HttpError(409, "OFFSET_AHEAD", next_offset=next_offset)
    return offset


# Refusals of the broker and the disk.


@contextmanager
def failing_as_internal_error() -> Iterator[None]:
    """Answer a refusal of the broker or the disk with 500; the log says why. A failed journal is named: 503."""
    try:
        yield
    except JournalFailedError as failure:
        raise journal_failed(failure) from failure
    except DrainingError as refusal:
        raise HttpError(503, "DRAINING") from refusal
    except (BrokerError, StorageError) as failure:
        _log.error("HTTP: failed to carry out a request - %s", failure)
        raise HttpError(500, "INTERNAL_ERROR") from failure


def journal_failed(failure: JournalFailedError) -> HttpError:
    """The answer where one journal is the trouble, and not the node."""
    return HttpError(503, "JOURNAL_FAILED", topic=failure.topic, reason=failure.reason)
