"""The nsqlookupd daemon: what there is, and in which order it starts and stops. Nothing of it is kept on disk."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import emberq
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.daemon_metrics import DaemonScrape
from emberq.base.garbage import Sweeper
from emberq.base.listener import Listener, ListenError
from emberq.base.loop_lag import LoopLag
from emberq.base.loop_timers import LoopTimers
from emberq.base.process import StartError
from emberq.base.prometheus import CONTENT_TYPE
from emberq.base.timers import Timers
from emberq.http.connection import HttpServer
from emberq.http.message import Request, Response, encode_json, plain
from emberq.http.router import Route, Router
from emberq.lookupd import metrics
from emberq.lookupd.api import routes
from emberq.lookupd.options import Options, OptionsError
from emberq.lookupd.registry import Registry
from emberq.lookupd.service import Service
from emberq.lookupd.session import Session


class Nsqlookupd:
    """One nsqlookupd. `start` takes hold of everything, `stop` lets go of it in reverse order."""

    def __init__(self, options: Options, *, clock: Clock | None = None) -> None:
        self.options = _validated(options)
        self.clock = clock or SystemClock()
        self._timers = Timers()
        self.failed = asyncio.Event()
        """Set when the daemon cannot go on."""
        self.registry = Registry(
            clock=self.clock,
            inactive_timeout_ns=options.inactive_producer_timeout_ns,
            tombstone_lifetime_ns=options.tombstone_lifetime_ns,
        )
        self._service = Service(self.registry, clock=self.clock, timers=self._timers)
        self._start_time_s = self.clock.wall_ns() // NS_PER_SECOND
        self._loop_timers: LoopTimers | None = None
        self._sweeper = Sweeper(timers=self._timers, clock=self.clock)
        self._loop_lag = LoopLag(timers=self._timers, clock=self.clock)
        table = [*routes(self.registry, clock=self.clock), Route("GET", "/metrics", self._metrics, quiet=True)]
        self._http = HttpServer(Router(table), clock=self.clock, timers=self._timers)
        self._tcp_listener = Listener(options.tcp_address, lambda: Session(self._service), label="TCP")
        self._http_listener = Listener(options.http_address, self._http.make_protocol, label="HTTP")

    async def start(self) -> None:
        """Serve nsqds and consumers; StartError, with nothing left behind, if that cannot be."""
        try:
            await self._tcp_listener.bind()
            await self._http_listener.bind()
            self._service.introduction = self._introduction()
            self._start_watches()
            await self._tcp_listener.serve()
            await self._http_listener.serve()
        except ListenError as failure:
            await self._http_listener.close()
            await self._tcp_listener.close()
            self._stop_watches()
            raise StartError(str(failure)) from failure

    async def stop(self) -> None:
        """Accept no more, and close what is open."""
        await self._tcp_listener.close()
        for session in list(self._service.sessions):
            session.abort()
        while self._service.sessions:
            await asyncio.sleep(0)
        await self._http_listener.close()
        self._http.close()
        self._stop_watches()

    def reload(self) -> None:
        """There is nothing on disk to read again."""

    def run_timers(self) -> None:
        """Do what is due by the clock now; for tests that move it."""
        self._timers.run_due(self.clock.monotonic_ns())

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port that nsqds connect to."""
        return cast(tuple[str, int], self._tcp_listener.address)  # the options allow no Unix socket

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        return cast(tuple[str, int], self._http_listener.address)

    def _introduction(self) -> bytes:
        """What nsqds are told: among other things where to ask by HTTP."""
        return encode_json(
            {
                "broadcast_address": self.options.broadcast_address,
                "hostname": socket.gethostname(),
                "http_port": self.http_address[1],
                "tcp_port": self.tcp_address[1],
                "version": emberq.NSQ_VERSION,
            }
        )

    def _start_watches(self) -> None:
        self._loop_timers = LoopTimers(asyncio.get_running_loop(), self._timers, self.clock)
        self._loop_timers.start()
        self._sweeper.start()
        self._loop_lag.start()

    def _stop_watches(self) -> None:
        self._loop_lag.stop()
        self._sweeper.stop()
        if self._loop_timers is not None:
            self._loop_timers.stop()

    def _metrics(self, _request: Request) -> Response:
        scrape = DaemonScrape(
            start_time_s=self._start_time_s,
            tcp_connection_count=len(self._service.sessions),
            http_connection_count=self._http.connection_count,
            lag=self._loop_lag.read(),
        )
        return plain(metrics.render(self.registry, scrape), content_type=CONTENT_TYPE)


def _validated(options: Options) -> Options:
    try:
        return options.validated()
    except OptionsError as wrong:
        raise StartError(str(wrong)) from wrong
