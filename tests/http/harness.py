"""An HTTP server inside the test's process: real sockets, and its time in the test's hand."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import uvloop

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.http.router import Guard, HttpLimits
from emberq.http.server import HttpServer
from tests.http.site import Site
from tests.support.raw_http_client import RawClient
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")

SETTLING_TURNS = 10
"""Turns of the event loop within which it has accepted, read and answered all that was sent before."""


class HttpHarness:
    """A running server over a `Site`; a context manager. Owns the loop, its thread and the clients it connected."""

    def __init__(
        self,
        *,
        limits: HttpLimits | None = None,
        guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        unix_path: str = "",
    ) -> None:
        self.clock = ManualClock()
        self.timers = Timers()
        self.site = Site()
        self.server = HttpServer(
            self.site.router(), clock=self.clock, timers=self.timers, guard=guard, limits=limits or HttpLimits()
        )
        self._tls = tls
        self._unix_path = unix_path
        self._address: tuple[str, int] | str = unix_path
        self._listening: asyncio.Server
        self._clients: list[RawClient] = []
        self._unhandled: list[str] = []  # what the server let escape into the event loop
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._note_unhandled)
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._await(self._listen())
        return self

    def __exit__(self, *_raised: object) -> None:
        for client in self._clients:
            client.close()
        self.call(self._listening.close)
        self.settle()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        assert not self._unhandled, self._unhandled

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self._unix_path:
            self._listening = await loop.create_unix_server(self.server.make_protocol, self._unix_path)
        else:
            self._listening = await loop.create_server(self.server.make_protocol, "127.0.0.1", 0, ssl=self._tls)
            self._address = self._listening.sockets[0].getsockname()

    def _note_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    def connect(self, *, tls: ssl.SSLContext | None = None, receive_buffer_bytes: int = 0) -> RawClient:
        client = RawClient(self._address, tls=tls, receive_buffer_bytes=receive_buffer_bytes)
        self._clients.append(client)
        return client

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the server's thread and return its result."""

        async def run() -> T:
            return function()

        return self._await(run())

    def settle(self) -> None:
        """Let the server read everything sent so far."""
        for _ in range(SETTLING_TURNS):
            self.call(lambda: None)

    def advance(self, *, ms: int) -> None:
        """Once everything sent so far has been read, move the clock and ring what is due."""
        self.settle()

        def ring() -> None:
            self.clock.advance(ms=ms)
            self.timers.run_due(self.clock.monotonic_ns())

        self.call(ring)

    def open_gate(self) -> None:
        """Let the requests to `/gate` through."""
        self.call(self.site.gate.set)
