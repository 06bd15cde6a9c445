"""What a journal holds: /journal and /topic/peek as JSON, /journal/read as bytes for programs.

GET /journal/read sends batches as they lie on disk:

    GET /journal/read?topic=T&offset=17&max_bytes=1048576&wait_ms=10000

    200 OK
    Content-Type: application/octet-stream
    X-Emberq-Journal: 8d0e4e62-…       which journal this is; offsets mean nothing in another one
    X-Emberq-Base-Offset: 12           of the first message: the batch that holds 17 begins with 12
    X-Emberq-Next-Offset: 4012         what to ask for next
    ETag: "8d0e4e62-…:12-4012"

The body is one stretch of one file, whole batches (docs/storage-format.md draws them), and is sent from there without
being parsed. It ends at the last offset that is surely on the disk, at the end of a file, or before `max_bytes` are
exceeded, whichever comes first, but holds at least one batch. If there is nothing behind `offset` yet the answer waits
for `wait_ms`, and then is empty.

A base offset behind the one asked for means that the messages between cannot be read any more.

An answer that broke off is fetched to its end with `Range: bytes=N-`. What is stored never changes, but meanwhile there
may be more of it. To get the same stretch, a client asks with its length as `max_bytes`. To be sure, it sends the ETag
as `If-Range`, and gets everything again if the stretch is another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from emberq.base.clock import NS_PER_MS
from emberq.base.text import format_moment
from emberq.broker.broker import Broker
from emberq.broker.journaled_channel import JournaledChannel
from emberq.broker.journaled_topic import JournaledTopic
from emberq.http.body import FileBody
from emberq.http.message import Headers, HttpError, Query, Request, Response, json
from emberq.nsqd.api.argument import (
    EARLIEST,
    asked_topic,
    failing_as_internal_error,
    found_in,
    kept_offset,
    parse_integer,
    position_of,
    required_offset,
)
from emberq.nsqd.api.channel import MAX_PEEK_BYTES, peek_count, shown_body
from emberq.storage.error import StorageError, os_error_text
from emberq.storage.journal.journal import Journal
from emberq.storage.journal.reader import Extent, Gap, JournalView
from emberq.wire.journal_batch import JournalBatch

# /journal and /topic/peek.

PEEK_READ_BYTES = 256 * 1024
"""Bytes read at a time for a peek; at least one batch."""
TIME_READ_BYTES = 4096
"""The same where only the time of a message is asked."""

JsonObject = dict[str, Any]


class JournalApi:
    """Shows the journals of topics; changes nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def describe(self, request: Request) -> Response:
        """GET /journal: where it begins and ends, what is kept, its files, and the place of each channel."""
        topic = asked_topic(self._broker, request.query())
        stored_offset = topic.stored_offset
        times = await found_in(topic, lambda view: _times(view, stored_offset))
        return json(_description(topic, times))

    async def peek(self, request: Request) -> Response:
        """GET /topic/peek: some messages from an offset or a moment on, whether or not they were delivered."""
        query = request.query()
        topic = asked_topic(self._broker, query)
        given = query.get("offset")
        count = peek_count(query)
        offset = await position_of(EARLIEST if given is None else given, topic, argument="offset")
        return json(await found_in(topic, lambda view: _peeked(view, offset, count)))


def _description(topic: JournaledTopic, times: JsonObject) -> JsonObject:
    journal = topic.journal
    return {
        "topic_name": topic.name,
        "uuid": str(journal.uuid),
        "created": journal.created,
        "first_offset": journal.first_offset,
        "next_offset": journal.next_offset,
        "synced_offset": journal.synced_offset,
        "bytes": journal.total_bytes,
        **times,
        **_settings(topic),
        "segments": [
            {
                "file": segment.path.name,
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "bytes": segment.size_bytes,
            }
            for segment in journal.segments
        ],
        "gaps": [_gap(gap) for gap in journal.gaps],
        "jumps": _jumps(journal),
        "problem": journal.problem,
        "channels": _channels(topic),
    }


def _times(journal: JournalView, stored_offset: int) -> JsonObject:
    """When the oldest and the newest message that is kept were published; null if none can be read."""
    is_empty = journal.first_offset >= stored_offset
    ends = {"oldest": journal.first_offset, "newest": stored_offset - 1}
    return {name: None if is_empty else _moment_of(journal, offset) for name, offset in ends.items()}


