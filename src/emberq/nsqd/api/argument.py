"""Arguments of a request, in the query string: which are missing, which are wrong, and in which words we say so.

The reference spells one complaint in two ways: endpoints about topics and publishing say INVALID_TOPIC, endpoints
about channels say INVALID_ARG_TOPIC. A parameter that is present but empty is present.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.broker.topic import Topic
from emberq.http.argument import required
from emberq.http.message import HttpError, Query
from emberq.wire.name import is_valid_name

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
"""What fits 64 bits has no more digits; int() alone would take spaces, underscores and other scripts' digits."""

FALSE_WORDS = frozenset(("false", "0"))
TRUE_WORDS = frozenset(("true", "1"))


class ChannelName(NamedTuple):
    """A channel and the topic it belongs to."""

    topic: str
    channel: str


def required_topic(query: Query) -> str:
    """The topic's name, whatever it looks like."""
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
    """The channel that a request names, or 404."""
    names = valid_channel(query)
    channel = existing_topic(broker, names.topic).find_channel(names.channel)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def parse_integer(text: str) -> int | None:
    """The decimal number that `text` spells, or None."""
    return int(text) if _INTEGER.fullmatch(text) else None


def is_wanted(query: Query, name: str) -> bool:
    """A switch that is on unless it is turned off by one of the usual words."""
    return query.get(name) not in FALSE_WORDS
