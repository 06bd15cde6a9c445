from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest

from emberq.base.clock import NS_PER_MS, NS_PER_SECOND
from emberq.http.client import MAX_HEAD_BYTES, HttpClient, HttpQueryError, UnexpectedStatusError, public_url
from tests.support.certificates import Authority
from tests.support.scripted_server import ScriptedServer, answer, server_context
from tests.support.waiting import until

pytestmark = pytest.mark.loop("uvloop")


def client(*, request_timeout_ms: int = 5000, **options: Any) -> HttpClient:
    return HttpClient(
        connect_timeout_ns=2 * NS_PER_SECOND, request_timeout_ns=request_timeout_ms * NS_PER_MS, **options
    )


async def failure_of(server: ScriptedServer, **options: Any) -> str:
    """The text of the error that a GET ends in."""
    with server, pytest.raises(HttpQueryError) as raised:
        await client(**options).get(server.url)
    return str(raised.value)


# What is asked.


async def test_a_get_asks_for_the_path_and_query_of_the_url_with_nsqs_accept_header() -> None:
    with ScriptedServer(answer(b"yes")) as server:
        assert await client().get(f"{server.url}/lookup?topic=a%26b") == b"yes"
    head = server.requests[0].decode().split("\r\n")
    assert head[0] == "GET /lookup?topic=a%26b HTTP/1.1"
    assert "Accept: application/vnd.nsq; version=1.0" in head
    assert f"Host: 127.0.0.1:{server.port}" in head


async def test_a_url_without_a_path_asks_for_the_root() -> None:
    with ScriptedServer(answer(b"")) as server:
        await client().get(server.url)
    assert server.requests[0].startswith(b"GET / HTTP/1.1\r\n")


async def test_an_empty_query_string_keeps_its_question_mark() -> None:
    with ScriptedServer(answer(b"")) as server:
        await client().get(f"{server.url}/auth?")
    assert server.requests[0].startswith(b"GET /auth? HTTP/1.1\r\n")


async def test_a_post_carries_its_body_and_content_type() -> None:
    with ScriptedServer(answer(b"")) as server:
        await client().post(f"{server.url}/auth", b"{}", content_type="application/json")
    head, body = server.requests[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /auth HTTP/1.1\r\n")
    assert b"Content-Type: application/json" in head
    assert body == b"{}"


async def test_headers_of_the_caller_are_sent() -> None:
    with ScriptedServer(answer(b"")) as server:
        await client().get(server.url, headers={"Authorization": "Bearer x"})
    assert b"\r\nAuthorization: Bearer x\r\n" in server.requests[0]


async def test_credentials_in_the_url_are_sent_as_basic_authorization() -> None:
    with ScriptedServer(answer(b"")) as server:
        await client().get(f"http://joe:p%40ss@127.0.0.1:{server.port}/")
    assert b"Authorization: Basic " + base64.b64encode(b"joe:p@ss") in server.requests[0]


@pytest.mark.parametrize(
    "url", ["ftp://host/", "host:4161/lookup", "http:///path", "http://host:port/", "http://[::1/", "http://a..b/"]
)
async def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    with pytest.raises(HttpQueryError):
        await client().get(url)


@pytest.mark.parametrize("url", ["http://h/a b", "http://h/a\r\nX: y", "http://h/ü"])
async def test_a_url_with_unescaped_characters_is_refused(url: str) -> None:
    with pytest.raises(HttpQueryError, match="must be escaped"):
        await client().get(url)


async def test_a_header_cannot_smuggle_in_another() -> None:
    with pytest.raises(HttpQueryError, match="cannot be sent"):
        await client().get("http://127.0.0.1:1/", headers={"Authorization": "x\r\nY: z"})


# What is answered.


async def test_a_body_may_come_in_chunks_and_in_pieces() -> None:
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with ScriptedServer([whole[index : index + 1] for index in range(len(whole))]) as server:
        assert await client().get(server.url) == b"abcde"


async def test_a_body_of_untold_length_ends_with_the_connection() -> None:
    with ScriptedServer(b"HTTP/1.0 200 OK\r\n\r\nall of it") as server:
        assert await client().get(server.url) == b"all of it"


async def test_an_interim_answer_is_passed_over() -> None:
    with ScriptedServer(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"final")) as server:
        assert await client().get(server.url) == b"final"


async def test_what_follows_the_answer_is_not_looked_at() -> None:
    with ScriptedServer(answer(b"ok") + b"garbage") as server:
        assert await client().get(server.url) == b"ok"


