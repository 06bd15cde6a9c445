"""Server-sent events to one browser.

    retry: 2000                    how soon to come again after a break
    event: topics
    data: {"topics":[…]}           one line: JSON has no line breaks of its own
                                   an empty line ends the event

Only the newest event waits to be sent. A browser that is slow misses what was overtaken, and costs no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from emberq.http.stream_body import StreamBody

CONTENT_TYPE = "text/event-stream; charset=utf-8"
RETRY_MS = 2000


def encode_event(name: str, data: bytes) -> bytes:
    """An event as it is sent; `data` is JSON."""
    return b"event: %s\ndata: %s\n\n" % (name.encode("ascii"), data)


class EventStream(StreamBody):
    """The body of an answer without an end."""

    def __init__(self, on_close: Callable[[EventStream], None]) -> None:
        self.length = None
        self._on_close = on_close
        self._newest = b"retry: %d\n\n" % RETRY_MS
        self._has_news = asyncio.Event()
        self._has_news.set()
        self._has_ended = False

    def send(self, event: bytes) -> None:
        """Send this, unless something newer comes before the browser has taken what was sent so far."""
        self._newest = event
        self._has_news.set()

    def end(self) -> None:
        """Send no more."""
        self._has_ended = True
        self._has_news.set()

    async def next_piece(self) -> bytes:
        await self._has_news.wait()
        self._has_news.clear()
        return b"" if self._has_ended else self._newest

    def close(self) -> None:
        self._on_close(self)
