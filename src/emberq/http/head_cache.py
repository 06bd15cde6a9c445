"""Heads seen before, by their exact bytes.

A publisher sends the same request line and headers with every message; only the body differs. What a head means depends
on nothing but its bytes, so the second time it need not be parsed: it is looked up, and the body is cut out behind it.
That takes less than half the time.

Only plain heads are remembered: those that found a route, say their body's length outright, keep the connection open
and hold no secret. Whether the request is *allowed* is asked each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from emberq.http.exchange import KEEP, Exchange
from emberq.http.message import Request
from emberq.http.router import Route

MAX_HEAD_BYTES = 1024
"""Longer ones are parsed each time."""
_MAX_HEADS = 1024
"""At most about 3 MB. When it is full it is emptied: those in use are back at once."""
_NOT_LEARNED = frozenset({b"expect", b"transfer-encoding", b"upgrade", b"authorization", b"cookie"})
"""With one of these headers, more than the head decides what follows it, or it may hold a secret."""


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

    def learn(self, head: bytes, exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
        """Remember what the parser has made of a head, if it is a plain one. Names of headers are in lower case."""
        route = exchange.route
        if route is None or exchange.refusal is not None or exchange.ending is not KEEP:
            return
        if not headers.keys().isdisjoint(_NOT_LEARNED):
            return
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        request = exchange.request.repeated(b"", remote_address="", is_tls=False)
        self._known[head] = KnownHead(request, route, int(headers.get(b"content-length", 0)))