async def test_json_is_decoded() -> None:
    with ScriptedServer(answer(b'{"topics":["a"]}')) as server:
        assert await client().get_json(server.url) == {"topics": ["a"]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
async def test_an_answer_that_is_not_json_is_an_error_where_json_is_wanted(body: bytes) -> None:
    with ScriptedServer(answer(body)) as server, pytest.raises(HttpQueryError, match="not JSON"):
        await client().get_json(server.url)


async def test_another_status_is_an_error_that_quotes_the_answer() -> None:
    body = b'{"message":"TOPIC_NOT_FOUND"}'
    with ScriptedServer(answer(body, status="404 Not Found")) as server, pytest.raises(UnexpectedStatusError) as raised:
        await client().get(server.url)
    assert str(raised.value) == r'got response 404 Not Found "{\"message\":\"TOPIC_NOT_FOUND\"}"'
    assert raised.value.status == 404
    assert raised.value.body == body


async def test_a_quoted_answer_stays_one_short_line() -> None:
    text = await failure_of(ScriptedServer(answer(b"\n\x1b\xff" + b"x" * 5000, status="500 Oops")))
    assert text.isprintable()
    assert len(text) < 1200


async def test_redirects_are_not_followed() -> None:
    moved = b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    assert await failure_of(ScriptedServer(moved)) == 'got response 301 Moved ""'


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"])
async def test_an_answer_cut_off_is_an_error(said: bytes) -> None:
    assert "closed before the answer was complete" in await failure_of(ScriptedServer(said))


async def test_an_answer_that_is_not_http_is_an_error() -> None:
    assert await failure_of(ScriptedServer(b"SSH-2.0-OpenSSH\r\n")) == "the answer is not HTTP"


@pytest.mark.parametrize(
    "said",
    [
        answer(b"x" * 1001),
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD_BYTES + 1001),
    ],
    ids=["told", "untold", "chunked", "head"],
)
async def test_an_answer_beyond_the_bound_is_an_error(said: bytes) -> None:
    assert await failure_of(ScriptedServer(said), max_body_bytes=1000) == "the answer is too big"


# By HTTPS.


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.path)


async def test_an_https_server_is_asked_if_it_can_be_trusted(authority: Authority) -> None:
    with ScriptedServer(answer(b"safe"), tls=server_context(authority.issue("server"))) as server:
        assert await client(tls=trusting(authority)).get(server.url) == b"safe"


async def test_an_https_server_that_nobody_vouches_for_is_told_nothing(authority: Authority) -> None:
    server = ScriptedServer(answer(b"!"), tls=server_context(authority.issue("server")))
    assert "certificate verify failed" in await failure_of(server)
    assert server.requests == []


def wants_tls(port: object) -> bytes:
    """What nsqd answers on its plain port if it serves TLS alone."""
    body = f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'
    return answer(body.encode(), status="403 Forbidden")


async def test_a_server_that_wants_tls_is_asked_again_by_https(authority: Authority) -> None:
    with (
        ScriptedServer(answer(b"safe"), tls=server_context(authority.issue("server"))) as secure,
        ScriptedServer(wants_tls(secure.port)) as plain,
    ):
        url = f"{plain.url}/pub?topic=t"
        assert await client(tls=trusting(authority)).post(url, b"body", content_type="text/plain") == b"safe"
    first, again = plain.requests[0], secure.requests[0]
    assert again == first.replace(b":%d\r\n" % plain.port, b":%d\r\n" % secure.port)


async def test_a_server_that_wants_tls_is_asked_again_only_once(authority: Authority) -> None:
    with (
        ScriptedServer(wants_tls(1), tls=server_context(authority.issue("server"))) as secure,
        ScriptedServer(wants_tls(secure.port)) as plain,
        pytest.raises(UnexpectedStatusError, match="got response 403 Forbidden"),
    ):
        await client(tls=trusting(authority)).get(plain.url)


SECRET = {"Authorization": "Bearer s3cret"}


async def test_a_secret_never_travels_in_clear_to_a_server_that_wants_tls(authority: Authority) -> None:
    with (
        ScriptedServer(answer(b"one"), answer(b"two"), tls=server_context(authority.issue("server"))) as secure,
        ScriptedServer(wants_tls(secure.port)) as plain,
    ):
        asking = client(tls=trusting(authority))
        assert await asking.get(f"{plain.url}/stats", headers=SECRET) == b"one"
        assert await asking.post(f"{plain.url}/pub", b"body", headers=SECRET) == b"two"
    (ping,) = plain.requests
    assert ping.startswith(b"GET /ping HTTP/1.1\r\n")
    assert b"s3cret" not in ping
    assert all(b"\r\nAuthorization: Bearer s3cret\r\n" in request for request in secure.requests)


