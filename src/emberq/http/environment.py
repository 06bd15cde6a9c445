"""Which requests are let in, and what becomes of handlers that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable

from emberq.http.head_cache import HeadCache
from emberq.http.limits import HttpLimits
from emberq.http.message import HttpError, Request, Response
from emberq.http.router import Match, Router

Guard = Callable[[Request], Response | None]
"""Looks at a request before it is routed and before its body is read; an answer of its own is final."""

INTERNAL_ERROR = HttpError(500, "INTERNAL_ERROR").response()
"""For the client of a handler that crashed; what happened stands in the log."""

_log = logging.getLogger(__name__)


class Admission:
    """What decides on a request before it is answered: guard, routes, bounds. Owned by the server."""

    __slots__ = ("guard", "known_heads", "limits", "router")

    def __init__(self, router: Router, *, guard: Guard | None, limits: HttpLimits) -> None:
        self.router = router
        self.guard = guard
        self.limits = limits
        self.known_heads = HeadCache()

    def admit(self, request: Request) -> Match | Response:
        """Which route answers a request, or with what it is refused."""
        refusal = self.guarded(request)
        if refusal is not None:
            return refusal
        return self.router.find(request.method, request.path, query_text=request.query_text)

    def guarded(self, request: Request) -> Response | None:
        """The guard's answer, if it has one."""
        if self.guard is None:
            return None
        try:
            return self.guard(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must get an answer
            return answer_to(error, request)


def answer_to(error: Exception, request: Request) -> Response:
    """What a client gets for an error that a handler or guard raised."""
    if isinstance(error, HttpError):
        return error.response()
    _log.error("the handler of %s %s crashed", request.method, request.path, exc_info=error)
    return INTERNAL_ERROR
