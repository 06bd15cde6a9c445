"""GET /journal/read: batches as they lie on disk, for programs.

    GET /journal/read?topic=T&offset=17&max_bytes=1048576&wait_ms=10000

    200 OK
    Content-Type: application/octet-stream
    X-Emberq-Journal: 8d0e4e62-…       which journal this is; offsets mean nothing in another one
    X-Emberq-Base-Offset: 12           of the first message: the batch that holds 17 begins with 12
    X-Emberq-Next-Offset: 4012         what to ask for next
    ETag: "8d0e4e62-…:12-4012"

The body is one stretch of one file, whole batches (docs/storage-format.md draws them), and is sent from there without
being looked at. It ends at the last offset that is on the disk for sure, at the end of a file, or before `max_bytes`
are exceeded, whichever comes first, but holds at least one batch. If there is nothing behind `offset` yet the answer
waits for `wait_ms`, and then is empty.

A base offset behind the one asked for means that what lies between cannot be read any more.

An answer that broke off is fetched to its end with `Range: bytes=N-`. What is stored never changes, but meanwhile there
may be more of it. Whoever wants the same stretch asks with its length as `max_bytes`; whoever wants to be sure sends
the ETag as `If-Range`, and gets everything again if it is another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from emberq.broker.broker import Broker
from emberq.broker.journaled_topic import JournaledTopic
from emberq.http.file_body import FileBody
from emberq.http.message import Headers, HttpError, Query, Request, Response
from emberq.nsqd.api.argument import parse_integer
from emberq.nsqd.api.failure import failing_as_internal_error
from emberq.nsqd.api.position import asked_topic, kept_offset, required_offset
from emberq.storage.errors import StorageError, os_error_text
from emberq.storage.journal.reader import Extent

DEFAULT_MAX_BYTES = 8 * 1024 * 1024
LARGEST_MAX_BYTES = 1 << 30
"""More than a file of a journal usually has."""
LONGEST_WAIT_MS = 60_000
"""Shorter than proxies and pools think a connection dead."""
BINARY = "application/octet-stream"

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})", re.ASCII)
_MS_PER_SECOND = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a request wants to read."""

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
    """Sends stretches of journals."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def read(self, request: Request) -> Response | Awaitable[Response]:
        asked = _asked(self._broker, request)
        extent = _located(asked)
        if extent is None and asked.wait_ms:
            return self._read_later(asked)
        return _answer(asked, extent)

    async def _read_later(self, asked: _Asked) -> Response:
        """The answer as soon as there is something to read, or the time is up, or the topic goes away."""
        extent: Extent | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + asked.wait_ms / _MS_PER_SECOND
        while extent is None and asked.topic.is_open and loop.time() < deadline:
            await _more(asked.topic, deadline=deadline)
            if asked.topic.is_open:
                kept_offset(asked.offset, asked.topic)
                extent = _located(asked)
        if self._broker.find_topic(asked.topic.name) is not asked.topic:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return _answer(asked, extent)


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


def _located(asked: _Asked) -> Extent | None:
    with failing_as_internal_error():
        return asked.topic.journal.locate(asked.offset, max_bytes=asked.max_bytes)


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


def _answer(asked: _Asked, extent: Extent | None) -> Response:
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
    """The part that a Range header asks for; None: all of it, also for a header that is of no use to us."""
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
            file = FileBody(extent.path, position=extent.position + part.start, length=part.stop - part.start)
        except OSError as error:
            raise StorageError(os_error_text("open", extent.path, error)) from error
    return Response(status, content_type=BINARY, headers=headers, file=file)