async def test_a_server_that_does_not_want_tls_is_pinged_once(authority: Authority) -> None:
    with ScriptedServer(answer(b"OK"), answer(b"one"), answer(b"two")) as plain:
        asking = client(tls=trusting(authority))
        assert await asking.get(f"{plain.url}/stats", headers=SECRET) == b"one"
        assert await asking.get(f"{plain.url}/stats", headers=SECRET) == b"two"
    assert [request.split()[1] for request in plain.requests] == [b"/ping", b"/stats", b"/stats"]


async def test_a_client_that_hides_secrets_shows_none_to_a_server_in_clear(authority: Authority) -> None:
    with (
        ScriptedServer(answer(b"safe"), tls=server_context(authority.issue("server"))) as secure,
        ScriptedServer(answer(b"OK"), answer(b"one"), wants_tls(secure.port)) as plain,
    ):
        asking = client(tls=trusting(authority), hides_secrets=True)
        with pytest.raises(HttpQueryError, match="a secret is not shown in clear"):
            await asking.get(f"{plain.url}/stats", headers=SECRET)
        assert await asking.get(f"{plain.url}/info") == b"one"
        assert await asking.get(f"{plain.url}/stats", headers=SECRET) == b"safe"  # by now it wants TLS
    assert not any(b"s3cret" in request for request in plain.requests)


async def test_a_server_that_has_moved_is_asked_anew(authority: Authority) -> None:
    with ScriptedServer(tls=server_context(authority.issue("server"))) as gone:
        port = gone.port
    with (
        ScriptedServer(answer(b"safe"), tls=server_context(authority.issue("server"))) as secure,
        ScriptedServer(wants_tls(port), wants_tls(secure.port)) as plain,
    ):
        asking = client(tls=trusting(authority))
        with pytest.raises(HttpQueryError):
            await asking.get(plain.url, headers=SECRET)
        assert await asking.get(plain.url, headers=SECRET) == b"safe"


@pytest.mark.parametrize("port", [0, -1, 65536, "null", "true", '"443"', 443.5])
async def test_a_403_that_names_no_port_is_a_403(port: object) -> None:
    assert (await failure_of(ScriptedServer(wants_tls(port)))).startswith("got response 403 Forbidden")


@pytest.mark.parametrize("body", [b"", b"[]", b"no"])
async def test_a_403_that_is_not_about_tls_is_a_403(body: bytes) -> None:
    failure = await failure_of(ScriptedServer(answer(body, status="403 Forbidden")))
    assert failure.startswith("got response 403 Forbidden")


# When nothing is answered.


async def test_a_refused_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(HttpQueryError, match=r"(?i)connection refused"):
        await client().get(f"http://127.0.0.1:{port}/?secret=s3cret")


async def test_a_silent_server_is_given_up_in_time() -> None:
    assert await failure_of(ScriptedServer(), request_timeout_ms=50) == "no answer in time"


async def test_a_server_that_never_finishes_is_given_up_in_time() -> None:
    """Each byte may come in time, the whole must."""

    def drip() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nX: "
        while True:
            time.sleep(0.005)
            yield b"x"

    assert await failure_of(ScriptedServer(drip()), request_timeout_ms=50) == "no answer in time"


async def test_a_cancelled_query_ends_at_once_and_hangs_up() -> None:
    with ScriptedServer() as server:
        query = asyncio.create_task(client().get(server.url))
        await until(lambda: bool(server.requests))
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query


async def test_zero_means_no_timeout() -> None:
    with ScriptedServer(answer(b"ok")) as server:
        assert await HttpClient(connect_timeout_ns=0, request_timeout_ns=0).get(server.url) == b"ok"


# What may be shown.


def test_the_public_url_has_neither_credentials_nor_query() -> None:
    assert public_url("http://joe:pass@host:81/auth?secret=x#y") == "http://host:81/auth"
    assert public_url("https://[::1]/") == "https://[::1]/"


@pytest.mark.parametrize("said", [b"", b"garbage", answer(b"", status="500 Oops"), answer(b"x" * 2000)])
async def test_no_error_shows_the_secret_of_the_query(said: bytes) -> None:
    with ScriptedServer(said) as server, pytest.raises(HttpQueryError) as raised:
        await client(max_body_bytes=1000).get(f"{server.url}/auth?secret=s3cret")
    assert "s3cret" not in f"{raised.value} {raised.value!r}"
