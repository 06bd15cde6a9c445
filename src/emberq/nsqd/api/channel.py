"""POST /channel/create, delete, empty, pause, unpause; GET /channel/peek."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.http.message import HttpError, Query, Request, Response, empty, json
from emberq.nsqd.api.argument import parse_integer, valid_channel
from emberq.nsqd.api.failure import failing_as_internal_error
from emberq.nsqd.api.topic import existing_topic
from emberq.wire.message import Message

DEFAULT_PEEK_COUNT = 10
MAX_PEEK_COUNT = 100
"""Enough for a person to see what a channel is about to deliver."""
MAX_PEEK_BYTES = 4 * 1024 * 1024
"""Bodies in one answer; it is built in one go, while everybody else waits. The first message always is shown."""


class ChannelApi:
    """Changes channels of topics that exist. A pause is on disk when it is answered."""

    def __init__(self, broker: Broker, persist_metadata: Callable[[], None]) -> None:
        self._broker = broker
        self._persist_metadata = persist_metadata

    def _existing_channel(self, query: Query) -> Channel:
        names = valid_channel(query)
        channel = existing_topic(self._broker, names.topic).find_channel(names.channel)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    def create(self, request: Request) -> Response:
        names = valid_channel(request.query())
        topic = existing_topic(self._broker, names.topic)
        with failing_as_internal_error():
            topic.channel(names.channel)
        return empty()

    def delete(self, request: Request) -> Response:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            self._broker.topic(channel.topic_name).delete_channel(channel.name)
        return empty()

    def empty(self, request: Request) -> Response:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.empty()
        return empty()

    def pause(self, request: Request) -> Response:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.pause()
            self._persist_metadata()
        return empty()

    def unpause(self, request: Request) -> Response:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.unpause()
            self._persist_metadata()
        return empty()

    def peek(self, request: Request) -> Response:
        """The next messages, which stay where they are."""
        query = request.query()
        channel = self._existing_channel(query)
        count = _peek_count(query)
        with failing_as_internal_error():
            messages = channel.peek(count)
        return json({"messages": [_shown(message) for message in _within_limit(messages)]})


def _peek_count(query: Query) -> int:
    given = query.get("count")
    count = DEFAULT_PEEK_COUNT if given is None else parse_integer(given)
    if count is None or not 1 <= count <= MAX_PEEK_COUNT:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return count


def _within_limit(messages: list[Message]) -> Iterator[Message]:
    room = MAX_PEEK_BYTES
    for index, message in enumerate(messages):
        room -= len(message.body)
        if room < 0 and index:
            return
        yield message


def _shown(message: Message) -> dict[str, Any]:
    """A message as JSON: its body as text where it is text, else in base64."""
    shown = {
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
    }
    try:
        return {**shown, "body": message.body.decode("utf-8")}
    except UnicodeDecodeError:
        return {**shown, "body_base64": base64.b64encode(message.body).decode("ascii")}
