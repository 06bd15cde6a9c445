"""What the connections of one server share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.base.timers import Timers
from emberq.http.head_cache import HeadCache
from emberq.http.limits import HttpLimits
from emberq.http.message import HttpError, Request, Response
from emberq.http.router import Match, Router

if TYPE_CHECKING:
    from emberq.http.connection import Connection

Guard = Callable[[Request], Response | None]
"""Looks at a request before it is routed and before its body is read; an answer of its own is final."""

INTERNAL_ERROR = HttpError(500, "INTERNAL_ERROR").response()
"""For the client of a handler that crashed; what happened stands in the log."""

_log = logging.getLogger(__name__)


class Environment:
    """Owned by the server; each connection registers here while it is open."""

    __slots__ = (
        "_endings",
        "_endings_second",
        "_tasks",
        "clock",
        "connections",
        "guard",
        "is_closing",
        "known_heads",
        "limits",
        "router",
        "timers",
    )

    def __init__(
        self, router: Router, *, clock: Clock, timers: Timers, guard: Guard | None, limits: HttpLimits
    ) -> None:
        self.router = router
        self.clock = clock
        self.timers = timers
        self.guard = guard
        self.limits = limits
        self.known_heads = HeadCache()
        self.is_closing = False
        self.connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        """Handlers that are waiting for something; kept here because the loop refers to them only weakly."""
        self._endings: tuple[bytes, ...] = ()
        self._endings_second = -1

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

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler that has to wait for something."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def endings(self) -> tuple[bytes, ...]:
        """The last lines of a head, for each `Ending`. Their date changes every second, so they are made as often."""
        second = self.clock.wall_ns() // NS_PER_SECOND
        if second != self._endings_second:
            date = f"Date: {formatdate(second, usegmt=True)}\r\n".encode("ascii")
            self._endings = (
                date + b"\r\n",
                date + b"Connection: close\r\n\r\n",
                date + b"Connection: keep-alive\r\n\r\n",
            )
            self._endings_second = second
        return self._endings


def answer_to(error: Exception, request: Request) -> Response:
    """What a client gets for an error that a handler or guard raised."""
    if isinstance(error, HttpError):
        return error.response()
    _log.error("the handler of %s %s crashed", request.method, request.path, exc_info=error)
    return INTERNAL_ERROR
