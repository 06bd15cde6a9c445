"""Server-sent events to one browser."""

from __future__ import annotations

import asyncio

from emberq.admin.audience import EventStream, encode_event


def test_an_event_is_two_lines_and_an_empty_one() -> None:
    assert encode_event("topics", b'{"a":1}') == b'event: topics\ndata: {"a":1}\n\n'


async def test_only_the_newest_event_waits() -> None:
    stream = EventStream(lambda _: None)
    pieces = [await stream.next_piece()]
    stream.send(b"overtaken")
    stream.send(b"newest")
    pieces.append(await stream.next_piece())
    waiting = asyncio.create_task(stream.next_piece())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.end()
    pieces.append(await waiting)
    assert pieces == [b"retry: 2000\n\n", b"newest", b""]


async def test_an_event_that_is_there_at_once_goes_first() -> None:
    stream = EventStream(lambda _: None)
    stream.send(b"first")
    assert await stream.next_piece() == b"first"


async def test_whoever_leaves_is_told_of() -> None:
    left: list[EventStream] = []
    stream = EventStream(left.append)
    stream.close()
    assert left == [stream]
