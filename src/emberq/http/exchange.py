"""A request on its way to its answer: what the reader hands to the connection."""

from __future__ import annotations

import enum

from emberq.http.message import Request, Response
from emberq.http.router import Route


class Ending(enum.IntEnum):
    """What becomes of the connection after an answer, and so which header has to say it."""

    KEEP = 0
    """It stays open, which needs no saying in HTTP/1.1."""
    CLOSE = 1
    KEEP_OLD = 2
    """It stays open, which a client of HTTP/1.0 has to be told."""


# Looking a member up in its class takes as long as a call, and these are needed for every request.
KEEP, CLOSE = Ending.KEEP, Ending.CLOSE


class Exchange:
    """A request that can be answered: by the route's handler, or by `refusal` if that is set."""

    __slots__ = ("ending", "has_unread_body", "refusal", "request", "route")

    def __init__(
        self,
        request: Request,
        *,
        ending: Ending,
        route: Route | None = None,
        refusal: Response | None = None,
    ) -> None:
        self.request = request
        self.route = route
        """None if none was found; then there is a refusal."""
        self.refusal = refusal
        self.ending = ending
        self.has_unread_body = False
        """The client may still be sending; if that met a closed socket, the answer could be lost on its way."""
