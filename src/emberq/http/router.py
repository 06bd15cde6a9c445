"""From a request's head to its handler: limits, guard, routes, heads seen before.

`Admission` decides on a request before its body is read: first the guards, then the table of routes. An `Exchange` is
what comes of it: the request with its route, or with a refusal.

Routes. A route is a method and a path; a segment of the path may be a `{name}`, which stands for any one segment. A
path without such segments is found by one look-up and goes before those with. For everything else, in this order:

    the path in another spelling is a route of the method   301 (GET) or 307 (others) to the right spelling
    OPTIONS, and the path is a route of other methods       200, empty, `Allow`
    the path is a route of other methods                    405 METHOD_NOT_ALLOWED, `Allow`
    anything else                                           404 NOT_FOUND

Another spelling is: a slash at the end too many or too few, upper for lower case, empty segments, `.` and `..`. HEAD
is a method like any other: no GET route implies it.

Heads seen before. A publisher sends the same request line and headers with every message; only the body differs. What a
head means depends on nothing but its bytes, so the second time it is not parsed: it is looked up, and the body is cut
out behind it. That takes less than half the time. Only plain heads are remembered: those that found a route, state
their body's length, keep the connection open and hold no secret. Whether the request is *allowed* is asked each time,
except of the guard that judges by the head alone: it has let this head pass before.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple
from urllib.parse import quote

from emberq.http.message import JSON, NO_PARAMS, V1_HEADERS, HttpError, Request, Response, encode_json

_log: Final = logging.getLogger(__name__)

Handler = Callable[[Request], Response | Awaitable[Response]]

Guard = Callable[[Request], Response | None]
"""Checks a request before it is routed and before its body is read. A response it returns is final."""


# Bounds.

SLICE_BYTES: Final = 16 * 1024
"""Bytes handed to the parser at a time. Between two slices a connection can be held back, so this also bounds the
requests that may wait, already parsed, behind one whose answer is not ready: the shortest request has 18 bytes."""
TURN_BYTES: Final = 128 * 1024
"""Answers to one connection in one turn of the event loop; the other connections wait meanwhile."""
ANSWER_COST_BYTES: Final = 1024
"""Counted for each answer besides its body, so that a turn also ends after many small ones."""
DISCARD_BYTES: Final = 256 * 1024
"""An unwanted body is thrown away up to this size, and the connection kept; a longer one closes it."""


@dataclass(frozen=True)
class HttpLimits:
    """Bounds on a client's use of memory and time that a daemon may set."""

    max_header_bytes: int = 64 * 1024
    """Request line and headers: far above what clients and proxies send, far below what would hurt."""
    max_header_count: int = 100
    header_timeout_ms: int = 10_000
    """From a request's first byte to the end of its headers, however steadily they trickle."""
    body_timeout_ms: int = 60_000
    """From the end of the headers to the end of the body; 5 MB need less than 1 Mbit/s for that."""
    idle_timeout_ms: int = 120_000
    """Between an answer and the next request: longer than the pools of the usual clients keep a connection."""
    write_timeout_ms: int = 30_000
    """A client that reads nothing of its answer for so long is cut off."""
    linger_ms: int = 5_000
    """After a refusal, what the client still sends is read for so long, so that it sees the refusal."""


DEFAULT_LIMITS: Final = HttpLimits()


# Admission.

INTERNAL_ERROR: Final = HttpError(500, "INTERNAL_ERROR").response()
"""The answer when a handler crashed; the log says what happened."""


class Admission:
    """What decides on a request before it is answered: guards, routes, bounds. Owned by the server."""

    __slots__ = ("guard", "head_guard", "known_heads", "limits", "router")

    def __init__(
        self, router: Router, *, guard: Guard | None, limits: HttpLimits, head_guard: Guard | None = None
    ) -> None:
        self.router = router
        self.guard = guard
        self.head_guard = head_guard
        """A guard whose verdict depends on the head alone, so that a head that has passed need not be asked about."""
        self.limits = limits
        self.known_heads = HeadCache()

    def admit(self, request: Request) -> Match | Response:
        """The route that answers a request, or the refusal."""
        refusal = self.guarded(request)
        if refusal is None and self.head_guard is not None:
            refusal = _verdict(self.head_guard, request)
        if refusal is not None:
            return refusal
        return self.router.find(request.method, request.path, query_text=request.query_text)

    def guarded(self, request: Request) -> Response | None:
        """The answer of the guard that is asked each time, if it has one."""
        return None if self.guard is None else _verdict(self.guard, request)  # mostly there is none


