"""Heads seen before, by their exact bytes.

A publisher sends the same request line and headers with every message; only the body differs. What a head means depends
on nothing but its bytes, so the second time it need not be parsed: it is looked up, and the body is cut out behind it.
That takes a third of the time.

Only plain heads are remembered: those that found a route, say their body's length outright, keep the connection open
and hold no secret. Whether the request is *allowed* is asked each time.
"""

from __future__ import annotations

from typing import NamedTuple

from emberq.http.message import Request
from emberq.http.router import Route

MAX_HEAD_BYTES = 1024
"""Longer ones are parsed each time; so are all that carry something new each time, which would only fill the cache."""
_MAX_HEADS = 1024
"""At most about 3 MB. When it is full it is emptied: those in use are back at once."""


class KnownHead(NamedTuple):
    """What a head says."""

    request: Request
    """The request, from nobody and without a body."""
    route: Route
    body_bytes: int


class HeadCache:
    """Shared by all connections of a server."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}
        self.get = self._known.get
        """The known head of exactly these bytes, or None."""

    def learn(self, head: bytes, known: KnownHead) -> None:
        """Remember what the parser has made of a head."""
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        self._known[head] = known
