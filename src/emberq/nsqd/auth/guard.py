"""The authorization servers guard the HTTP API too, if `--auth-http-api` asks for it.

A request shows its secret as `http.access` says, and the servers are asked about it just as for AUTH. What a request
needs follows from its route:

    look at the daemon         /ping, /info, /stats, /metrics                nothing
    publish, change a topic    /pub, /mpub, /topic/…                         `publish` on the topic
    change or peek a channel   /channel/…                                    `subscribe` on the topic and channel
    read all of a topic        /journal, /journal/read, /topic/peek          `subscribe` on the topic and any channel
    give up messages           /channel/create with `dead_letter_topic`      also `publish` on that topic
    everything else            PUT /config/…, /debug/…, routes added later   an entry for `.*` with both permissions

    401 UNAUTHORIZED   no secret was shown, or no server knows it
    403 FORBIDDEN      the secret's authorization does not reach that far

**With --http-secret-file**, a secret of that file is an operator's: it opens everything, and no server is asked about
it. Any other secret is for the servers to judge, on the routes that need an authorization. What needs nothing without
the file (/info, /stats, /metrics) needs a secret of the file with it; /ping alone stays open.

Answers of the servers are remembered until they expire, so that a publisher costs them one query and not one per
request. A failed query is remembered for a moment, so that a client that tries again and again does not burden them.
Digests of secrets are remembered, not the secrets. Requests that wait for the same answer share one query.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import os
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field, replace

from emberq.base.clock import NS_PER_SECOND, Clock
from emberq.http.access import SecretFile, shown_secret, unauthorized
from emberq.http.message import HttpError, Request, Response
from emberq.http.router import Handler, Route
from emberq.nsqd.auth.authorizer import AuthFailedError, Authorizer, AuthPeer
from emberq.nsqd.auth.permission import Authorization, AuthPermission

MAX_REMEMBERED = 1024
"""Secrets whose authorization is remembered, and as many whose query failed; the oldest make room for new ones.
The two are kept apart, so that a flood of wrong secrets does not push out the right ones."""
FAILURE_TTL_NS = NS_PER_SECOND
"""How long a failed query is not repeated: long enough to break a flood, too short to be noticed after a repair."""
MAX_QUERIES = 32
"""Queries under way at once; the authorization servers serve others too."""


class Needed(enum.Enum):
    """What a request needs an authorization for."""

    NOTHING = enum.auto()
    PUBLISH = enum.auto()
    SUBSCRIBE = enum.auto()
    SUBSCRIBE_ANYWHERE = enum.auto()
    """Subscribe to the topic, whatever its channels: what is read is in all of them."""
    EVERYTHING = enum.auto()


_CHANGES = ("create", "delete", "empty", "pause", "unpause")

NEEDED: dict[tuple[str, str], Needed] = {
    **{("GET", path): Needed.NOTHING for path in ("/ping", "/info", "/stats", "/metrics")},
    **{("POST", path): Needed.PUBLISH for path in ("/pub", "/mpub")},
    **{("POST", f"/topic/{change}"): Needed.PUBLISH for change in _CHANGES},
    **{("POST", f"/channel/{change}"): Needed.SUBSCRIBE for change in _CHANGES},
    ("POST", "/channel/seek"): Needed.SUBSCRIBE,
    **{("GET", path): Needed.SUBSCRIBE for path in ("/channel/peek", "/channel/policy")},
    **{("GET", path): Needed.SUBSCRIBE_ANYWHERE for path in ("/topic/peek", "/journal", "/journal/read")},
}
"""By method and path of a route; a route that is not listed needs EVERYTHING."""

UNAUTHORIZED = unauthorized("nsqd")
FORBIDDEN = HttpError(403, "FORBIDDEN").response()


@dataclass(frozen=True, slots=True)
class _Visitor:
    """The sender of a request, as it is remembered. The servers may decide by address, so it is part of the key."""

    digest: bytes
    peer: AuthPeer


@dataclass(slots=True)
class _Memory:
    """Authorizations by visitor, until they expire; at most MAX_REMEMBERED, the oldest leave first."""

    _known: dict[_Visitor, Authorization] = field(default_factory=dict)

    def get(self, visitor: _Visitor, *, now_ns: int) -> Authorization | None:
        authorization = self._known.get(visitor)
        if authorization is not None and authorization.is_expired(now_ns):
            del self._known[visitor]
            return None
        return authorization

    def put(self, visitor: _Visitor, authorization: Authorization) -> None:
        self._known.pop(visitor, None)
        while len(self._known) >= MAX_REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[visitor] = authorization


class ApiGuard:
    """Lets requests through to their handlers, or refuses them. Owned by the daemon, which closes it."""

    def __init__(self, authorizer: Authorizer, *, clock: Clock, secrets: SecretFile | None = None) -> None:
        """`secrets` are those of operators, which open everything."""
        self._authorizer = authorizer
        self._clock = clock
        self._secrets = secrets
        self._granted = _Memory()
        self._failed = _Memory()
        """Failed queries, as authorizations that allow nothing."""
        self._queries: dict[_Visitor, asyncio.Task[Authorization]] = {}
        """Queries under way. All requests that need the same answer wait for one query."""
        self._places = asyncio.Semaphore(MAX_QUERIES)
        self._digest_key = os.urandom(hashlib.blake2b.MAX_KEY_SIZE)

    def protect(self, routes: Iterable[Route]) -> list[Route]:
        """The same routes, behind the guard where they need an authorization."""
        return [self._protected(route) for route in routes]

    def decides_on(self, request: Request) -> bool:
        """Whether the servers are asked if this request is allowed, and not the file of secrets."""
        needed = NEEDED.get((request.method, request.path), Needed.EVERYTHING)
        return needed is not Needed.NOTHING and bool(shown_secret(request))

    async def close(self) -> None:
        """End the queries under way; requests that wait for them are not answered."""
        queries = list(self._queries.values())
        for query in queries:
            query.cancel()
        await asyncio.gather(*queries, return_exceptions=True)

    def _protected(self, route: Route) -> Route:
        needed = NEEDED.get((route.method, route.path), Needed.EVERYTHING)
        if needed is Needed.NOTHING:
            return route
        handler = route.handler

        def handle(request: Request) -> Response | Awaitable[Response]:
            secret = shown_secret(request)
            if not secret:
                return UNAUTHORIZED
            if self._secrets is not None and self._secrets.is_shown_by(request):
                return handler(request)
            visitor = self._visitor(request, secret)
            authorization = self._remembered(visitor)
            if authorization is None:
                return self._ask_first(visitor, secret, needed, request, handler)
            return _refusal(authorization, needed, request) or handler(request)

        return replace(route, handler=handle)

    def _visitor(self, request: Request, secret: bytes) -> _Visitor:
        digest = hashlib.blake2b(secret, key=self._digest_key, digest_size=16).digest()
        return _Visitor(digest, AuthPeer(remote_ip=_ip_of(request.remote_address), is_tls=request.is_tls))

    def _remembered(self, visitor: _Visitor) -> Authorization | None:
        now_ns = self._clock.monotonic_ns()
        return self._granted.get(visitor, now_ns=now_ns) or self._failed.get(visitor, now_ns=now_ns)

    async def _ask_first(
        self, visitor: _Visitor, secret: bytes, needed: Needed, request: Request, handler: Handler
    ) -> Response:
        query = self._queries.get(visitor)
        if query is None:
            query = asyncio.create_task(self._ask(visitor, secret))
            self._queries[visitor] = query
        authorization = await asyncio.shield(query)  # other requests may wait for it when this one is given up
        response = _refusal(authorization, needed, request) or handler(request)
        return response if isinstance(response, Response) else await response

    async def _ask(self, visitor: _Visitor, secret: bytes) -> Authorization:
        try:
            async with self._places:
                authorization = await self._authorizer.authorize(secret, visitor.peer)
            self._granted.put(visitor, authorization)
        except AuthFailedError:
            authorization = _nothing(expires_ns=self._clock.monotonic_ns() + FAILURE_TTL_NS)
            self._failed.put(visitor, authorization)
        finally:
            del self._queries[visitor]
        return authorization


def _nothing(*, expires_ns: int) -> Authorization:
    return Authorization(identity="", identity_url="", entries=(), expires_ns=expires_ns)


def _refusal(authorization: Authorization, needed: Needed, request: Request) -> Response | None:
    """The answer to a request that is not authorized; None if it is."""
    if not authorization.entries:
        return UNAUTHORIZED
    return None if _suffices(authorization, needed, request) else FORBIDDEN


def _suffices(authorization: Authorization, needed: Needed, request: Request) -> bool:
    """Whether the authorization covers the request. One that names no topic passes: its handler refuses it."""
    if needed is Needed.EVERYTHING:
        return authorization.covers_everything
    query = request.query()
    topic, dead_letter_topic = query.get("topic"), query.get("dead_letter_topic")
    if topic is None:
        return True
    if dead_letter_topic is not None and not authorization.permits(
        AuthPermission.PUBLISH, topic=dead_letter_topic, channel=""
    ):
        return False
    if needed is Needed.PUBLISH:
        return authorization.permits(AuthPermission.PUBLISH, topic=topic, channel="")
    # A channel that is named where none is needed must not widen or narrow the check.
    channel = "" if needed is Needed.SUBSCRIBE_ANYWHERE else query.get("channel") or ""
    return authorization.permits(AuthPermission.SUBSCRIBE, topic=topic, channel=channel)


def _ip_of(remote_address: str) -> str:
    """The address without its port; empty for a Unix socket."""
    return remote_address.rpartition(":")[0].strip("[]")
