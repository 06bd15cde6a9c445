"""Every path that nsqadmin answers, who may ask for it, and the headers that protect a browser.

**Before a handler** the guard asks the gate: did a page of another site make this request? Who is it, and may they?
Pages send visitors who are not logged in to the login page; the API answers 401 LOGIN_REQUIRED. Refused actions go to
the audit log.

**After it**, headers that leave a browser no choice:

    Content-Security-Policy    only our own scripts and styles, none inside a page; no site may put us in a frame
    X-Content-Type-Options     what we say is JSON is never taken for HTML
    Referrer-Policy            names of topics do not leave with a link
    Cross-Origin-*             no other site can read, embed or keep a handle on us
    Cache-Control: no-store    for figures and pages, unless the handler says otherwise
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote

from emberq.admin.access.gate import Gate, Visitor
from emberq.admin.access.user import Permission
from emberq.admin.api.changing import MAX_TARGETS_BYTES, ChangingApi
from emberq.admin.api.message import MAX_PUBLISH_BYTES, MessageApi
from emberq.admin.api.own import (
    MAX_LOGIN_BYTES,
    MAX_RULES_BYTES,
    MAX_VALUE_BYTES,
    AdminConfigApi,
    AuditApi,
    LoginApi,
    RulesApi,
    SilencesApi,
)
from emberq.admin.api.reading import GraphiteApi, ReadingApi, WatchingApi, origin_of
from emberq.admin.api.request import MAX_BODY_BYTES, as_http_error
from emberq.admin.audit import PEEK, AuditedAction, Recorder
from emberq.admin.live import Gatherer
from emberq.admin.metrics import MetricsApi
from emberq.admin.options import AdminOptions
from emberq.admin.web.pages import Site, page_routes
from emberq.admin.webhook import Webhook
from emberq.base.clock import Clock
from emberq.base.metrics import DaemonScrape
from emberq.cluster.cluster import Cluster
from emberq.cluster.upstream import ClusterError
from emberq.http.message import Headers, HttpError, Request, Response, plain
from emberq.http.router import Handler, Route

VisitorHandler = Callable[[Request, Visitor], Response | Awaitable[Response]]

_OPEN_PAGES = ("/login", "/static/", "/fonts/")
"""What visitors may see who have yet to log in."""

_CHANNEL = "/api/topics/{topic}/{channel}"
"""A channel may have any name, so nothing of ours lies below /api/topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the routes lead to. Owned by the daemon."""

    options: AdminOptions
    site: Site
    cluster: Cluster
    gate: Gate
    gatherer: Gatherer
    recorder: Recorder
    webhook: Webhook
    scrape: Callable[[], DaemonScrape]
    """The daemon at this moment, for /metrics."""
    clock: Clock


def routes(parts: Parts) -> list[Route]:
    """The table of routes, with the base path in front of each."""
    table = _Table(parts)
    listed = [
        Route("GET", "/ping", table.guard.open(ping)),
        *table.pages(),
        *table.readings(),
        *table.watchings(),
        *table.changes(),
        *table.personal(),
    ]
    return [dataclasses.replace(route, path=f"{parts.site.base_path}{route.path}") for route in listed]


def ping(_request: Request) -> Response:
    """What load balancers ask."""
    return plain("OK")


class _Table:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        options, cluster = parts.options, parts.cluster
        images = "" if options.proxy_graphite else origin_of(options.graphite_url)
        self.guard = RequestGuard(
            parts.gate,
            parts.recorder,
            base_path=parts.site.base_path,
            headers=security_headers(image_origin=images),
        )
        self._messages = MessageApi(cluster, parts.recorder, clock=parts.clock)
        self._rules = RulesApi(parts.gatherer, parts.recorder, webhook_url=options.alert_webhook_url)

    def pages(self) -> Iterable[Route]:
        for route in page_routes(self._parts.site):
            is_open = route.path.startswith(_OPEN_PAGES)
            wrap = self.guard.open if is_open else self.guard.page
            yield dataclasses.replace(route, handler=wrap(route.handler))

    def readings(self) -> Iterable[Route]:
        """What is read: as in the reference, and messages."""
        api = ReadingApi(self._parts.cluster, clock=self._parts.clock)
        graphite = GraphiteApi(self._parts.options, self._parts.cluster.http)
        handlers: dict[str, Handler] = {
            "/api/topics": api.topics,
            "/api/topics/{topic}": api.topic,
            _CHANNEL: api.channel,
            "/api/nodes": api.nodes,
            "/api/nodes/{node}": api.node,
            "/api/counter": api.counter,
            "/api/drain/{node}": api.drain,
            "/api/settings": api.settings,
            "/api/search/consumers": api.consumers,
            "/api/journal/{topic}": self._messages.journal,
            "/api/seek/{topic}/{channel}": self._messages.foresee,
            "/api/graphite": graphite.rate,
        }
        if self._parts.options.proxy_graphite:
            handlers["/render"] = graphite.render
        for path, handler in handlers.items():
            yield Route("GET", path, self.guard.reading(handler))
        redrive = self.guard.reading(self._messages.foresee_redrive, Permission.REDRIVE)
        yield Route("GET", "/api/redrive/{topic}/{channel}", redrive)
        peek = self.guard.looking(self._messages.peek, action=PEEK, permission=Permission.PEEK)
        yield Route("GET", "/api/peek/{topic}/{channel}", peek)
        audit = self.guard.reading(AuditApi(self._parts.recorder.audit).get, Permission.AUDIT)
        yield Route("GET", "/api/audit", audit)

    def watchings(self) -> Iterable[Route]:
        """What the pages follow; there is too much of it for the access log."""
        parts = self._parts
        api = WatchingApi(parts.gatherer, viewer_of=parts.gate.viewer, clock=parts.clock)
        handlers: dict[str, Handler] = {
            "/api/live": api.live,
            "/api/view": api.view,
            "/api/history": api.history,
            "/api/marks": api.marks,
            "/api/pipelines": api.pipelines,
            "/api/absent": api.absent,
            "/api/search": api.search,
            "/api/alerts": api.alerts,
            "/api/rules": self._rules.get,
            "/api/rules/prometheus": self._rules.prometheus,
        }
        yield Route("GET", "/api/pipelines/samples", self.guard.reading(api.samples, Permission.PEEK))
        handlers["/metrics"] = MetricsApi(parts.gatherer, parts.webhook, self.guard.statuses, parts.scrape).get
        for path, handler in handlers.items():
            yield Route("GET", path, self.guard.reading(handler), quiet=True)

    def changes(self) -> Iterable[Route]:
        """Where one path serves several actions, the least of them decides who is let in; the handler looks closer."""
        parts = self._parts
        api = ChangingApi(parts.cluster, parts.gatherer, self._messages, parts.gate, parts.recorder, clock=parts.clock)
        publish, pause, delete = Permission.PUBLISH, Permission.PAUSE, Permission.DELETE
        yield self._change("POST", "/api/topics", api.create, Permission.CREATE)
        yield self._change("POST", "/api/topics/{topic}", api.act, pause)
        yield self._change("POST", "/api/publish/{topic}", self._messages.publish, publish, max_bytes=MAX_PUBLISH_BYTES)
        yield self._change("POST", _CHANNEL, api.act, pause)
        yield self._change("DELETE", "/api/topics/{topic}", api.delete, delete)
        yield self._change("DELETE", _CHANNEL, api.delete, delete)
        yield self._change("DELETE", "/api/nodes/{node}", api.tombstone, Permission.TOMBSTONE)
        yield self._change("POST", "/api/nodes/{node}", api.drain, Permission.DRAIN)
        yield self._change("DELETE", "/api/absent/{node}", api.dismiss, Permission.DISMISS)
        yield self._change("POST", "/api/marks", api.mark, Permission.MARK)
        yield self._change("PUT", "/api/rules", self._rules.put, Permission.RULES, max_bytes=MAX_RULES_BYTES)
        silences = SilencesApi(parts.gatherer, parts.recorder, clock=parts.clock)
        yield self._change("POST", "/api/silences", silences.begin, Permission.SILENCE)
        yield self._change("DELETE", "/api/silences/{id}", silences.end, Permission.SILENCE)
        yield self._change("POST", "/api/actions", api.act_on_many, pause, max_bytes=MAX_TARGETS_BYTES)

    def _change(
        self,
        method: str,
        path: str,
        handler: VisitorHandler,
        permission: Permission,
        *,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> Route:
        wrapped = self.guard.changing(handler, action=permission, permission=permission)
        return Route(method, path, wrapped, max_body_bytes=max_bytes)

    def personal(self) -> Iterable[Route]:
        """Handlers that look at who asks by themselves."""
        parts, personal = self._parts, self.guard.personal
        config = AdminConfigApi(parts.options, parts.cluster, parts.gate)
        login = LoginApi(parts.gate, parts.recorder, base_path=parts.site.base_path)
        yield Route("GET", "/config/{option}", personal(config.get))
        yield Route(
            "PUT", "/config/{option}", personal(config.put), max_body_bytes=MAX_VALUE_BYTES, too_big="INVALID_VALUE"
        )
        yield Route("POST", "/login", self.guard.open(login.log_in), max_body_bytes=MAX_LOGIN_BYTES)
        yield Route("POST", "/logout", personal(login.log_out))


# What stands between a request and its handler

LOGIN_REQUIRED = HttpError(401, "LOGIN_REQUIRED")


def security_headers(*, image_origin: str = "") -> Headers:
    """The headers of every answer. Pages may show pictures of `image_origin`, too."""
    images = f"img-src 'self' data: {image_origin}".rstrip()
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; {images}; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return (
        ("Content-Security-Policy", policy),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    )


class RequestGuard:
    """Wraps handlers in the checks before them and the headers behind them. Owned by the table of routes."""

    def __init__(self, gate: Gate, recorder: Recorder, *, base_path: str, headers: Headers) -> None:
        self._gate = gate
        self._recorder = recorder
        self._base_path = base_path
        self._headers = headers
        self.statuses: Counter[int] = Counter()
        """Answers so far, by status."""

    def open(self, handler: Handler) -> Handler:
        """For all, without logging in."""
        return self._finished(handler)

    def page(self, handler: Handler) -> Handler:
        """For users who are logged in; others are sent to the login page."""

        async def handle(request: Request) -> Response:
            if await self._visitor(request) is None:
                return self._to_login(request)
            answer = handler(request)
            return answer if isinstance(answer, Response) else await answer

        def handle_now(request: Request) -> Response | Awaitable[Response]:
            # Nearly always it is known at once who asks, and then a page needs no task of its own.
            return handler(request) if self._gate.visitor(request) is not None else handle(request)

        return self._finished(handle_now)

    def reading(self, handler: Handler, permission: Permission | None = None) -> Handler:
        """For users who are logged in and have the permission, if one is needed."""

        async def handle(request: Request) -> Response:
            visitor = await self._known_visitor(request)
            if permission is not None:
                self._gate.check_role(visitor, permission)
            answer = handler(request)
            return answer if isinstance(answer, Response) else await answer

        return self._finished(handle)

    def changing(self, handler: VisitorHandler, *, action: str, permission: Permission) -> Handler:
        """For users with the permission. What more a body asks for, the handler checks."""
        audited = self._audited(handler, self._gate.check, action=action, permission=permission)
        return self._finished(audited, checks_site=False)  # the gate has done it, where the audit log is told

    def looking(self, handler: VisitorHandler, *, action: str, permission: Permission) -> Handler:
        """The same for what changes nothing, and is in the audit log all the same."""

        def check(_request: Request, visitor: Visitor, permission: Permission) -> None:
            self._gate.check_role(visitor, permission)

        return self._finished(self._audited(handler, check, action=action, permission=permission))

    def _audited(
        self,
        handler: VisitorHandler,
        check: Callable[[Request, Visitor, Permission], None],
        *,
        action: str,
        permission: Permission,
    ) -> Handler:
        """A handler that is told who asks; the audit log is told of visitors whom the check refuses."""

        async def handle(request: Request) -> Response:
            visitor = await self._known_visitor(request)
            try:
                check(request, visitor, permission)
            except HttpError as refusal:
                deed = AuditedAction(action=action, detail=f"{request.method} {request.path}")
                await self._recorder.refuse(request, visitor, deed, refusal.message)
                raise
            answer = handler(request, visitor)
            return answer if isinstance(answer, Response) else await answer

        return handle

    def personal(self, handler: Callable[[Request, Visitor | None], Response | Awaitable[Response]]) -> Handler:
        """For all; the handler is told who asks."""

        async def handle(request: Request) -> Response:
            answer = handler(request, await self._visitor(request))
            return answer if isinstance(answer, Response) else await answer

        return self._finished(handle)

    async def _visitor(self, request: Request) -> Visitor | None:
        return self._gate.visitor(request) or await self._gate.verify(request)

    async def _known_visitor(self, request: Request) -> Visitor:
        visitor = await self._visitor(request)
        if visitor is None:
            raise LOGIN_REQUIRED
        return visitor

    def _to_login(self, request: Request) -> Response:
        wanted = quote(request.target, safe="") if request.method == "GET" else ""
        return Response(303, headers=(("Location", f"{self._base_path}/login?next={wanted}"),))

    def _finished(self, handler: Handler, *, checks_site: bool = True) -> Handler:
        """A handler for requests that no other site made, whose failures become answers, and whose answers get the
        headers that protect a browser."""

        def handle(request: Request) -> Response | Awaitable[Response]:
            try:
                if checks_site:
                    self._gate.check_site(request)
                answer = handler(request)
            except HttpError as refusal:
                answer = refusal.response()
            return self._protected(answer) if isinstance(answer, Response) else self._later(answer)

        return handle

    async def _later(self, work: Awaitable[Response]) -> Response:
        try:
            answer = await work
        except HttpError as refusal:
            answer = refusal.response()
        except ClusterError as failure:
            answer = as_http_error(failure).response()
        return self._protected(answer)

    def _protected(self, answer: Response) -> Response:
        self.statuses[answer.status] += 1
        says_how_to_keep = any(name.lower() == "cache-control" for name, _ in answer.headers)
        caching: Headers = () if says_how_to_keep else (("Cache-Control", "no-store"),)
        return Response(
            answer.status,
            answer.body,
            content_type=answer.content_type,
            headers=(*answer.headers, *caching, *self._headers),
            file=answer.file,
        )
