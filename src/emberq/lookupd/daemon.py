"""The nsqlookupd daemon: what there is, in which order it starts and stops, and its /metrics. It keeps nothing on disk.

    # HELP nsqlookupd_topics Topics known, with or without producers.
    # TYPE nsqlookupd_topics gauge
    nsqlookupd_topics 17

`FAMILIES` lists every metric. There is no series for each topic: a look-up tells who produces it, and hundreds of
thousands of series would drown the rest.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple, cast

import emberq
from emberq.base import metrics
from emberq.base.clock import NS_PER_SECOND, Clock, SystemClock
from emberq.base.daemon import LoopLag, LoopTimers, Sweeper
from emberq.base.listener import Listener, ListenError
from emberq.base.metrics import (
    CONTENT_TYPE,
    PROCESS_FAMILIES,
    DaemonScrape,
    Family,
    ProcessStats,
    Sampler,
    connections_family,
    gauge,
    info_family,
    lag_families,
    read_process,
    single,
    start_time_family,
)
from emberq.base.program import StartError
from emberq.base.settings import OptionsError
from emberq.base.timers import Timers
from emberq.base.tls import ServerTls, TlsError, loaded_tls
from emberq.http.access import AccessGuard, open_secrets
from emberq.http.browser import BrowserGuard, host_in
from emberq.http.message import Request, Response, encode_json, plain
from emberq.http.router import Route, Router
from emberq.http.server import HttpServer
from emberq.lookupd.api import routes
from emberq.lookupd.options import LookupdOptions
from emberq.lookupd.registry import NO_LIMIT, Registry
from emberq.lookupd.session import LookupContext, LookupSession

MAX_KEYS_FACTOR = 10
"""All nsqds together may have so many times as many different topics and channels as one. By default they take some
350 MB, and no cluster is known that has a tenth of them."""
TIDY_INTERVAL_NS = 10 * NS_PER_SECOND
KEYS_PER_TURN = 500
"""Cleared away or forgotten, which takes a few milliseconds. Then other clients get a turn."""


class Nsqlookupd:
    """One nsqlookupd. `start` opens and starts everything, `stop` closes it in reverse order."""

    def __init__(self, options: LookupdOptions, *, clock: Clock | None = None) -> None:
        self.options = _validated(options)
        self.clock = clock or SystemClock()
        self._timers = Timers()
        self.failed = asyncio.Event()
        """Set when the daemon cannot go on."""
        self.registry = Registry(
            clock=self.clock,
            inactive_timeout_ns=options.inactive_producer_timeout_ns,
            tombstone_lifetime_ns=options.tombstone_lifetime_ns,
            unused_lifetime_ns=options.unused_topic_lifetime_ns or NO_LIMIT,
            max_keys_of_producer=options.max_registrations or NO_LIMIT,
            max_keys=MAX_KEYS_FACTOR * options.max_registrations or NO_LIMIT,
        )
        self._tidying = self._timers.alarm(self._tidy)
        self._context = LookupContext(self.registry, clock=self.clock, timers=self._timers, tidying=self._tidying)
        self._start_time_s = self.clock.wall_ns() // NS_PER_SECOND
        self._loop_timers: LoopTimers | None = None
        self._sweeper = Sweeper(timers=self._timers, clock=self.clock)
        self._loop_lag = LoopLag(timers=self._timers, clock=self.clock)
        self._secrets = open_secrets(options.http_secret_file)
        served = routes(self.registry, clock=self.clock, has_token=self._secrets is not None)
        table = [*served, Route("GET", "/metrics", self._metrics, quiet=True)]
        names = (*options.http_allowed_host, options.broadcast_address, host_in(options.http_address))
        self._http = HttpServer(
            Router(table),
            clock=self.clock,
            timers=self._timers,
            guard=AccessGuard(self._secrets, realm="nsqlookupd") if self._secrets is not None else None,
            head_guard=BrowserGuard(names),
        )
        self._tls = _loaded_tls(self.options)
        context = self._tls.context if self._tls is not None else None
        self._tcp_listener = Listener(
            options.tcp_address, lambda: LookupSession(self._context), label="TCP", tls=context
        )
        self._http_listener = Listener(
            options.http_address, self._http.make_protocol, label="HTTP" if context is None else "HTTPS", tls=context
        )

    async def start(self) -> None:
        """Serve nsqds and consumers. StartError if that fails; then everything is closed again."""
        try:
            await self._tcp_listener.bind()
            await self._http_listener.bind()
            self._context.introduction = self._introduction()
            self._start_watches()
            await self._tcp_listener.serve()
            await self._http_listener.serve()
        except ListenError as failure:
            await self._http_listener.close()
            await self._tcp_listener.close()
            self._stop_watches()
            raise StartError(str(failure)) from failure

    async def stop(self) -> None:
        """Accept no more connections, and close those that are open."""
        await self._tcp_listener.close()
        for session in list(self._context.sessions):
            session.abort()
        while self._context.sessions:
            await asyncio.sleep(0)
        await self._http_listener.close()
        self._http.close()
        self._stop_watches()

    def reload(self) -> None:
        """Read the TLS certificate and the file of secrets again; open connections stay."""
        if self._tls is not None:
            self._tls.reload()
        if self._secrets is not None:
            self._secrets.reload()

    def run_timers(self) -> None:
        """Run the timers that are due by the clock; for tests that move it."""
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
        """The answer to IDENTIFY: versions, addresses and ports."""
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
        self._tidy()

    def _tidy(self) -> None:
        """Clear away some of what is gone from the registry, and come again: soon if there is more of it."""
        registry = self.registry
        has_more = registry.clear_away(limit=KEYS_PER_TURN) or registry.forget_unused(limit=KEYS_PER_TURN)
        self._tidying.set(self.clock.monotonic_ns() + (0 if has_more else TIDY_INTERVAL_NS))

    def _stop_watches(self) -> None:
        self._tidying.cancel()
        self._loop_lag.stop()
        self._sweeper.stop()
        if self._loop_timers is not None:
            self._loop_timers.stop()

    def _metrics(self, _request: Request) -> Response:
        scrape = DaemonScrape(
            start_time_s=self._start_time_s,
            tcp_connection_count=len(self._context.sessions),
            http_connection_count=self._http.connection_count,
            lag=self._loop_lag.read(),
        )
        return plain(render(self.registry, scrape), content_type=CONTENT_TYPE)


def _validated(options: LookupdOptions) -> LookupdOptions:
    try:
        return options.validated()
    except OptionsError as wrong:
        raise StartError(str(wrong)) from wrong


def _loaded_tls(options: LookupdOptions) -> ServerTls | None:
    try:
        return loaded_tls(options)
    except TlsError as wrong:
        raise StartError(str(wrong)) from wrong


# /metrics.

_DAEMON = "nsqlookupd"


class _LookupdSource(NamedTuple):
    """Where samples come from."""

    registry: Registry
    scrape: DaemonScrape
    process: ProcessStats


def render(registry: Registry, scrape: DaemonScrape) -> bytes:
    """All families in the text format of Prometheus."""
    return metrics.render(FAMILIES, _LookupdSource(registry, scrape, read_process()))


def _registry(value: Callable[[Registry], int]) -> Sampler[_LookupdSource]:
    return single(lambda source: value(source.registry))


def _tombstone_count(registry: Registry) -> int:
    return sum(
        registry.is_tombstoned(producer, topic) for producer in registry.producers for topic in producer.tombstones
    )


FAMILIES: tuple[Family[_LookupdSource], ...] = (
    # The registry.
    gauge("nsqlookupd_topics", "Topics known, with or without producers.", _registry(lambda r: r.topic_count)),
    gauge("nsqlookupd_channels", "Channels known, of all topics.", _registry(lambda r: r.channel_count)),
    gauge("nsqlookupd_producers", "nsqds connected and identified.", _registry(lambda r: len(r.producers))),
    gauge(
        "nsqlookupd_active_producers",
        "nsqds heard of within the inactivity timeout.",
        _registry(lambda r: len(r.active_producers())),
    ),
    gauge(
        "nsqlookupd_topic_registrations",
        "Topics of all nsqds, added up.",
        _registry(lambda r: sum(len(producer.topics) for producer in r.producers)),
    ),
    gauge("nsqlookupd_tombstones", "Tombstones that hide a topic of an nsqd now.", _registry(_tombstone_count)),
    # The daemon and its process.
    info_family(_DAEMON),
    start_time_family(_DAEMON),
    connections_family(_DAEMON),
    *lag_families(_DAEMON),
    *PROCESS_FAMILIES,
)
"""Every metric there is, in the order they are written."""
