"""Every path that nsqd answers, and the listeners it answers on: plain HTTP and, with a certificate, HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from emberq.base.clock import NS_PER_MS, Clock
from emberq.base.listener import Listener
from emberq.base.metrics import CONTENT_TYPE
from emberq.base.timers import Timers
from emberq.base.tls import ServerTls
from emberq.broker.stats import ClientStats, TopicStats
from emberq.http.access import AccessGuard, SecretFile, open_secrets
from emberq.http.body import Assembly
from emberq.http.browser import BrowserGuard, host_in
from emberq.http.debug import for_operators, profiler_routes
from emberq.http.message import JSON, V1_HEADERS, Request, Response, plain
from emberq.http.router import Guard, Route, Router
from emberq.http.server import HttpServer
from emberq.nsqd import metrics
from emberq.nsqd.api.channel import ChannelApi, TopicApi
from emberq.nsqd.api.journal import JournalApi, JournalReadApi
from emberq.nsqd.api.node import MAX_FORM_BYTES, ConfigApi, DrainApi, InfoApi, Node, free_memory, set_block_rate
from emberq.nsqd.api.policy import MAX_POLICY_BYTES, PolicyApi
from emberq.nsqd.api.publish import PublishApi
from emberq.nsqd.api.stats import StatsApi
from emberq.nsqd.auth.authorizer import Authorizer
from emberq.nsqd.auth.guard import ApiGuard
from emberq.nsqd.gate import ConnectionGate
from emberq.nsqd.metrics import Scrape
from emberq.nsqd.options import NsqdOptions, TlsRequired


def routes(node: Node) -> list[Route]:
    """The table of routes, with the largest body of each and the error for a larger one."""
    options = node.options
    max_msg_size, max_body_size = options.max_msg_size, options.max_body_size
    info, stats, config = InfoApi(node), StatsApi(node), ConfigApi(node)
    topic, channel = TopicApi(node), ChannelApi(node)
    policy, drain = PolicyApi(node.broker), DrainApi(node)
    journal, journal_read = JournalApi(node.broker), JournalReadApi(node.broker)
    publish = PublishApi(
        node.broker,
        node.batcher,
        max_msg_size=max_msg_size,
        max_body_size=max_body_size,
        max_req_timeout_ms=options.max_req_timeout_ns // NS_PER_MS,
    )
    has_token = options.auth_http_api or bool(options.http_secret_file)
    return [
        Route("GET", "/ping", info.ping),
        Route("GET", "/info", info.info),
        Route("GET", "/drain", drain.get),
        Route("POST", "/drain", drain.post),
        Route("DELETE", "/drain", drain.delete),
        Route("POST", "/pub", publish.publish_one, max_body_bytes=max_msg_size, too_big="MSG_TOO_BIG", quiet=True),
        Route("POST", "/mpub", publish.publish_many, max_body_bytes=max_body_size, too_big="BODY_TOO_BIG", quiet=True),
        Route("GET", "/stats", stats.stats),
        Route("POST", "/topic/create", topic.create),
        Route("POST", "/topic/delete", topic.delete),
        Route("POST", "/topic/empty", topic.empty),
        Route("POST", "/topic/pause", topic.pause),
        Route("POST", "/topic/unpause", topic.unpause),
        Route("POST", "/channel/create", channel.create),
        Route("POST", "/channel/delete", channel.delete),
        Route("POST", "/channel/empty", channel.empty),
        Route("POST", "/channel/pause", channel.pause),
        Route("POST", "/channel/unpause", channel.unpause),
        Route("GET", "/channel/peek", channel.peek),
        Route("POST", "/channel/seek", channel.seek),
        Route("GET", "/channel/policy", policy.get),
        Route("POST", "/channel/policy", policy.set, max_body_bytes=MAX_POLICY_BYTES, too_big="INVALID_POLICY"),
        Route("POST", "/channel/redrive", policy.redrive),
        Route("GET", "/topic/peek", journal.peek),
        Route("GET", "/journal", journal.describe),
        Route("GET", "/journal/read", journal_read.read),
        Route("GET", "/config", config.get_all),
        Route("GET", "/config/{option}", config.get),
        Route("PUT", "/config/{option}", config.put, max_body_bytes=max_msg_size, too_big="INVALID_VALUE"),
        *profiler_routes(has_token=has_token),
        *for_operators([Route("POST", "/debug/freememory", free_memory)], has_token=has_token),
        Route("PUT", "/debug/setblockrate", set_block_rate, max_body_bytes=MAX_FORM_BYTES),
    ]


# The listeners.


class Web:
    """The listeners and the servers behind them. Owned by the daemon."""

    def __init__(
        self,
        node: Node,
        options: NsqdOptions,
        *,
        scrape: Callable[[tuple[TopicStats, ...], tuple[ClientStats, ...]], Scrape],
        clock: Clock,
        timers: Timers,
        gate: ConnectionGate,
        tls: ServerTls | None,
        authorizer: Authorizer | None,
    ) -> None:
        """StartError if the file of secrets cannot be used."""
        self._options = options
        self._node = node
        self._scrape = scrape
        self._assembly = Assembly(clock)
        self._data_path = Path(options.data_path)
        self._secrets = open_secrets(options.http_secret_file)
        self._guard: ApiGuard | None = None
        if options.auth_http_api and authorizer is not None:
            self._guard = ApiGuard(authorizer, clock=clock, secrets=self._secrets)
        table = [*routes(node), Route("GET", "/metrics", self._metrics, quiet=True)]
        router = Router(table if self._guard is None else self._guard.protect(table))
        access, browsers = _access_guard(self._secrets, self._guard), _browser_guard(options)
        guard: Guard | None = self._refuse_plain if options.tls_required is TlsRequired.YES else access
        self._http = HttpServer(router, clock=clock, timers=timers, guard=guard, head_guard=browsers, gate=gate)
        self._https = HttpServer(router, clock=clock, timers=timers, guard=access, head_guard=browsers, gate=gate)
        self._http_listener: Listener | None = None
        self._https_listener: Listener | None = None
        if options.http_address:
            self._http_listener = Listener(options.http_address, self._http.make_protocol, label="HTTP")
        if options.https_address and tls is not None:
            self._https_listener = Listener(
                options.https_address,
                self._https.make_protocol,
                label="HTTPS",
                tls=tls.context,
                has_room=gate.has_room,
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
        """Bind the addresses; ListenError if one cannot be bound."""
        for listener in self._listeners:
            await listener.bind()

    async def serve(self) -> None:
        """Answer requests from here on."""
        for listener in self._listeners:
            await listener.serve()

    def reload(self) -> None:
        """Read the file of secrets again."""
        if self._secrets is not None:
            self._secrets.reload()

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
        node = self._node
        topics = await self._assembly.run(metrics.read_topics(node.broker))
        producers = await self._assembly.run(metrics.read_clients(node.producers()))
        disk, process = await asyncio.to_thread(metrics.read_system, self._data_path)
        scrape = self._scrape(topics, producers)
        answer = self._assembly.make(metrics.pieces(scrape, disk=disk, process=process), _as_metrics)
        return answer if isinstance(answer, Response) else await answer


def _access_guard(secrets: SecretFile | None, guard: ApiGuard | None) -> AccessGuard | None:
    if secrets is None:
        return None
    return AccessGuard(secrets, realm="nsqd", is_decided_elsewhere=guard.decides_on if guard is not None else None)


def _browser_guard(options: NsqdOptions) -> BrowserGuard:
    listens_on = map(host_in, (options.http_address, options.https_address))
    return BrowserGuard((*options.http_allowed_host, options.broadcast_address, *listens_on))


def _as_metrics(body: bytes) -> Response:
    return plain(body, content_type=CONTENT_TYPE)
