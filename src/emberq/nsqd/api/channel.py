"""Topics and channels: create, delete, empty, pause, peek, seek.

POST /topic/create, delete, empty, pause, unpause
POST /channel/create, delete, empty, pause, unpause, seek
GET  /channel/peek
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Iterator
from typing import Any, Protocol

from emberq.broker.broker import Broker
from emberq.broker.channel import Channel
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.topic import Pending
from emberq.http.message import HttpError, Query, Request, Response, empty, json
from emberq.nsqd.api.argument import (
    existing_channel,
    existing_topic,
    failing_as_internal_error,
    journaled_topic,
    parse_integer,
    required_position,
    required_topic,
    valid_channel,
    valid_topic,
)
from emberq.nsqd.api.policy import policy_in_query, refuse_policy, set_policy
from emberq.nsqd.api.publish import settled
from emberq.storage.data_folder import ChannelPolicy
from emberq.storage.error import StorageError
from emberq.wire.frame import WireMessage
from emberq.wire.parameter import MAX_PEEK_COUNT, is_ephemeral


class Disk(Protocol):
    """What these handlers need of the daemon (see `Node`)."""

    @property
    def broker(self) -> Broker: ...

    async def metadata_saved(self) -> None: ...

    async def files_removed(self) -> None: ...


# Topics.


class TopicApi:
    """Changes topics. A pause is on disk when it is answered, and the files of what was deleted or emptied are gone."""

    def __init__(self, node: Disk) -> None:
        self._broker = node.broker
        self._disk = node

    def create(self, request: Request) -> Response:
        name = valid_topic(request.query())
        with failing_as_internal_error():
            self._broker.topic(name)
        return empty()

    def delete(self, request: Request) -> Awaitable[Response]:
        """The name need not be valid: such a topic is not found."""
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            deletion = self._broker.delete_topic(topic.name)
        return _when_done(_gone(deletion, self._disk))

    def empty(self, request: Request) -> Awaitable[Response]:
        topic = existing_topic(self._broker, valid_topic(request.query()))
        with failing_as_internal_error():
            topic.empty()
        return _when_done(self._disk.files_removed())

    def pause(self, request: Request) -> Awaitable[Response]:
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            topic.pause()
        return _when_done(self._disk.metadata_saved())

    def unpause(self, request: Request) -> Awaitable[Response]:
        topic = existing_topic(self._broker, required_topic(request.query()))
        with failing_as_internal_error():
            topic.unpause()
        return _when_done(self._disk.metadata_saved())


# Channels.

DEFAULT_PEEK_COUNT = 10
MAX_PEEK_BYTES = 4 * 1024 * 1024
"""Bodies in one answer, which is built in one go while other clients wait. The first message is always shown."""


class ChannelApi:
    """Changes channels of topics that exist. A change is on disk when it is answered, and the files of what was deleted
    or emptied are gone."""

    def __init__(self, node: Disk) -> None:
        self._broker = node.broker
        self._disk = node

    def _existing_channel(self, query: Query) -> Channel:
        return existing_channel(self._broker, query)

    def create(self, request: Request) -> Response | Awaitable[Response]:
        """With `from`, a new channel of a journaled topic starts there. One that exists stays where it is.

        With `max_attempts` and `dead_letter_topic` the channel, new or not, gets that policy.
        """
        query = request.query()
        names = valid_channel(query)
        topic = existing_topic(self._broker, names.topic)
        policy = policy_in_query(query)
        if policy is not None:
            refuse_policy(self._broker, topic=names.topic, channel=names.channel, policy=policy)
        if query.get("from") is not None and topic.find_channel(names.channel) is None:
            return self._create_at(query, policy)
        with failing_as_internal_error():
            channel = topic.channel(names.channel)
        if policy is not None:
            set_policy(self._broker, channel, policy)
        return empty()

    async def _create_at(self, query: Query, policy: ChannelPolicy | None) -> Response:
        names = valid_channel(query)
        topic = journaled_topic(self._broker, names.topic)
        if is_ephemeral(names.channel):
            raise HttpError(400, "CHANNEL_NOT_JOURNALED")
        offset = await required_position(query, "from", topic)
        if topic.find_channel(names.channel) is not None:
            return empty()  # it has come meanwhile, and stays where it is
        with failing_as_internal_error():
            channel = topic.channel(names.channel)
            assert isinstance(channel, JournaledChannel)  # noqa: S101 - only ephemeral channels of a journaled topic are of another class
            channel.seek(offset)
        if policy is not None:
            set_policy(self._broker, channel, policy)
        return await _when_saved(channel, empty())

    async def seek(self, request: Request) -> Response:
        """Deliver from another place of the journal on, before or behind the present one."""
        query = request.query()
        names = valid_channel(query)
        topic = journaled_topic(self._broker, names.topic)
        channel = self._existing_channel(query)
        if not isinstance(channel, JournaledChannel):
            raise HttpError(400, "CHANNEL_NOT_JOURNALED")
        offset = await required_position(query, "to", topic)
        if self._existing_channel(query) is not channel:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        with failing_as_internal_error():
            channel.seek(offset)
        return await _when_saved(channel, json({"offset": offset}))

    def delete(self, request: Request) -> Awaitable[Response]:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            deletion = self._broker.topic(channel.topic_name).delete_channel(channel.name)
        return _when_done(_gone(deletion, self._disk))

    def empty(self, request: Request) -> Awaitable[Response]:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.empty()
        if isinstance(channel, JournaledChannel):
            return _when_saved(channel, empty())
        return _when_done(self._disk.files_removed())

    def pause(self, request: Request) -> Awaitable[Response]:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.pause()
        return _when_done(self._disk.metadata_saved())

    def unpause(self, request: Request) -> Awaitable[Response]:
        channel = self._existing_channel(request.query())
        with failing_as_internal_error():
            channel.unpause()
        return _when_done(self._disk.metadata_saved())

    def peek(self, request: Request) -> Response:
        """Show the next messages; they stay in the channel."""
        query = request.query()
        channel = self._existing_channel(query)
        count = peek_count(query)
        with failing_as_internal_error():
            messages = channel.peek(count)
        return json({"messages": [_shown(message) for message in _within_limit(messages)]})


async def _when_done(work: Awaitable[None]) -> Response:
    """An empty answer, once that has been done."""
    with failing_as_internal_error():
        await work
    return empty()


async def _gone(deletion: Pending | None, disk: Disk) -> None:
    """Return when what was deleted, and its files, have gone for good; else the reason why they may come back."""
    failure = None if deletion is None else await settled(deletion)
    if failure is not None:
        raise failure
    await disk.files_removed()


async def _when_saved(channel: JournaledChannel, response: Response) -> Response:
    """The answer, once the channel's new place is on disk."""
    saved: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    channel.when_saved(saved.set_result)
    with failing_as_internal_error():
        failure = await saved
        if failure is not None:
            raise failure
    return response


def peek_count(query: Query) -> int:
    """How many messages the request asks for."""
    given = query.get("count")
    count = DEFAULT_PEEK_COUNT if given is None else parse_integer(given)
    if count is None or not 1 <= count <= MAX_PEEK_COUNT:
        raise HttpError(400, "INVALID_ARG_COUNT")
    return count


def _within_limit(messages: list[WireMessage]) -> Iterator[WireMessage]:
    room = MAX_PEEK_BYTES
    for index, message in enumerate(messages):
        room -= len(message.body)
        if room < 0 and index:
            return
        yield message


def _shown(message: WireMessage) -> dict[str, Any]:
    """A message as JSON: its body as text where it is text, else in base64."""
    return {
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp_ns,
        "attempts": message.attempts,
        **shown_body(message.body),
    }


def shown_body(body: bytes) -> dict[str, str]:
    """A body under the key that says how it is encoded."""
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}