def _verdict(guard: Guard, request: Request) -> Response | None:
    try:
        return guard(request)
    except Exception as error:  # noqa: BLE001 - the client must get an answer in any case
        return answer_to(error, request)


def answer_to(error: Exception, request: Request) -> Response:
    """What a client gets for an error that a handler or guard raised."""
    if isinstance(error, HttpError):
        return error.response()
    _log.error("the handler of %s %s crashed", request.method, request.path, exc_info=error)
    return INTERNAL_ERROR


class Ending(enum.IntEnum):
    """Whether the connection stays open after an answer, and which header says so."""

    KEEP = 0
    """It stays open; HTTP/1.1 needs no header for that."""
    CLOSE = 1
    KEEP_OLD = 2
    """It stays open, and a client of HTTP/1.0 must be told."""


# Looking up a member of an enum takes as long as a call, and these are needed for every request.
KEEP: Final = Ending.KEEP
CLOSE: Final = Ending.CLOSE


class Exchange:
    """A request that can be answered: by the route's handler, or by `refusal` if that is set."""

    __slots__ = ("ending", "has_unread_body", "refusal", "request", "route")

    def __init__(
        self,
        request: Request,
        *,
        ending: Ending,
        route: Route | None = None,
        refusal: Response | None = None,
    ) -> None:
        self.request = request
        self.route = route
        """None if none was found; then `refusal` is set."""
        self.refusal = refusal
        self.ending = ending
        self.has_unread_body = False
        """The client may still be sending. If its bytes met a closed socket, the answer could be lost."""


# The table of routes.

_SAFE_IN_PATH = "/!$&'()*+,;=:@-._~"


@dataclass(frozen=True, slots=True)
class Route:
    """A line of the table of routes."""

    method: str
    path: str
    """`/topic/create`, or with segments to be filled in: `/config/{option}`."""
    handler: Handler
    _: KW_ONLY
    max_body_bytes: int = 0
    """The longest body the handler takes. Zero: none, and a body that is sent is thrown away."""
    too_big: str = "BODY_TOO_BIG"
    """The error for a longer one, sent with status 413."""
    quiet: bool = False
    """No line in the access log: there would be too many."""


class Match(NamedTuple):
    """A route found, with the values of its `{name}` segments."""

    route: Route
    params: Mapping[str, str]


class Router:
    """The table of routes; immutable."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[tuple[str, str], Match] = {}
        """Routes without `{name}` segments."""
        self._patterns: list[_Pattern] = []
        self._by_spelling: dict[tuple[str, str], str] = {}
        """Method and path in lower case without the slash at the end, to the path as the route spells it."""
        self._methods: set[str] = set()
        for route in routes:
            self._add(route)

    @property
    def routes(self) -> list[Route]:
        """Every route, for tests that ask for all of them."""
        return [*(match.route for match in self._fixed.values()), *(pattern.route for pattern in self._patterns)]

    def _add(self, route: Route) -> None:
        self._methods.add(route.method)
        if "{" in route.path:
            self._patterns.append(_Pattern(route))
        else:
            self._fixed[route.method, route.path] = Match(route, NO_PARAMS)
            self._by_spelling[route.method, _folded(route.path)] = route.path

    def find(self, method: str, path: str, *, query_text: str = "") -> Match | Response:
        """The route, or the answer if there is none. `query_text` is only for a redirect."""
        return self._fixed.get((method, path)) or self._match(method, path) or self._refuse(method, path, query_text)

    def _match(self, method: str, path: str) -> Match | None:
        for pattern in self._patterns:
            if pattern.route.method == method:
                params = pattern.match(path)
                if params is not None:
                    return Match(pattern.route, params)
        return None

    def _refuse(self, method: str, path: str, query_text: str) -> Response:
        right_path = self._respelled(method, path)
        if right_path is not None:
            return _redirect(method, right_path, query_text)
        allowed = self._methods if path == "*" else set(self._methods_of(path))
        if not allowed:
            return HttpError(404, "NOT_FOUND").response()
        allow = ("Allow", ", ".join(sorted({*allowed, "OPTIONS"})))
        if method == "OPTIONS":
            return Response(200, headers=(allow,))
        body = encode_json({"message": "METHOD_NOT_ALLOWED"})
        return Response(405, body, content_type=JSON, headers=(*V1_HEADERS, allow))

    def _methods_of(self, path: str) -> Iterator[str]:
        for method in self._methods:
            if (method, path) in self._fixed or self._match(method, path):
                yield method

    def _respelled(self, method: str, path: str) -> str | None:
        """The path in the spelling of its route, with the values that its `{name}` segments have in `path`."""
        cleaned = _cleaned(path)
        fixed = self._by_spelling.get((method, _folded(cleaned)))
        if fixed is not None:
            return fixed
        for pattern in self._patterns:
            if pattern.route.method == method:
                filled_in = pattern.respell(cleaned)
                if filled_in is not None:
                    return filled_in
        return None


class _Pattern:
    """A route whose path has `{name}` segments."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._ends_with_slash = route.path.endswith("/")
        self._segments = route.path.strip("/").split("/")

    def match(self, path: str) -> dict[str, str] | None:
        """The values of the named segments if the path has exactly this form."""
        return self._values(path[1:].split("/"), self._all_segments())

    def respell(self, path: str) -> str | None:
        """The right spelling of a path that differs in case or the last slash; None if it differs more."""
        given = path.strip("/").split("/")
        values = self._values([segment.lower() for segment in given], [segment.lower() for segment in self._segments])
        if values is None:
            return None
        right = [mine if not _is_name(mine) else theirs for mine, theirs in zip(self._segments, given, strict=True)]
        return "/" + "/".join(right) + ("/" if self._ends_with_slash else "")

    def _all_segments(self) -> list[str]:
        return [*self._segments, ""] if self._ends_with_slash else self._segments

    @staticmethod
    def _values(given: list[str], wanted: list[str]) -> dict[str, str] | None:
        if len(given) != len(wanted):
            return None
        values: dict[str, str] = {}
        for theirs, mine in zip(given, wanted, strict=True):
            if _is_name(mine) and theirs:
                values[mine[1:-1]] = theirs
            elif theirs != mine:
                return None
        return values


