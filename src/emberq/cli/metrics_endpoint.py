"""GET /metrics for a command that runs for long: a small HTTP server on the command's own event loop.

    async with metrics_endpoint(arguments.metrics_address, metrics.render, terminal):
        await in_thread(work)

The work goes on in another thread, so that a scrape is answered whatever it does.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from emberq.base.address import AddressError, TcpAddress, parse_tcp_address
from emberq.base.clock import NS_PER_SECOND, SystemClock
from emberq.base.daemon_metrics import DaemonScrape
from emberq.base.listener import Listener, ListenError
from emberq.base.loop_lag import Lag
from emberq.base.loop_timers import LoopTimers
from emberq.base.prometheus import CONTENT_TYPE
from emberq.base.timers import Timers
from emberq.cli.terminal import CommandError, Terminal
from emberq.http.connection import HttpServer
from emberq.http.message import Request, Response, plain
from emberq.http.router import Route, Router

Render = Callable[[DaemonScrape], bytes]
"""The text of all metrics, those of the server itself among them."""


def add_metrics_flag(parser: argparse.ArgumentParser) -> None:
    """Read the flag as `arguments.metrics_address`."""
    parser.add_argument(
        "--metrics-address",
        type=_tcp_address,
        metavar="HOST:PORT",
        help="serve /metrics there, for Prometheus (default not at all)",
    )


@asynccontextmanager
async def metrics_endpoint(address: str | None, render: Render, terminal: Terminal) -> AsyncIterator[None]:
    """Serve while the block runs; without an address nothing is served. CommandError if it cannot be listened on."""
    if address is None:
        yield
        return
    endpoint = _Endpoint(address, render)
    try:
        await endpoint.start()
    except ListenError as failure:
        raise CommandError(f"--metrics-address: {failure}", hint="Is the port free?") from failure
    terminal.note(f"metrics at http://{endpoint.address}/metrics")
    try:
        yield
    finally:
        await endpoint.stop()


def _tcp_address(text: str) -> str:
    try:
        return str(parse_tcp_address(text))
    except AddressError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from wrong


class _Endpoint:
    def __init__(self, address: str, render: Render) -> None:
        self._render = render
        self._clock = SystemClock()
        self._start_time_s = self._clock.wall_ns() // NS_PER_SECOND
        self._timers = Timers()
        self._loop_timers: LoopTimers | None = None
        router = Router([Route("GET", "/metrics", self._metrics, quiet=True)])
        self._http = HttpServer(router, clock=self._clock, timers=self._timers)
        self._listener = Listener(address, self._http.make_protocol, label="metrics")

    @property
    def address(self) -> TcpAddress:
        """Where it listens."""
        return TcpAddress(*cast(tuple[str, int], self._listener.address))  # the flag takes no Unix socket

    async def start(self) -> None:
        await self._listener.bind()
        self._loop_timers = LoopTimers(asyncio.get_running_loop(), self._timers, self._clock)
        self._loop_timers.start()
        await self._listener.serve()

    async def stop(self) -> None:
        await self._listener.close()
        self._http.close()
        if self._loop_timers is not None:
            self._loop_timers.stop()

    def _metrics(self, _request: Request) -> Response:
        scrape = DaemonScrape(
            start_time_s=self._start_time_s,
            tcp_connection_count=0,
            http_connection_count=self._http.connection_count,
            lag=Lag(),  # nothing else is done on this loop
        )
        return plain(self._render(scrape), content_type=CONTENT_TYPE)
