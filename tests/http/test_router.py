"""Which route answers, and what is answered when none does."""

from __future__ import annotations

import pytest

from emberq.http.message import Request, Response, empty
from emberq.http.router import Match, Route, Router


def answer(_request: Request) -> Response:
    return empty()


ROUTER = Router(
    [
        Route("GET", "/", answer),
        Route("GET", "/ping", answer),
        Route("POST", "/pub", answer),
        Route("GET", "/debug/pprof/", answer),
        Route("GET", "/config/{option}", answer),
        Route("PUT", "/config/{option}", answer),
        Route("GET", "/config/all", answer),
        Route("GET", "/topics/{topic}/{channel}", answer),
        Route("GET", "/files/{name}/", answer),
    ]
)


def found(method: str, path: str) -> Match:
    match = ROUTER.find(method, path)
    assert isinstance(match, Match)
    return match


def refused(method: str, path: str, query_text: str = "") -> Response:
    refusal = ROUTER.find(method, path, query_text=query_text)
    assert isinstance(refusal, Response)
    return refusal


@pytest.mark.parametrize(
    ("method", "path", "route", "params"),
    [
        ("GET", "/", "/", {}),
        ("GET", "/ping", "/ping", {}),
        ("POST", "/pub", "/pub", {}),
        ("GET", "/debug/pprof/", "/debug/pprof/", {}),
        ("GET", "/config/id", "/config/{option}", {"option": "id"}),
        ("PUT", "/config/id", "/config/{option}", {"option": "id"}),
        ("GET", "/config/all", "/config/all", {}),
        ("PUT", "/config/all", "/config/{option}", {"option": "all"}),
        ("GET", "/topics/Some/other one", "/topics/{topic}/{channel}", {"topic": "Some", "channel": "other one"}),
        ("GET", "/files/x/", "/files/{name}/", {"name": "x"}),
    ],
)
def test_a_route_is_found(method: str, path: str, route: str, params: dict[str, str]) -> None:
    match = found(method, path)
    assert (match.route.method, match.route.path, match.params) == (method, route, params)


@pytest.mark.parametrize("path", ["/nothing", "/pin", "/ping/x", "/config", "/config/", "/config/a/b", "/topics//c"])
def test_an_unknown_path_is_not_found(path: str) -> None:
    refusal = refused("GET", path)
    assert (refusal.status, refusal.body) == (404, b'{"message":"NOT_FOUND"}')


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/ping", "GET, OPTIONS"),
        ("GET", "/pub", "OPTIONS, POST"),
        ("HEAD", "/ping", "GET, OPTIONS"),
        ("DELETE", "/config/id", "GET, OPTIONS, PUT"),
        ("POST", "/config/all", "GET, OPTIONS, PUT"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(method: str, path: str, allow: str) -> None:
    refusal = refused(method, path)
    assert (refusal.status, refusal.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert ("Allow", allow) in refusal.headers
    assert ("X-NSQ-Content-Type", "nsq; version=1.0") in refusal.headers


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/ping", "GET, OPTIONS"),
        ("/pub", "OPTIONS, POST"),
        ("/config/x", "GET, OPTIONS, PUT"),
        ("*", "GET, OPTIONS, POST, PUT"),
    ],
)
def test_options_lists_the_methods(path: str, allow: str) -> None:
    answer = refused("OPTIONS", path)
    assert (answer.status, answer.body, answer.headers) == (200, b"", (("Allow", allow),))


def test_options_of_an_unknown_path_is_not_found() -> None:
    assert refused("OPTIONS", "/nothing").status == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("POST", "/pub/", 307, "/pub"),
        ("GET", "/debug/pprof", 301, "/debug/pprof/"),
        ("GET", "/PING", 301, "/ping"),
        ("POST", "/Pub", 307, "/pub"),
        ("GET", "//ping", 301, "/ping"),
        ("GET", "/./ping//", 301, "/ping"),
        ("GET", "/x/../ping", 301, "/ping"),
        ("GET", "/../../ping", 301, "/ping"),
        ("GET", "//", 301, "/"),
        ("GET", "/Config/Id", 301, "/config/Id"),
        ("PUT", "/config/id/", 307, "/config/id"),
        ("GET", "/CONFIG/ALL", 301, "/config/all"),
        ("GET", "/topics//a//b", 301, "/topics/a/b"),
        ("GET", "/files/x", 301, "/files/x/"),
        ("GET", "/config/a b\u00e9?/", 301, "/config/a%20b%C3%A9%3F"),
    ],
)
def test_another_spelling_is_redirected_to_the_right_one(method: str, path: str, status: int, location: str) -> None:
    refusal = refused(method, path)
    assert (refusal.status, refusal.body, refusal.headers) == (status, b"", (("Location", location),))


def test_a_redirect_keeps_the_query() -> None:
    assert refused("POST", "/PUB/", "topic=t%23ephemeral&x").headers == (("Location", "/pub?topic=t%23ephemeral&x"),)


@pytest.mark.parametrize("path", ["/PING", "/ping/", "//ping"])
def test_another_spelling_with_a_wrong_method_is_not_found(path: str) -> None:
    assert refused("POST", path).status == 404
