"""nsqd's HTTP face: the API on a plain and, with a certificate, on a TLS listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from emberq.base.clock import Clock
from emberq.base.listener import Listener
from emberq.base.prometheus import CONTENT_TYPE
from emberq.base.timers import Timers
from emberq.http.connection import HttpServer
from emberq.http.message import JSON, V1_HEADERS, Request, Response, plain
from emberq.http.router import Route, Router
from emberq.nsqd import metrics
from emberq.nsqd.api.node import Node
from emberq.nsqd.api.routes import routes
from emberq.nsqd.auth.authorizer import Authorizer
from emberq.nsqd.auth.guard import ApiGuard
from emberq.nsqd.metrics import Scrape
from emberq.nsqd.options import Options
from emberq.nsqd.tls import ServerTls
from emberq.nsqd.tls_setting import TlsRequired


class Web:
    """The listeners and the servers behind them. Owned by the daemon."""

    def __init__(
        self,
        node: Node,
        options: Options,
        *,
        scrape: Callable[[], Scrape],
        clock: Clock,
        timers: Timers,
        tls: ServerTls | None,
        authorizer: Authorizer | None,
    ) -> None:
        self._options = options
        self._scrape = scrape
        self._data_path = Path(options.data_path)
        self._guard = ApiGuard(authorizer, clock=clock) if options.auth_http_api and authorizer else None
        table = [*routes(node), Route("GET", "/metrics", self._metrics, quiet=True)]
        router = Router(table if self._guard is None else self._guard.protect(table))
        refusal = self._refuse_plain if options.tls_required is TlsRequired.YES else None
        self._http = HttpServer(router, clock=clock, timers=timers, guard=refusal)
        self._https = HttpServer(router, clock=clock, timers=timers)
        self._http_listener: Listener | None = None
        self._https_listener: Listener | None = None
        if options.http_address:
            self._http_listener = Listener(options.http_address, self._http.make_protocol, label="HTTP")
        if options.https_address and tls is not None:
            self._https_listener = Listener(
                options.https_address, self._https.make_protocol, label="HTTPS", tls=tls.context
            )

    @property
    def _listeners(self) -> list[Listener]:
        return [listener for listener in (self._http_listener, self._https_listener) if listener is not None]

    @property
    def http_address(self) -> tuple[str, int] | str | None:
        return self._http_listener.address if self._http_listener is not None else None

    @property
    def https_address(self) -> tuple[str, int] | str | None:
        return self._https_listener.address if self._https_listener is not None else None

    @property
    def http_port(self) -> int:
        """The port of plain HTTP; -1 for a Unix socket, 0 without a listener."""
        return self._http_listener.port if self._http_listener is not None else 0

    @property
    def connection_count(self) -> int:
        return self._http.connection_count + self._https.connection_count

    async def bind(self) -> None:
        """Take the addresses; ListenError when one cannot be had."""
        for listener in self._listeners:
            await listener.bind()

    async def serve(self) -> None:
        """Answer requests from here on."""
        for listener in self._listeners:
            await listener.serve()

    async def close(self) -> None:
        """Accept no more requests; those under way are answered."""
        for listener in self._listeners:
            await listener.close()
        self._http.close()
        self._https.close()
        if self._guard is not None:
            await self._guard.close()

    def _refuse_plain(self, _request: Request) -> Response:
        port = self._https_listener.port if self._https_listener is not None else 0
        body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
        return Response(403, body, content_type=JSON, headers=V1_HEADERS)

    async def _metrics(self, _request: Request) -> Response:
        scrape = self._scrape()
        exposed = await asyncio.to_thread(metrics.expose, scrape, data_path=self._data_path)
        return plain(exposed, content_type=CONTENT_TYPE)
