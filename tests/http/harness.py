"""An HTTP server inside the test's process: real sockets, and its time in the test's hand."""

from __future__ import annotations

import asyncio
import ssl

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.http.router import Guard, HttpLimits
from emberq.http.server import HttpServer
from tests.http.site import Site
from tests.support.raw_connection import Address
from tests.support.raw_http_client import RawClient
from tests.support.server_thread import ServerThread


class HttpHarness(ServerThread):
    """A running server over a `Site`."""

    def __init__(
        self,
        *,
        limits: HttpLimits | None = None,
        guard: Guard | None = None,
        head_guard: Guard | None = None,
        tls: ssl.SSLContext | None = None,
        unix_path: str = "",
    ) -> None:
        super().__init__("http")
        self.clock = ManualClock()
        self.timers = Timers()
        self.site = Site()
        self.server = HttpServer(
            self.site.router(),
            clock=self.clock,
            timers=self.timers,
            guard=guard,
            head_guard=head_guard,
            limits=limits or HttpLimits(),
        )
        self._tls = tls
        self._unix_path = unix_path
        self._address: Address = unix_path
        self._listening: asyncio.Server

    def start(self) -> None:
        self._await(self._listen())

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self._unix_path:
            self._listening = await loop.create_unix_server(self.server.make_protocol, self._unix_path)
        else:
            self._listening = await loop.create_server(self.server.make_protocol, "127.0.0.1", 0, ssl=self._tls)
            self._address = self._listening.sockets[0].getsockname()

    def stop(self) -> None:
        self.call(self._listening.close)
        self.settle()

    def connect(self, *, tls: ssl.SSLContext | None = None, receive_buffer_bytes: int = 0) -> RawClient:
        return self._kept(RawClient(self._address, tls=tls, receive_buffer_bytes=receive_buffer_bytes))

    def advance(self, *, ms: int) -> None:
        """Once everything sent so far has been read, move the clock in one stride, and ring what is due."""
        self.settle()
        self.call(lambda: self._move_time(ms=ms))

    def _move_time(self, *, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.timers.run_due(self.clock.monotonic_ns())

    def open_gate(self) -> None:
        """Let the requests to `/gate` through."""
        self.call(self.site.gate.set)