def _moment_of(journal: JournalView, offset: int) -> str | None:
    """When the message was published or, if it is damaged, the first readable one behind it."""
    batches = journal.read(offset, max_bytes=TIME_READ_BYTES).batches
    return format_moment(_published_ns(batches[0], max(offset, batches[0].base_offset))) if batches else None


def _settings(topic: JournaledTopic) -> JsonObject:
    """When a publish is confirmed, how large files get, and what retention leaves; null: no limit."""
    settings = topic.settings
    config = settings.config
    return {
        "sync": settings.sync,
        "segment_bytes": config.segment_bytes,
        "retention": {
            "bytes": config.retention_bytes,
            "max_bytes": config.max_bytes,
            "time_ms": None if config.retention_ns is None else config.retention_ns // NS_PER_MS,
        },
    }


def _channels(topic: JournaledTopic) -> list[JsonObject]:
    """The channels that are cursors; an ephemeral channel has no place in the journal."""
    cursors = [channel for channel in topic.channels.values() if isinstance(channel, JournaledChannel)]
    return [
        {"channel_name": channel.name, "low_water": channel.low_water, "lag": channel.lag}
        for channel in sorted(cursors, key=lambda channel: channel.name)
    ]


def _jumps(journal: Journal) -> list[JsonObject]:
    """The offsets that no message has, so that a reader can tell them from messages that are lost."""
    return [{"first_offset": jump.first_offset, "next_offset": jump.next_offset} for jump in journal.jumps()]


def _gap(gap: Gap) -> JsonObject:
    return {"first_offset": gap.first_offset, "next_offset": gap.next_offset, "reason": gap.reason}


def _peeked(journal: JournalView, offset: int, count: int) -> JsonObject:
    """Up to `count` messages that are on the disk, while their bodies stay within the limit."""
    messages: list[JsonObject] = []
    gaps: list[Gap] = []
    room = MAX_PEEK_BYTES
    end = journal.synced_offset
    while offset < end and len(messages) < count:
        chunk = journal.read(offset, max_bytes=PEEK_READ_BYTES)
        gaps += chunk.gaps
        for shown, size in _messages(chunk.batches, start=offset, stop=end):
            room -= size
            if len(messages) == count or (room < 0 and messages):
                return _answer(messages, gaps, next_offset=shown["offset"])
            messages.append(shown)
        offset = min(chunk.next_offset, end)
    return _answer(messages, gaps, next_offset=offset)


def _answer(messages: list[JsonObject], gaps: list[Gap], *, next_offset: int) -> JsonObject:
    in_reach = [_gap(gap) for gap in gaps if gap.first_offset < next_offset]
    return {"messages": messages, "next_offset": next_offset, "gaps": in_reach}


def _messages(batches: list[JournalBatch], *, start: int, stop: int) -> Iterator[tuple[JsonObject, int]]:
    """Each message as it is shown, with the size of its body."""
    for batch in batches:
        for offset in range(max(start, batch.base_offset), min(stop, batch.next_offset)):
            index = offset - batch.base_offset
            body = batch.body(index)
            due_ns = 0 if batch.due_ns is None else batch.due_ns[index]
            shown = {
                "offset": offset,
                "id": f"{offset:016x}",
                "timestamp": _published_ns(batch, offset),
                **({"due": due_ns} if due_ns else {}),
                **shown_body(body),
            }
            yield shown, len(body)


def _published_ns(batch: JournalBatch, offset: int) -> int:
    return batch.timestamp_ns if batch.times_ns is None else batch.times_ns[offset - batch.base_offset]


# /journal/read.

DEFAULT_MAX_BYTES = 8 * 1024 * 1024
LARGEST_MAX_BYTES = 1 << 30
"""More than the usual file of a journal."""
LONGEST_WAIT_MS = 60_000
"""Shorter than the idle timeouts of proxies and connection pools."""
BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})", re.ASCII)
_MS_PER_SECOND = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a request asks to read."""

    topic: JournaledTopic
    offset: int
    max_bytes: int
    wait_ms: int
    range_text: str
    if_range: str | None


class _Stretch(NamedTuple):
    """The part of an extent that is sent: bytes `start` up to, not including, `stop`."""

    start: int
    stop: int


class JournalReadApi:
    """GET /journal/read."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def read(self, request: Request) -> Response | Awaitable[Response]:
        asked = _asked(self._broker, request)
        if asked.offset >= asked.topic.journal.synced_offset and not asked.wait_ms:
            return _read_answer(asked, None)
        return self._read(asked)

    async def _read(self, asked: _Asked) -> Response:
        """The answer as soon as there is something to read, the time is up, or the topic is deleted."""
        topic, loop = asked.topic, asyncio.get_running_loop()
        deadline = loop.time() + asked.wait_ms / _MS_PER_SECOND
        while True:
            synced_offset = topic.journal.synced_offset
            extent = await _located(asked)
            if extent is not None or not topic.is_open or loop.time() >= deadline:
                break
            if topic.journal.synced_offset == synced_offset:  # else more has come while it was searched
                await _more(topic, deadline=deadline)
            if topic.is_open:
                kept_offset(asked.offset, topic)
        if self._broker.find_topic(asked.topic.name) is not asked.topic:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return _read_answer(asked, extent)


