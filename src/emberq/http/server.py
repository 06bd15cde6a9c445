"""The HTTP server of a daemon: a table of routes, and the connections that ask for them.

It listens to nothing itself: whoever owns a socket gives `make_protocol` to the event loop. Two listeners (plain and
TLS) may have a server each over the same router, with different guards.
"""

from __future__ import annotations

import asyncio
from typing import cast

from emberq.base.clock import Clock
from emberq.base.timers import Timers
from emberq.http.connection import Connection
from emberq.http.environment import Environment, Guard
from emberq.http.limits import DEFAULT_LIMITS, HttpLimits
from emberq.http.router import Router


class HttpServer:
    """Owned by the daemon; used in the loop's thread."""

    def __init__(
        self,
        router: Router,
        *,
        clock: Clock,
        timers: Timers,
        guard: Guard | None = None,
        limits: HttpLimits = DEFAULT_LIMITS,
    ) -> None:
        """`guard` sees every request before routing and before its body is read; its answer, if any, is final."""
        self._environment = Environment(router, clock=clock, timers=timers, guard=guard, limits=limits)

    def make_protocol(self) -> asyncio.Protocol:
        """For `loop.create_server` and its like."""
        return cast(asyncio.Protocol, Connection(self._environment))

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._environment.connections)

    def close(self) -> None:
        """Close the idle connections; the others close by themselves when their running request is answered."""
        self._environment.is_closing = True
        for connection in list(self._environment.connections):
            connection.finish()