def _is_name(segment: str) -> bool:
    return segment.startswith("{") and segment.endswith("}")


def _folded(path: str) -> str:
    return path.lower().rstrip("/") or "/"


def _cleaned(path: str) -> str:
    """The path without empty segments, `.` and `..`; a slash at the end stays."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return "/" + "/".join(kept) + ("/" if kept and path.endswith("/") else "")


def _redirect(method: str, path: str, query_text: str) -> Response:
    location = quote(path, safe=_SAFE_IN_PATH) + (f"?{query_text}" if query_text else "")
    return Response(301 if method == "GET" else 307, headers=(("Location", location),))


# Heads seen before.

MAX_HEAD_BYTES: Final = 1024
"""Longer heads are parsed each time."""
_MAX_HEADS: Final = 1024
"""About 3 MB. A full cache is emptied; heads in use are back at once."""
_NOT_LEARNED: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade", b"authorization", b"cookie"})
"""With one of these headers, the head alone does not decide what follows, or it may hold a secret."""


class KnownHead:
    """What a remembered head means."""

    __slots__ = ("body_bytes", "request", "route")

    def __init__(self, request: Request, route: Route, *, body_bytes: int) -> None:
        self.request = request
        """The request without its client and body."""
        self.route = route
        self.body_bytes = body_bytes


def parse_length(digits: bytes) -> int:
    """The value of a Content-Length, which the parser has checked. Spaces may follow it.

    Python refuses thousands of digits, even zeros.
    """
    return int(digits.rstrip(b" \t").lstrip(b"0") or b"0")


class HeadCache:
    """Heads seen before, by their exact bytes. Shared by all connections of a server."""

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}

    def get(self, head: bytes) -> KnownHead | None:
        """The known head of exactly these bytes."""
        return self._known.get(head)

    def learn(self, head: bytes, exchange: Exchange, headers: Mapping[bytes, bytes]) -> None:
        """Remember what the parser made of a head, if it is a plain one. Names of headers are in lower case."""
        route = exchange.route
        if route is None or exchange.refusal is not None or exchange.ending is not KEEP:
            return
        if not headers.keys().isdisjoint(_NOT_LEARNED):
            return
        if len(self._known) >= _MAX_HEADS:
            self._known.clear()
        request = exchange.request.repeated(b"", remote_address="", is_tls=False)
        self._known[head] = KnownHead(request, route, body_bytes=parse_length(headers.get(b"content-length", b"0")))
