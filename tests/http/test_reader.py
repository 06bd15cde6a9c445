"""Reading requests off a connection: heads, bodies, and what is refused of either."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from emberq.base.clock import ManualClock
from emberq.base.timers import Timers
from emberq.http.router import DISCARD_BYTES, HttpLimits
from emberq.http.server import HttpServer
from tests.http.harness import HttpHarness
from tests.http.playback import RecordingTransport
from tests.http.site import MAX_ECHO_BYTES, MAX_UPLOAD_BYTES, Site
from tests.support.raw_http_client import RawClient, chunked, cut_answers, request


def connected() -> tuple[Site, RecordingTransport]:
    """A connection without sockets, and what is behind it."""
    site = Site()
    protocol = HttpServer(site.router(), clock=ManualClock(), timers=Timers(), limits=HttpLimits()).make_protocol()
    transport = RecordingTransport(protocol, fills_up=False)
    protocol.connection_made(transport)
    return site, transport


# Heads.


@pytest.mark.parametrize("line", [b"GET /ping HTTP/2.0", b"GET /ping HTTP/0.9"])
def test_other_versions_are_not_supported(client: RawClient, line: bytes) -> None:
    client.send(line + b"\r\nHost: x\r\n\r\n")
    answer = client.read_answer()
    assert answer.error == (505, "VERSION_NOT_SUPPORTED")
    assert answer.closes


@pytest.mark.parametrize(
    "malformed",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS greeting
        b"  V2",  # an NSQ client at the wrong port
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",  # an HTTP/2 greeting
        b"GET /ping HTTP/1.1\r\nNo colon\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\x00\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_a_malformed_request_is_refused_and_is_the_last(server: HttpHarness, malformed: bytes) -> None:
    client = server.connect()
    client.send(request("GET", "/ping") + malformed + request("POST", "/topic/create"))
    client.half_close()
    first, second = cut_answers(client.read_to_end())
    assert first.body == b"OK"
    assert second.error == (400, "INVALID_REQUEST")
    assert second.closes
    assert len(server.site.seen) == 1


@pytest.mark.parametrize("length", ["0 ", "000\t ", "4 \t"])
def test_spaces_behind_a_content_length_mean_nothing(client: RawClient, length: str) -> None:
    body = b"body"[: int(length)]
    client.send(request("POST", "/echo", content_length=length) + body + request("GET", "/ping"))
    assert client.read_answer().body == body
    assert client.read_answer().body == b"OK"


def test_a_body_encoded_otherwise_than_in_chunks_is_not_supported(client: RawClient) -> None:
    client.send(request("POST", "/echo", content_length="", transfer_encoding="gzip, chunked"))
    assert client.read_answer().error == (501, "TRANSFER_ENCODING_NOT_SUPPORTED")


def test_blank_lines_before_a_request_are_ignored(client: RawClient) -> None:
    for blank in (b"\r\n", b"\r\n\r\n", b"\r\n\r\n\r\n"):
        client.send(blank)
        assert client.ask("GET", "/ping").body == b"OK"
        client.send(blank + request("POST", "/echo", b"x"))
        assert client.read_answer().body == b"x"


def test_http_1_1_needs_one_host(server: HttpHarness) -> None:
    for hosts in (b"", b"Host: a\r\nHost: b\r\n"):
        client = server.connect()
        client.send(b"GET /ping HTTP/1.1\r\n" + hosts + b"\r\n")
        answer = client.read_answer()
        assert answer.error == (400, "INVALID_REQUEST")
        assert answer.closes


def test_an_offer_of_http_2_is_ignored(client: RawClient) -> None:
    offer: dict[str, Any] = {
        "connection": "Upgrade, HTTP2-Settings",
        "upgrade": "h2c",
        "http2_settings": "AAMAAABkAAQAoAAAAAIAAAAA",
    }
    client.send(request("POST", "/echo", b"GET / HTTP/1.1\r\n\r\n", **offer) + request("GET", "/ping"))
    assert client.read_answer().body == b"GET / HTTP/1.1\r\n\r\n"
    assert client.read_answer().body == b"OK"
    assert client.ask("GET", "/config/id", **offer).json == {"option": "id"}
    assert client.ask("GET", "/ping", **(offer | {"connection": "upgrade, close"})).closes


def test_the_server_is_no_proxy(client: RawClient) -> None:
    client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n")
    answer = client.read_answer()
    assert answer.error == (404, "NOT_FOUND")
    assert answer.closes


def test_a_whole_url_as_target_is_understood(client: RawClient) -> None:
    assert client.ask("GET", "http://localhost:4151/query?name=x").json == "x"


@pytest.mark.parametrize(
    "head",
    [
        request("GET", "/ping", x_long="v" * 65_536),
        request("GET", "/ping?" + "v" * 65_536),
        b"GET /ping HTTP/1.1\r\nHost: x\r\n" + b"X: v\r\n" * 100 + b"\r\n",
    ],
)
def test_a_head_beyond_the_limits_is_refused(client: RawClient, head: bytes) -> None:
    client.send(head)
    answer = client.read_answer()
    assert answer.error == (431, "HEADER_TOO_BIG")
    assert answer.closes


@pytest.mark.parametrize(
    ("start", "more"), [(b"GET /", b"x"), (b"GET /ping HTTP/1.1\r\nX:", b"x"), (b"GET /ping HTTP/1.1\r\nX:", b" ")]
)
def test_a_head_without_end_is_refused_in_time(client: RawClient, start: bytes, more: bytes) -> None:
    client.send(start)
    for _ in range(9):
        client.send_what_fits(more * 16_384)
    assert client.read_answer().error == (431, "HEADER_TOO_BIG")


def test_trailers_without_end_are_refused_in_time(client: RawClient) -> None:
    head = request("POST", "/echo", content_length="", transfer_encoding="chunked")
    client.send(head + b"1\r\nx\r\n0\r\nX: ")
    for _ in range(9):
        client.send_what_fits(b"x" * 16_384)
    assert client.read_answer().error == (431, "HEADER_TOO_BIG")


# Bodies.


def test_a_body_in_chunks_arrives_whole(client: RawClient) -> None:
    head = request("POST", "/echo", content_length="", transfer_encoding="chunked")
    client.send(head + chunked(b"he", b"l", b"lo", trailers=b"X-Sum: 5\r\nX-Who: me\r\n"))
    assert client.read_answer().body == b"hello"
    assert client.ask("GET", "/who").json[2] is None


def test_a_long_body_arrives_whole(server: HttpHarness, client: RawClient) -> None:
    body = bytes(range(256)) * (MAX_UPLOAD_BYTES // 256)
    assert client.ask("POST", "/upload", body).json == {"bytes": MAX_UPLOAD_BYTES}
    assert server.site.seen[0].body == body


@pytest.mark.parametrize("piece_bytes", [1, 999, 5000, 70_000])
def test_long_bodies_arrive_in_any_pieces_one_behind_the_other(piece_bytes: int) -> None:
    wanted = [bytes([index]) * (3 * MAX_UPLOAD_BYTES // 20 + index) for index in range(3)]
    stream = b"".join(request("POST", "/upload", body) for body in wanted) + request("GET", "/ping")
    server, transport = connected()
    for start in range(0, len(stream), piece_bytes):
        transport.get_protocol().data_received(stream[start : start + piece_bytes])
    answers = cut_answers(transport.written)
    assert [answer.json for answer in answers[:3]] == [{"bytes": len(body)} for body in wanted]
    assert answers[3].body == b"OK"
    assert [seen.body for seen in server.seen[:3]] == wanted


def test_a_body_that_comes_in_very_small_pieces_takes_no_more_than_its_size_and_half() -> None:
    body = b"x" * 200_000
    _, transport = connected()
    head, _, _ = request("POST", "/upload", body).partition(b"x")
    tracemalloc.start()
    try:
        transport.get_protocol().data_received(head)
        for _ in range(len(body) - 1):
            transport.get_protocol().data_received(b"x")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1.5 * len(body)
    transport.get_protocol().data_received(b"x")
    assert cut_answers(transport.written)[0].json == {"bytes": len(body)}


def test_a_body_that_nobody_reads_is_thrown_away(server: HttpHarness, client: RawClient) -> None:
    assert client.ask("POST", "/topic/create", b"topic=form").status == 200
    assert client.ask("POST", "/topic/create", b"topic=mrof").status == 200
    assert [seen.body for seen in server.site.seen] == [b"", b""]


def test_a_long_body_that_nobody_reads_costs_the_connection(client: RawClient) -> None:
    answer = client.ask("POST", "/topic/create", b"x" * (DISCARD_BYTES + 1))
    assert (answer.status, answer.closes) == (200, True)
    assert client.is_closed_by_server()


def test_a_body_longer_than_the_route_takes_is_refused(server: HttpHarness, client: RawClient) -> None:
    assert client.ask("POST", "/echo", b"x" * MAX_ECHO_BYTES).status == 200
    assert client.ask("POST", "/echo", b"x" * (MAX_ECHO_BYTES + 1)).error == (413, "MSG_TOO_BIG")
    assert client.ask("POST", "/echo", b"x").status == 200
    assert len(server.site.seen) == 2


def test_a_longer_body_in_chunks_is_refused(client: RawClient) -> None:
    head = request("POST", "/echo", content_length="", transfer_encoding="chunked")
    client.send(head + chunked(b"x" * MAX_ECHO_BYTES, b"x"))
    assert client.read_answer().error == (413, "MSG_TOO_BIG")
    client.send(head + chunked(b"x" * MAX_ECHO_BYTES))
    assert client.read_answer().status == 200


def test_a_much_longer_body_is_refused_before_it_is_sent(server: HttpHarness, client: RawClient) -> None:
    client.send(request("POST", "/upload", content_length=str(MAX_UPLOAD_BYTES + 1)))
    answer = client.read_answer()
    assert answer.error == (413, "BODY_TOO_BIG")
    assert answer.closes


def test_a_client_that_sends_a_much_longer_body_all_the_same_sees_the_refusal(client: RawClient) -> None:
    assert client.ask("POST", "/upload", b"x" * (8 * MAX_UPLOAD_BYTES)).error == (413, "BODY_TOO_BIG")
    assert client.is_closed_by_server()


def test_endless_chunks_are_refused_when_there_are_too_many(client: RawClient) -> None:
    client.send(request("POST", "/upload", content_length="", transfer_encoding="chunked"))
    for _ in range(MAX_UPLOAD_BYTES // 65536 + 1):
        client.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    answer = client.read_answer()
    assert answer.error == (413, "BODY_TOO_BIG")
    assert answer.closes


def test_a_body_that_breaks_off_is_an_internal_error(server: HttpHarness, client: RawClient) -> None:
    client.send(request("POST", "/echo", b"hello")[:-1])
    client.half_close()
    answer = client.read_answer()
    assert answer.error == (500, "INTERNAL_ERROR")
    assert answer.closes
    assert client.is_closed_by_server()
    assert not server.site.seen


# 100-continue.


def test_a_client_that_asks_is_told_to_continue(client: RawClient) -> None:
    client.send(request("POST", "/echo", content_length="5", expect="100-continue"))
    interim = client.read_answer()
    assert (interim.status, interim.reason, interim.headers) == (100, "Continue", {})
    client.send(b"hello")
    assert client.read_answer().body == b"hello"


def test_a_client_that_asks_but_does_not_wait_is_answered_once(client: RawClient) -> None:
    client.send(request("POST", "/echo", b"hello", expect="100-continue"))
    assert client.read_answer().body == b"hello"


def test_the_permission_to_continue_does_not_overtake_an_answer(server: HttpHarness, client: RawClient) -> None:
    client.send(request("GET", "/gate") + request("POST", "/echo", content_length="2", expect="100-continue"))
    server.settle()
    server.open_gate()
    assert client.read_answer().body == b"through"
    assert client.read_answer().status == 100
    client.send(b"hi")
    assert client.read_answer().body == b"hi"


def test_a_refused_client_is_not_told_to_continue(client: RawClient) -> None:
    client.send(request("POST", "/nowhere", content_length="5", expect="100-continue"))
    answer = client.read_answer()
    assert answer.error == (404, "NOT_FOUND")
    assert answer.closes


def test_a_too_long_body_is_refused_instead_of_permitted(client: RawClient) -> None:
    client.send(request("POST", "/echo", content_length=str(MAX_ECHO_BYTES + 1), expect="100-continue"))
    answer = client.read_answer()
    assert answer.error == (413, "MSG_TOO_BIG")
    assert answer.closes


def test_any_other_expectation_is_disappointed(client: RawClient) -> None:
    client.send(request("POST", "/echo", b"hi", expect="a-miracle"))
    assert client.read_answer().error == (417, "EXPECTATION_FAILED")


def test_a_length_may_begin_with_very_many_zeros(server: HttpHarness) -> None:
    client = server.connect()
    for _ in range(2):  # the second time the head is known
        client.send(request("POST", "/echo", b"hello", content_length="0" * 5000 + "5"))
        assert client.read_answer().body == b"hello"
    client.send(request("POST", "/echo", content_length="0" * 5000 + "9" * 18))
    assert client.read_answer().error == (413, "MSG_TOO_BIG")
