"""Which handler answers a request, and what is answered when none does.

A route is a method and a path; a segment of the path may be a `{name}`, which stands for any one segment. A path
without such segments is found by one look-up and goes before those with. For everything else, in this order:

    the path in another spelling is a route of the method   301 (GET) or 307 (others) to the right spelling
    OPTIONS, and the path is a route of other methods       200, empty, `Allow`
    the path is a route of other methods                    405 METHOD_NOT_ALLOWED, `Allow`
    anything else                                           404 NOT_FOUND

Another spelling is: a slash at the end too many or too few, upper for lower case, empty segments, `.` and `..`. HEAD
is a method like any other: no GET route implies it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple
from urllib.parse import quote

from emberq.http.message import JSON, NO_PARAMS, V1_HEADERS, HttpError, Request, Response, encode_json

Handler = Callable[[Request], Response | Awaitable[Response]]

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
    """The longest body the handler takes. Zero: it takes none, and one that is sent is thrown away."""
    too_big: str = "BODY_TOO_BIG"
    """The error for a longer one, sent with status 413."""
    quiet: bool = False
    """Answers are not worth a line of the access log: there are too many of them."""


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

    def _add(self, route: Route) -> None:
        self._methods.add(route.method)
        if "{" in route.path:
            self._patterns.append(_Pattern(route))
        else:
            self._fixed[route.method, route.path] = Match(route, NO_PARAMS)
            self._by_spelling[route.method, _folded(route.path)] = route.path

    def find(self, method: str, path: str, *, query_text: str = "") -> Match | Response:
        """The route, or the answer if there is none. The query is only passed on to a redirect."""
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
        """The path of the route that was meant, with the values that its `{name}` segments have in `path`."""
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
        """The values of the named segments if the path is of this form, letter by letter."""
        return self._values(path[1:].split("/"), self._all_segments())

    def respell(self, path: str) -> str | None:
        """A path of this form but for case and the last slash, put right."""
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
    """Without empty segments, `.` and `..`; a slash at the end stays."""
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
