"""What is remembered of heads, and that it makes no difference to anybody."""

from __future__ import annotations

import pytest

from emberq.http.message import Request, Response, empty, text
from emberq.http.router import Ending, Exchange, HeadCache, Route
from tests.http.conftest import StartServer
from tests.http.harness import HttpHarness
from tests.http.site import MAX_ECHO_BYTES
from tests.support.raw_http_client import RawClient, request

ROUTE = Route("GET", "/", lambda _: empty())


def exchange(target: str = "/", *, ending: Ending = Ending.KEEP, refusal: Response | None = None) -> Exchange:
    request = Request("GET", target, body=b"a body", remote_address="127.0.0.1:1234")
    return Exchange(request, ending=ending, route=ROUTE, refusal=refusal)


def test_a_head_is_found_by_its_exact_bytes() -> None:
    cache = HeadCache()
    cache.learn(b"GET /1", exchange("/1"), {b"content-length": b"7"})
    found = cache.get(b"GET /1")
    assert found is not None
    assert (found.request.target, found.route, found.body_bytes) == ("/1", ROUTE, 7)
    assert cache.get(b"GET /1 ") is None


def test_neither_body_nor_sender_is_remembered() -> None:
    cache = HeadCache()
    cache.learn(b"head", exchange(), {})
    found = cache.get(b"head")
    assert found is not None
    assert (found.request.body, found.request.remote_address) == (b"", "")


@pytest.mark.parametrize(
    ("learned", "headers"),
    [
        (exchange(), {b"authorization": b"Bearer secret"}),
        (exchange(), {b"cookie": b"session=secret"}),
        (exchange(), {b"transfer-encoding": b"chunked"}),
        (exchange(), {b"expect": b"100-continue"}),
        (exchange(ending=Ending.CLOSE), {}),
        (exchange(ending=Ending.KEEP_OLD), {}),
        (exchange(refusal=text("no", status=403)), {}),
        (Exchange(Request("GET", "/"), ending=Ending.KEEP), {}),
    ],
)
def test_only_plain_heads_are_remembered(learned: Exchange, headers: dict[bytes, bytes]) -> None:
    cache = HeadCache()
    cache.learn(b"head", learned, headers)
    assert cache.get(b"head") is None


def test_the_cache_is_bounded() -> None:
    cache = HeadCache()
    for number in range(10_000):
        cache.learn(b"%d" % number, exchange(), {})
    assert sum(cache.get(b"%d" % number) is not None for number in range(10_000)) <= 1024
    assert cache.get(b"9999") is not None


def test_a_repeated_head_is_routed_as_the_first_time(client: RawClient) -> None:
    for _ in range(3):
        assert client.ask("GET", "/config/a").json == {"option": "a"}
        assert client.ask("GET", "/config/b").json == {"option": "b"}
        assert client.ask("GET", "/query?name=x").json == "x"
        assert client.ask("POST", "/topic/create", b"form").status == 200
        assert client.ask("POST", "/echo", b"x" * (MAX_ECHO_BYTES + 1)).status == 413
        assert client.ask("GET", "/nowhere").status == 404


def test_a_repeated_head_whose_body_is_yet_to_come_waits_for_it(server: HttpHarness, client: RawClient) -> None:
    whole = request("POST", "/echo", b"hello")
    for cut in (len(whole), len(whole) - 1, len(whole) - 5, len(whole) - 7, 20):
        client.send(whole[:cut])
        server.settle()
        client.send(whole[cut:])
        assert client.read_answer().body == b"hello"


def test_a_body_without_a_length_is_not_taken_for_one_of_none(client: RawClient) -> None:
    head = request("POST", "/echo", content_length="", transfer_encoding="chunked")
    for body in (b"one", b"three", b"seventeen"):
        client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert client.read_answer().body == body


def test_every_request_is_shown_to_the_guard(start_server: StartServer) -> None:
    answers = iter([None, text("no", status=403), None])

    def guard(_request: Request) -> Response | None:
        return next(answers)

    client = start_server(guard=guard).connect()
    assert [client.ask("POST", "/echo", b"x").status for _ in range(3)] == [200, 403, 200]


def test_a_guard_of_heads_is_shown_a_head_until_it_lets_it_pass(start_server: StartServer) -> None:
    shown: list[str] = []

    def guard(request: Request) -> Response | None:
        shown.append(request.target)
        return text("no", status=403) if request.header("origin") else None

    client = start_server(head_guard=guard).connect()
    for _ in range(2):
        assert client.ask("POST", "/echo?good", b"x").status == 200
        assert client.ask("POST", "/echo?bad", b"x", origin="http://evil").status == 403
    assert shown == ["/echo?good", "/echo?bad", "/echo?bad"]
