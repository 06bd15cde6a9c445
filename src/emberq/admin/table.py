"""Every path that nsqadmin answers, and who may ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from emberq.admin.access.gate import Gate
from emberq.admin.access.role import Permission
from emberq.admin.api.body import MAX_BODY_BYTES
from emberq.admin.api.changing import ChangingApi
from emberq.admin.api.config import MAX_VALUE_BYTES, ConfigApi
from emberq.admin.api.login import MAX_LOGIN_BYTES, LoginApi
from emberq.admin.api.message import MAX_PUBLISH_BYTES, MessageApi
from emberq.admin.api.reading import ReadingApi
from emberq.admin.api.watching import WatchingApi
from emberq.admin.graphite import GraphiteApi, origin_of
from emberq.admin.live import Gatherer
from emberq.admin.options import Options
from emberq.admin.protection import Protection, VisitorHandler, security_headers
from emberq.admin.record import Recorder
from emberq.admin.site import Site
from emberq.admin.upstream import Cluster
from emberq.admin.web.pages import page_routes
from emberq.base.clock import Clock
from emberq.http.message import Request, Response, plain
from emberq.http.router import Handler, Route

_OPEN_PAGES = ("/login", "/static/", "/fonts/")
"""What those who have yet to log in may see."""

_CHANNEL = "/api/topics/{topic}/{channel}"
"""A channel may have any name, so nothing of ours lies below /api/topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the routes lead to. Owned by the daemon."""

    options: Options
    site: Site
    cluster: Cluster
    gate: Gate
    gatherer: Gatherer
    recorder: Recorder
    clock: Clock


def routes(parts: Parts) -> list[Route]:
    """The table of routes, with the base path in front of each."""
    table = _Table(parts)
    listed = [
        Route("GET", "/ping", table.protection.open(ping)),
        *table.pages(),
        *table.readings(),
        *table.watchings(),
        *table.changes(),
        *table.personal(),
    ]
    return list(_below(parts.site.base_path, listed))


def ping(_request: Request) -> Response:
    """What load balancers ask."""
    return plain("OK")


class _Table:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        options, cluster = parts.options, parts.cluster
        images = "" if options.proxy_graphite else origin_of(options.graphite_url)
        self.protection = Protection(
            parts.gate,
            parts.recorder,
            base_path=parts.site.base_path,
            headers=security_headers(image_origin=images),
        )
        self._messages = MessageApi(cluster, parts.recorder)

    def pages(self) -> Iterable[Route]:
        for route in page_routes(self._parts.site):
            is_open = route.path.startswith(_OPEN_PAGES)
            wrap = self.protection.open if is_open else self.protection.page
            yield dataclasses.replace(route, handler=wrap(route.handler))

    def readings(self) -> Iterable[Route]:
        """What the reference has, and what is read of messages."""
        api = ReadingApi(self._parts.cluster, clock=self._parts.clock)
        graphite = GraphiteApi(self._parts.options, self._parts.cluster.http)
        handlers: dict[str, Handler] = {
            "/api/topics": api.topics,
            "/api/topics/{topic}": api.topic,
            _CHANNEL: api.channel,
            "/api/nodes": api.nodes,
            "/api/nodes/{node}": api.node,
            "/api/counter": api.counter,
            "/api/journal/{topic}": self._messages.journal,
            "/api/graphite": graphite.rate,
        }
        if self._parts.options.proxy_graphite:
            handlers["/render"] = graphite.render
        for path, handler in handlers.items():
            yield Route("GET", path, self.protection.reading(handler))
        peek = self.protection.reading(self._messages.peek, Permission.PEEK)
        yield Route("GET", "/api/peek/{topic}/{channel}", peek)

    def watchings(self) -> Iterable[Route]:
        """What the pages follow; there is too much of it for the access log."""
        api = WatchingApi(self._parts.gatherer)
        handlers: dict[str, Handler] = {
            "/api/live": api.live,
            "/api/view": api.view,
            "/api/history": api.history,
            "/api/pipelines": api.pipelines,
        }
        for path, handler in handlers.items():
            yield Route("GET", path, self.protection.reading(handler), quiet=True)

    def changes(self) -> Iterable[Route]:
        """Where one path serves several actions, the least of them decides who is let in; the handler looks closer."""
        api = ChangingApi(self._parts.cluster, self._messages, self._parts.gate, self._parts.recorder)
        publish, pause, delete = Permission.PUBLISH, Permission.PAUSE, Permission.DELETE
        yield self._change("POST", "/api/topics", api.create, Permission.CREATE)
        yield self._change("POST", "/api/topics/{topic}", api.act_on_topic, pause)
        yield self._change("POST", "/api/publish/{topic}", self._messages.publish, publish, max_bytes=MAX_PUBLISH_BYTES)
        yield self._change("POST", _CHANNEL, api.act_on_channel, pause)
        yield self._change("DELETE", "/api/topics/{topic}", api.delete_topic, delete)
        yield self._change("DELETE", _CHANNEL, api.delete_channel, delete)
        yield self._change("DELETE", "/api/nodes/{node}", api.tombstone, Permission.TOMBSTONE)

    def _change(
        self,
        method: str,
        path: str,
        handler: VisitorHandler,
        permission: Permission,
        *,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> Route:
        wrapped = self.protection.changing(handler, action=permission, permission=permission)
        return Route(method, path, wrapped, max_body_bytes=max_bytes)

    def personal(self) -> Iterable[Route]:
        """What looks at who asks by itself."""
        parts, personal = self._parts, self.protection.personal
        config = ConfigApi(parts.options, parts.cluster, parts.gate)
        login = LoginApi(parts.gate, parts.recorder, base_path=parts.site.base_path)
        yield Route("GET", "/config/{option}", personal(config.get))
        yield Route(
            "PUT", "/config/{option}", personal(config.put), max_body_bytes=MAX_VALUE_BYTES, too_big="INVALID_VALUE"
        )
        yield Route("POST", "/login", self.protection.open(login.log_in), max_body_bytes=MAX_LOGIN_BYTES)
        yield Route("POST", "/logout", personal(login.log_out))


def _below(base_path: str, listed: Iterable[Route]) -> Iterable[Route]:
    for route in listed:
        yield dataclasses.replace(route, path=f"{base_path}{route.path}")