def _asked(broker: Broker, request: Request) -> _Asked:
    query = request.query()
    topic = asked_topic(broker, query)
    return _Asked(
        topic=topic,
        offset=required_offset(query, topic),
        max_bytes=_number(query, "max_bytes", default=DEFAULT_MAX_BYTES, at_least=1, at_most=LARGEST_MAX_BYTES),
        wait_ms=_number(query, "wait_ms", default=0, at_least=0, at_most=LONGEST_WAIT_MS),
        range_text=request.header("Range") or "",
        if_range=request.header("If-Range"),
    )


def _number(query: Query, name: str, *, default: int, at_least: int, at_most: int) -> int:
    given = query.get(name)
    number = default if given is None else parse_integer(given)
    if number is None or not at_least <= number <= at_most:
        raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return number


async def _located(asked: _Asked) -> Extent | None:
    if asked.offset >= asked.topic.journal.synced_offset:
        return None
    return await found_in(asked.topic, lambda view: view.located(asked.offset, max_bytes=asked.max_bytes))


async def _more(topic: JournaledTopic, *, deadline: float) -> None:
    """Wait until there may be more to read, at most until the deadline."""
    arrived = asyncio.Event()
    topic.watch(arrived.set)
    try:
        async with asyncio.timeout_at(deadline):
            await arrived.wait()
    except TimeoutError:
        pass
    finally:
        topic.unwatch(arrived.set)


def _read_answer(asked: _Asked, extent: Extent | None) -> Response:
    journal = asked.topic.journal.uuid
    if extent is None:
        return Response(200, content_type=BINARY, headers=_headers(str(journal), asked.offset, asked.offset))
    headers = _headers(str(journal), extent.base_offset, extent.next_offset)
    tag = f'"{journal}:{extent.base_offset}-{extent.next_offset}"'
    headers = (*headers, ("ETag", tag), ("Accept-Ranges", "bytes"))
    wanted = _wanted(asked, tag, length=extent.length)
    if wanted is None:
        return _sent(200, extent, _Stretch(0, extent.length), headers)
    if wanted.start >= wanted.stop:
        refused = (*headers, ("Content-Range", f"bytes */{extent.length}"))
        return Response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers=refused)
    part = ("Content-Range", f"bytes {wanted.start}-{wanted.stop - 1}/{extent.length}")
    return _sent(HTTPStatus.PARTIAL_CONTENT, extent, wanted, (*headers, part))


def _headers(journal: str, base_offset: int, next_offset: int) -> Headers:
    return (
        ("X-Emberq-Journal", journal),
        ("X-Emberq-Base-Offset", str(base_offset)),
        ("X-Emberq-Next-Offset", str(next_offset)),
    )


def _wanted(asked: _Asked, tag: str, *, length: int) -> _Stretch | None:
    """The part that a Range header asks for. None: all of it, also if the header cannot be honoured."""
    found = _RANGE.fullmatch(asked.range_text)
    if found is None or (asked.if_range is not None and asked.if_range != tag):
        return None
    start, last = int(found[1]), int(found[2] or length)
    if last < start:
        return None
    return _Stretch(start, min(last + 1, length))


def _sent(status: int, extent: Extent, part: _Stretch, headers: Headers) -> Response:
    with failing_as_internal_error():
        try:
            start, length = extent.position + part.start, part.stop - part.start
            file = FileBody(extent.path, position=start, length=length, reads_around=True)
        except OSError as error:
            raise StorageError(os_error_text("open", extent.path, error)) from error
    return Response(status, content_type=BINARY, headers=headers, file=file)
